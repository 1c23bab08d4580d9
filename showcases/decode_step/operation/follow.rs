//! The reference on the values that a kernel had: at every site it takes the kernel's own, once it has said what they must be.

use rayon::prelude::*;
use reference::paths::deepseek_v4::{Config, Model, State, StateParts, sites};
use reference::{Bounded, Choice, Numerics, Operations, Site, Tensor};
use safetensors::Dtype;

use super::bf16::Sixteen;
use super::followed::{Followed, admissible, possible};
use super::fp8::Eight;
use super::index::{Asked, IndexPages};
use super::parts::{Expected, best, equal, integers, numbers, of_bytes, part};
use super::records::Records;
use super::state::{self, Caches};
use super::{Step, TAPS, Tap};
use ulplab_operations::ops::Outputs;
use ulplab_operations::ops::data::{exact, f32_values};
use ulplab_operations::ops::judge::{Judge, Part};

const ALIKE: &str = "rows that begin alike and read the same tokens have the same bits, wherever they are in the batch";

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
        let (eight, sixteen) = (self.eight(outputs), self.sixteen(outputs));
        let coded = (eight.as_ref(), sixteen.as_ref());
        let rows = self.step.starts.par_iter().enumerate();
        let rows = rows.map(|(row, start)| Some(self.row(&model, coded, &found, row, start.as_ref()?)));
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
        let places: Vec<[usize; 2]> = self.steps().map(|[run, row, _]| [run, row]).collect();
        parts.extend(eight.iter().flat_map(|eight| eight.parts(&places)));
        let read = |run, row| self.read(run, row, &found.tokens);
        parts.extend(sixteen.iter().flat_map(|sixteen| sixteen.parts(&places, read)));
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

    /// Products of attention in eight bits, if they are.
    fn eight<'a>(&'a self, outputs: &'a Outputs) -> Option<Eight<'a>> {
        let Step { source, starts, .. } = &self.step;
        let blocks = source.storages.activations?;
        let eight = Eight::new((source, blocks), self.step.size("P"), starts.len(), outputs);
        Some(eight.expect("the weights were read before"))
    }

    /// Everything else in sixteen bits, if it is.
    fn sixteen<'a>(&'a self, outputs: &'a Outputs) -> Option<Sixteen<'a>> {
        let Step {
            source,
            starts,
            caches,
            runs,
            ..
        } = &self.step;
        let records = caches.records.as_ref().filter(|_| source.storages.sixteen)?;
        let sixteen = Sixteen::new(source, self.step.size("P"), starts.len(), outputs);
        let mut sixteen = sixteen.expect("the weights were read before");
        for (row, start) in starts.iter().enumerate() {
            start
                .iter()
                .for_each(|start| sixteen.attend(records, row, start, *runs));
        }
        Some(sixteen)
    }

    /// The token that a row reads in a run: the one that is given, or that it has sampled. One that does not exist is told where tokens
    /// are judged, and is 0 here.
    fn read(&self, run: usize, row: usize, sampled: &[i32]) -> u32 {
        let Step {
            source,
            starts,
            tokens,
            forced,
            ..
        } = &self.step;
        let token = match run.checked_sub(1) {
            None => tokens[row],
            Some(_) if forced[run * starts.len() + row] >= 0 => forced[run * starts.len() + row],
            Some(before) => sampled[before * starts.len() + row],
        };
        let there = |id: &u32| (*id as usize) < source.config.vocab_size;
        u32::try_from(token).ok().filter(there).unwrap_or(0)
    }

    /// Follows a row through all runs.
    fn row(
        &self,
        model: &Model<Bounded>,
        (eight, sixteen): (Option<&Eight>, Option<&Sixteen>),
        found: &Found,
        row: usize,
        start: &StateParts<f32>,
    ) -> RowExpected {
        let Step {
            source, runs, starts, ..
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
        let indexed = start.layers.iter().find_map(|layer| layer.index.as_ref());
        let entries = indexed.map_or(0, |index| index.entries.keys.rows());
        let index = self.step.caches.index.clone();
        let mut mixing = Followed {
            index: index.map(|index| Asked::new(index, row, entries)),
        };
        for run in 0..*runs {
            let id = self.read(run, row, &found.tokens);
            let mut follow = Follow {
                config,
                records: self.step.caches.records.as_ref(),
                eight,
                sixteen,
                layers: &self.layers,
                found,
                at: [run, row, rows],
                expected: &mut expected,
                mixing: &mut mixing,
            };
            model
                .run(&mut state, &[id], &mut follow)
                .expect("the token is one of the vocabulary");
            let logits = &found.logits[(run * rows + row) * vocabulary..][..vocabulary];
            expected.tokens.push(best(logits));
        }
        expected.state = state.to_parts();
        expected
    }

    /// Every cache: what the reference keeps must be there, what no run has reached must be as it was. Other slots of rings are free.
    fn states(&self, rows: &[Option<RowExpected>], outputs: &Outputs) -> Vec<Part> {
        let Step {
            source,
            caches:
                Caches {
                    arrays: caches,
                    records,
                    index,
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
            .chain(index.iter().map(|index| self.index_pages(index, outputs)))
            .collect()
    }

    /// What a tap has kept, and its number.
    fn kept(&self, site: &str, outputs: &Outputs) -> (usize, Vec<f32>) {
        let number = TAPS.iter().position(|tap| tap.site == site).expect("keys have taps");
        (number, f32_values(outputs.get(TAPS[number].buffer), 4))
    }

    /// What a tap has kept of a row's layer in a run.
    fn kept_row<'a>(&self, (number, values): &'a (usize, Vec<f32>), [run, layer, row]: [usize; 3]) -> &'a [f32] {
        let (layers, cols) = (&self.layers[*number], (TAPS[*number].cols)(&self.step.source.config));
        let layer = layers
            .iter()
            .position(|other| *other == layer)
            .expect("the layer has it");
        let at = ((run * layers.len() + layer) * self.step.starts.len() + row) * cols;
        &values[at..at + cols]
    }

    /// Every row that is not padding, and every run: its number, the row's, and the position of its token.
    fn steps(&self) -> impl Iterator<Item = [usize; 3]> {
        let Step { runs, starts, .. } = &self.step;
        let rows = starts.iter().enumerate();
        rows.filter_map(|(row, start)| Some((row, start.as_ref()?.tokens)))
            .flat_map(|(row, tokens)| (0..*runs).map(move |run| [run, row, tokens + run]))
    }

    /// Pages of records: every byte follows from what was there before the runs and from the vectors that kernels kept.
    fn pages(&self, records: &Records, outputs: &Outputs) -> Vec<Part> {
        let mut records = records.clone();
        let [window, compressed] = [sites::WINDOW, sites::COMPRESSED].map(|site| self.kept(site, outputs));
        for [run, row, position] in self.steps() {
            records.step(&self.step.source.config, row, position, |site, layer| {
                let kept = if site == sites::WINDOW { &window } else { &compressed };
                self.kept_row(kept, [run, layer, row]).to_vec()
            });
        }
        records.buffers().map(|buffer| of_bytes(buffer, outputs)).collect()
    }

    /// The same of index keys.
    fn index_pages(&self, index: &IndexPages, outputs: &Outputs) -> Part {
        let mut index = index.clone();
        let kept = self.kept(sites::INDEX_KEY, outputs);
        for [run, row, position] in self.steps() {
            index.step(&self.step.source.config, row, position, |layer| {
                self.kept_row(&kept, [run, layer, row]).to_vec()
            });
        }
        of_bytes(index.buffer(), outputs)
    }

    /// The tokens that the next run reads, the positions, and the number of runs.
    fn counters(&self, tokens: &[i32], outputs: &Outputs) -> [Part; 3] {
        let Step { runs, starts, .. } = &self.step;
        let last = self.step.size("P") as i32 - 1;
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

/// Called at the sites of one token.
struct Follow<'a> {
    config: &'a Config,
    records: Option<&'a Records>,
    eight: Option<&'a Eight<'a>>,
    sixteen: Option<&'a Sixteen<'a>>,
    layers: &'a [Vec<usize>],
    found: &'a Found,
    /// Run, row, and number of rows.
    at: [usize; 3],
    expected: &'a mut RowExpected,
    mixing: &'a mut Followed,
}

/// Numbers without an error.
fn plain(values: &[f32]) -> Vec<Bounded> {
    exact([values.len()], values).data
}

impl Follow<'_> {
    /// The layers that have a tap.
    fn layers_of(&self, site: &str) -> &[usize] {
        let number = TAPS.iter().position(|tap| tap.site == site);
        number.map_or(&[], |number| &self.layers[number])
    }

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
        let [run, row, _] = self.at;
        if let Some(sixteen) = self.sixteen {
            sixteen.at(site.name, [run, site.layer.unwrap_or(0), row], site.first_row, tensor);
        }
        if site.name == sites::LOGITS {
            let logits = tensor.data.iter().map(|x| (x.value(), x.error()));
            self.expected.logits.extend(logits);
            return;
        }
        if let (Some(eight), Some(layer)) = (self.eight, site.layer) {
            eight.after_product(site.name, [run, layer, row], site.first_row, tensor);
        }
        let records = self.records;
        let indexed = self
            .layers_of(sites::INDEX_KEY)
            .iter()
            .position(|layer| Some(*layer) == site.layer);
        // The streams that enter a layer are those that have left the one before.
        let Some((tap, found, expected)) = self.places(site) else {
            return;
        };
        for (expected, x) in expected.iter_mut().zip(&tensor.data) {
            *expected = (x.value(), x.error());
        }
        let mut found = found.to_vec();
        if self.sixteen.is_some() {
            Sixteen::rounded(site.name, &mut found);
        }
        tensor.data = match (&mut self.mixing.index, indexed, records) {
            (Some(asked), Some(layer), _) if tap.site == sites::INDEX_QUERY => plain(&asked.ask(layer, &found)),
            (Some(asked), Some(layer), _) if tap.site == sites::INDEX_KEY => plain(&asked.add(layer, &found)),
            (_, _, Some(records)) => records.pass(tap.site, &found),
            _ => plain(&found),
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
        &*self.mixing
    }
}
