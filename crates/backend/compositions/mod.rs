//! Compositions (variants whose kernel launches are put together in Rust) of operations that have no package of their own.

mod delta_handover;

pub use delta_handover::DELTA_HANDOVER;
