//! The buffers of a model's weights: tensors of all layers of a kind in one.

use reference::paths::deepseek_v4::{LayerType, RouterType};
use safetensors::Dtype;

use super::bf16;
use super::projections::Tiles;
use super::weights::Source;
use ulplab_operations::ops::Buffer;
use ulplab_operations::ops::stored::Matrices;

/// The names of buffers of matrices, and of those of their scales.
macro_rules! with_scales {
    ($($name:ident)*) => { [$([stringify!($name), concat!(stringify!($name), "_scales")]),*] };
}
const MATRICES: [[&str; 2]; 19] = with_scales!(
    head q_a q_b kv o_a o_b gate gate_up down shared_gate_up shared_down csa_kv csa_gate hca_kv hca_gate index_kv index_gate
    index_q index_heads
);

const COMPRESSOR: &str = "self_attn.compressor";
const INDEXER: &str = "self_attn.compressor.indexer";

impl Source {
    /// Every weight.
    pub fn buffers(&self) -> Result<Vec<Buffer>, String> {
        let config = &self.config;
        let (vocabulary, hidden, inner) = (config.vocab_size, config.hidden_size, config.moe_intermediate_size);
        let (heads, dim, low) = (config.num_attention_heads, config.head_dim, config.q_lora_rank);
        let (experts, chosen) = (config.n_routed_experts, config.num_experts_per_tok);
        let (groups, rank, streams) = (config.o_groups, config.o_lora_rank, config.hc_mult);
        let (index_heads, index_dim) = (config.index_n_heads, config.index_head_dim);
        let (mus, wide) = (2 * streams + streams * streams, streams * hidden);
        let of_group = heads * dim / groups;
        let all: Vec<usize> = (0..config.num_hidden_layers).collect();
        let (sparse, heavy) = (self.layers(LayerType::Sparse), self.layers(LayerType::Heavy));
        let rate = |layers: &[usize]| layers.first().map_or(Ok(0), |layer| self.rate(*layer));
        let (sparse_rate, heavy_rate) = (rate(&sparse)?, rate(&heavy)?);
        let mut buffers = vec![
            self.embedding(&[vocabulary, hidden])?,
            self.whole("head_fn", "model.hc_head.hc_fn", &[streams, wide])?,
            self.whole("head_base", "model.hc_head.hc_base", &[streams])?,
            self.whole("head_scale", "model.hc_head.hc_scale", &[1])?,
            self.whole("final_norm", "model.norm.weight", &[hidden])?,
            Buffer::f32("ones", &[dim], &vec![1.0; dim]),
        ];
        buffers.extend(self.matrices("head", &["lm_head.weight".into()], &[vocabulary, hidden], &[vocabulary])?);
        let of_layers: [(&'static str, &str, &[usize]); 20] = [
            ("attn_fn", "attn_hc.fn", &[mus, wide]),
            ("attn_base", "attn_hc.base", &[mus]),
            ("attn_scale", "attn_hc.scale", &[3]),
            ("attn_norm", "input_layernorm.weight", &[hidden]),
            ("q_a", "self_attn.q_a_proj.weight", &[low, hidden]),
            ("q_norm", "self_attn.q_a_norm.weight", &[low]),
            ("q_b", "self_attn.q_b_proj.weight", &[heads * dim, low]),
            ("kv", "self_attn.kv_proj.weight", &[dim, hidden]),
            ("kv_norm", "self_attn.kv_norm.weight", &[dim]),
            ("sinks", "self_attn.sinks", &[heads]),
            ("o_a", "self_attn.o_a_proj.weight", &[groups * rank, of_group]),
            ("o_b", "self_attn.o_b_proj.weight", &[hidden, groups * rank]),
            ("moe_fn", "ffn_hc.fn", &[mus, wide]),
            ("moe_base", "ffn_hc.base", &[mus]),
            ("moe_scale", "ffn_hc.scale", &[3]),
            ("moe_norm", "post_attention_layernorm.weight", &[hidden]),
            ("gate", "mlp.gate.weight", &[experts, hidden]),
            ("gate_up", "mlp.experts.gate_up_proj", &[experts, 2 * inner, hidden]),
            ("down", "mlp.experts.down_proj", &[experts, hidden, inner]),
            ("shared_down", "mlp.shared_experts.down_proj.weight", &[hidden, inner]),
        ];
        for (name, tensor, shape) in of_layers {
            buffers.extend(match name {
                "gate_up" | "down" if self.storages.sixteen => bf16::experts(self, name == "gate_up")?,
                "shared_down" if self.storages.sixteen => Vec::new(),
                name => self.stacked(name, &all, tensor, shape)?,
            });
        }
        let main = [sparse_rate, 2 * dim, dim];
        let index = [sparse_rate, 2 * index_dim, index_dim];
        let of_compressors = [
            (["csa_kv", "csa_gate", "csa_ape", "csa_norm"], COMPRESSOR, &sparse, main),
            (
                ["hca_kv", "hca_gate", "hca_ape", "hca_norm"],
                COMPRESSOR,
                &heavy,
                [heavy_rate, dim, dim],
            ),
            (
                ["index_kv", "index_gate", "index_ape", "index_norm"],
                INDEXER,
                &sparse,
                index,
            ),
        ];
        for ([kv, gate, ape, norm], prefix, layers, [rate, width, dim]) in of_compressors {
            let tensors: [(&'static str, &str, &[usize]); 4] = [
                (kv, "kv_proj.weight", &[width, hidden]),
                (gate, "gate_proj.weight", &[width, hidden]),
                (ape, "position_bias", &[rate, width]),
                (norm, "kv_norm.weight", &[dim]),
            ];
            for (name, tensor, shape) in tensors {
                buffers.extend(self.stacked(name, layers, &format!("{prefix}.{tensor}"), shape)?);
            }
        }
        for (name, tensor, shape) in [
            ("index_q", "q_b_proj.weight", [index_heads * index_dim, low]),
            ("index_heads", "scorer.weights_proj.weight", [index_heads, hidden]),
        ] {
            buffers.extend(self.stacked(name, &sparse, &format!("{INDEXER}.{tensor}"), &shape)?);
        }
        if !self.storages.sixteen {
            let shared: Vec<String> = all.iter().flat_map(|layer| shared_halves(*layer)).collect();
            buffers.extend(self.matrices("shared_gate_up", &shared, &[inner, hidden], &[all.len(), 2 * inner])?);
        }
        buffers.extend(self.routers(experts, chosen, vocabulary)?);
        Ok(buffers)
    }

    /// Biases of learned routers and tables of hash routers; a layer of the other kind has zeros in their place.
    fn routers(&self, experts: usize, chosen: usize, vocabulary: usize) -> Result<[Buffer; 2], String> {
        let (mut biases, mut tables) = (Vec::new(), Vec::new());
        let kinds = &self.config.mlp_layer_types;
        for (layer, kind) in kinds.iter().enumerate() {
            let name = |tensor: &str| format!("model.layers.{layer}.mlp.gate.{tensor}");
            if *kind == RouterType::Hash {
                biases.resize(biases.len() + experts, 0.0);
                tables.extend(self.integers(&name("tid2eid"), &[vocabulary, chosen])?);
            } else {
                let mut bias = self.floats(&name("e_score_correction_bias"), &[experts])?;
                if self.repeats() {
                    // All experts are as likely as each other.
                    bias.fill(0.0);
                }
                biases.extend(bias);
            }
        }
        let hashes = kinds.iter().filter(|kind| **kind == RouterType::Hash).count();
        // A launch needs a table to name, even if it reads none.
        tables.resize(hashes.max(1) * vocabulary * chosen, 0);
        let bytes = tables.iter().flat_map(|expert| expert.to_le_bytes()).collect();
        Ok([
            Buffer::f32("bias", &[kinds.len(), experts], &biases),
            Buffer::input("table", Dtype::I32, &[hashes.max(1), vocabulary, chosen], bytes),
        ])
    }

    /// Vectors of tokens. If rows repeat, the vectors are enlarged, so that the outputs of layers do not make rows equal: equal rows would
    /// go to the same experts.
    fn embedding(&self, shape: &[usize; 2]) -> Result<Buffer, String> {
        let mut values = self.floats("model.embed_tokens.weight", &self.made(shape))?;
        if self.repeats() {
            values.iter_mut().for_each(|x| *x *= 32.0);
        }
        Ok(of_shape(
            &Buffer::f32("embedding", &self.made(shape), &values),
            &shape[..1],
        ))
    }

    fn whole(&self, name: &'static str, tensor: &str, shape: &[usize]) -> Result<Buffer, String> {
        let made = self.made(shape);
        let buffer = Buffer::f32(name, &made, &self.floats(tensor, &made)?);
        Ok(of_shape(&buffer, &shape[..shape.len() - 1]))
    }

    fn stacked(
        &self,
        name: &'static str,
        layers: &[usize],
        tensor: &str,
        shape: &[usize],
    ) -> Result<Vec<Buffer>, String> {
        let names = layers.iter().map(|layer| format!("model.layers.{layer}.{tensor}"));
        let tensors: Vec<String> = names.collect();
        let shapes = [&[layers.len()], shape].concat();
        if self.storages.of(tensor).is_some() {
            return self.matrices(name, &tensors, shape, &shapes[..shapes.len() - 1]);
        }
        let mut values = Vec::new();
        for tensor in &tensors {
            values.extend(self.floats(tensor, shape)?);
        }
        Ok(vec![Buffer::f32(name, &shapes, &values)])
    }

    /// Tensors of which a buffer is made, and the shape of each: all of them, or the first rows of the first.
    pub fn parts<'a>(&self, tensors: &'a [String], shape: &[usize]) -> (&'a [String], Vec<usize>) {
        match self.repeats() {
            true => (&tensors[..1], self.made(shape)),
            false => (tensors, shape.to_vec()),
        }
    }

    /// Buffers of matrices of one shape, of their scales, and of the numbers above these if they are of routed experts. A tensor
    /// has this shape; `lead` are the dimensions of all of them together, except the last.
    fn matrices(
        &self,
        name: &'static str,
        tensors: &[String],
        shape: &[usize],
        lead: &[usize],
    ) -> Result<Vec<Buffer>, String> {
        let names = MATRICES.into_iter().find(|[codes, _]| *codes == name);
        let names = names.ok_or_else(|| format!("no buffer of matrices is called '{name}'"))?;
        let (all_tensors, (tensors, shape)) = (tensors, self.parts(tensors, shape));
        if let Some(of) = tensors.first().and_then(|tensor| self.storages.projection(tensor)) {
            let all = tensors.iter().map(|tensor| self.tiles(tensor, of));
            let buffers = Tiles::buffers(&all.collect::<Result<Vec<_>, _>>()?, names);
            let shapes = of.shapes(&self.config, all_tensors.len());
            let buffers = buffers.iter().zip(shapes);
            return Ok(buffers.map(|(buffer, shape)| of_shape(buffer, &shape[..2])).collect());
        }
        let storage = tensors.first().and_then(|tensor| self.storages.of(tensor));
        let mut all = Matrices::new(storage.unwrap_or(self.storages.dense), shape[shape.len() - 1]);
        for tensor in tensors {
            all.append(self.stored(tensor, &shape)?);
        }
        let made = if self.repeats() {
            &shape[..shape.len() - 1]
        } else {
            lead
        };
        let mut buffers = Vec::from(all.buffers(names, made)?);
        // A placeholder for the scales of plain numbers keeps its shape.
        let coded = buffers.iter_mut().filter(|buffer| buffer.shape.len() > made.len());
        coded.for_each(|buffer| *buffer = of_shape(buffer, lead));
        let level = [("gate_up", "gate_up_level"), ("down", "down_level")];
        if let Some((_, level)) = level.into_iter().find(|(of, _)| *of == name) {
            buffers.push(all.level_buffer(level, &lead[..lead.len() - 1]));
        }
        Ok(buffers)
    }
}

/// The buffer with other dimensions before its columns: what it has repeats.
pub(super) fn of_shape(buffer: &Buffer, lead: &[usize]) -> Buffer {
    let cols = buffer.shape.last().copied();
    Buffer {
        shape: lead.iter().copied().chain(cols).collect(),
        ..buffer.clone()
    }
}

/// The two halves of a shared expert's first matrix.
pub(super) fn shared_halves(layer: usize) -> [String; 2] {
    ["gate", "up"].map(|half| format!("model.layers.{layer}.mlp.shared_experts.{half}_proj.weight"))
}
