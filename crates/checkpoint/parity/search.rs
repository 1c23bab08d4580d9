//! Finds the combination of order, encoding, rule and input fault that reproduces most of the stored bytes, by comparing all
//! combinations with a sample of the bytes.

use super::levels::{Level, by_factor, levels, usable};
use super::maker::{INPUTS, Maker};
use super::order::{self, Order};
use super::problem::{Cell, Problem, Sample};
use super::recode::{self, Recode};
use ulplab_core::formats::{Format, Half};
use ulplab_core::list::distinct;

/// Number of elements of the small sample (`FEW`), which tests every hypothetical quantizer, and of the large sample (`MANY`),
/// which tests only the best of them.
const FEW: usize = 1 << 10;
const MANY: usize = 1 << 13;
/// At most `3 * BEST` hypothetical quantizers are compared with the large sample.
const BEST: usize = 3;
/// A pair of order and encoding is compared with the first 1 / `PART` of a sample, and if it fits there, with the whole sample.
const PART: usize = 8;
// The limits below were tuned on the planted faults of tests/parity/looked_at.rs, and evaluated on the unseen faults of
// held_out.rs.

/// The search ends if a hypothesis reproduces this fraction of the bytes.
const SETTLED: f64 = 0.98;
/// Minimum fraction of the bytes that a hypothesis with a faulty input, another element type or another global scale must
/// reproduce.
const MOST: f64 = 0.9;
/// Additional fraction of the bytes that a hypothesis must reproduce for each mistake (in order, encoding, input or global scale)
/// that it assumes.
const STEP: f64 = 0.015;

/// Minimum fractions of the bytes that a wrong order, or a wrong encoding (recode), must reproduce to be chosen. A smaller
/// fraction may be chance.
struct Least {
    order: f64,
    recode: f64,
    /// If a wrong order or a wrong encoding alone reproduces this fraction, pairs of order and encoding are not tested.
    settled: f64,
}

const CODES: Least = Least {
    order: 0.6,
    recode: 0.9,
    settled: 0.4,
};
const SCALES: Least = Least {
    order: 0.85,
    recode: 0.95,
    settled: 0.9,
};

/// The tensor to diagnose, and the orders and encodings that the search tests for its scales and its codes.
pub struct Storage<'a> {
    pub problem: &'a Problem<'a>,
    pub scales: Ways<'a>,
    pub codes: Ways<'a>,
}

/// Orders and encodings that the search tests, for scales or for codes.
pub struct Ways<'a> {
    problem: &'a Problem<'a>,
    pub orders: Vec<Order>,
    pub recodes: Vec<Recode>,
    least: Least,
    /// Number of columns of the matrix of scales, or of codes.
    cols: usize,
    /// Function that returns the stored bits at an index of the buffer.
    bits: fn(&Problem, usize) -> Option<u32>,
}

/// Order and encoding of stored codes or scales: indices into the lists of orders and of wrong encodings (recodes). Encoding
/// `None` is the declared one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StorageForm {
    pub order: usize,
    pub recode: Option<usize>,
}

/// Best fit of a hypothetical quantizer: the orders and encodings with which it reproduces most of the stored bytes, and the
/// fractions that it then reproduces.
#[derive(Clone)]
pub struct MakerFit {
    pub maker: Maker,
    pub scales: StorageForm,
    pub codes: StorageForm,
    /// True if the codes fit the stored scales, although the quantizer computes other scales.
    follows: bool,
    /// Fractions of the scales and of the codes of the sample that the quantizer reproduces.
    scale_share: f64,
    code_share: f64,
    score: f64,
}

/// Bits of the scales or codes that a quantizer computes for a sample, each with the index of its group or element; `None` if the
/// bits are unknown.
#[derive(Default)]
pub struct Made {
    bits: Vec<(usize, Option<u32>)>,
    /// Number of entries in the first 1 / [`PART`] of the sample.
    part: usize,
}

