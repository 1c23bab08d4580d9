//! Swap-FFN by kernels: the operation and its judgement, the launches of its variants, and calls that run a part of a token.

#![deny(missing_docs)]

mod composition;
mod operation;

pub use composition::COMPOSITIONS;
pub use operation::{Part, Resident, SwapFfn, TokenOutputs};
