//! The reference on the values that a kernel had: at every site it takes the kernel's own, once it has said what they must be.

use rayon::prelude::*;
use reference::ops::hyper_connection::{HyperConnection, Mixing, combine};
use reference::ops::rmsnorm::rmsnorm;
use reference::paths::deepseek_v4::{Config, Model, State, StateParts, sites};
use reference::{Bounded, Choice, Numerics, Operations, Real, Site, Tensor};
use safetensors::Dtype;

use super::super::data::{exact, f32_values};
use super::super::judge::{Judge, Part};
use super::super::mhc_pre::normalized;
use super::super::{Buffer, Outputs};
use super::records::Records;
use super::state::{self, Caches};
use super::{STREAMS, Step, TAPS, Tap, WHY};

const WHY_RECORDS: &str = "a record's bytes follow from the vector that is stored (docs/formats.md), which was kept; all other bytes \
                           must be as they were";
const ALIKE: &str = "rows that begin alike and read the same tokens have the same bits, wherever they are in the batch";

/// What a number must be, and how far a right one may be from it.
type Expected = (f64, f64);

/// A case with which outputs are compared.
pub(super) struct Follower {
    step: Step,
    /// Layers that have a tap.
    layers: Vec<Vec<usize>>,
}

struct Found {
    /// Values of the taps; choices are whole numbers.
    taps: Vec<Vec<f32>>,
    logits: Vec<f32>,
    tokens: Vec<i32>,
}

/// What is expected of a row: of every tap `[S, layers, cols]`, of the logits `[S, V]`, of the tokens `[S]`, and the state.
struct RowExpected {
    taps: Vec<Vec<Expected>>,
    logits: Vec<Expected>,
    tokens: Vec<i32>,
    state: StateParts<Bounded>,
}

impl Follower {
    pub fn new(step: Step) -> Self {
        let layers = TAPS.iter().map(|tap| tap.layers(&step.source.config)).collect();
        Self { step, layers }
    }

    /// The outputs, each with what is expected of it.
    pub fn parts(&self, outputs: &Outputs) -> Vec<Part> {
        let found = Found {
            taps: TAPS
                .iter()
                .map(|tap| numbers(tap.dtype, outputs.get(tap.buffer)))
                .collect(),
            logits: f32_values(outputs.get("logits"), 4),
            tokens: integers(outputs.get("tokens")),
        };
        let model = self.step.source.model::<Bounded>().expect("it was loaded in f32");
        let rows = self.step.starts.par_iter().enumerate();
        let rows = rows.map(|(row, start)| Some(self.row(&model, &found, row, start.as_ref()?)));
        let rows: Vec<Option<RowExpected>> = rows.collect();
        let mut parts = Vec::new();
        for (number, tap) in TAPS.iter().enumerate() {
            let cols = (tap.cols)(&self.step.source.config);
            let of_row = |row: &RowExpected| row.taps[number].clone();
            let expected = self.joined(
                &rows,
                self.layers[number].len() * self.step.runs,
                cols,
                &found.taps[number],
                of_row,
            );
            let shape = [self.step.runs, self.layers[number].len(), rows.len(), cols];
            parts.push(part(tap.buffer, tap.dtype, &shape, expected, outputs));
        }
        let vocabulary = self.step.source.config.vocab_size;
        let expected = self.joined(&rows, self.step.runs, vocabulary, &found.logits, |row| {
            row.logits.clone()
        });
        let shape = [self.step.runs, rows.len(), vocabulary];
        parts.push(part("logits", Dtype::F32, &shape, expected, outputs));
        let tokens = (0..self.step.runs).flat_map(|run| {
            let token = move |row: &Option<RowExpected>| row.as_ref().map_or(-1, |row| row.tokens[run]);
            rows.iter().map(token)
        });
        let tokens: Vec<i32> = tokens.collect();
        parts.push(equal("tokens", &[self.step.runs, rows.len()], &tokens, outputs));
        parts.push(self.repeated(outputs));
        parts.extend(self.states(&rows, outputs));
        parts.extend(self.counters(&tokens, outputs));
        parts
    }

