//! How far a sum that is computed in a type of few digits may be from the exact one.

use reference::LAMBDA;

/// What is known of the terms of a sum.
#[derive(Clone, Copy, Debug, Default)]
pub struct Terms {
    /// How many there are.
    pub count: f64,
    /// Their sum.
    pub sum: f64,
    /// Sum of their magnitudes.
    pub magnitudes: f64,
    /// Sum of their squares.
    pub squares: f64,
}

impl Terms {
    /// Terms that are known one by one.
    pub fn of(terms: impl Iterator<Item = f64>) -> Self {
        terms.fold(Self::default(), |all, term| Self {
            count: all.count + 1.0,
            sum: all.sum + term,
            magnitudes: all.magnitudes + term.abs(),
            squares: all.squares + term * term,
        })
    }

    /// The products of two vectors' elements, summed up in several parts so that they are computed side by side.
    pub fn dot(a: &[f64], b: &[f64]) -> Self {
        const LANES: usize = 8;
        let (mut sum, mut magnitudes, mut squares) = ([0.0; LANES], [0.0; LANES], [0.0; LANES]);
        let (a_parts, a_rest) = a.as_chunks::<LANES>();
        let (b_parts, b_rest) = b.as_chunks::<LANES>();
        for (a, b) in a_parts.iter().zip(b_parts) {
            for lane in 0..LANES {
                let term = a[lane] * b[lane];
                sum[lane] += term;
                magnitudes[lane] += term.abs();
                squares[lane] += term * term;
            }
        }
        let rest = Self::of(a_rest.iter().zip(b_rest).map(|(a, b)| a * b));
        Self {
            count: a.len().min(b.len()) as f64,
            sum: rest.sum + sum.iter().sum::<f64>(),
            magnitudes: rest.magnitudes + magnitudes.iter().sum::<f64>(),
            squares: rest.squares + squares.iter().sum::<f64>(),
        }
    }

    /// How far the sum of rounded products may be off, with unit roundoff `u`, in any order: the smaller of the worst case,
    /// n·u·Σ|t| (Higham, *Accuracy and Stability of Numerical Algorithms*, §4.2), and the likely one, λ·u·√(n·(sum² + Σt²)) (Higham
    /// and Mary, *A New Approach to Probabilistic Rounding Error Analysis*, 2019; sum² + Σt² is the mean square of partial sums
    /// over all orders).
    pub fn error(&self, u: f64) -> f64 {
        let worst = self.count * u * self.magnitudes * (1.0 + self.count * u);
        let likely = LAMBDA * u * (self.count * (self.sum * self.sum + self.squares)).sqrt();
        // Products below the normal numbers may be flushed to zero.
        let flushed = if u > 0.0 {
            self.count * f64::from(f32::MIN_POSITIVE)
        } else {
            0.0
        };
        likely.min(worst) + flushed
    }
}

/// The bound of a sum of independent errors, each of which is at most as large as given: the smaller of their sum and λ times the
/// root of the sum of their squares.
pub fn together(errors: impl Iterator<Item = f64>) -> f64 {
    let (sum, squares) = errors.fold((0.0, 0.0), |(sum, squares), error| {
        (sum + error, squares + error * error)
    });
    f64::min(sum, LAMBDA * squares.sqrt())
}
