//! GPU kernels of Swap-FFN, a model whose FFN layers exchange vectors with memory banks: the operation and the checks of its
//! outputs (also on a user's tensors), the kernel launches of each variant (implementation), and calls that run a part of a
//! token.

#![deny(missing_docs)]

mod composition;
mod expected;
mod operation;
pub mod varied;

pub use composition::COMPOSITIONS;
pub use expected::SWAP_FFN;
pub use operation::{Part, Resident, SwapFfn, TokenOutputs};
