//! Kinds of questions.

pub mod check;
pub mod execute;
pub mod kernels;
pub mod limits;
pub mod model;
pub mod ready;
pub mod recall;
pub mod recurrence;
pub mod round_trip;
pub mod swap_ffn;
