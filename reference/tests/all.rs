//! The crate's tests.

#![allow(clippy::print_stdout, reason = "what was measured is shown with --nocapture")]

mod bounded;
mod deepseek_v4;
mod diagonal_ssm;
mod linear_attention;
mod measure;
mod ops;
mod paths;
mod real;
mod swap_ffn;
mod weights;
