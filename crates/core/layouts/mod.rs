//! Scale layouts: the place in a GEMM's buffer of the scale of row `r` and block `c` of a row-major matrix.
//!
//! A [`Layout`] is a row of [`LAYOUTS`]. [`Layout::place`] gives its [`Placement`] for a shape and, if it has groups, their
//! ends. The placement converts in both directions and gives the offset of any scale.
//!
//! All layouts follow one scheme. Four bytes of a row (four 1-byte scales or one f32) are a word. Words of consecutive rows
//! form a tile, in the tile's own order of rows. Tiles follow along the rows of the matrix, then down. So one conversion
//! serves all layouts.

mod markdown;
mod part;
mod placement;
mod table;
mod words;

pub use markdown::markdown;
pub use placement::Placement;
pub use table::{Groups, LAYOUTS, Layout, Tile};
pub use words::{Block, Plain, Transpose};
