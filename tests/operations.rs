//! Operations without the program: what they say of outputs. Needs only `ulplab-operations`.

#[path = "operations/drawn.rs"]
mod drawn;
#[path = "operations/fp8_weights.rs"]
mod fp8_weights;
#[path = "operations/sums.rs"]
mod sums;
