//! Error bounds of sums that are computed in a type of limited precision.

use reference::LAMBDA;

use super::drift::{FEW, Places};

/// Assumed arithmetic of a kernel's additions.
#[derive(Clone, Copy, Debug)]
pub struct Sums {
    /// Name of the arithmetic, which users choose, e.g. `f32`.
    pub name: &'static str,
    /// Number of significand bits of a partial sum; `None` if sums have no rounding errors.
    bits: Option<i32>,
    /// Words that describe the arithmetic in messages.
    pub meaning: &'static str,
}

impl Sums {
    /// All kinds of arithmetic that a user may choose.
    pub const ALL: [Self; 7] = [
        Self::new("f64", Some(53), "sums in f64, in any order"),
        Self::new("f32", Some(24), "sums in f32, in any order"),
        Self::new("tf32", Some(11), "sums in tf32, in any order"),
        Self::new("f16", Some(11), "sums in f16, in any order"),
        Self::new("bf16", Some(8), "sums in bf16, in any order"),
        Self::new(
            "fp8_tensor_core",
            Some(14),
            "sums of FP8 products as Hopper's tensor cores add them, in any order",
        ),
        Self::new("i32", None, "exact sums of integers"),
    ];

    const fn new(name: &'static str, bits: Option<i32>, meaning: &'static str) -> Self {
        Self { name, bits, meaning }
    }

    /// Unit roundoff of an addition: half the spacing at 1.
    pub fn unit(&self) -> f64 {
        self.bits.map_or(0.0, |bits| 2f64.powi(-bits))
    }
}

/// Statistics of the terms of a sum, from which its error bound follows.
#[derive(Clone, Copy, Debug, Default)]
pub struct Terms {
    /// Number of terms.
    pub count: f64,
    /// Sum of the terms.
    pub sum: f64,
    /// Sum of the magnitudes of the terms.
    pub magnitudes: f64,
    /// Sum of the squares of the terms.
    pub squares: f64,
    /// Mean square of the partial sums, in the order of the terms.
    pub partial: f64,
    /// Number of roundings that are equal instead of independent ([`super::drift`]).
    pub multiplicity: f64,
    /// Unit roundoff of the type in which the terms are added.
    pub u: f64,
}

/// [`Terms::dot`] samples one partial sum per this many terms, to compute the mean square of the partial sums.
const PIECE: usize = 64;

impl Terms {
    /// Computes the statistics of these terms, which a kernel adds with unit roundoff `u`.
    pub fn of(terms: impl Iterator<Item = f64> + Clone, u: f64) -> Self {
        Self::scaled(terms, u, 1.0)
    }

    /// Computes the statistics of terms for kernels that may scale them by an unknown factor: a kernel may sum softmax weights
    /// before or after dividing them, for example. Scaled terms may not be multiples of the spacing. So, unlike [`Self::of`],
    /// this function does not assume that multiples of the spacing are added exactly.
    pub fn of_any_scale(terms: impl Iterator<Item = f64> + Clone, u: f64) -> Self {
        Self::scaled(terms, u, std::f64::consts::FRAC_1_SQRT_2)
    }

    fn scaled(terms: impl Iterator<Item = f64> + Clone, u: f64, factor: f64) -> Self {
        let mut all = Self { u, ..Self::default() };
        terms.clone().for_each(|term| {
            all.count += 1.0;
            all.sum += term;
            all.magnitudes += term.abs();
            all.squares += term * term;
            all.partial += all.sum * all.sum;
        });
        all.partial /= all.count.max(1.0);
        if all.count > FEW as f64 {
            let terms: Vec<f64> = terms.collect();
            all.look(factor, |at| terms[at]);
        }
        all
    }

    /// Computes the statistics of the products a_i·b_i. The sums are computed in several independent SIMD lanes, for speed.
    pub fn dot(a: &[f64], b: &[f64], u: f64) -> Self {
        let count = a.len().min(b.len());
        let mut all = Self { u, ..Self::default() };
        for (a, b) in a[..count].chunks(PIECE).zip(b[..count].chunks(PIECE)) {
            let [sum, magnitudes, squares] = products(a, b);
            all.sum += sum;
            all.magnitudes += magnitudes;
            all.squares += squares;
            all.partial += a.len() as f64 * all.sum * all.sum;
        }
        all.count = count as f64;
        all.partial /= all.count.max(1.0);
        if count > FEW {
            all.look(1.0, |at| a[at] * b[at]);
        }
        all
    }

