//! Compositions (Rust functions that build the kernel launches of a variant) for operations without a crate of their own.

mod delta_handover;

pub use delta_handover::DELTA_HANDOVER;
