//! Device buffers of a model's weights. Tensors of the same kind are joined over all layers into one buffer.

use reference::paths::deepseek_v4::{Config, LayerType, RouterType};
use safetensors::Dtype;

use super::bf16;
use super::projections::Tiles;
use super::weights::Source;
use ulplab_operations::ops::stored::Matrices;
use ulplab_operations::ops::{Buffer, lasting};

/// Pairs of a buffer name and a tensor name of the checkpoint. These tensors exist once per model; the tensors of the next
/// constants exist once per layer, per compressor of a sparse (CSA) or heavy (HCA) layer, and per indexer.
const WHOLE: &str = "head_fn model.hc_head.hc_fn, head_base model.hc_head.hc_base, head_scale model.hc_head.hc_scale, \
    final_norm model.norm.weight";
const OF_LAYERS: &str = "attn_fn attn_hc.fn, attn_base attn_hc.base, attn_scale attn_hc.scale, attn_norm input_layernorm.weight, \
    q_a self_attn.q_a_proj.weight, q_norm self_attn.q_a_norm.weight, q_b self_attn.q_b_proj.weight, kv self_attn.kv_proj.weight, \
    kv_norm self_attn.kv_norm.weight, sinks self_attn.sinks, o_a self_attn.o_a_proj.weight, o_b self_attn.o_b_proj.weight, \
    moe_fn ffn_hc.fn, moe_base ffn_hc.base, moe_scale ffn_hc.scale, moe_norm post_attention_layernorm.weight, \
    gate mlp.gate.weight, gate_up mlp.experts.gate_up_proj, down mlp.experts.down_proj, \
    shared_down mlp.shared_experts.down_proj.weight";
const OF_SPARSE: &str =
    "csa_kv kv_proj.weight, csa_gate gate_proj.weight, csa_ape position_bias, csa_norm kv_norm.weight";
const OF_HEAVY: &str =
    "hca_kv kv_proj.weight, hca_gate gate_proj.weight, hca_ape position_bias, hca_norm kv_norm.weight";
const OF_INDEXERS: &str = "index_kv indexer.kv_proj.weight, index_gate indexer.gate_proj.weight, \
    index_ape indexer.position_bias, index_norm indexer.kv_norm.weight, index_q indexer.q_b_proj.weight, \
    index_heads indexer.scorer.weights_proj.weight";

fn pairs(list: &'static str) -> impl Iterator<Item = (&'static str, &'static str)> {
    list.split(", ").filter_map(|pair| pair.split_once(' '))
}

/// Indices of the heavy (HCA) and of the sparse (CSA) layer in a model with one layer of each type.
const HEAVY: usize = 0;
const SPARSE: usize = 1;

impl Source {
    /// Returns the buffers of all weights.
    pub fn buffers(&self) -> Result<Vec<Buffer>, String> {
        // Look up the tensor shapes in a configuration with the same sizes, but with only one layer of each type.
        let of_kinds = Config {
            num_hidden_layers: 2,
            layer_types: vec![LayerType::Heavy, LayerType::Sparse],
            mlp_layer_types: vec![RouterType::Hash, RouterType::Learned],
            ..self.config.clone()
        };
        let of_kinds = of_kinds.tensors();
        let shape = |tensor: &str| -> &[usize] {
            let found = of_kinds.iter().find(|spec| spec.name == tensor);
            &found.expect("a layer of each kind has all tensors").shape
        };
        let of_layer = |kind: usize, tensor: &str| shape(&format!("model.layers.{kind}.{tensor}"));
        let all: Vec<usize> = (0..self.config.num_hidden_layers).collect();
        let (sparse, heavy) = (self.layers(LayerType::Sparse), self.layers(LayerType::Heavy));
        let dim = self.config.head_dim;
        let mut buffers = vec![self.embedding(shape("model.embed_tokens.weight"))?];
        for (name, tensor) in pairs(WHOLE) {
            buffers.push(self.whole(name, tensor, shape(tensor))?);
        }
        buffers.push(Buffer::f32("ones", &[dim], &vec![1.0; dim]));
        let head = shape("lm_head.weight");
        buffers.extend(self.matrices("head", &["lm_head.weight".into()], head, &head[..1])?);
        for (name, tensor) in pairs(OF_LAYERS) {
            buffers.extend(match name {
                "gate_up" | "down" if self.storages.sixteen => bf16::experts(self, name == "gate_up")?,
                "shared_down" if self.storages.sixteen => Vec::new(),
                name => self.stacked(name, &all, tensor, of_layer(SPARSE, tensor))?,
            });
        }
        let of_compressors = [
            (OF_SPARSE, &sparse, SPARSE),
            (OF_HEAVY, &heavy, HEAVY),
            (OF_INDEXERS, &sparse, SPARSE),
        ];
        for (list, layers, kind) in of_compressors {
            for (name, tensor) in pairs(list) {
                let tensor = format!("self_attn.compressor.{tensor}");
                buffers.extend(self.stacked(name, layers, &tensor, of_layer(kind, &tensor))?);
            }
        }
        if !self.storages.sixteen {
            let shared: Vec<String> = all.iter().flat_map(|layer| shared_halves(*layer)).collect();
            let half = shape(&shared_halves(SPARSE)[0]);
            buffers.extend(self.matrices("shared_gate_up", &shared, half, &[all.len(), 2 * half[0]])?);
        }
        buffers.extend(self.routers(of_layer(HEAVY, "mlp.gate.tid2eid"))?);
        Ok(buffers)
    }

