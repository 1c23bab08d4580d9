//! Table of the memory layouts of GEMM scales, one entry per layout.

use crate::error::did_you_mean;

/// A memory layout of the scales of a matrix.
#[derive(Debug)]
pub struct Layout {
    /// Name on the command line, e.g. `blocked_128x4`.
    pub name: &'static str,
    /// A one-line description.
    pub doc: &'static str,
    /// Libraries that read or write the layout.
    pub source: &'static str,
    /// Size of one scale in bytes, 1 or 4.
    pub scale: usize,
    /// Tile within which scales are reordered.
    pub tile: Tile,
    /// Kind of groups; each group is laid out separately.
    pub groups: Groups,
    /// Formula for the offset of the scale in row `r` and column `c`, in bytes.
    pub offset: &'static str,
    /// Formula for the size of the buffer, in bytes.
    pub bytes: &'static str,
}

/// Number and order of the rows of a tile, which holds one word (4 bytes) of each row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tile {
    /// 128 rows, in the order 0, 32, 64, 96, 1, 33, …
    Rows128,
    /// 8 rows, in order.
    Rows8,
    /// All rows of the matrix, in order, padded to a multiple of four.
    All,
}

impl Tile {
    /// Returns the number of rows of a tile, including padding, for a matrix of `rows` rows.
    pub(super) fn height(self, rows: usize) -> usize {
        match self {
            Self::Rows128 => 128,
            Self::Rows8 => 8,
            Self::All => rows.next_multiple_of(4).max(4),
        }
    }

    /// Returns the row of a tile whose word (4 bytes) is stored at index `word`.
    pub(super) fn row(self, word: usize) -> usize {
        match self {
            Self::Rows128 => word % 4 * 32 + word / 4,
            Self::Rows8 | Self::All => word,
        }
    }

    /// Returns the index of the word (4 bytes) of a row: the inverse of [`Tile::row`].
    pub(super) fn word(self, row: usize) -> usize {
        match self {
            Self::Rows128 => row % 32 * 4 + row / 32,
            Self::Rows8 | Self::All => row,
        }
    }
}

/// Division of a matrix into groups, each of which is laid out separately.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Groups {
    /// No groups. The matrix may have a third, leading dimension: the experts.
    None,
    /// Groups of rows, as in the forward pass of a mixture of experts.
    Rows,
    /// Groups of columns, as in the weight gradient of a mixture of experts.
    Cols,
}

/// All layouts.
pub const LAYOUTS: &[Layout] = &[
    Layout {
        name: "blocked_128x4",
        doc: "tiles of 128 rows × 4 scales, as tensor cores read the scales of MXFP8, MXFP4 and NVFP4",
        source: "cuBLAS, CUTLASS; torchao to_blocked; FlashInfer, vLLM and TensorRT-LLM \"128x4\"",
        scale: 1,
        tile: Tile::Rows128,
        groups: Groups::None,
        offset: "((r / 128)·⌈cols / 4⌉ + c / 4)·512 + (r mod 32)·16 + (r / 32 mod 4)·4 + c mod 4",
        bytes: "⌈rows / 128⌉·⌈cols / 4⌉·512",
    },
    Layout {
        name: "blocked_128x4_m_groups",
        doc: "groups of rows, each in blocked_128x4 and starting at a multiple of 128 rows; group offsets count padded rows",
        source: "torchao torch_to_blocked_2d_M_groups",
        scale: 1,
        tile: Tile::Rows128,
        groups: Groups::Rows,
        offset: "starts[g]·4·⌈cols / 4⌉ + blocked_128x4 of (r − begin of g, c)",
        bytes: "(rows + 128·groups)·4·⌈cols / 4⌉",
    },
    Layout {
        name: "blocked_128x4_k_groups",
        doc: "groups of columns, each in blocked_128x4 and starting at a multiple of 4 columns; group offsets count padded columns",
        source: "torchao torch_to_blocked_2d_K_groups",
        scale: 1,
        tile: Tile::Rows128,
        groups: Groups::Cols,
        offset: "starts[g]·128·⌈rows / 128⌉ + blocked_128x4 of (r, c − begin of g)",
        bytes: "128·⌈rows / 128⌉·(cols + 4·groups)",
    },
    Layout {
        name: "blocked_8x4",
        doc: "tiles of 8 rows × 4 scales, for few rows",
        source: "FlashInfer and TensorRT-LLM \"8x4\"",
        scale: 1,
        tile: Tile::Rows8,
        groups: Groups::None,
        offset: "((r / 8)·⌈cols / 4⌉ + c / 4)·32 + (r mod 8)·4 + c mod 4",
        bytes: "⌈rows / 8⌉·⌈cols / 4⌉·32",
    },
    Layout {
        name: "mn_major_f32",
        doc: "f32 scales column by column, a column padded to 16 bytes: DeepGEMM on sm_90",
        source: "DeepGEMM get_mn_major_tma_aligned_tensor",
        scale: 4,
        tile: Tile::All,
        groups: Groups::None,
        offset: "(c·4·⌈rows / 4⌉ + r)·4",
        bytes: "cols·4·⌈rows / 4⌉·4",
    },
    Layout {
        name: "mn_major_ue8m0x4",
        doc: "four E8M0 scales of a row packed into a u32, the first in the low byte; the u32 are stored column by column, \
              each column padded to 16 bytes: DeepGEMM on sm_100",
        source: "DeepGEMM get_mn_major_tma_aligned_packed_ue8m0_tensor",
        scale: 1,
        tile: Tile::All,
        groups: Groups::None,
        offset: "((c / 4)·4·⌈rows / 4⌉ + r)·4 + c mod 4",
        bytes: "⌈cols / 4⌉·4·⌈rows / 4⌉·4",
    },
];

impl Layout {
    /// Returns the layout called `name`; the error suggests the most similar name.
    pub fn find(name: &str) -> Result<&'static Self, String> {
        LAYOUTS.iter().find(|layout| layout.name == name).ok_or_else(|| {
            let near = did_you_mean(name, LAYOUTS.iter().map(|layout| layout.name));
            format!("unknown layout '{name}'{near}")
        })
    }
}
