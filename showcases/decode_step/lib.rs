//! GPU kernels for a whole decode step of DeepSeek-V4: the operation and the check of its outputs, the kernel launches of each
//! variant (implementation), and a replacement of the reference model that reads a text with these kernels.

#![deny(missing_docs)]

mod composition;
mod operation;
mod step;

pub use composition::COMPOSITIONS;
pub use operation::{
    ACTIVATIONS, Caches, DecodeStep, Draw, Formats, Generation, INDEX_RECORDS, IndexPages, PROMPT, Reading, Records,
    WEIGHTS, config,
};
pub use step::WholeStep;