    /// Returns the biases of learned routers, with zeros for layers with hash routers, and the tables of hash routers.
    fn routers(&self, table: &[usize]) -> Result<[Buffer; 2], String> {
        let (mut biases, mut tables) = (Vec::new(), Vec::new());
        let (kinds, experts) = (&self.config.mlp_layer_types, self.config.n_routed_experts);
        for (layer, kind) in kinds.iter().enumerate() {
            let name = |tensor: &str| format!("model.layers.{layer}.mlp.gate.{tensor}");
            if *kind == RouterType::Hash {
                biases.resize(biases.len() + experts, 0.0);
                tables.extend(self.integers(&name("tid2eid"), table)?);
            } else {
                let mut bias = self.floats(&name("e_score_correction_bias"), &[experts])?;
                if self.repeats() {
                    // Set the bias to 0, so that all experts are equally likely.
                    bias.fill(0.0);
                }
                biases.extend(bias);
            }
        }
        let hashes = kinds.iter().filter(|kind| **kind == RouterType::Hash).count();
        // A launch needs a table as an argument, even if no layer reads it.
        tables.resize(hashes.max(1) * table.iter().product::<usize>(), 0);
        let bytes = tables.iter().flat_map(|expert| expert.to_le_bytes()).collect();
        Ok([
            Buffer::f32("bias", &[kinds.len(), experts], &biases),
            Buffer::input("table", Dtype::I32, &[&[hashes.max(1)], table].concat(), bytes),
        ])
    }

    /// Returns the embedding, scaled up if rows of the weights repeat. Without this factor, the outputs of layers would make all
    /// rows of the batch nearly equal, and all rows would go to the same experts.
    fn embedding(&self, shape: &[usize]) -> Result<Buffer, String> {
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

    /// Returns the tensors from which a buffer is filled, and the shape of each: all `tensors`, or only the first rows of the
    /// first tensor if the model repeats rows to save memory.
    pub fn parts<'a>(&self, tensors: &'a [String], shape: &[usize]) -> (&'a [String], Vec<usize>) {
        match self.repeats() {
            true => (&tensors[..1], self.made(shape)),
            false => (tensors, shape.to_vec()),
        }
    }

    /// Returns the buffers of matrices of one shape, of their scales, and of the global scales if the matrices are routed
    /// experts. `shape` is the shape of one tensor; `lead` is the shape of all tensors together, without the last dimension.
    fn matrices(
        &self,
        name: &'static str,
        tensors: &[String],
        shape: &[usize],
        lead: &[usize],
    ) -> Result<Vec<Buffer>, String> {
        let names = [name, lasting(&format!("{name}_scales"))];
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
        // Unquantized matrices have no scales: the placeholder buffer of their scales keeps its shape.
        let coded = buffers.iter_mut().filter(|buffer| buffer.shape.len() > made.len());
        coded.for_each(|buffer| *buffer = of_shape(buffer, lead));
        if ["gate_up", "down"].contains(&name) {
            let level = lasting(&format!("{name}_level"));
            buffers.push(all.level_buffer(level, &lead[..lead.len() - 1]));
        }
        Ok(buffers)
    }
}

/// Returns the buffer with the shape `[lead.., columns of the buffer]`. If this shape has more elements than the buffer, the
/// contents repeat.
pub(super) fn of_shape(buffer: &Buffer, lead: &[usize]) -> Buffer {
    let cols = buffer.shape.last().copied();
    Buffer {
        shape: lead.iter().copied().chain(cols).collect(),
        ..buffer.clone()
    }
}

/// Returns the names of the two halves of a shared expert's first matrix: gate and up.
pub(super) fn shared_halves(layer: usize) -> [String; 2] {
    ["gate", "up"].map(|half| format!("model.layers.{layer}.mlp.shared_experts.{half}_proj.weight"))
}
