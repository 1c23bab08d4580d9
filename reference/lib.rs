//! The oracle: model paths in plain Rust, generic over [`Real`] (f32, and f64 as the check on f32).
//!
//! This package knows nothing of number formats, GPUs, files or experiments. Whoever wants to watch, round or replace a
//! tensor on its way implements [`Numerics`] and is called at every named [`Site`].

pub mod numerics;
pub mod operations;
pub mod ops;
pub mod paths;
pub mod real;
pub mod tensor;

pub use numerics::{Choice, Numerics, Plain, Role, Site, SiteInfo, SiteKind};
pub use operations::Operations;
pub use real::Real;
pub use tensor::Tensor;
