//! The crate's tests.

mod deepseek_v4;
mod diagonal_ssm;
mod linear_attention;
mod measure;
mod paths;
mod swap_ffn;
mod weights;
