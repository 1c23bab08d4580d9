//! A model's weights as kernels read them. Matrices may be stored as bfloat16 or as codes with scales; the model's weights are
//! then the decoded values.

use std::path::Path;

use reference::paths::deepseek_v4::{Config, LayerType, Model};
use reference::paths::{Scalar, Weights};
use reference::weights::Safetensors;

use super::formats::Storages;
use super::large;
use super::projections::{Projection, Tiles};
use ulplab_core::input;
use ulplab_operations::ops::Data;
use ulplab_operations::ops::stored::Matrices;

/// A model's configuration, and the source of its weights.
pub(super) struct Source {
    pub config: Config,
    pub storages: Storages,
    tensors: Tensors,
}

enum Tensors {
    Files(Box<Safetensors>),
    /// Random weights, drawn with this seed.
    Drawn(u64),
    /// Random weights, generated with this seed for the first rows of each buffer; the other rows repeat these. This allows
    /// models that do not fit into host memory.
    Repeated(u64),
}

/// Number of random elements that are generated for a buffer whose rows repeat. For every number of columns of a weight, this
/// number of elements is a multiple of 128 rows, the height of a tile.
const DRAWN: usize = 1 << 22;
/// Number of layers with separate experts, if rows repeat. Other layers reuse these experts, because the experts of all layers
/// do not fit into device memory.
const BANKS: usize = 8;

impl Source {
    /// Opens a checkpoint. If the checkpoint stores a weight as E4M3 with f32 scales and kernels need this format, the stored
    /// codes are used: quantizing the decoded values again could change the codes.
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

    /// True for a small model with random weights.
    pub fn is_drawn(&self) -> bool {
        matches!(self.tensors, Tensors::Drawn(_))
    }

    /// Creates a small model with random weights, layers of all types, and sizes that differ from each other. The array holds the
    /// number of channels of a key, the number of these channels that RoPE rotates, and the number of channels of an index key.
    /// `wide` selects the model with more channels and experts.
    pub fn drawn(
        seed: u64,
        [head_dim, qk_rope_head_dim, index_head_dim]: [usize; 3],
        storages: Storages,
        wide: bool,
    ) -> Self {
        let (heavy, sparse) = (LayerType::Heavy, LayerType::Sparse);
        let layers = if wide { 3 } else { 6 };
        // With 8-bit activations, rows and columns of most products have more than one block of 128, and the last block is
        // partial.
        let [hidden_size, q_lora_rank, o_lora_rank] = match storages.activations {
            None => [40, 20, 14],
            // With this number of channels, all warps of the launches that mix channels in the variant `served` have work.
            Some(_) if wide => [4096, 160, 136],
            // Use more channels than one warp of the variant `served` mixes.
            Some(_) if storages.sixteen => [288, 160, 136],
            Some(_) => [144, 160, 136],
        };
        // With 16-bit activations, sizes are those that the fast kernels support: whole blocks of MXFP4, DeepSeek's compression
        // rates and number of index heads, and more experts than one thread block scores.
        let ([moe_intermediate_size, n_routed_experts, index_n_heads], rates) = match storages.sixteen {
            false => ([12, 7, 3], [3, 11]),
            // Use more experts than the 32 lanes of the warp that selects experts.
            true if wide => ([32, 40, 64], [4, 128]),
            true => ([96, 19, 64], [4, 128]),
        };
        let kinds = [heavy, heavy, sparse, heavy, sparse, heavy];
        let config = Config {
            vocab_size: 33,
            hidden_size,
            moe_intermediate_size,
            num_attention_heads: 6,
            head_dim,
            qk_rope_head_dim,
            q_lora_rank,
            num_experts_per_tok: 3,
            n_routed_experts,
            sliding_window: 5,
            o_groups: 2,
            o_lora_rank,
            index_n_heads,
            index_head_dim,
            index_topk: 4,
            compress_rates: large::rates(rates),
            ..large::config_of(kinds[..layers].to_vec(), 1)
        };
        Self {
            config,
            storages,
            tensors: Tensors::Drawn(seed),
        }
    }

    /// Creates a model with random weights and this configuration. Only the first rows of each buffer are generated; all other
    /// rows repeat them.
    pub fn repeated(seed: u64, config: Config, storages: Storages) -> Self {
        let tensors = Tensors::Repeated(seed);
        Self {
            config,
            storages,
            tensors,
        }
    }