    /// The logits of rows that begin alike and read the same tokens: they must have the bits of the first of them.
    fn repeated(&self, outputs: &Outputs) -> Part {
        let Step {
            source,
            runs,
            starts,
            tokens,
            forced,
            ..
        } = &self.step;
        let (rows, vocabulary) = (starts.len(), source.config.vocab_size);
        let read = |row: usize| -> Vec<i32> { (0..*runs).map(|run| forced[run * rows + row]).collect() };
        let alike = |a: usize, b: usize| {
            let begun = |row: usize| starts[row].as_ref().map(|start| start.tokens);
            begun(a) == begun(b) && tokens[a] == tokens[b] && read(a) == read(b)
        };
        let mut want = outputs.get("logits").to_vec();
        for row in 0..rows {
            let first = (0..row).find(|first| alike(*first, row)).unwrap_or(row);
            for run in 0..*runs {
                let at = |row: usize| (run * rows + row) * vocabulary * 4;
                want.copy_within(at(first)..at(first) + vocabulary * 4, at(row));
            }
        }
        let shape = [*runs, rows, vocabulary];
        Judge::equal("logits", Dtype::F32, &shape, want, ALIKE).on(outputs.get("logits").to_vec())
    }

    /// `[groups, cols]` of every row as `[groups, B, cols]`; rows of padding may have anything.
    fn joined(
        &self,
        rows: &[Option<RowExpected>],
        groups: usize,
        cols: usize,
        found: &[f32],
        of_row: impl Fn(&RowExpected) -> Vec<Expected>,
    ) -> Vec<Expected> {
        let rows: Vec<Option<Vec<Expected>>> = rows.iter().map(|row| row.as_ref().map(&of_row)).collect();
        let mut all = Vec::with_capacity(found.len());
        for group in 0..groups {
            for (number, row) in rows.iter().enumerate() {
                match row {
                    Some(row) => all.extend_from_slice(&row[group * cols..][..cols]),
                    None => {
                        let found = &found[(group * rows.len() + number) * cols..][..cols];
                        all.extend(found.iter().map(|x| (f64::from(*x), 0.0)));
                    }
                }
            }
        }
        all
    }

    /// Follows a row through all runs.
    fn row(&self, model: &Model<Bounded>, found: &Found, row: usize, start: &StateParts<f32>) -> RowExpected {
        let Step {
            source,
            runs,
            starts,
            forced,
            tokens,
            ..
        } = &self.step;
        let (config, rows) = (&source.config, starts.len());
        let vocabulary = config.vocab_size;
        let mut state = State::from_parts(config, state::bounded(start)).expect("the state is the model's own");
        let sizes = TAPS
            .iter()
            .zip(&self.layers)
            .map(|(tap, layers)| runs * layers.len() * (tap.cols)(config));
        let mut expected = RowExpected {
            taps: sizes.map(|size| vec![(0.0, 0.0); size]).collect(),
            logits: Vec::with_capacity(runs * vocabulary),
            tokens: Vec::with_capacity(*runs),
            state: StateParts {
                tokens: 0,
                layers: Vec::new(),
            },
        };
        let mut token = tokens[row];
        for run in 0..*runs {
            // A token that does not exist is told where tokens are judged.
            let id = u32::try_from(token)
                .ok()
                .filter(|id| (*id as usize) < vocabulary)
                .unwrap_or(0);
            let mut follow = Follow {
                config,
                records: self.step.caches.records.as_ref(),
                layers: &self.layers,
                found,
                at: [run, row, rows],
                expected: &mut expected,
                mixing: Mixed,
            };
            model
                .run(&mut state, &[id], &mut follow)
                .expect("the token is one of the vocabulary");
            let logits = &found.logits[(run * rows + row) * vocabulary..][..vocabulary];
            expected.tokens.push(best(logits));
            token = match forced.get((run + 1) * rows + row) {
                Some(given) if *given >= 0 => *given,
                _ => found.tokens[run * rows + row],
            };
        }
        expected.state = state.to_parts();
        expected
    }

