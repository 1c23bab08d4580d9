//! The crate's tests.

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
