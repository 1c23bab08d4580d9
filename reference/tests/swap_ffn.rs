//! The Swap-FFN path against its definition written out in loops, and against its own laws.

mod definition;
mod lanes;
mod naive;
mod precision;
mod seam;
mod support;
mod traps;
