//! Operations of LLM kernels: the expected result of each, and the error that a correct kernel may have.

#![deny(missing_docs)]

pub mod expected;
pub mod ops;
