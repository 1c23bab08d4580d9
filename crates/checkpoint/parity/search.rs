//! Finds the storage, the rule and the input that come nearest: every combination is held against a sample,
//! byte by byte.

use super::levels::{Level, by_factor, levels, usable};
use super::maker::{INPUTS, Maker};
use super::order;
use super::order::Orders;
use super::problem::{Cell, Problem, Sample};
use super::recode;
use super::recode::Recode;
use ulplab_core::formats::{Format, Half};

/// Elements of the small sample and of the large one. Every candidate is compared with the small sample, and the best candidates
/// with the large one.
const FEW: usize = 1 << 10;
const MANY: usize = 1 << 13;
/// Makers that are held against the larger sample, and whose bytes are looked for in every order.
const BEST: usize = 3;
/// One part of so many of a sample decides which pairs of order and encoding are looked at.
const PART: usize = 8;
// The shares below are empirical: chosen on the kinds of faults in tests/parity/looked_at.rs, and measured on those in held_out.rs,
// which were not looked at.

/// A share that leaves nothing to be looked for.
const SETTLED: f64 = 0.98;
/// The least share that another input, element or global scale must explain.
const MOST: f64 = 0.9;
/// The share that each step away from the declared storage must explain more.
const STEP: f64 = 0.015;

/// The least shares that ways to store must explain, so that none is chosen for what it explains by chance.
struct Least {
    order: f64,
    recode: f64,
    /// Enough for an order or a recode, so that the two are not tried together.
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

/// Orders and encodings of codes and scales that the search tries.
pub struct Storage {
    pub scale_orders: Orders,
    pub code_orders: Orders,
    pub scale_recodes: Vec<Recode>,
    pub code_recodes: Vec<Recode>,
}

/// One way to store codes or scales; of recodes none is the declared encoding.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StorageForm {
    pub order: usize,
    pub recode: Option<usize>,
}

/// A maker, and the storage under which its bytes come nearest to those found.
#[derive(Clone)]
pub struct MakerFit {
    pub maker: Maker,
    pub level: Level,
    pub scales: StorageForm,
    pub codes: StorageForm,
    /// True if the codes are those of the stored scales, where these are not the maker's.
    pub follows: bool,
    /// The shares of scales and of codes that are explained.
    pub scale_share: f64,
    pub code_share: f64,
    score: f64,
}

/// The scales and codes that a maker makes of a sample.
struct Made {
    scales: Vec<Option<u32>>,
    codes: Vec<Option<Vec<u16>>>,
}

impl Storage {
    pub fn new(problem: &Problem) -> Self {
        Self {
            scale_orders: order::of_scales(problem),
            code_orders: order::of_codes(problem),
            scale_recodes: recode::of_scales(problem),
            code_recodes: recode::of_codes(problem.format.repr(), problem.format.element.bits),
        }
    }

    /// Scales in the declared order, rounded to that type; `None` if they are not computed as f32.
    pub fn narrowed(&self, half: Half) -> Option<StorageForm> {
        let name = match half {
            Half::Bf16 => "rounded to bf16",
            Half::F16 => "rounded to f16",
        };
        let recode = self.scale_recodes.iter().position(|recode| recode.name == name)?;
        Some(StorageForm {
            order: 0,
            recode: Some(recode),
        })
    }

    /// The change of scales in a form.
    pub fn scale_recode(&self, form: StorageForm) -> Option<&Recode> {
        form.recode.map(|recode| &self.scale_recodes[recode])
    }

    /// The change of codes in a form.
    pub fn code_recode(&self, form: StorageForm) -> Option<&Recode> {
        form.recode.map(|recode| &self.code_recodes[recode])
    }

    fn steps(&self, orders: &Orders, way: StorageForm) -> f64 {
        f64::from(orders.0[way.order].steps) + if way.recode.is_some() { 1.5 } else { 0.0 }
    }

    /// The stored scale of a group, where that way to store puts it.
    pub fn scale(&self, problem: &Problem, order: usize, group: usize) -> Option<u32> {
        let [r, c] = problem.grid.place(group);
        problem.scale_at((self.scale_orders.0[order].at)(r, c))
    }

    /// The stored code of an element.
    pub fn code(&self, problem: &Problem, order: usize, at: usize) -> Option<u16> {
        let cols = problem.grid.cols;
        problem.code_at((self.code_orders.0[order].at)(at / cols, at % cols))
    }