impl<'a> Storage<'a> {
    pub fn new(problem: &'a Problem<'a>) -> Self {
        let scales = Ways {
            problem,
            orders: order::of_scales(problem),
            recodes: recode::of_scales(problem),
            least: SCALES,
            cols: problem.grid.count.1,
            bits: |problem, place| problem.scale_at(place),
        };
        let codes = Ways {
            problem,
            orders: order::of_codes(problem),
            recodes: recode::of_codes(problem.format.repr(), problem.format.element.bits),
            least: CODES,
            cols: problem.grid.cols,
            bits: |problem, place| problem.code_at(place).map(u32::from),
        };
        Self { problem, scales, codes }
    }

    /// Returns the storage form of f32 scales in the declared order, rounded to `half` (bf16 or f16); `None` if the format has no
    /// f32 scales.
    pub fn narrowed(&self, half: Half) -> Option<StorageForm> {
        let name = format!("rounded to {}", half.name());
        let recode = self.scales.recodes.iter().position(|recode| recode.name == name);
        recode.map(Some).map(|recode| StorageForm { order: 0, recode })
    }

    /// Returns the scales that a quantizer computes for a sample. Leaves out groups that are too large to compute a scale for.
    pub fn scales_by(&self, maker: &Maker, groups: &[usize]) -> Made {
        Made::new(groups.iter().map(|group| {
            let made = maker.scale(self.problem, *group);
            Some((*group, made)).filter(|_| made.is_some() || !self.problem.large())
        }))
    }

    /// Collects the codes of all elements of `cells` (row segments); `codes` computes the codes of one cell.
    pub fn codes_of(&self, cells: &[Cell], codes: impl Fn(&Cell) -> Option<Vec<u16>>) -> Made {
        Made::new(cells.iter().map(|cell| {
            let codes = codes(cell);
            let code = move |i: usize| codes.as_ref().map(|codes| codes[i].into());
            (0..cell.len).map(move |i| (cell.at + i, code(i)))
        }))
    }

    /// Returns the codes that a quantizer computes for `cells` (row segments) with its own scales.
    fn codes_by(&self, maker: &Maker, cells: &[Cell]) -> Made {
        self.codes_of(cells, |cell| {
            let scale = match maker.format.scaling {
                None => 0,
                // A quantizer with a faulty input cannot compute scales of large groups: use the stored scale at the same index.
                Some(_) => maker
                    .scale(self.problem, cell.group)
                    .or(self.problem.scale_at(cell.group))?,
            };
            maker.codes(self.problem, cell, scale)
        })
    }

    /// Returns the codes that a quantizer computes for `cells` (row segments) with the stored scales, read in the given order.
    fn codes_under(&self, maker: &Maker, cells: &[Cell], order: usize) -> Made {
        self.codes_of(cells, |cell| {
            let scale = self.scales.stored(order, cell.group)?;
            maker.codes(self.problem, cell, scale)
        })
    }
}

