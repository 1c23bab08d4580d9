//! Signs that the roundings of a sum add up instead of averaging out.
//!
//! A sum s that takes a term t is rounded by what t leaves over of the spacing q of the numbers around s. So terms round as they
//! are: equal ones equally, as long as s stays within a binade, and a sum of n terms may be off by n roundings, not by √n of them.
//! [`multiplicity`] says how many roundings move together. It looks at a sample of m = √n terms, at least 64:
//!
//! * **Equal terms.** With c_i terms of value i, M = Σc_i²/n: 1 if all differ, n if all are equal. Of two terms, M/n are equal, and a
//!   sample of √n shows about M/2 equal pairs. Terms of opposite sign round oppositely: c_i is the difference of the two counts. Roundings
//!   that are equal within a group and independent between groups have at most
//!   M times the variance (Cauchy and Schwarz).
//! * **Terms that differ by multiples of q**, or by next to nothing, from one to the [`LAG`]th after it: ramps, slow curves, patterns
//!   with a period that divides it. Those that differ so from its opposite are taken off.
//! * **Roundings of one sign**: small terms of one sign that the sum swallows. Their mean is more than four standard errors from 0.
//!
//! The last two take all terms for equal: M = n. Terms that are multiples of q are added exactly and do not count: products of FP8, FP4 and
//! small integers. Random terms show none of the three signs.

/// Sums of at most so many terms are not looked at: λ√n exceeds n.
pub const FEW: usize = 64;
/// A multiple of all small periods but 7, and of 16.
const LAG: usize = 240;

/// Terms that are looked at.
#[derive(Clone, Debug)]
pub struct Places {
    places: Vec<usize>,
    terms: usize,
}

impl Places {
    /// Lists the phases of `terms` terms: all of a few hundred, else multiples of the golden ratio, which no pattern meets.
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

    /// Pairs of a term and the one that is [`LAG`] behind it, a pair a place, by the number of the term; the first again after the last.
    pub fn pairs(&self) -> impl ExactSizeIterator<Item = [usize; 2]> + '_ {
        self.places.iter().map(|at| [*at, (at + LAG) % self.terms])
    }

    /// The number of roundings that move together in a sum with unit roundoff `u` and partial sums of about `size`: from 1 to the number of
    /// terms. `pairs` gives the terms of [`Self::pairs`].
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
        // Half a spacing of the numbers around the size is u times its power of two.
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
            // A spacing below decides while the sum is smaller.
            if off != 0.0 || left_over(2.0 * units) != 0.0 {
                scratch.push(term.to_bits());
                again += usize::from(seen_before(&mut seen, term.to_bits()));
                // Oppositely as often as equally if signs are random.
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

    /// True if numbers have digits that look random, 2⁻¹⁷ of the largest and below: their products with any numbers do then, unless
    /// those undo it ([`level`]).
    pub fn irregular(&self, pairs: &[[f64; 2]], scratch: &mut Vec<u64>) -> bool {
        let largest = pairs.iter().fold(0.0, |largest: f64, [x, _]| largest.max(x.abs()));
        let alone = self.multiplicity(2f64.powi(-18), largest, pairs.iter().copied(), scratch) == 1.0;
        alone && 4 * scratch.len() > 3 * pairs.len()
    }

    /// M, from the terms of the sample; 1 if random signs may have made up the difference.
    fn repeated(&self, sample: &mut [u64]) -> f64 {
        let (all, places) = (self.terms as f64, self.places.len() as f64);
        // The sign becomes the last bit, so that terms of one magnitude are neighbours.
        sample.iter_mut().for_each(|term| *term = term.rotate_left(1));
        sample.sort_unstable();
        let (mut pairs, mut spread) = (0.0, 0.0);
        for equal in sample.chunk_by(|a, b| a >> 1 == b >> 1) {
            let count = equal.len() as f64;
            let negative = equal.iter().filter(|term| *term & 1 == 1).count() as f64;
            pairs += (count - 2.0 * negative).powi(2) - count;
            spread += 2.0 * count * (count - 1.0);
        }
        // Signs that are random give pairs whose signs are, too.
        if pairs <= 3.0 * spread.sqrt() {
            return 1.0;
        }
        sample.len() as f64 / places + (all - 1.0) * pairs / (places * (places - 1.0))
    }
}

/// True if half of the first few terms are within a sixteenth of a spacing of those behind them.
#[inline(always)]
pub fn level(u: f64, size: f64, pairs: impl Iterator<Item = [f64; 2]>) -> bool {
    let near = |[term, later]: [f64; 2]| usize::from((later - term).abs() < u * size / 16.0);
    pairs.take(8).map(near).sum::<usize>() >= 4
}

/// The rest of a number after the nearest integer is taken from it; 0 of NaN and of numbers of 2⁵² or more.
#[inline(always)]
fn left_over(x: f64) -> f64 {
    // Adding this rounds to an integer.
    const ROUND: f64 = 1.5 * (1u64 << 52) as f64;
    let off = x - ((x + ROUND) - ROUND);
    if x.abs() < (1u64 << 51) as f64 { off } else { 0.0 }
}

/// True if the hash of these bits was seen: finds out fast that next to no terms are equal.
#[inline(always)]
fn seen_before(seen: &mut [u64; 64], bits: u64) -> bool {
    let hash = bits.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 52;
    let (word, bit) = ((hash >> 6) as usize, 1u64 << (hash & 63));
    let before = seen[word] & bit != 0;
    seen[word] |= bit;
    before
}

/// Groups of equal numbers: results computed from equal numbers have equal roundings.
#[derive(Clone, Debug, Default)]
pub struct Equal {
    /// The group of each number; empty if there are too few to matter, or all differ.
    group: Vec<u32>,
    groups: usize,
}

impl Equal {
    /// The groups of these numbers.
    pub fn of(numbers: impl ExactSizeIterator<Item = f64>) -> Self {
        if numbers.len() <= FEW {
            return Self::default();
        }
        let numbers: Vec<u64> = numbers.map(f64::to_bits).collect();
        // A hash table of the first number of each group.
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

    /// The bound of a sum of errors, each of which is at most as large as given, that are the same for equal numbers and independent
    /// otherwise: the smaller of their sum and λ times the root of the squares of the sums of groups (Hoeffding).
    pub fn together(&self, errors: impl Iterator<Item = f64>) -> f64 {
        let (sum, squares) = self.sums(errors);
        f64::min(sum, reference::LAMBDA * squares.sqrt())
    }

    /// The sum of numbers, and the sum of the squares of the sums of groups.
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
