//! Scale layouts: where in a GEMM's buffer the scale of row `r` and block `c` of a row-major matrix lies.
//!
//! A [`Layout`] is a row of [`LAYOUTS`]; [`Layout::place`] gives its [`Placement`] for one shape and, where it has groups,
//! their ends. The placement converts both ways and tells the offset of any one scale.
//!
//! All layouts are one scheme. Four bytes of a row (four 1-byte scales or one f32) are a word; words one below the other
//! make a tile, in an order of its rows; tiles follow along the rows of the matrix, then down. So there is one conversion.

mod markdown;
mod part;
mod placement;
mod table;
mod words;

pub use markdown::markdown;
pub use placement::Placement;
pub use table::{Groups, LAYOUTS, Layout, Tile};
