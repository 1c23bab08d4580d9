//! Detects sums whose rounding errors add up instead of averaging out.
//!
//! When a sum s adds a term t, the rounding error is the remainder of t modulo the spacing q of the numbers around s. So equal
//! terms have equal rounding errors while s stays within a binade, and a sum of n terms may err by n roundings instead of √n.
//! [`Places::multiplicity`] estimates M, the number of roundings that are equal. It examines a sample of m = √n terms, at least
//! 64, for three symptoms of equal roundings:
//!
//! * **Equal terms.** If value i occurs c_i times, M = Σc_i²/n: 1 if all terms differ, n if all are equal. Two random terms are
//!   equal with probability M/n, so a sample of √n terms has about M/2 equal pairs. The terms t and −t have opposite roundings,
//!   so c_i is the number of terms with this value minus the number with its negative. If roundings are equal within a group of
//!   equal terms and independent between groups, the variance of their sum is at most M times as large as for independent
//!   roundings (Cauchy and Schwarz).
//! * **A regular distance.** The difference between a term and the term [`LAG`] indices later is nearly a multiple of q (0
//!   included): ramps, slow curves, patterns whose period divides the lag. If the sum of the two terms is nearly a multiple of q,
//!   their roundings are opposite, so such a pair is subtracted from the count.
//! * **Roundings of one sign**: small terms of one sign that the sum absorbs. The mean remainder is more than four standard
//!   errors from 0.
//!
//! If one of the last two symptoms is found, all roundings are assumed to be equal: M = n. Terms that are multiples of q are
//! added exactly and are ignored: products of FP8, FP4 and small integers. Random terms show none of the three symptoms.

/// Sums with at most this many terms are not examined: their likely bound, λ√n roundings, exceeds the worst case, n roundings.
pub const FEW: usize = 64;
/// Distance between the two terms of a pair, as a number of terms. It is a multiple of 16 and of all periods up to 8 except 7.
const LAG: usize = 240;

/// Indices of the sampled terms of a sum.
#[derive(Clone, Debug)]
pub struct Places {
    places: Vec<usize>,
    terms: usize,
}

impl Places {
    /// Chooses the indices of the sample for a sum of `terms` terms: none for up to [`FEW`] terms, all for up to 256. Otherwise
    /// the indices follow multiples of the golden ratio, so that they do not coincide with a periodic pattern.
    pub fn of(terms: usize) -> Self {
        const RATIO: u64 = 0x9e37_79b9_7f4a_7c15;
        let places = if terms <= FEW {
            Vec::new()
        } else if terms <= 256 {
            (0..terms).collect()
        } else {
            let at = |k: u64| ((u128::from(k.wrapping_mul(RATIO)) * terms as u128) >> 64) as usize;
            (1..=terms.isqrt().max(FEW) as u64).map(at).collect()
        };
        Self { places, terms }
    }

    /// Returns, for each sampled term, its index and the index [`LAG`] terms later. Indices wrap around at the end of the sum.
    pub fn pairs(&self) -> impl ExactSizeIterator<Item = [usize; 2]> + '_ {
        self.places.iter().map(|at| [*at, (at + LAG) % self.terms])
    }

    /// Returns M, the number of roundings that are equal, from 1 to the number of terms, for a sum with unit roundoff `u` and
    /// partial sums of about `size`. `pairs` yields the terms at the indices that [`Self::pairs`] returns.
    pub fn multiplicity(
        &self,
        u: f64,
        size: f64,
        pairs: impl Iterator<Item = [f64; 2]>,
        scratch: &mut Vec<u64>,
    ) -> f64 {
        if self.places.is_empty() || u == 0.0 || !(size.is_normal()) {
            return 1.0;
        }
        // Compute the spacing of the numbers near `size`: 2u times the power of two of `size`.
        let spacing = 2.0 * u * f64::from_bits(size.to_bits() & 0x7ff0_0000_0000_0000);
        let inverse = spacing.recip();
        scratch.clear();
        let (mut seen, mut again) = ([0; 64], 0);
        let (mut close, mut signs) = (0i32, [[0.0; 2]; 2]);
        for [term, later] in pairs {
            let units = term * inverse;
            let off = left_over(units);
            for (sign, off) in signs.iter_mut().zip([off, left_over(2.0 * units)]) {
                *sign = [sign[0] + off, sign[1] + off * off];
            }
            // Skip multiples of half the spacing: adding them needs no rounding. (Smaller partial sums have half the spacing.)
            if off != 0.0 || left_over(2.0 * units) != 0.0 {
                scratch.push(term.to_bits());
                again += usize::from(seen_before(&mut seen, term.to_bits()));
                // A pair counts +1 if its roundings are nearly equal, and −1 if they are nearly opposite. With random signs,
                // the counts cancel.
                let near = |sum: f64| left_over(sum * inverse).abs() < 1.0 / 16.0;
                close += match (near(later - term), near(later + term)) {
                    (true, _) => 1,
                    (_, opposite) => -i32::from(opposite),
                };
            }
        }
        let all = self.terms as f64;
        let of_one_sign = |[sum, squares]: [f64; 2]| sum * sum > 16.0 * squares;
        if 2 * i64::from(close) > self.places.len() as i64 || signs.into_iter().any(of_one_sign) {
            return all;
        }
        if again <= 2 {
            return 1.0;
        }
        1.0f64.max(self.repeated(scratch))
    }

    /// Returns true if the digits of the numbers look random below 2⁻¹⁷ of the largest magnitude. Products of these numbers with
    /// other numbers then also look random, unless the products are nearly equal ([`level`]).
    pub fn irregular(&self, pairs: &[[f64; 2]], scratch: &mut Vec<u64>) -> bool {
        let largest = pairs.iter().fold(0.0, |largest: f64, [x, _]| largest.max(x.abs()));
        let alone = self.multiplicity(2f64.powi(-18), largest, pairs.iter().copied(), scratch) == 1.0;
        alone && 4 * scratch.len() > 3 * pairs.len()
    }

    /// Estimates M, the number of equal roundings, from the sampled terms. Returns 1 if equal pairs outnumber opposite pairs by
    /// so little that this may be chance.
    fn repeated(&self, sample: &mut [u64]) -> f64 {
        let (all, places) = (self.terms as f64, self.places.len() as f64);
        // Move the sign to the last bit, so that sorting puts terms of equal magnitude next to each other.
        sample.iter_mut().for_each(|term| *term = term.rotate_left(1));
        sample.sort_unstable();
        let (mut pairs, mut spread) = (0.0, 0.0);
        for equal in sample.chunk_by(|a, b| a >> 1 == b >> 1) {
            let count = equal.len() as f64;
            let negative = equal.iter().filter(|term| *term & 1 == 1).count() as f64;
            pairs += (count - 2.0 * negative).powi(2) - count;
            spread += 2.0 * count * (count - 1.0);
        }
        // With random signs, equal and opposite signs are equally likely. So ignore up to 3 standard deviations of excess equal
        // pairs.
        if pairs <= 3.0 * spread.sqrt() {
            return 1.0;
        }
        sample.len() as f64 / places + (all - 1.0) * pairs / (places * (places - 1.0))
    }
}