impl Ways<'_> {
    /// Returns the wrong encoding of `form`; `None` if `form` has the declared encoding.
    pub fn recode(&self, form: StorageForm) -> Option<&Recode> {
        form.recode.map(|recode| &self.recodes[recode])
    }

    /// Converts the bits of a correct scale or code to the wrong encoding of `form`, if it has one.
    pub fn apply(&self, form: StorageForm, bits: u32) -> u32 {
        self.recode(form).map_or(bits, |recode| (recode.apply)(bits))
    }

    /// Returns the stored bits of group or element `at`, read at its position in the given order; `None` beyond the end of the
    /// buffer.
    pub fn stored(&self, order: usize, at: usize) -> Option<u32> {
        (self.bits)(self.problem, (self.orders[order].at)(at / self.cols, at % self.cols))
    }

    fn steps(&self, form: StorageForm) -> f64 {
        f64::from(self.orders[form.order].steps) + if form.recode.is_some() { 1.5 } else { 0.0 }
    }

    /// Counts the sampled codes (or scales) whose stored bits differ from those that the quantizer would store in this order and
    /// encoding. Skips entries whose stored or computed bits are unknown.
    pub fn wrong(&self, made: &Made, form: StorageForm) -> usize {
        let wrong = |(at, made): &&(usize, Option<u32>)| {
            let both = made.zip(self.stored(form.order, *at));
            both.is_some_and(|(made, stored)| self.apply(form, made) != stored)
        };
        made.bits.iter().filter(wrong).count()
    }

    /// Returns the fraction of the quantizer's codes (or scales) that equal the stored ones. The stored ones are read in the
    /// order and encoding `form`.
    fn share(&self, made: &[(usize, Option<u32>)], form: StorageForm) -> f64 {
        self.share_from(made, form, 0.0).unwrap_or(0.0)
    }

    /// Same as [`Self::share`]; `None` if the fraction is below `least`. Stops as soon as this is certain: most forms differ nearly
    /// everywhere.
    fn share_from(&self, made: &[(usize, Option<u32>)], form: StorageForm, least: f64) -> Option<f64> {
        let of_all = |right: usize| match made.len() {
            0 => 1.0,
            all => right as f64 / all as f64,
        };
        let mut right = made.len();
        for (at, made) in made {
            let equal = made.is_some_and(|made| self.stored(form.order, *at) == Some(self.apply(form, made)));
            if !equal {
                right -= 1;
                if of_all(right) < least {
                    return None;
                }
            }
        }
        Some(of_all(right)).filter(|share| *share >= least)
    }

    /// Finds the order and encoding in which the buffer agrees best with the quantizer's bits. Tests all orders, then all wrong
    /// encodings. If none of them alone suffices, also tests pairs of order and encoding.
    fn best(&self, made: &Made) -> StorageForm {
        let declared = StorageForm::default();
        let worth = |form: StorageForm, share: f64| share - STEP * self.steps(form);
        let mut best = (declared, self.share(&made.bits, declared));
        if best.1 >= SETTLED {
            return declared;
        }
        let mut consider = |form: StorageForm| {
            let enough = match form.recode {
                Some(_) => self.least.recode,
                None => self.least.order,
            };
            if let Some(found) = self.share_from(&made.bits, form, enough)
                && worth(form, found) > worth(best.0, best.1)
            {
                best = (form, found);
            }
            best.1
        };
        let ordered = (1..self.orders.len()).map(|order| StorageForm { order, recode: None });
        let recodes = 0..self.recodes.len();
        let recoded = |order| {
            recodes
                .clone()
                .map(Some)
                .map(move |recode| StorageForm { order, recode })
        };
        let reached = ordered.chain(recoded(0)).map(&mut consider).last();
        if reached.is_none_or(|reached| reached < self.least.settled) {
            for form in (1..self.orders.len()).flat_map(recoded) {
                // Compare each pair with a part of the sample first: there are many pairs, and nearly all fail there.
                let part = &made.bits[..made.part];
                if self.share_from(part, form, self.least.recode).is_some() {
                    consider(form);
                }
            }
        }
        best.0
    }
}

impl Made {
    fn new<P: IntoIterator<Item = (usize, Option<u32>)>>(pieces: impl ExactSizeIterator<Item = P>) -> Self {
        let (mut made, few) = (Self::default(), pieces.len() / PART);
        for (index, piece) in pieces.enumerate() {
            made.bits.extend(piece);
            if index < few {
                made.part = made.bits.len();
            }
        }
        made
    }

    /// True if at least 90 % of the codes are equal except for their signs.
    fn is_flat(&self, problem: &Problem) -> bool {
        let sign = 1u32 << (problem.format.element.bits - 1);
        let codes = self.bits.iter().filter_map(|(_, made)| *made);
        let mut codes: Vec<u32> = codes.map(|code| code & !sign).collect();
        codes.sort_unstable();
        let most = codes.chunk_by(|a, b| a == b).map(<[u32]>::len).max().unwrap_or(0);
        most * 10 >= codes.len() * 9
    }
}