    /// True if the rows of weights repeat, to save memory. Outputs of such a model are not compared with the reference.
    pub fn repeats(&self) -> bool {
        matches!(self.tensors, Tensors::Repeated(_))
    }

    /// Returns the number of layers with separate experts. The other layers reuse these experts in turn.
    pub fn banks(&self) -> usize {
        let layers = self.config.num_hidden_layers;
        if self.repeats() { layers.min(BANKS) } else { layers }
    }

    /// Returns the shape `[rows, columns]` that is generated for a tensor of shape `shape`: fewer rows if rows repeat, else
    /// `shape`.
    pub fn made(&self, shape: &[usize]) -> Vec<usize> {
        let (cols, lead) = shape.split_last().expect("a tensor has dimensions");
        match lead.is_empty() || !self.repeats() {
            true => shape.to_vec(),
            false => vec![lead.iter().product::<usize>().min((DRAWN / cols).max(1)), *cols],
        }
    }

    /// Loads the reference's model.
    pub fn model<T: Scalar>(&self) -> Result<Model<T>, String> {
        Model::load(self.config.clone(), &mut &*self)
    }

    /// Returns the layers of a type.
    pub fn layers(&self, kind: LayerType) -> Vec<usize> {
        let all = self.config.layer_types.iter().enumerate();
        all.filter(|(_, other)| **other == kind)
            .map(|(layer, _)| layer)
            .collect()
    }

    /// Returns the tokens per entry of a layer's compressor.
    pub fn rate(&self, layer: usize) -> Result<usize, String> {
        let rate = self.config.compress_rate(layer);
        rate.ok_or_else(|| format!("layer {layer} has no compressor; kernels know layers with one only"))
    }

    /// Returns the matrices of a tensor in the storage format that kernels read, with their decoded values.
    pub fn stored(&self, name: &str, shape: &[usize]) -> Result<Matrices, String> {
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

    /// Returns the weights of a projection with 8-bit inputs, as tiles of codes with scales.
    pub fn tiles(&self, name: &str, of: Projection) -> Result<Tiles, String> {
        let [groups, rows, cols] = of.shape(&self.config);
        let [groups, rows] = if self.repeats() {
            [1, self.made(&[rows, cols])[0]]
        } else {
            [groups, rows]
        };
        Ok(Tiles::of(
            [groups, rows, cols],
            &self.numbers(name, &[groups * rows, cols])?,
        ))
    }

    /// Returns the values of a tensor. If kernels read the tensor as codes, returns the decoded values of the codes.
    pub fn floats(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>, String> {
        match (self.storages.projection(name), self.storages.of(name)) {
            (Some(of), _) => Ok(self.tiles(name, of)?.values),
            (None, Some(_)) => Ok(self.stored(name, shape)?.values),
            (None, None) => self.numbers(name, shape),
        }
    }

    /// Returns the values of a tensor before it is quantized.
    fn numbers(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>, String> {
        match &self.tensors {
            Tensors::Files(files) => files.floats(name, shape).map_err(|error| error.to_string()),
            Tensors::Drawn(seed) | Tensors::Repeated(seed) => Ok(drawn(*seed, name, shape)),
        }
    }

    pub fn integers(&self, name: &str, shape: &[usize]) -> Result<Vec<u32>, String> {
        let experts = self.config.n_routed_experts as u32;
        match &self.tensors {
            Tensors::Files(files) => files.integers(name, shape, experts).map_err(|error| error.to_string()),
            Tensors::Drawn(seed) | Tensors::Repeated(seed) => {
                let none = |_: &str| Err(String::new());
                let bytes = Data::new(*seed, &none).bytes(name, shape.iter().product::<usize>());
                // The tensor is a table of experts by token id. The experts of a token must differ from each other.
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

/// Draws random weights. Rows of projections have a norm of about 1, so that products keep the magnitude of their input;
/// weights of norms, and scales, are about 1.
fn drawn(seed: u64, name: &str, shape: &[usize]) -> Vec<f32> {
    let none = |_: &str| Err(String::new());
    let (mean, deviation) = match shape {
        [_] if name.ends_with("base") || name.ends_with("sinks") || name.ends_with("bias") => (0.0, 0.5),
        [_] => (1.0, 0.2),
        _ if name.ends_with("embed_tokens.weight") || name.ends_with("position_bias") => (0.0, 1.0),
        [.., cols] => (0.0, (*cols as f32).sqrt().recip()),
        [] => (0.0, 1.0),
    };
    Data::new(seed, &none).around(name, shape.iter().product(), mean, deviation)
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