    fn scale_share(&self, problem: &Problem, groups: &[usize], made: &[Option<u32>], way: StorageForm) -> f64 {
        let recode = self.scale_recode(way);
        let (mut right, mut all) = (0, 0);
        for (group, made) in groups.iter().zip(made) {
            // The scales of large groups are not computed from changed input.
            all += usize::from(made.is_some() || !problem.large());
            let made = made.map(|made| recode.map_or(made, |recode| (recode.apply)(made)));
            right += usize::from(made.is_some() && self.scale(problem, way.order, *group) == made);
        }
        if all == 0 { 1.0 } else { right as f64 / all as f64 }
    }

    fn code_share(&self, problem: &Problem, cells: &[Cell], made: &[Option<Vec<u16>>], way: StorageForm) -> f64 {
        let recode = self.code_recode(way);
        let (mut right, mut all) = (0, 0);
        for (cell, made) in cells.iter().zip(made) {
            all += cell.len;
            for (i, made) in made.iter().flatten().enumerate() {
                let made = recode.map_or(*made, |recode| (recode.apply)((*made).into()) as u16);
                right += usize::from(self.code(problem, way.order, cell.at + i) == Some(made));
            }
        }
        if all == 0 { 1.0 } else { right as f64 / all as f64 }
    }

    /// The best way to store codes that were made.
    fn best_codes(&self, problem: &Problem, cells: &[Cell], made: &[Option<Vec<u16>>]) -> StorageForm {
        let share = |way: StorageForm, part: usize| {
            let few = cells.len() / part;
            self.code_share(problem, &cells[..few], &made[..few], way)
        };
        self.best(&self.code_orders, self.code_recodes.len(), &CODES, share)
    }

    fn best_scales(&self, problem: &Problem, groups: &[usize], made: &[Option<u32>]) -> StorageForm {
        let share = |way: StorageForm, part: usize| {
            let few = groups.len() / part;
            self.scale_share(problem, &groups[..few], &made[..few], way)
        };
        self.best(&self.scale_orders, self.scale_recodes.len(), &SCALES, share)
    }

    /// Tries orders, then recodes, and both together if neither is enough. `share` takes a part of the sample where that tells enough.
    fn best(
        &self,
        orders: &Orders,
        recodes: usize,
        least: &Least,
        share: impl Fn(StorageForm, usize) -> f64,
    ) -> StorageForm {
        let declared = StorageForm::default();
        let worth = |way: StorageForm, share: f64| share - STEP * self.steps(orders, way);
        let mut best = (declared, share(declared, 1));
        if best.1 >= SETTLED {
            return declared;
        }
        let mut consider = |way: StorageForm| {
            let found = share(way, 1);
            let enough = if way.recode.is_some() {
                least.recode
            } else {
                least.order
            };
            if found >= enough && worth(way, found) > worth(best.0, best.1) {
                best = (way, found);
            }
            best.1
        };
        let ordered = (1..orders.0.len()).map(|order| StorageForm { order, recode: None });
        let recoded = |order| (0..recodes).map(Some).map(move |recode| StorageForm { order, recode });
        let reached = ordered.chain(recoded(0)).map(&mut consider).last();
        if reached.is_none_or(|reached| reached < least.settled) {
            for way in (1..orders.0.len()).flat_map(recoded) {
                if share(way, PART) >= least.recode {
                    consider(way);
                }
            }
        }
        best.0
    }
}

impl Made {
    fn new(problem: &Problem, maker: &Maker, sample: &Sample) -> Self {
        let scales = sample.groups.iter().map(|group| maker.scale(problem, *group)).collect();
        let codes = |cell: &Cell| {
            let scale = match maker.format.scaling {
                None => 0,
                // The scale of a large group is taken as it is stored.
                Some(_) => maker
                    .scale(problem, cell.group)
                    .or_else(|| problem.scale_at(cell.group))?,
            };
            maker.codes(problem, cell, scale)
        };
        let codes = sample.cells.iter().map(codes).collect();
        Self { scales, codes }
    }
}

impl MakerFit {
    /// Everything as declared.
    pub fn declared(problem: &Problem, format: &Format) -> Self {
        Self {
            maker: super::as_stored(problem, format),
            level: Level::AsStored,
            scales: StorageForm::default(),
            codes: StorageForm::default(),
            follows: false,
            scale_share: 1.0,
            code_share: 1.0,
            score: 2.0,
        }
    }

