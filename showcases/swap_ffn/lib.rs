//! Swap-FFN by kernels: the operation with its judgement, also on a user's tensors, the launches of its variants, and calls that
//! run a part of a token.

#![deny(missing_docs)]

mod composition;
mod expected;
mod operation;
pub mod varied;

pub use composition::COMPOSITIONS;
pub use expected::SWAP_FFN;
pub use operation::{Part, Resident, SwapFfn, TokenOutputs};
