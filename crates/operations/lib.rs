//! Operations of LLM kernels: what they compute, and how far a right kernel may be from it.

#![deny(missing_docs)]
#![deny(clippy::print_stdout, clippy::print_stderr)]

pub mod expected;
pub mod ops;
