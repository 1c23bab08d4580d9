//! Number formats: elements, scales, blocks, KV-cache records.

mod element;
mod minifloat;
mod scale;

pub use element::{BF16, E2M1, E4M3, E5M2, E8M0, ELEMENTS, Element, F16, INT8, Integer, Repr, element};
pub use minifloat::{MiniFloat, Overflow};
