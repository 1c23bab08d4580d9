//! Scale layouts: the order in which a GEMM expects the scales of a row-major matrix. A layout gives the offset of the scale of
//! row `r` and block `c` in the GEMM's buffer.
//!
//! A [`Layout`] is a row of [`LAYOUTS`]. Some layouts divide the matrix into groups of rows or columns, e.g. one group per
//! expert, and lay out each group separately. [`Layout::place`] computes the [`Placement`] of scales from the shape of the matrix
//! and the ends of its groups. The placement copies the scales from a matrix to the buffer and back, and gives the offset of any
//! scale.
//!
//! All layouts follow one scheme. Four bytes of a row (four 1-byte scales or one f32) are a word. A tile holds one word of each
//! of several consecutive rows, in an order that depends on the layout. Tiles are stored from left to right along the rows of the
//! matrix, then from top to bottom. So the same code converts all layouts.

mod markdown;
mod part;
mod placement;
mod table;
mod words;

pub use markdown::markdown;
pub use placement::Placement;
pub use table::{Groups, LAYOUTS, Layout, Tile};
pub use words::{Block, Plain, Transpose};
