//! Operations with kernels: those of `ulplab-operations`, and those that are packages of their own.

use std::sync::LazyLock;

use ulplab_backend::compositions::DELTA_HANDOVER;
use ulplab_backend::cuda::Compositions;
use ulplab_core::error::did_you_mean;
pub use ulplab_operations::ops::*;

/// Operations that are packages of their own, with what puts their launches together.
const SHOWCASES: [(&dyn Op, &Compositions); 2] = [
    (&ulplab_decode_step::DecodeStep, &ulplab_decode_step::COMPOSITIONS),
    (&ulplab_swap_ffn::SwapFfn, &ulplab_swap_ffn::COMPOSITIONS),
];

/// All operations with kernels, by name.
pub static OPS: LazyLock<Vec<&dyn Op>> = LazyLock::new(|| {
    let showcases = SHOWCASES.iter().map(|(op, _)| *op);
    let mut all: Vec<&dyn Op> = ulplab_operations::ops::OPS.iter().copied().chain(showcases).collect();
    all.sort_by_key(|op| op.name());
    all
});

/// Compositions of launches, of all operations that have one.
pub static COMPOSITIONS: LazyLock<Vec<&Compositions>> = LazyLock::new(|| {
    let showcases = SHOWCASES.iter().map(|(_, compositions)| *compositions);
    [&DELTA_HANDOVER].into_iter().chain(showcases).collect()
});

/// All operations that programs can be judged on: [`OPS`], and those on a user's tensors that have cases.
pub fn all() -> impl Iterator<Item = &'static dyn Op> {
    OPS.iter().copied().chain(of_tensors())
}

/// The operation called `name`; the error names the nearest.
///
/// # Errors
/// If there is none of that name.
pub fn find(name: &str) -> Result<&'static dyn Op, String> {
    all().find(|op| op.name() == name).ok_or_else(|| {
        let hint = did_you_mean(name, all().map(|op| op.name()));
        format!("no operation '{name}'{hint}")
    })
}
