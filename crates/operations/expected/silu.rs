//! SiLU, g/(1 + e^−g).

use reference::errors::ErrorModel;

use super::near::{Near, result};

/// SiLU of a number, and how far a kernel may be from it: the relative error of the exponential, (4 + 2|g|)·u, as far as it counts in the
/// sum, and 4u of the sum and the quotient. Where f32's exponential ends, at 2^127.5 in some libraries, 0 is right, too.
///
/// The error of the number itself is multiplied by the slope of SiLU; its second derivative is at most ½, so that ¼·error² is more than
/// the rest.
pub(super) fn silu(x: Near) -> Near {
    let (g, error, u) = (x.value(), x.error(), x.model().unit());
    let power = (-g).exp();
    let sigmoid = 1.0 / (1.0 + power);
    let value = g / (1.0 + power);
    let relative = match power > 2f64.powf(127.4) {
        true => 1.0,
        false => ((4.0 + 2.0 * g.abs()) * (1.0 - sigmoid) + 4.0) * u,
    };
    let slope = (sigmoid * (1.0 + g * (1.0 - sigmoid))).abs();
    result(x, value, value.abs() * relative + slope * error + 0.25 * error * error)
}