    /// Every cache: what the reference keeps must be there, what no run has reached must be as it was. Other slots of rings are free.
    fn states(&self, rows: &[Option<RowExpected>], outputs: &Outputs) -> Vec<Part> {
        let Step {
            source,
            caches: Caches {
                arrays: caches,
                records,
            },
            runs,
            starts,
            ..
        } = &self.step;
        let mut expected: Vec<Vec<Expected>> = Vec::new();
        for cache in caches {
            let found = f32_values(outputs.get(cache.name), 4);
            let mut all: Vec<Expected> = cache.values.iter().map(|x| (f64::from(*x), 0.0)).collect();
            let [layers, _, slots, width] = cache.shape;
            for (row, start) in starts.iter().enumerate().filter(|_| cache.ring) {
                let Some(start) = start else { continue };
                for (layer, run) in (0..layers).flat_map(|layer| (0..*runs).map(move |run| (layer, run))) {
                    let at = cache.place(layer, row, (start.tokens + run) % slots);
                    (at..at + width).for_each(|at| all[at] = (f64::from(found[at]), 0.0));
                }
            }
            expected.push(all);
        }
        for (number, row) in rows.iter().enumerate() {
            let Some(row) = row else { continue };
            state::each(&source.config, &row.state, |(name, layer, slot), values| {
                let Some(cache) = caches.iter().position(|cache| cache.name == name) else {
                    return;
                };
                let at = caches[cache].place(layer, number, slot);
                for (expected, x) in expected[cache][at..].iter_mut().zip(values) {
                    *expected = (x.value(), x.error());
                }
            });
        }
        let parts = caches.iter().zip(expected);
        let arrays = parts.map(|(cache, expected)| part(cache.name, Dtype::F32, &cache.shape, expected, outputs));
        arrays
            .chain(records.iter().flat_map(|records| self.pages(records, outputs)))
            .collect()
    }

    /// Pages of records: every byte follows from what was there before the runs and from the vectors that kernels kept.
    fn pages(&self, records: &Records, outputs: &Outputs) -> Vec<Part> {
        let Step {
            source, runs, starts, ..
        } = &self.step;
        let (config, mut records) = (&source.config, records.clone());
        let kept = |site: &str| {
            let number = TAPS.iter().position(|tap| tap.site == site).expect("keys have taps");
            (number, f32_values(outputs.get(TAPS[number].buffer), 4))
        };
        let kept = [sites::WINDOW, sites::COMPRESSED].map(kept);
        for (row, start) in starts.iter().enumerate() {
            let Some(start) = start else { continue };
            for run in 0..*runs {
                records.step(config, row, start.tokens + run, |site, layer| {
                    let (number, values) = kept
                        .iter()
                        .find(|(number, _)| TAPS[*number].site == site)
                        .expect("kept");
                    let (layers, cols) = (&self.layers[*number], (TAPS[*number].cols)(config));
                    let layer = layers
                        .iter()
                        .position(|other| *other == layer)
                        .expect("all layers have it");
                    let at = ((run * layers.len() + layer) * starts.len() + row) * cols;
                    values[at..at + cols].to_vec()
                });
            }
        }
        let part = |buffer: Buffer| {
            let judge = Judge::equal(buffer.name, Dtype::U8, &buffer.shape, buffer.bytes, WHY_RECORDS);
            judge.on(outputs.get(buffer.name).to_vec())
        };
        records.buffers().map(part).collect()
    }

    /// The tokens that the next run reads, the positions, and the number of runs.
    fn counters(&self, tokens: &[i32], outputs: &Outputs) -> [Part; 3] {
        let Step { runs, starts, dims, .. } = &self.step;
        let last = dims
            .iter()
            .find(|(name, _)| *name == "P")
            .map_or(0, |(_, size)| *size as i32 - 1);
        let next = &tokens[(runs - 1) * starts.len()..];
        let position = |start: &Option<StateParts<f32>>| {
            start
                .as_ref()
                .map_or(-1, |start| (start.tokens as i32 + *runs as i32).min(last))
        };
        let positions: Vec<i32> = starts.iter().map(position).collect();
        [
            equal("token", &[starts.len()], next, outputs),
            equal("position", &[starts.len()], &positions, outputs),
            equal("clock", &[1], &[*runs as i32], outputs),
        ]
    }
}