    /// A maker whose bytes are stored in a given way.
    fn stored_as(
        problem: &Problem,
        storage: &Storage,
        (maker, level): &(Maker, Level),
        sample: &Sample,
        ways: (StorageForm, StorageForm),
    ) -> Self {
        let made = Made::new(problem, maker, sample);
        let mut fit = Self {
            maker: maker.clone(),
            level: *level,
            scales: ways.0,
            codes: ways.1,
            follows: false,
            scale_share: storage.scale_share(problem, &sample.groups, &made.scales, ways.0),
            code_share: storage.code_share(problem, &sample.cells, &made.codes, ways.1),
            score: 0.0,
        };
        let mut flat = is_flat(problem, &made.codes);
        if !fit.settled() && maker.format.scaling.is_some() && ways.0.recode.is_none() {
            let under = under(problem, storage, maker, &sample.cells, ways.0.order);
            let code_share = storage.code_share(problem, &sample.cells, &under, ways.1);
            let follows = Self {
                follows: true,
                code_share,
                ..fit.clone()
            };
            if follows.worth(storage) > fit.worth(storage) {
                fit = follows;
                flat = is_flat(problem, &under);
            }
        }
        // Agreement says nothing if a maker makes the same of everything.
        fit.score = fit.worth(storage) - if flat { 1.0 } else { 0.0 };
        fit
    }

    /// A maker whose bytes are looked for in every order and encoding.
    fn anywhere(problem: &Problem, storage: &Storage, maker: &(Maker, Level), sample: &Sample) -> Self {
        let made = Made::new(problem, &maker.0, sample);
        let scales = storage.best_scales(problem, &sample.groups, &made.scales);
        let codes = storage.best_codes(problem, &sample.cells, &made.codes);
        let mut best = Self::stored_as(problem, storage, maker, sample, (scales, codes));
        if best.code_share >= 0.9 || maker.0.format.scaling.is_none() {
            return best;
        }
        // The codes may be those of scales that are not the maker's, wherever these are stored.
        let few: Vec<Cell> = sample.cells.iter().step_by(PART).copied().collect();
        let fits = |order: &usize| {
            let made = under(problem, storage, &maker.0, &few, *order);
            storage.code_share(problem, &few, &made, codes) > 0.95
        };
        let mut orders = vec![0];
        orders.extend((1..storage.scale_orders.0.len()).filter(fits));
        for order in orders {
            let made = under(problem, storage, &maker.0, &sample.cells, order);
            let codes = storage.best_codes(problem, &sample.cells, &made);
            let ways = (StorageForm { order, recode: None }, codes);
            let fit = Self::stored_as(problem, storage, maker, sample, ways);
            if fit.score > best.score {
                best = fit;
            }
        }
        best
    }

