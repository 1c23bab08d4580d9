//! Models that begin in the middle: what runs have in common in the first layers need be computed only once.

use std::any::Any;

use super::{Model, Scalar, deepseek_v4};
use crate::{Numerics, Tensor};

/// Takes the tokens of a sequence, from the first on, through the layers from `layer` on, of which the first is fed `stream`:
/// what left the layer before at the path's [stream](super::Path::stream). `numerics` is called at the sites from there on, and
/// what passes at the path's [output](super::Path::output) is the result. It has the bits of a run of the whole model in which
/// that stream left the layer before. `None` if models of the path cannot begin in the middle.
///
/// # Errors
/// No such layer, and a stream of another shape.
pub fn resume<T: Scalar>(
    model: &dyn Model<T>,
    layer: usize,
    stream: Tensor<T>,
    ids: &[u32],
    numerics: &mut dyn Numerics<T>,
) -> Option<Result<Tensor<T>, String>> {
    let model: &deepseek_v4::Model<T> = (model as &dyn Any).downcast_ref()?;
    Some(T::deepseek_v4_from(model, layer, stream, ids, numerics))
}