fn part(name: &'static str, dtype: Dtype, shape: &[usize], expected: Vec<Expected>, outputs: &Outputs) -> Part {
    if dtype == Dtype::I32 {
        let want: Vec<i32> = expected.iter().map(|(value, _)| *value as i32).collect();
        return equal(name, shape, &want, outputs);
    }
    let (want, bounds): (Vec<f64>, Vec<f64>) = expected.into_iter().unzip();
    let judge = Judge::within(name, dtype, shape, want, move |at, _| bounds[at], WHY).without_metrics();
    judge.on(outputs.get(name).to_vec())
}

fn equal(name: &'static str, shape: &[usize], want: &[i32], outputs: &Outputs) -> Part {
    let bytes = want.iter().flat_map(|x| x.to_le_bytes()).collect();
    Judge::equal(name, Dtype::I32, shape, bytes, WHY).on(outputs.get(name).to_vec())
}

fn integers(bytes: &[u8]) -> Vec<i32> {
    let chunks = bytes.chunks_exact(4);
    chunks
        .map(|bytes| i32::from_le_bytes(bytes.try_into().expect("four bytes")))
        .collect()
}

pub(super) fn numbers(dtype: Dtype, bytes: &[u8]) -> Vec<f32> {
    match dtype {
        Dtype::I32 => integers(bytes).into_iter().map(|x| x as f32).collect(),
        _ => f32_values(bytes, 4),
    }
}

/// The token with the largest logit, the first of equal ones; NaN is largest.
fn best(logits: &[f32]) -> i32 {
    let mut out = [0];
    reference::ops::top_k::top_k(logits, logits.len(), 1, &mut out);
    out[0]
}

/// Called at the sites of one token.
struct Follow<'a> {
    config: &'a Config,
    records: Option<&'a Records>,
    layers: &'a [Vec<usize>],
    found: &'a Found,
    /// Run, row, and number of rows.
    at: [usize; 3],
    expected: &'a mut RowExpected,
    mixing: Mixed,
}

impl Follow<'_> {
    /// What the kernel had at a site, and where what is expected of it goes.
    fn places(&mut self, site: &Site) -> Option<(&'static Tap, &[f32], &mut [Expected])> {
        let number = TAPS.iter().position(|tap| tap.site == site.name)?;
        let layers = &self.layers[number];
        let layer = layers.iter().position(|layer| Some(*layer) == site.layer)?;
        let cols = (TAPS[number].cols)(self.config);
        let [run, row, rows] = self.at;
        let group = run * layers.len() + layer;
        let found = &self.found.taps[number][(group * rows + row) * cols..][..cols];
        Some((
            &TAPS[number],
            found,
            &mut self.expected.taps[number][group * cols..][..cols],
        ))
    }
}

impl Numerics<Bounded> for Follow<'_> {
    fn site(&mut self, site: &Site, tensor: &mut Tensor<Bounded>) {
        if site.name == sites::LOGITS {
            let logits = tensor.data.iter().map(|x| (x.value(), x.error()));
            self.expected.logits.extend(logits);
            return;
        }
        let records = self.records;
        // The streams that enter a layer are those that have left the one before.
        let Some((tap, found, expected)) = self.places(site) else {
            return;
        };
        for (expected, x) in expected.iter_mut().zip(&tensor.data) {
            *expected = (x.value(), x.error());
        }
        tensor.data = match records {
            Some(records) => records.pass(tap.site, found),
            None => exact([found.len()], found).data,
        };
    }

    fn choice(&mut self, site: &Site, choice: &mut Choice<Bounded>) {
        let ordered = site.name == sites::ROUTER;
        let mut wanted = choice.indices.clone();
        if !ordered {
            // Selected entries are read in the order of their numbers.
            wanted.sort_unstable_by_key(|index| if *index < 0 { i32::MAX } else { *index });
        }
        let Some((_, found, expected)) = self.places(site) else {
            return;
        };
        let found: Vec<i32> = found.iter().map(|x| *x as i32).collect();
        let scores = &choice.scores.data;
        let possible = found == wanted || possible(scores, &found, &wanted, ordered);
        let right = found == wanted || possible && admissible(scores, &found, ordered);
        for (expected, index) in expected.iter_mut().zip(if right { &found } else { &wanted }) {
            *expected = (f64::from(*index), 0.0);
        }
        // What follows is judged given the kernel's choice, right or wrong, if it is one at all.
        choice.indices = if possible { found } else { wanted };
    }

    fn operations(&self) -> &dyn Operations<Bounded> {
        &self.mixing
    }
}

