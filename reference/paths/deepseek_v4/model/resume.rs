//! The model from one of its layers on.

use super::{LOGITS, LayerType, Model};
use crate::paths::deepseek_v4::layer::Context;
use crate::{Numerics, Real, Site, Tensor};

/// Takes a sequence, from its first token, through the layers from `layer` on and gives its logits, as [`Model::run`] does for
/// what leaves the layer before as `stream` `[ids, hc_mult, hidden_size]`.
///
/// # Errors
/// No such layer, and a stream of another shape.
pub(in crate::paths) fn forward_from<T: Real>(
    model: &Model<T>,
    layer: usize,
    stream: Tensor<T>,
    ids: &[u32],
    numerics: &mut dyn Numerics<T>,
) -> Result<Tensor<T>, String> {
    let config = &model.config;
    let shape = [ids.len(), config.hc_mult, config.hidden_size];
    if layer > config.num_hidden_layers || stream.shape != shape {
        return Err(format!(
            "layer {layer} of {} is fed {:?}, expected {shape:?}",
            config.num_hidden_layers, stream.shape
        ));
    }
    let (mut x, mut state) = (stream, model.state());
    for rope in &mut state.ropes {
        rope.extend(ids.len());
    }
    let layers = model.layers.iter().zip(&mut state.layers).enumerate().skip(layer);
    for (number, (layer, cache)) in layers {
        let rope = &state.ropes[usize::from(layer.kind != LayerType::Sliding)];
        let cx = &mut Context {
            numerics,
            layer: number,
            start: 0,
            ids,
            rope,
        };
        layer.forward(&mut x, cache, cx);
    }
    let mut hidden = model.head_mixer.apply(&x);
    let eps = T::from_f64(config.rms_norm_eps);
    numerics.operations().rmsnorm(&mut hidden, Some(&model.norm), eps);
    let mut logits = model.head.apply(&hidden);
    numerics.site(&Site::new(None, LOGITS), &mut logits);
    Ok(logits)
}