/// True if nearly equal terms have equal roundings: in at least 4 of the first 8 pairs, the two terms differ by less than
/// u·size/16.
#[inline(always)]
pub fn level(u: f64, size: f64, pairs: impl Iterator<Item = [f64; 2]>) -> bool {
    let near = |[term, later]: [f64; 2]| usize::from((later - term).abs() < u * size / 16.0);
    pairs.take(8).map(near).sum::<usize>() >= 4
}

/// Returns the difference between a number and its nearest integer; 0 for NaN and for numbers of 2⁵¹ or more.
#[inline(always)]
fn left_over(x: f64) -> f64 {
    // Adding and subtracting this number rounds to an integer.
    const ROUND: f64 = 1.5 * (1u64 << 52) as f64;
    let off = x - ((x + ROUND) - ROUND);
    if x.abs() < (1u64 << 51) as f64 { off } else { 0.0 }
}

/// Records the hash of these bits, and returns true if it was seen before. This is a quick test that nearly all terms differ.
#[inline(always)]
fn seen_before(seen: &mut [u64; 64], bits: u64) -> bool {
    let hash = bits.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 52;
    let (word, bit) = ((hash >> 6) as usize, 1u64 << (hash & 63));
    let before = seen[word] & bit != 0;
    seen[word] |= bit;
    before
}

/// Groups of equal numbers. Results that are computed from equal numbers have equal roundings.
#[derive(Clone, Debug, Default)]
pub struct Equal {
    /// Index of the group of each number; empty if there are at most [`FEW`] numbers, or if all numbers differ.
    group: Vec<u32>,
    groups: usize,
}

impl Equal {
    /// Puts numbers with equal bits into one group.
    pub fn of(numbers: impl ExactSizeIterator<Item = f64>) -> Self {
        if numbers.len() <= FEW {
            return Self::default();
        }
        let numbers: Vec<u64> = numbers.map(f64::to_bits).collect();
        // Hash table: for each hash, the index of a group's first number plus 1 (0 if the entry is free), and the group's index.
        let mask = (4 * numbers.len()).next_power_of_two() - 1;
        let mut table = vec![(0u32, 0u32); mask + 1];
        let mut groups = 0;
        let group = numbers.iter().enumerate().map(|(at, x)| {
            let hash = x.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let mut place = (hash >> 32) as usize & mask;
            loop {
                let (first, group) = table[place];
                if first == 0 {
                    table[place] = (at as u32 + 1, groups);
                    groups += 1;
                    return groups - 1;
                }
                if numbers[first as usize - 1] == *x {
                    return group;
                }
                place = (place + 1) & mask;
            }
        });
        let group: Vec<u32> = group.collect();
        let groups = groups as usize;
        if groups == numbers.len() {
            return Self::default();
        }
        Self { group, groups }
    }

    /// Returns a bound of the sum of errors whose magnitudes are at most `errors`. Errors of equal numbers are assumed to be
    /// equal, and errors of different numbers independent. The bound is the sum of all errors, or λ·√(Σ g²) if that is smaller
    /// (Hoeffding). Here g is the sum of the errors of one group of equal numbers, and λ is [`LAMBDA`](reference::LAMBDA).
    pub fn together(&self, errors: impl Iterator<Item = f64>) -> f64 {
        let (sum, squares) = self.sums(errors);
        f64::min(sum, reference::LAMBDA * squares.sqrt())
    }

    /// Returns the sum of all numbers, and Σ g², where g is the sum of the numbers of one group.
    pub fn sums(&self, numbers: impl Iterator<Item = f64>) -> (f64, f64) {
        let add = |(sum, squares), x: f64| (sum + x, squares + x * x);
        if self.group.is_empty() {
            return numbers.fold((0.0, 0.0), add);
        }
        let mut groups = vec![0.0; self.groups];
        for (group, x) in self.group.iter().zip(numbers) {
            groups[*group as usize] += x;
        }
        groups.into_iter().fold((0.0, 0.0), add)
    }
}
