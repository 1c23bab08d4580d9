//! Projections of attention in FP8, as DeepSeek serves them. Activations are E4M3 with an f32 scale per 128 columns of a row.
//! Weights are E4M3 with an f32 scale per tile of 128 × 128, and the reference model uses the dequantized weights. Each group of
//! a grouped weight is quantized as a separate matrix, so that no tile spans two groups.

use reference::paths::deepseek_v4::Config;
use safetensors::Dtype;

use ulplab_core::formats::{Format, GlobalScale};
use ulplab_operations::ops::Buffer;
use ulplab_operations::ops::blocks::Blocks;
use ulplab_operations::ops::data::f32_values;
use ulplab_operations::ops::fp8_gemm::{Coded, product};

/// Formats of activations for which kernels are compiled. The name before a `+` is the input format of attention's projections,
/// the name after it that of all other products (by default f32, see [`bf16`](super::bf16)).
pub const ACTIVATIONS: [&str; 2] = ["fp8_b128_f32", "fp8_b128_f32+bf16"];

/// Format of the weights.
const TILES: &str = "e4m3/b128x128:f32(deepgemm)";
/// Number of rows, and of columns, of a tile.
const TILE: usize = 128;

/// Returns the format of activations in attention's projections. `key` is the format of activations of a case or a kernel entry
/// point; only its part before a `+` counts.
///
/// # Errors
/// Returns an error if no kernel takes such activations.
pub(super) fn activations(key: &str) -> Result<&'static Blocks, String> {
    let known = ACTIVATIONS.contains(&key).then(|| of_attention(key));
    known.and_then(Blocks::named).ok_or_else(|| {
        let known = ACTIVATIONS.join(", ");
        format!("a whole step does not take activations as '{key}': expected one of {known}")
    })
}

/// Returns the first of two names joined by `+`: the format of the activations in attention's projections.
pub(super) fn of_attention(key: &str) -> &str {
    key.split_once('+').map_or(key, |(attention, _)| attention)
}

/// A projection of attention: a product of activations and a weight matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Projection {
    /// From attention's input to the low-rank query.
    QueryDown,
    /// From attention's input to the KV vector.
    KeyValue,
    /// From the low-rank query to the queries of all heads.
    QueryUp,
    /// From the low-rank query to the queries of the indexer.
    IndexQuery,
    /// From the heads of each group to the low-rank heads of the group.
    OutputDown,
    /// From the low-rank heads to attention's output.
    OutputUp,
}
use Projection::{IndexQuery, KeyValue, OutputDown, OutputUp, QueryDown, QueryUp};

impl Projection {
    /// All projections, in the order of their discriminants.
    pub const ALL: [Self; 6] = [QueryDown, KeyValue, QueryUp, IndexQuery, OutputDown, OutputUp];

    /// Returns the name of the weight tensor within a layer.
    pub const fn tensor(self) -> &'static str {
        match self {
            QueryDown => "self_attn.q_a_proj.weight",
            KeyValue => "self_attn.kv_proj.weight",
            QueryUp => "self_attn.q_b_proj.weight",
            IndexQuery => "self_attn.compressor.indexer.q_b_proj.weight",
            OutputDown => "self_attn.o_a_proj.weight",
            OutputUp => "self_attn.o_b_proj.weight",
        }
    }

    /// Returns the projection whose weights are in `tensor`; `None` for other tensors.
    pub fn of(tensor: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|of| tensor.ends_with(of.tensor()))
    }

    /// Returns the number of groups of the weights, and the numbers of rows and columns of a group.
    pub fn shape(self, config: &Config) -> [usize; 3] {
        let (heads, groups) = (config.num_attention_heads * config.head_dim, config.o_groups);
        let (hidden, low, rank) = (config.hidden_size, config.q_lora_rank, config.o_lora_rank);
        match self {
            QueryDown => [1, low, hidden],
            KeyValue => [1, config.head_dim, hidden],
            QueryUp => [1, heads, low],
            IndexQuery => [1, config.index_n_heads * config.index_head_dim, low],
            OutputDown => [groups, rank, heads / groups],
            OutputUp => [1, hidden, groups * rank],
        }
    }

    /// Returns the shapes of the buffers of all layers: of codes `[layers, rows, cols]`, and of the scales of their tiles.
    pub fn shapes(self, config: &Config, layers: usize) -> [[usize; 3]; 2] {
        let [groups, rows, cols] = self.shape(config);
        [
            [layers, groups * rows, cols],
            [layers, groups * rows.div_ceil(TILE), cols.div_ceil(TILE)],
        ]
    }
}

/// A weight tensor as tiles, one group after the other.
pub(super) struct Tiles {
    /// Number of groups, and rows and columns of each group.
    shape: [usize; 3],
    codes: Vec<u8>,
    scales: Vec<f32>,
    /// The dequantized values.
    pub values: Vec<f32>,
}

impl Tiles {
    /// Quantizes a tensor of weights.
    pub fn of(shape: [usize; 3], values: &[f32]) -> Self {
        let [_, rows, cols] = shape;
        let format: Format = TILES.parse().expect("a format");
        let mut tiles = Self {
            shape,
            codes: Vec::new(),
            scales: Vec::new(),
            values: vec![0.0; values.len()],
        };
        let groups = values.chunks_exact(rows * cols);
        for (group, read) in groups.zip(tiles.values.chunks_exact_mut(rows * cols)) {
            let encoded = format.encode(group, cols, GlobalScale::Own);
            format.decode(&encoded, read);
            tiles.codes.extend_from_slice(encoded.part("data"));
            tiles.scales.extend(f32_values(encoded.part("scale"), Dtype::F32));
        }
        tiles
    }

    /// Returns the buffers of the tensors of all layers: codes `[layers, rows, cols]`, and one scale per tile. The shape of the
    /// scales is `[layers, rows of tiles, columns of tiles]`.
    pub fn buffers(all: &[Self], [codes, scales]: [&'static str; 2]) -> Vec<Buffer> {
        let [groups, rows, cols] = all.first().map_or([1, 1, 1], |tiles| tiles.shape);
        let of_codes = all.iter().flat_map(|tiles| tiles.codes.iter().copied()).collect();
        let of_scales: Vec<f32> = all.iter().flat_map(|tiles| tiles.scales.iter().copied()).collect();
        let tiles = [all.len(), groups * rows.div_ceil(TILE), cols.div_ceil(TILE)];
        vec![
            Buffer::input(codes, Dtype::F8_E4M3, &[all.len(), groups * rows, cols], of_codes),
            Buffer::f32(scales, &tiles, &of_scales),
        ]
    }

    /// Returns the product with one row of activations, bit-identical to that of the tensor cores. The row has one segment for
    /// each group of weights.
    pub fn product<'a>(&'a self, row: Coded<'a>) -> Vec<f32> {
        let [groups, rows, cols] = self.shape;
        let [down, across] = [rows, cols].map(|size| size.div_ceil(TILE));
        let part = |(codes, scales): Coded<'a>, group: usize, sizes: [usize; 2]| -> Coded<'a> {
            (
                &codes[group * sizes[0]..][..sizes[0]],
                &scales[group * sizes[1]..][..sizes[1]],
            )
        };
        let group = |group: usize| {
            let x = part(row, group, [cols, across]);
            let w = part((&self.codes, &self.scales), group, [rows * cols, down * across]);
            product(x, w, rows)
        };
        (0..groups).flat_map(group).collect()
    }
}
