//! The scalar a path computes in.

/// f32, or f64 as the check on it.
pub trait Real: Copy + Send + Sync + 'static + std::fmt::Debug + PartialOrd {}
impl Real for f32 {}
impl Real for f64 {}