impl MakerFit {
    /// Scores a hypothetical quantizer, given the order and encoding of the scales and of the codes.
    fn stored_as(
        storage: &Storage,
        maker: &Maker,
        sample: &Sample,
        (scales, codes): (StorageForm, StorageForm),
    ) -> Self {
        let problem = storage.problem;
        let made = storage.codes_by(maker, &sample.cells);
        let of_scales = storage.scales_by(maker, &sample.groups);
        let mut fit = Self {
            maker: maker.clone(),
            scales,
            codes,
            follows: false,
            scale_share: storage.scales.share(&of_scales.bits, scales),
            code_share: storage.codes.share(&made.bits, codes),
            score: 0.0,
        };
        let mut flat = made.is_flat(problem);
        if !fit.settled() && maker.format.scaling.is_some() && scales.recode.is_none() {
            let under = storage.codes_under(maker, &sample.cells, scales.order);
            let follows = Self {
                follows: true,
                code_share: storage.codes.share(&under.bits, codes),
                ..fit.clone()
            };
            if follows.worth(storage) > fit.worth(storage) {
                (fit, flat) = (follows, under.is_flat(problem));
            }
        }
        // If a quantizer gives nearly all elements the same code, agreement of codes proves little: lower its score.
        fit.score = fit.worth(storage) - if flat { 1.0 } else { 0.0 };
        fit
    }

    /// Finds the orders and encodings with which a quantizer fits the stored scales and codes best, and computes its score.
    fn anywhere(storage: &Storage, maker: &Maker, sample: &Sample) -> Self {
        let cells = &sample.cells;
        let scales = storage.scales.best(&storage.scales_by(maker, &sample.groups));
        let codes = storage.codes.best(&storage.codes_by(maker, cells));
        let mut best = Self::stored_as(storage, maker, sample, (scales, codes));
        if best.code_share >= 0.9 || maker.format.scaling.is_none() {
            return best;
        }
        // The codes may fit stored scales that differ from the quantizer's scales: test each order of the stored scales.
        let few: Vec<Cell> = cells.iter().step_by(PART).copied().collect();
        let share = |order| {
            storage
                .codes
                .share(&storage.codes_under(maker, &few, order).bits, codes)
        };
        let fits = |order: &usize| *order == 0 || share(*order) > 0.95;
        for order in (0..storage.scales.orders.len()).filter(fits) {
            let codes = storage.codes.best(&storage.codes_under(maker, cells, order));
            let forms = (StorageForm { order, recode: None }, codes);
            let fit = Self::stored_as(storage, maker, sample, forms);
            if fit.score > best.score {
                best = fit;
            }
        }
        best
    }

    /// Returns the score: reproduced fractions of scales and of codes, minus a penalty for each assumed mistake. If the codes fit
    /// the stored scales, differing scales count as reproduced.
    fn worth(&self, storage: &Storage) -> f64 {
        let steps = storage.scales.steps(self.scales) + storage.codes.steps(self.codes);
        let more = [
            (self.maker.level != Level::AsStored, 0.5),
            (self.maker.input.is_some(), 1.5),
            (self.follows, 1.5),
        ];
        let price = |(assumed, steps)| if assumed { steps } else { 0.0 };
        let more: f64 = more.into_iter().map(price).sum();
        let scales = match self.follows {
            true => self.scale_share.max(0.97 * self.code_share),
            false => self.scale_share,
        };
        scales + self.code_share - STEP * (steps + more)
    }

    fn settled(&self) -> bool {
        self.scale_share.min(self.code_share) >= SETTLED
    }
}

