//! GPU kernels of Swap-FFN, a model whose cores (vectors of a token) are exchanged with memory banks and pass through an FFN: the
//! operation and the checks of its outputs (also on a user's tensors), the kernel launches of each variant (implementation), and
//! calls that run a part of a token.

#![deny(missing_docs)]

mod composition;
mod expected;
mod operation;
pub mod varied;

pub use composition::COMPOSITIONS;
pub use expected::SWAP_FFN;
pub use operation::{Part, Resident, SwapFfn, TokenOutputs};
