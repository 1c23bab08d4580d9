//! The Swap-FFN path against its definition written out in loops, and against its own laws.

#[path = "swap_ffn/definition.rs"]
mod definition;
#[path = "swap_ffn/lanes.rs"]
mod lanes;
mod measure;
#[path = "swap_ffn/naive.rs"]
mod naive;
#[path = "swap_ffn/precision.rs"]
mod precision;
#[path = "swap_ffn/seam.rs"]
mod seam;
#[path = "swap_ffn/support.rs"]
mod support;
#[path = "swap_ffn/traps.rs"]
mod traps;
