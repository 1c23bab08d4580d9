//! A model's weights as kernels read them: tensors of all layers of a kind in one buffer. Matrices may be stored as bfloat16 or as
//! codes with scales; then the model is the one whose weights are what is read of them.

use std::path::Path;

use reference::paths::deepseek_v4::{Config, LayerType, Model, RopeByLayer, RopeParameters, RouterType};
use reference::paths::{Scalar, Weights};
use reference::weights::Safetensors;
use safetensors::Dtype;

use super::super::stored::Matrices;
use super::super::{Buffer, Data};
use super::formats::Storages;
use super::projections::{Projection, Tiles};
use crate::input;

/// The names of buffers of matrices, and of those of their scales.
macro_rules! with_scales {
    ($($name:ident)*) => { [$([stringify!($name), concat!(stringify!($name), "_scales")]),*] };
}
const MATRICES: [[&str; 2]; 19] = with_scales!(
    head q_a q_b kv o_a o_b gate gate_up down shared_gate_up shared_down csa_kv csa_gate hca_kv hca_gate index_kv index_gate
    index_q index_heads
);

/// A model with the source of its weights.
pub(super) struct Source {
    pub config: Config,
    pub storages: Storages,
    tensors: Tensors,
}

enum Tensors {
    Files(Box<Safetensors>),
    /// Drawn with this seed.
    Drawn(u64),
}

impl Source {
    /// Opens a checkpoint. Weights that are to be E4M3 with f32 scales keep their codes if they are stored so.
    pub fn open(folder: &Path, storages: Storages) -> Result<Self, String> {
        let file = folder.join("config.json");
        let text = input::text(&file).map_err(|error| error.to_string())?;
        let config = serde_json::from_str(&text).map_err(|error| format!("{}: {error}", file.display()))?;
        let files = Safetensors::open(folder).map_err(|error| error.to_string())?;
        Ok(Self {
            config,
            storages,
            tensors: Tensors::Files(Box::new(files)),
        })
    }

    /// Whether it is the small model.
    pub fn is_drawn(&self) -> bool {
        matches!(self.tensors, Tensors::Drawn(_))
    }

    /// A small model of drawn weights, with layers of all types and sizes that differ from each other; its keys have so many channels,
    /// of which so many are turned, and index keys so many.
    pub fn drawn(seed: u64, [head_dim, qk_rope_head_dim, index_head_dim]: [usize; 3], storages: Storages) -> Self {
        let rope = |theta| RopeParameters {
            rope_type: "default".into(),
            rope_theta: theta,
            factor: None,
            original_max_position_embeddings: None,
            beta_fast: None,
            beta_slow: None,
        };
        let (heavy, sparse) = (LayerType::Heavy, LayerType::Sparse);
        // In eight bits, rows and columns of most products have more than one block of 128, the last of which is not whole.
        let [hidden_size, q_lora_rank, o_lora_rank] = match storages.activations {
            None => [40, 20, 14],
            Some(_) => [144, 160, 136],
        };
        let rates = [("compressed_sparse_attention", 3), ("heavily_compressed_attention", 11)];
        let config = Config {
            vocab_size: 33,
            hidden_size,
            moe_intermediate_size: 12,
            num_hidden_layers: 6,
            num_attention_heads: 6,
            head_dim,
            qk_rope_head_dim,
            q_lora_rank,
            num_experts_per_tok: 3,
            n_routed_experts: 7,
            routed_scaling_factor: 1.5,
            swiglu_limit: 10.0,
            sliding_window: 5,
            o_groups: 2,
            o_lora_rank,
            index_n_heads: 3,
            index_head_dim,
            index_topk: 4,
            hc_mult: super::STREAMS,
            hc_sinkhorn_iters: 20,
            hc_eps: super::EPS.into(),
            rms_norm_eps: super::EPS.into(),
            compress_rates: rates.map(|(name, rate)| (name.to_string(), rate)).into(),
            rope_parameters: RopeByLayer {
                main: rope(1e4),
                compress: rope(1.6e5),
            },
            layer_types: vec![heavy, heavy, sparse, heavy, sparse, heavy],
            mlp_layer_types: [vec![RouterType::Hash], vec![RouterType::Learned; 5]].concat(),
            max_position_embeddings: None,
        };
        Self {
            config,
            storages,
            tensors: Tensors::Drawn(seed),
        }
    }

