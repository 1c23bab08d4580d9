//! Operations of the models, such as attention and RoPE, one file or folder per operation.

pub mod attention;
pub mod compressor;
pub mod diagonal_ssm;
pub mod experts;
pub mod gated_mlp;
pub mod grouped_attention;
pub mod hyper_connection;
pub mod indexer;
pub mod linear;
pub mod linear_attention;
pub mod projection;
pub mod rmsnorm;
pub mod rope;
pub mod rope_scaling;
pub mod router;
pub mod short_conv;
pub mod sigmoid_router;
pub mod softmax_router;
pub mod store;
pub mod top_k;

/// Number of rows processed as one block. The block size does not depend on the number of threads, so results do not either.
pub const BLOCK: usize = 64;
