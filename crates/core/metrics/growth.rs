//! Growth of errors: from layer to layer, and from step to step.

/// Relative errors (`relative_l2`) of a layer's input and output.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gain {
    /// Relative error of the layer's input.
    pub entering: f64,
    /// Relative error of the layer's output.
    pub leaving: f64,
    /// Number of elements of the layer's output.
    pub n: u64,
}

/// Relative errors (`relative_l2`) after increasing numbers of steps of a recurrence.
#[derive(Clone, Debug, PartialEq)]
pub struct Growth {
    /// Pairs (number of steps, error).
    pub points: Vec<[f64; 2]>,
}

/// Largest error that the fit uses. Larger errors have saturated, because little of the signal is left.
const MOST: f64 = 0.5;

metrics! {
    /// The factor by which a layer amplifies the error of its input, including the error that the layer adds. If this factor is
    /// above 1, errors grow from layer to layer. It is undefined if the input has no error.
    GAIN "gain" "" Lower Significant [0.0, RATIO * RATIO]
        Gain(|gain| (gain.entering != 0.0).then(|| gain.leaving / gain.entering));
        "relative error of a layer's output over that of its input"

    /// The exponent b of error ≈ a · steps^b, by least squares on the logarithms of errors up to [`MOST`]. b is 0 for a state
    /// that forgets its errors, 1/2 for independent errors that add up, and 1 for systematic errors. b is undefined if an error
    /// is 0, or if fewer than two errors are at most [`MOST`]. b is finite: numbers of steps are below 2⁵³, so the logarithms of
    /// two of them differ by more than 2⁻⁵³.
    GROWTH "growth" "" Lower Exponent [-COUNT, COUNT] Growth(|growth| exponent(&growth.points));
        "exponent b of error = a * steps^b: 0 if errors are forgotten, 1/2 if they add up at random, 1 if they are \
         biased"
}

fn exponent(points: &[[f64; 2]]) -> Option<f64> {
    if points.iter().any(|[_, error]| !error.is_finite()) {
        return Some(f64::NAN);
    }
    let points: Vec<[f64; 2]> = points.iter().copied().filter(|[_, error]| *error <= MOST).collect();
    if points.len() < 2 || points.iter().any(|[_, error]| *error == 0.0) {
        return None;
    }
    let n = points.len() as f64;
    let mean = |of: usize| points.iter().map(|point| point[of].ln()).sum::<f64>() / n;
    let (x, y) = (mean(0), mean(1));
    let moment = |of: usize, at: f64| {
        let products = points.iter().map(|point| (point[0].ln() - x) * (point[of].ln() - at));
        products.sum::<f64>()
    };
    Some(moment(1, y) / moment(0, x))
}