/// Whether indices are a choice at all: as many candidates as must be chosen, all different, ascending unless the best come first.
fn possible(scores: &[Bounded], found: &[i32], wanted: &[i32], ordered: bool) -> bool {
    let count = wanted.iter().filter(|index| **index >= 0).count();
    let (chosen, rest) = found.split_at(count);
    let candidate = |index: &i32| {
        let score = usize::try_from(*index).ok().and_then(|index| scores.get(index));
        score.is_some_and(|score| score.value() != f64::NEG_INFINITY)
    };
    let ascending = ordered || chosen.windows(2).all(|pair| pair[0] < pair[1]);
    let different = chosen
        .iter()
        .enumerate()
        .all(|(at, index)| !chosen[..at].contains(index));
    chosen.iter().all(candidate) && rest.iter().all(|index| *index == -1) && ascending && different
}

/// Whether no candidate that is chosen is surely worse than one that is left out, or than one behind it where order counts.
fn admissible(scores: &[Bounded], found: &[i32], ordered: bool) -> bool {
    let chosen: Vec<usize> = found.iter().filter_map(|index| usize::try_from(*index).ok()).collect();
    let least = |index: usize| scores[index].value() - scores[index].error();
    let left = (0..scores.len()).filter(|index| !chosen.contains(index));
    let mut behind = left.map(least).fold(f64::NEG_INFINITY, f64::max);
    for &index in chosen.iter().rev() {
        if scores[index].value() + scores[index].error() < behind {
            return false;
        }
        if ordered {
            behind = behind.max(least(index));
        }
    }
    true
}

/// Bounds of the mixing weights: Sinkhorn's iterations do not amplify errors, but a bound that follows them one by one would.
struct Mixed;

impl Operations<Bounded> for Mixed {
    fn mhc_pre(
        &self,
        mixer: &HyperConnection<Bounded>,
        x: &Tensor<Bounded>,
        weight: &[Bounded],
        eps: Bounded,
    ) -> (Tensor<Bounded>, Mixing<Bounded>) {
        let (tokens, dim) = (x.shape[0], x.cols());
        let logits = mixer.logits(x);
        let mut input = Tensor::full([tokens, dim], Bounded::ZERO);
        let mut mixing = Mixing {
            post: Tensor::full([tokens, STREAMS], Bounded::ZERO),
            comb: Tensor::full([tokens, STREAMS, STREAMS], Bounded::ZERO),
        };
        for token in 0..tokens {
            let (pre, rest) = logits.row(token).split_at(STREAMS);
            let (post, comb) = rest.split_at(STREAMS);
            let weights: Vec<Bounded> = pre.iter().map(|x| x.sigmoid() + mixer.eps).collect();
            let x = &x.data[token * STREAMS * dim..][..STREAMS * dim];
            combine(x, &weights, input.row_mut(token));
            let twice = |x: &Bounded| x.sigmoid() + x.sigmoid();
            mixing
                .post
                .row_mut(token)
                .iter_mut()
                .zip(post)
                .for_each(|(to, x)| *to = twice(x));
            let (values, errors): (Vec<f64>, Vec<f64>) = comb.iter().map(|x| (x.value(), x.error())).unzip();
            let (values, bounds) = normalized(&values, &errors);
            let comb = values
                .into_iter()
                .zip(bounds)
                .map(|(value, bound)| Bounded::new(value, bound));
            let to = &mut mixing.comb.data[token * STREAMS * STREAMS..][..STREAMS * STREAMS];
            to.iter_mut().zip(comb).for_each(|(to, x)| *to = x);
        }
        rmsnorm(&mut input, Some(weight), eps);
        (input, mixing)
    }
}