    /// The reference's model.
    pub fn model<T: Scalar>(&self) -> Result<Model<T>, String> {
        Model::load(self.config.clone(), &mut &*self)
    }

    /// Layers of a type.
    pub fn layers(&self, kind: LayerType) -> Vec<usize> {
        let all = self.config.layer_types.iter().enumerate();
        all.filter(|(_, other)| **other == kind)
            .map(|(layer, _)| layer)
            .collect()
    }

    /// Every weight.
    pub fn buffers(&self) -> Result<Vec<Buffer>, String> {
        let Config {
            vocab_size: vocabulary,
            hidden_size: hidden,
            moe_intermediate_size: inner,
            num_attention_heads: heads,
            head_dim: dim,
            q_lora_rank: low,
            n_routed_experts: experts,
            num_experts_per_tok: chosen,
            o_groups: groups,
            o_lora_rank: rank,
            index_n_heads: index_heads,
            index_head_dim: index_dim,
            hc_mult: streams,
            ..
        } = self.config;
        let (mus, wide) = (2 * streams + streams * streams, streams * hidden);
        let all: Vec<usize> = (0..self.config.num_hidden_layers).collect();
        let (sparse, heavy) = (self.layers(LayerType::Sparse), self.layers(LayerType::Heavy));
        let rate = |layers: &[usize]| layers.first().map_or(Ok(0), |layer| self.rate(*layer));
        let (sparse_rate, heavy_rate) = (rate(&sparse)?, rate(&heavy)?);
        let mut buffers = vec![
            self.whole("embedding", "model.embed_tokens.weight", &[vocabulary, hidden])?,
            self.whole("head_fn", "model.hc_head.hc_fn", &[streams, wide])?,
            self.whole("head_base", "model.hc_head.hc_base", &[streams])?,
            self.whole("head_scale", "model.hc_head.hc_scale", &[1])?,
            self.whole("final_norm", "model.norm.weight", &[hidden])?,
            Buffer::f32("ones", &[dim], &vec![1.0; dim]),
        ];
        buffers.extend(self.matrices("head", &["lm_head.weight".into()], &[vocabulary, hidden], &[vocabulary])?);
        let compressor = "self_attn.compressor";
        let tables: [(&[usize], &[(&'static str, String, Vec<usize>)]); 3] = [
            (
                &all,
                &[
                    ("attn_fn", "attn_hc.fn".into(), vec![mus, wide]),
                    ("attn_base", "attn_hc.base".into(), vec![mus]),
                    ("attn_scale", "attn_hc.scale".into(), vec![3]),
                    ("attn_norm", "input_layernorm.weight".into(), vec![hidden]),
                    ("q_a", "self_attn.q_a_proj.weight".into(), vec![low, hidden]),
                    ("q_norm", "self_attn.q_a_norm.weight".into(), vec![low]),
                    ("q_b", "self_attn.q_b_proj.weight".into(), vec![heads * dim, low]),
                    ("kv", "self_attn.kv_proj.weight".into(), vec![dim, hidden]),
                    ("kv_norm", "self_attn.kv_norm.weight".into(), vec![dim]),
                    ("sinks", "self_attn.sinks".into(), vec![heads]),
                    (
                        "o_a",
                        "self_attn.o_a_proj.weight".into(),
                        vec![groups * rank, heads * dim / groups],
                    ),
                    ("o_b", "self_attn.o_b_proj.weight".into(), vec![hidden, groups * rank]),
                    ("moe_fn", "ffn_hc.fn".into(), vec![mus, wide]),
                    ("moe_base", "ffn_hc.base".into(), vec![mus]),
                    ("moe_scale", "ffn_hc.scale".into(), vec![3]),
                    ("moe_norm", "post_attention_layernorm.weight".into(), vec![hidden]),
                    ("gate", "mlp.gate.weight".into(), vec![experts, hidden]),
                    (
                        "gate_up",
                        "mlp.experts.gate_up_proj".into(),
                        vec![experts, 2 * inner, hidden],
                    ),
                    ("down", "mlp.experts.down_proj".into(), vec![experts, hidden, inner]),
                    (
                        "shared_down",
                        "mlp.shared_experts.down_proj.weight".into(),
                        vec![hidden, inner],
                    ),
                ],
            ),
            (
                &sparse,
                &compressors(
                    ["csa_kv", "csa_gate", "csa_ape", "csa_norm"],
                    compressor,
                    [sparse_rate, 2 * dim, dim, hidden],
                ),
            ),
            (
                &heavy,
                &compressors(
                    ["hca_kv", "hca_gate", "hca_ape", "hca_norm"],
                    compressor,
                    [heavy_rate, dim, dim, hidden],
                ),
            ),
        ];
        for (layers, tensors) in tables {
            for (name, tensor, shape) in tensors {
                buffers.extend(self.stacked(name, layers, tensor, shape)?);
            }
        }
        let indexer = format!("{compressor}.indexer");
        let index = compressors(
            ["index_kv", "index_gate", "index_ape", "index_norm"],
            &indexer,
            [sparse_rate, 2 * index_dim, index_dim, hidden],
        );
        let others = [
            (
                "index_q",
                format!("{indexer}.q_b_proj.weight"),
                vec![index_heads * index_dim, low],
            ),
            (
                "index_heads",
                format!("{indexer}.scorer.weights_proj.weight"),
                vec![index_heads, hidden],
            ),
        ];
        for (name, tensor, shape) in index.iter().chain(&others) {
            buffers.extend(self.stacked(name, &sparse, tensor, shape)?);
        }
        let halves =
            |layer| ["gate", "up"].map(|half| format!("model.layers.{layer}.mlp.shared_experts.{half}_proj.weight"));
        let shared: Vec<String> = all.iter().flat_map(halves).collect();
        buffers.extend(self.matrices("shared_gate_up", &shared, &[inner, hidden], &[all.len(), 2 * inner])?);
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
                biases.extend(self.floats(&name("e_score_correction_bias"), &[experts])?);
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

    /// Tokens per entry of a layer's compressor.
    pub fn rate(&self, layer: usize) -> Result<usize, String> {
        let rate = self.config.compress_rate(layer);
        rate.ok_or_else(|| format!("layer {layer} has no compressor; kernels know layers with one only"))
    }

    fn whole(&self, name: &'static str, tensor: &str, shape: &[usize]) -> Result<Buffer, String> {
        Ok(Buffer::f32(name, shape, &self.floats(tensor, shape)?))
    }

    fn stacked(
        &self,
        name: &'static str,
        layers: &[usize],
        tensor: &str,
        shape: &[usize],
    ) -> Result<Vec<Buffer>, String> {
        let tensors: Vec<String> = layers
            .iter()
            .map(|layer| format!("model.layers.{layer}.{tensor}"))
            .collect();
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

    /// Buffers of matrices of one shape, of their scales, and of the numbers above these if they are of routed experts. A tensor
    /// has this shape; `lead` are the dimensions of all of them together, but for the last.
    fn matrices(
        &self,
        name: &'static str,
        tensors: &[String],
        shape: &[usize],
        lead: &[usize],
    ) -> Result<Vec<Buffer>, String> {
        let names = MATRICES.into_iter().find(|[codes, _]| *codes == name);
        let names = names.ok_or_else(|| format!("no buffer of matrices is called '{name}'"))?;
        if let Some(of) = tensors.first().and_then(|tensor| self.storages.projection(tensor)) {
            let all = tensors.iter().map(|tensor| self.tiles(tensor, of));
            return Ok(Tiles::buffers(&all.collect::<Result<Vec<_>, _>>()?, names));
        }
        let storage = tensors.first().and_then(|tensor| self.storages.of(tensor));
        let mut all = Matrices::new(storage.unwrap_or(self.storages.dense), shape[shape.len() - 1]);
        for tensor in tensors {
            all.append(self.stored(tensor, shape)?);
        }
        let mut buffers = Vec::from(all.buffers(names, lead)?);
        let level = [("gate_up", "gate_up_level"), ("down", "down_level")];
        if let Some((_, level)) = level.into_iter().find(|(of, _)| *of == name) {
            buffers.push(all.level_buffer(level, &lead[..lead.len() - 1]));
        }
        Ok(buffers)
    }

    /// The matrices of a tensor as they are stored.
    fn stored(&self, name: &str, shape: &[usize]) -> Result<Matrices, String> {
        let storage = self.storages.of(name).ok_or_else(|| format!("'{name}' is no matrix"))?;
        let [.., rows, cols] = *shape else {
            return Err(format!("'{name}' has shape {shape:?}, expected rows and columns"));
        };
        let values = self.numbers(name, shape)?;
        let mut matrices = Matrices::new(storage, cols);
        if let (Tensors::Files(files), Some(width)) = (&self.tensors, storage.e4m3_columns()) {
            let own = files.e4m3_rows(name, shape, width).map_err(|error| error.to_string())?;
            if let Some((codes, scales)) = own {
                matrices.push_coded(codes, &scales, &values, rows);
                return Ok(matrices);
            }
        }
        for matrix in values.chunks_exact(rows * cols) {
            matrices.push(matrix).map_err(|why| format!("'{name}': {why}"))?;
        }
        Ok(matrices)
    }

    /// The weights of a product in eight bits.
    pub fn tiles(&self, name: &str, of: Projection) -> Result<Tiles, String> {
        let shape @ [groups, rows, cols] = of.shape(&self.config);
        Ok(Tiles::of(shape, &self.numbers(name, &[groups * rows, cols])?))
    }

    /// The values of a tensor: what is read of it, if it is stored as codes.
    pub fn floats(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>, String> {
        match (self.storages.projection(name), self.storages.of(name)) {
            (Some(of), _) => Ok(self.tiles(name, of)?.values),
            (None, Some(_)) => Ok(self.stored(name, shape)?.values),
            (None, None) => self.numbers(name, shape),
        }
    }

    /// The values of a tensor before it is stored.
    fn numbers(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>, String> {
        match &self.tensors {
            Tensors::Files(files) => files.floats(name, shape).map_err(|error| error.to_string()),
            Tensors::Drawn(seed) => Ok(drawn(*seed, name, shape)),
        }
    }

    fn integers(&self, name: &str, shape: &[usize]) -> Result<Vec<u32>, String> {
        let experts = self.config.n_routed_experts as u32;
        match &self.tensors {
            Tensors::Files(files) => files.integers(name, shape, experts).map_err(|error| error.to_string()),
            Tensors::Drawn(seed) => {
                let none = |_: &str| Err(String::new());
                let bytes = Data::new(*seed, &none).bytes(name, shape.iter().product::<usize>());
                // The experts of a token differ.
                let chosen = shape[1];
                let expert = |(at, _): (usize, &u8)| {
                    let first = usize::from(bytes[at / chosen * chosen]);
                    (first + at % chosen) as u32 % experts
                };
                Ok(bytes.iter().enumerate().map(expert).collect())
            }
        }
    }
}

/// Values of drawn weights: rows of projections have about the length that leaves magnitudes as they are; norms and
/// scales are about 1.
fn drawn(seed: u64, name: &str, shape: &[usize]) -> Vec<f32> {
    let none = |_: &str| Err(String::new());
    let mut values = Data::new(seed, &none).normal(name, shape.iter().product());
    let (mean, deviation) = match shape {
        [_] if name.ends_with("base") || name.ends_with("sinks") || name.ends_with("bias") => (0.0, 0.5),
        [_] => (1.0, 0.2),
        _ if name.ends_with("embed_tokens.weight") || name.ends_with("position_bias") => (0.0, 1.0),
        [.., cols] => (0.0, (*cols as f32).sqrt().recip()),
        [] => (0.0, 1.0),
    };
    values.iter_mut().for_each(|x| *x = mean + deviation * *x);
    values
}

/// The tensors of a compressor: buffers, and names and shapes for `[rate, width, dim, hidden]`.
fn compressors(
    [kv, gate, ape, norm]: [&'static str; 4],
    prefix: &str,
    [rate, width, dim, hidden]: [usize; 4],
) -> [(&'static str, String, Vec<usize>); 4] {
    let name = |tensor: &str| format!("{prefix}.{tensor}");
    [
        (kv, name("kv_proj.weight"), vec![width, hidden]),
        (gate, name("gate_proj.weight"), vec![width, hidden]),
        (ape, name("position_bias"), vec![rate, width]),
        (norm, name("kv_norm.weight"), vec![dim]),
    ]
}

impl Weights for &Source {
    type Error = String;

    fn floats(&mut self, name: &str, shape: &[usize]) -> Result<Vec<f32>, String> {
        Source::floats(self, name, shape)
    }

    fn integers(&mut self, name: &str, shape: &[usize]) -> Result<Vec<u32>, String> {
        Source::integers(self, name, shape)
    }
}
