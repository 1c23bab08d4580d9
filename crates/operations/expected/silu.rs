//! SiLU, g/(1 + e^−g), and how far f32 may be from it.

/// The value and the error, with unit roundoff `u`: the relative error of the exponential, (4 + 2|g|)·u, as far as it counts in the
/// sum, and 4u of the sum and the quotient. Where f32's exponential ends, at 2^127.5 in some libraries, 0 is right, too.
pub fn silu(g: f64, u: f64) -> (f64, f64) {
    let power = (-g).exp();
    let value = g / (1.0 + power);
    if power > 2f64.powf(127.4) {
        return (value, value.abs());
    }
    let share = 1.0 - 1.0 / (1.0 + power);
    let relative = ((4.0 + 2.0 * g.abs()) * share + 4.0) * u;
    // Below the normal numbers of f32, a step may be lost.
    (value, value.abs() * relative + f64::from(f32::MIN_POSITIVE) * u)
}

/// The same of a number that is off by `error` itself, which SiLU passes on multiplied by its slope; its second derivative is at most
/// ½, so that ¼·error² is more than the rest.
pub fn silu_of(g: f64, error: f64, u: f64) -> (f64, f64) {
    let (value, own) = silu(g, u);
    let sigmoid = 1.0 / (1.0 + (-g).exp());
    let slope = (sigmoid * (1.0 + g * (1.0 - sigmoid))).abs();
    (value, own + slope * error + 0.25 * error * error)
}
