//! Compositions of launches, of operations that are not packages of their own.

mod delta_handover;

pub use delta_handover::DELTA_HANDOVER;