    /// The shares that are explained, less the price of assumptions. Scales that are not the maker's count if the codes are theirs.
    fn worth(&self, storage: &Storage) -> f64 {
        let orders = [(&storage.scale_orders, self.scales), (&storage.code_orders, self.codes)];
        let steps: f64 = orders.map(|(orders, way)| storage.steps(orders, way)).iter().sum();
        let more = [
            (self.level != Level::AsStored, 0.5),
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

/// The best fit of all rules, and of what may have been done to their input.
pub fn search(problem: &Problem, storage: &Storage, formats: &[Format]) -> MakerFit {
    let (few, many) = (problem.sample(FEW), problem.sample(MANY));
    let by_rule = |format: &Format| -> Vec<(Maker, Level)> {
        let maker = |globals| Maker {
            format: *format,
            globals,
            input: None,
        };
        let usable =
            |(level, globals): &(Level, Vec<f32>)| *level != Level::AsStored || globals.is_empty() || usable(globals);
        let levels = levels(problem, format).into_iter().filter(usable);
        levels.map(|(level, globals)| (maker(globals), level)).collect()
    };
    let mut makers: Vec<(Maker, Level)> = formats.iter().flat_map(by_rule).collect();
    let declared = (StorageForm::default(), StorageForm::default());
    // Equal codes fit any maker that makes such codes: only the scales say which rule it was.
    let stored = |cell: &Cell| {
        let places = cell.at..cell.at + cell.len;
        places.map(|at| storage.code(problem, 0, at)).collect()
    };
    let codes: Vec<Option<Vec<u16>>> = many.cells.iter().map(stored).collect();
    if is_flat(problem, &codes) {
        let fits = makers
            .iter()
            .map(|maker| MakerFit::stored_as(problem, storage, maker, &many, declared));
        let better = |best: MakerFit, fit: MakerFit| if fit.scale_share > best.scale_share { fit } else { best };
        return fits.reduce(better).expect("there is a rule");
    }
    let mut best = closest(problem, storage, &makers, declared, (&few, &many));
    if best.settled() {
        return best;
    }
    // The order of bytes shows best under the closest rule; fall back to the first.
    let mut some: Vec<(Maker, Level)> = vec![(best.maker.clone(), best.level)];
    some.extend(by_rule(&formats[0]));
    let anywhere = some
        .iter()
        .map(|maker| MakerFit::anywhere(problem, storage, maker, &few));
    let anywhere = anywhere.reduce(better).expect("there is a rule");
    let ways = (anywhere.scales, anywhere.codes);
    if ways != declared {
        let fit = closest(problem, storage, &makers, ways, (&few, &many));
        best = better(best, fit);
    }
    if best.settled() {
        return best;
    }
    let scaled = |(level, globals)| {
        let maker = best.maker.clone();
        (Maker { globals, ..maker }, level)
    };
    makers = by_factor(problem, &best.maker.format).into_iter().map(scaled).collect();
    let first = Maker {
        format: formats[0],
        ..best.maker.clone()
    };
    let mut bases = vec![&best.maker];
    bases.extend(Some(&first).filter(|_| best.maker.format != formats[0]));
    for maker in bases {
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
        let others = recode::others(problem.format.element).map(element);
        makers.extend(INPUTS.iter().map(input).chain(others).map(|maker| (maker, best.level)));
    }
    let other = closest(problem, storage, &makers, (best.scales, best.codes), (&few, &many));
    let plain = closest(problem, storage, &makers, declared, (&few, &many));
    let other = better(other, plain);
    // Another input is believed if it explains nearly everything.
    let explains = other.code_share >= MOST && (other.follows || other.scale_share >= MOST);
    if explains && other.score > best.score + 2.0 * STEP {
        other
    } else {
        best
    }
}

/// The codes of cells under stored scales.
fn under(problem: &Problem, storage: &Storage, maker: &Maker, cells: &[Cell], order: usize) -> Vec<Option<Vec<u16>>> {
    let codes = |cell: &Cell| {
        let scale = storage.scale(problem, order, cell.group)?;
        maker.codes(problem, cell, scale)
    };
    cells.iter().map(codes).collect()
}

/// True if nearly all codes are the same except for their signs.
fn is_flat(problem: &Problem, codes: &[Option<Vec<u16>>]) -> bool {
    let sign = 1 << (problem.format.element.bits - 1);
    let mut codes: Vec<u16> = codes.iter().flatten().flatten().map(|code| code & !sign).collect();
    codes.sort_unstable();
    let most = codes.chunk_by(|a, b| a == b).map(<[u16]>::len).max().unwrap_or(0);
    most * 10 >= codes.len() * 9
}

fn better(best: MakerFit, fit: MakerFit) -> MakerFit {
    if fit.score > best.score + 1e-9 { fit } else { best }
}

/// The maker that comes closest, its bytes stored in a given way; of equals the first.
fn closest(
    problem: &Problem,
    storage: &Storage,
    makers: &[(Maker, Level)],
    ways: (StorageForm, StorageForm),
    (few, many): (&Sample, &Sample),
) -> MakerFit {
    let mut tried: Vec<(f64, &(Maker, Level))> = makers
        .iter()
        .map(|maker| (MakerFit::stored_as(problem, storage, maker, few, ways).score, maker))
        .collect();
    tried.sort_by(|a, b| b.0.total_cmp(&a.0));
    let floor = tried[0].0 - 0.1;
    let near = tried.into_iter().take_while(|(score, _)| *score >= floor);
    let near = near.take(BEST * 3);
    let again = near.map(|(_, maker)| MakerFit::stored_as(problem, storage, maker, many, ways));
    again.reduce(better).expect("some rule was tried")
}
