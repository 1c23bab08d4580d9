//! Collects the operations of `ulplab-operations` and of the packages that define one operation each.

use std::sync::LazyLock;

use ulplab_backend::compositions::DELTA_HANDOVER;
use ulplab_backend::cuda::Compositions;
use ulplab_core::error::did_you_mean;
use ulplab_operations::expected::{OPERATIONS, Operation};
pub use ulplab_operations::ops::*;

/// Operations that have a Cargo package each. Each operation has compositions (launches built in Rust), and may have operations
/// on a user's tensors.
const SHOWCASES: [(&dyn Op, &Compositions, &[&Operation]); 2] = [
    (&ulplab_decode_step::DecodeStep, &ulplab_decode_step::COMPOSITIONS, &[]),
    (
        &ulplab_swap_ffn::SwapFfn,
        &ulplab_swap_ffn::COMPOSITIONS,
        &[&ulplab_swap_ffn::SWAP_FFN],
    ),
];

/// All operations that compute expected results from a user's tensors, sorted by name.
pub static ON_TENSORS: LazyLock<Vec<&Operation>> = LazyLock::new(|| {
    let showcases = SHOWCASES.iter().flat_map(|(.., on_tensors)| *on_tensors);
    let mut all: Vec<&Operation> = OPERATIONS.iter().chain(showcases).copied().collect();
    all.sort_by_key(|operation| operation.name);
    all
});

/// All operations with kernels, sorted by name.
pub static OPS: LazyLock<Vec<&dyn Op>> = LazyLock::new(|| {
    let showcases = SHOWCASES.iter().map(|(op, ..)| *op);
    let drawn = of_tensors().filter(|op| ON_TENSORS.iter().any(|known| known.kernels && known.name == op.name()));
    let own = ulplab_operations::ops::OPS.iter().copied();
    let mut all: Vec<&dyn Op> = own.chain(showcases).chain(drawn).collect();
    all.sort_by_key(|op| op.name());
    all
});

/// Compositions (launches of variants that are built in Rust) of all operations that have them.
pub static COMPOSITIONS: LazyLock<Vec<&Compositions>> = LazyLock::new(|| {
    let showcases = SHOWCASES.iter().map(|(_, compositions, _)| *compositions);
    [&DELTA_HANDOVER].into_iter().chain(showcases).collect()
});

/// Returns all operations with test cases: [`OPS`], then operations on a user's tensors that have random test cases, but no
/// kernels here.
pub fn all() -> impl Iterator<Item = &'static dyn Op> {
    let has_kernels = |op: &&dyn Op| OPS.iter().any(|known| known.name() == op.name());
    OPS.iter()
        .copied()
        .chain(of_tensors().filter(move |op| !has_kernels(op)))
}

/// Returns the operation called `name`.
///
/// # Errors
/// Returns an error with the most similar name if no operation has this name.
pub fn find(name: &str) -> Result<&'static dyn Op, String> {
    all().find(|op| op.name() == name).ok_or_else(|| {
        let hint = did_you_mean(name, all().map(|op| op.name()));
        format!("no operation '{name}'{hint}")
    })
}
