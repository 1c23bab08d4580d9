//! Operations of LLM kernels: what they compute, and how far a right kernel may be from it.

#![deny(missing_docs)]

pub mod expected;
pub mod ops;