    /// Estimates the number of equal roundings and stores it in `multiplicity`. Term i of the sum is `factor` times `term(i)`.
    fn look(&mut self, factor: f64, term: impl Fn(usize) -> f64) {
        let places = Places::of(self.count as usize);
        let pairs = places.pairs().map(|pair| pair.map(|at| factor * term(at)));
        self.multiplicity = places.multiplicity(self.u, factor * self.size(), pairs, &mut Vec::new());
    }

    /// Returns the root mean square of the partial sums: of all orders of the terms, or of the given order if that is larger.
    pub fn size(&self) -> f64 {
        (self.sum * self.sum + self.squares).max(self.partial).sqrt()
    }

    /// Returns the error bound of a sum of rounded products in any order: the worst-case bound or the likely bound, whichever is
    /// smaller.
    ///
    /// For n terms t and unit roundoff u, the worst case is n·u·Σ|t| (Higham, *Accuracy and Stability of Numerical Algorithms*,
    /// §4.2).
    ///
    /// The likely bound is λ·u·√(n·S·M/6), where λ = [`LAMBDA`], M is the number of roundings that are equal ([`super::drift`];
    /// M/6 counts as at least 1), and S is the larger of ⅓·`partial` and (Σt)² + Σt². Derivation: each rounding moves a partial
    /// sum s by at most h = u·2^⌊log₂|s|⌋. If roundings are independent, λ·√(Σh²) is exceeded once in 10¹³ sums (Hoeffding;
    /// Higham and Mary, *A New Approach to Probabilistic Rounding Error Analysis*, 2019). Σh² is at most n·u² times the mean
    /// square of the partial sums. Over all orders of the terms, this mean square is less than (Σt)² + Σt². For the given order
    /// it is `partial`, or about twice as much if parts are summed separately. A rounding is uniform within ±h, so its variance
    /// is h²/3. Averaged over a binade, h² is half of (u·s)²: the average variance is (u·s)²/6.
    pub fn error(&self) -> f64 {
        let worst = self.count * self.u * self.magnitudes * (1.0 + self.count * self.u);
        let likely = LAMBDA * self.u * (self.independent() * (self.multiplicity / 6.0).max(1.0)).sqrt();
        // Subnormal products may be flushed to zero.
        let least = if self.u > 0.0 { f32::MIN_POSITIVE } else { 0.0 };
        likely.min(worst) + self.count * f64::from(least)
    }

    /// Returns the likely sum of the squared rounding errors, in units of u², for independent roundings.
    fn independent(&self) -> f64 {
        self.count * (self.sum * self.sum + self.squares).max(self.partial / 3.0)
    }

    /// Factor by which equal roundings widen the error bound of independent roundings: √(M/6), but at most to the worst case, n·u
    /// / (λ·u·√n). M is the number of equal roundings, n the number of terms.
    pub fn widening(&self) -> f64 {
        let most = self.count / (LAMBDA * LAMBDA);
        f64::min(self.multiplicity / 6.0, most).max(1.0).sqrt()
    }

    /// Variance of the error of the sum.
    pub fn variance(&self) -> f64 {
        (self.u * self.widening()).powi(2) * self.independent()
    }
}

/// Sum, sum of magnitudes, and sum of squares of the elementwise products of two vectors of equal length.
fn products(a: &[f64], b: &[f64]) -> [f64; 3] {
    const LANES: usize = 8;
    let mut lanes = [[0.0; LANES]; 3];
    let mut add = |lane: usize, term: f64| {
        lanes[0][lane] += term;
        lanes[1][lane] += term.abs();
        lanes[2][lane] += term * term;
    };
    let (a_parts, a_rest) = a.as_chunks::<LANES>();
    let (b_parts, b_rest) = b.as_chunks::<LANES>();
    for (a, b) in a_parts.iter().zip(b_parts) {
        for lane in 0..LANES {
            add(lane, a[lane] * b[lane]);
        }
    }
    for (lane, (a, b)) in a_rest.iter().zip(b_rest).enumerate() {
        add(lane, a * b);
    }
    lanes.map(|lanes| lanes.iter().sum())
}