/// Finds the hypothesis with the best score among all rules, orders, encodings, global scales and faults of the input.
pub fn search(storage: &Storage, formats: &[Format]) -> MakerFit {
    let problem = storage.problem;
    let (few, many) = (problem.sample(FEW), problem.sample(MANY));
    let usable = |maker: &Maker| {
        let stored = maker.level == Level::AsStored;
        !stored || maker.globals.is_empty() || usable(&maker.globals)
    };
    let by_rule = |format: &Format| levels(problem, format).into_iter().filter(usable);
    let mut makers: Vec<Maker> = formats.iter().flat_map(by_rule).collect();
    let declared = (StorageForm::default(), StorageForm::default());
    // If nearly all stored codes are equal, many quantizers fit them: only the scales identify the rule.
    let codes = storage.codes_of(&many.cells, |cell| {
        let places = cell.at..cell.at + cell.len;
        places.map(|at| Some(storage.codes.stored(0, at)? as u16)).collect()
    });
    if codes.is_flat(problem) {
        let fits = makers
            .iter()
            .map(|maker| MakerFit::stored_as(storage, maker, &many, declared));
        let better = |best: MakerFit, fit: MakerFit| if fit.scale_share > best.scale_share { fit } else { best };
        return fits.reduce(better).expect("there is a rule");
    }
    let closest = |makers: &[Maker], forms| closest(storage, makers, forms, (&few, &many));
    let mut best = closest(&makers, declared);
    if best.settled() {
        return best;
    }
    // Search for the order and encoding with two kinds of quantizers only: the best one so far, and those with the declared rule.
    let some = std::iter::once(best.maker.clone()).chain(by_rule(&formats[0]));
    let anywhere = some.map(|maker| MakerFit::anywhere(storage, &maker, &few));
    let anywhere = anywhere.reduce(better).expect("there is a rule");
    let forms = (anywhere.scales, anywhere.codes);
    if forms != declared {
        best = better(best, closest(&makers, forms));
    }
    if best.settled() {
        return best;
    }
    makers = by_factor(problem, &best.maker.format);
    for format in distinct([best.maker.format, formats[0]]) {
        let maker = Maker {
            format,
            ..best.maker.clone()
        };
        let input = |input| Maker {
            input: Some(input),
            ..maker.clone()
        };
        let element = |element| Maker {
            format: Format {
                element,
                convention: None,
                ..maker.format
            },
            ..maker.clone()
        };
        let own = problem.format.element;
        let others = recode::others(own.repr, own.bits).map(element);
        makers.extend(INPUTS.iter().map(input).chain(others));
    }
    let other = better(closest(&makers, (best.scales, best.codes)), closest(&makers, declared));
    // `other` assumes a faulty input, another element type or another global scale. It must reproduce at least the fraction
    // `MOST` of the codes. It must reproduce the same fraction of the scales, unless the codes follow the stored scales.
    let explains = other.code_share >= MOST && (other.follows || other.scale_share >= MOST);
    if explains && other.score > best.score + 2.0 * STEP {
        other
    } else {
        best
    }
}

fn better(best: MakerFit, fit: MakerFit) -> MakerFit {
    if fit.score > best.score + 1e-9 { fit } else { best }
}

/// Returns the quantizer with the best score for the given orders and encodings; the first one if several scores are equal.
fn closest(
    storage: &Storage,
    makers: &[Maker],
    forms: (StorageForm, StorageForm),
    (few, many): (&Sample, &Sample),
) -> MakerFit {
    let score = |maker| MakerFit::stored_as(storage, maker, few, forms).score;
    let mut tried: Vec<(f64, &Maker)> = makers.iter().map(|maker| (score(maker), maker)).collect();
    tried.sort_by(|a, b| b.0.total_cmp(&a.0));
    let floor = tried[0].0 - 0.1;
    let near = tried.into_iter().take_while(|(score, _)| *score >= floor);
    let again = near
        .take(BEST * 3)
        .map(|(_, maker)| MakerFit::stored_as(storage, maker, many, forms));
    again.reduce(better).expect("some rule was tried")
}
