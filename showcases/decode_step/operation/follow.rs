//! Compares the outputs of a kernel with the reference. At each site (named tensor of the model), the reference computes the
//! expected values, then continues with the values that the kernel output.

use rayon::prelude::*;
use reference::paths::deepseek_v4::{Model, State, StateParts, sites};
use reference::{Bounded, Choice, Numerics, Operations, Site, Tensor};
use safetensors::Dtype;
use ulplab_operations::ops::Outputs;
use ulplab_operations::ops::data::{exact, f32_values, i32_values};
use ulplab_operations::ops::judge::{Judge, Part};
use ulplab_operations::ops::sample::best;

use super::bf16::Bf16;
use super::followed::{Followed, admissible, possible};
use super::fp8::Fp8;
use super::index::{IndexPages, IndexQuery};
use super::parts::{Expected, Kept, Place, as_is, equal, expect, of_bytes, part};
use super::records::Records;
use super::state;
use super::{Step, TAPS, WHY};

const ALIKE: &str = "rows that begin alike and read the same tokens have the same bits, wherever they are in the batch";

/// Outputs of a kernel: values at the sites (named tensors of the model), logits and sampled tokens.
pub(super) struct KernelValues {
    /// Values at each of the sites [`TAPS`].
    taps: Vec<Kept>,
    logits: Vec<f32>,
    tokens: Vec<i32>,
}

impl KernelValues {
    /// Returns the values that the kernel output at a site (named tensor of the model).
    ///
    /// # Panics
    /// Panics if kernels do not output this site: it has no entry in [`TAPS`].
    pub fn tap(&self, site: &str) -> &Kept {
        let number = TAPS.iter().position(|tap| tap.site == site);
        &self.taps[number.expect("the site has a tap")]
    }
}

/// Expected values of one sequence (row): an array `[S, layers, cols]` for each site that kernels output, the logits `[S, V]`,
/// and the KV caches after the S runs.
struct RowExpected {
    taps: Vec<Vec<Expected>>,
    logits: Vec<Expected>,
    state: StateParts<Bounded>,
}

/// Check of a step with matrix products of 8-bit codes, and check of a step with bfloat16 products; `None` without such products.
type Coded<'a> = (Option<&'a Fp8<'a>>, Option<&'a Bf16<'a>>);

/// Joins the expected values of all rows, `[groups, cols]` each, to `[groups, B, cols]`. Padding rows may have any values, so the
/// kernel's own values are used as their expected values.
fn joined<'a>(
    rows: &'a [Option<RowExpected>],
    cols: usize,
    found: &[f32],
    of_row: impl Fn(&'a RowExpected) -> &'a [Expected],
) -> Vec<Expected> {
    let part = |(at, found): (usize, &[f32])| match &rows[at % rows.len()] {
        Some(row) => of_row(row)[at / rows.len() * cols..][..cols].to_vec(),
        None => as_is(found),
    };
    found.chunks_exact(cols).enumerate().flat_map(part).collect()
}

impl Step {
    /// Compares each output of the kernel with its expected values, and returns the results.
    pub fn followed(&self, outputs: &Outputs) -> Vec<Part> {
        let config = &self.source.config;
        let (runs, batch, vocabulary) = (self.runs, self.starts.len(), config.vocab_size);
        let found = KernelValues {
            taps: TAPS.iter().map(|tap| tap.kept(config, batch, outputs)).collect(),
            logits: f32_values(outputs.get("logits"), Dtype::F32),
            tokens: i32_values(outputs.get("tokens")),
        };
        let model = self.source.model::<Bounded>().expect("it was loaded in f32");
        let read = "the weights were read before";
        let fp8 = self.source.storages.activations.map(|blocks| {
            let fp8 = Fp8::new((&self.source, &model, blocks), self.size("P"), batch, outputs);
            fp8.expect(read)
        });
        let records = self.caches.records.as_ref().filter(|_| self.source.storages.sixteen);
        let bf16 = records.map(|records| {
            let bf16 = Bf16::new((&self.source, &model), self.size("P"), batch, (outputs, &found));
            let mut bf16 = bf16.expect(read);
            for (row, start) in self.starts.iter().enumerate() {
                let start = start.iter();
                start.for_each(|start| bf16.attend(records, row, start, runs));
            }
            bf16
        });
        let coded = (fp8.as_ref(), bf16.as_ref());
        let rows = self.starts.par_iter().enumerate();
        let rows = rows.map(|(row, start)| Some(self.row(&model, coded, &found, row, start.as_ref()?)));
        let rows: Vec<Option<RowExpected>> = rows.collect();
        let mut parts = Vec::new();
        for (number, (tap, kept)) in TAPS.iter().zip(&found.taps).enumerate() {
            let expected = joined(&rows, kept.cols, &kept.values, |row| &row.taps[number]);
            let shape = tap.shape(config, [runs, batch]);
            parts.push(part(tap.buffer, tap.dtype, &shape, expected, WHY, outputs));
        }
        let expected = joined(&rows, vocabulary, &found.logits, |row| &row.logits);
        let shape = [runs, batch, vocabulary];
        parts.push(part("logits", Dtype::F32, &shape, expected, WHY, outputs));
        let logits = found.logits.chunks_exact(vocabulary).zip(self.starts.iter().cycle());
        let tokens = logits.map(|(logits, start)| start.as_ref().map_or(-1, |_| best(logits)));
        let tokens: Vec<i32> = tokens.collect();
        parts.push(equal("tokens", &[runs, batch], &tokens, outputs));
        parts.push(self.repeated(outputs, ALIKE));
        let layers = config.num_hidden_layers;
        let places = self
            .steps()
            .flat_map(|[run, row, _]| (0..layers).map(move |layer| [run, layer, row]));
        let places: Vec<Place> = places.collect();
        parts.extend(fp8.iter().flat_map(|fp8| fp8.parts(&places)));
        let read = |run, row| self.read(run, row, &found.tokens);
        parts.extend(bf16.iter().flat_map(|bf16| bf16.parts(&places, read)));
        parts.extend(self.states(&rows, &found, outputs));
        parts.push(equal("token", &[batch], &tokens[(runs - 1) * batch..], outputs));
        parts.extend(self.counters(outputs));
        parts
    }

    /// Checks that rows with the same start and the same input tokens have bit-identical logits.
    pub fn repeated(&self, outputs: &Outputs, why: &'static str) -> Part {
        let (runs, rows, vocabulary) = (self.runs, self.starts.len(), self.source.config.vocab_size);
        let read = |row: usize| (0..runs).map(move |run| self.forced[run * rows + row]);
        let alike = |a: usize, b: usize| {
            let begun = |row: usize| self.starts[row].as_ref().map(|start| start.tokens);
            begun(a) == begun(b) && self.tokens[a] == self.tokens[b] && read(a).eq(read(b))
        };
        let mut want = outputs.get("logits").to_vec();
        for row in 0..rows {
            let first = (0..row).find(|first| alike(*first, row)).unwrap_or(row);
            for run in 0..runs {
                let at = |row: usize| (run * rows + row) * vocabulary * 4;
                want.copy_within(at(first)..at(first) + vocabulary * 4, at(row));
            }
        }
        let shape = [runs, rows, vocabulary];
        Judge::equal("logits", Dtype::F32, &shape, want, why).of(outputs)
    }

    /// Returns the input token of a row in a decode step (run): the given token, or the token that the row sampled in the step
    /// before. Replaces an id that is out of range by 0; the check of the sampled tokens reports such an id.
    fn read(&self, run: usize, row: usize, sampled: &[i32]) -> u32 {
        let at = |run: usize| run * self.starts.len() + row;
        let token = match run.checked_sub(1) {
            None => self.tokens[row],
            Some(_) if self.forced[at(run)] >= 0 => self.forced[at(run)],
            Some(before) => sampled[at(before)],
        };
        let there = |id: &u32| (*id as usize) < self.source.config.vocab_size;
        u32::try_from(token).ok().filter(there).unwrap_or(0)
    }

    /// Runs the reference on one sequence (row) for all decode steps (runs), and returns the expected values.
    fn row(
        &self,
        model: &Model<Bounded>,
        coded: Coded,
        found: &KernelValues,
        row: usize,
        start: &StateParts<f32>,
    ) -> RowExpected {
        let state = State::from_parts(&self.source.config, state::bounded(start));
        let mut state = state.expect("the state is the model's own");
        let sizes = found.taps.iter().map(|kept| self.runs * kept.layers.len() * kept.cols);
        let mut taps: Vec<Vec<Expected>> = sizes.map(|size| vec![(0.0, 0.0); size]).collect();
        let mut logits = Vec::new();
        let indexed = start.layers.iter().find_map(|layer| layer.index.as_ref());
        let entries = indexed.map_or(0, |index| index.entries.keys.rows());
        let index = self.caches.index.clone();
        let mut mixing = Followed {
            index: index.map(|index| IndexQuery::new(index, row, entries)),
        };
        for run in 0..self.runs {
            let id = self.read(run, row, &found.tokens);
            let mut follow = Follow {
                records: self.caches.records.as_ref(),
                coded,
                found,
                at: [run, row],
                taps: &mut taps,
                logits: &mut logits,
                mixing: &mut mixing,
            };
            model
                .run(&mut state, &[id], &mut follow)
                .expect("the token is one of the vocabulary");
        }
        let state = state.to_parts();
        RowExpected { taps, logits, state }
    }

    /// Checks every KV cache. Slots that the reference's state contains must hold the reference's values, and slots that no run
    /// has written must be unchanged. Other slots of ring buffers may hold any values.
    fn states(&self, rows: &[Option<RowExpected>], found: &KernelValues, outputs: &Outputs) -> Vec<Part> {
        let (caches, records, index) = (&self.caches.arrays, &self.caches.records, &self.caches.index);
        let mut expected: Vec<Vec<Expected>> = Vec::new();
        for cache in caches {
            let after = f32_values(outputs.get(cache.name), Dtype::F32);
            let mut all = as_is(&cache.values);
            let [layers, _, slots, width] = cache.shape;
            for (row, start) in self.starts.iter().enumerate().filter(|_| cache.ring) {
                let Some(start) = start else { continue };
                for (layer, run) in (0..layers).flat_map(|layer| (0..self.runs).map(move |run| (layer, run))) {
                    let at = cache.place(layer, row, (start.tokens + run) % slots);
                    (at..at + width).for_each(|at| all[at] = (f64::from(after[at]), 0.0));
                }
            }
            expected.push(all);
        }
        for (number, row) in rows.iter().enumerate() {
            let Some(row) = row else { continue };
            state::each(&self.source.config, &row.state, |(name, layer, slot), values| {
                let Some(cache) = caches.iter().position(|cache| cache.name == name) else {
                    return;
                };
                let at = caches[cache].place(layer, number, slot);
                expect(&mut expected[cache][at..], values);
            });
        }
        let parts = caches.iter().zip(expected);
        let arrays = parts.map(|(cache, expected)| part(cache.name, Dtype::F32, &cache.shape, expected, WHY, outputs));
        arrays
            .chain(records.iter().flat_map(|records| self.pages(records, found, outputs)))
            .chain(index.iter().map(|index| self.index_pages(index, found, outputs)))
            .collect()
    }

    /// Iterates over all decode steps (runs) of all rows that are not padding. An item is `[run, row, position]`, with the
    /// position of the input token.
    fn steps(&self) -> impl Iterator<Item = [usize; 3]> {
        let rows = self.starts.iter().enumerate();
        rows.filter_map(|(row, start)| Some((row, start.as_ref()?.tokens)))
            .flat_map(|(row, tokens)| (0..self.runs).map(move |run| [run, row, tokens + run]))
    }

    /// Checks the pages of KV records. The expected bytes are the bytes before the first run, overwritten by the records of the
    /// vectors that the kernel output.
    fn pages(&self, records: &Records, found: &KernelValues, outputs: &Outputs) -> Vec<Part> {
        let mut records = records.clone();
        for [run, row, position] in self.steps() {
            records.step(&self.source.config, row, position, |site, layer| {
                found.tap(site).row([run, layer, row]).to_vec()
            });
        }
        records.buffers().map(|buffer| of_bytes(buffer, outputs)).collect()
    }

    /// Checks the pages of index keys in the same way as [`Self::pages`].
    fn index_pages(&self, index: &IndexPages, found: &KernelValues, outputs: &Outputs) -> Part {
        let (mut index, kept) = (index.clone(), found.tap(sites::INDEX_KEY));
        for [run, row, position] in self.steps() {
            index.step(&self.source.config, row, position, |layer| {
                kept.row([run, layer, row]).to_vec()
            });
        }
        of_bytes(index.buffer(), outputs)
    }
}

/// Hooks into the reference while it runs one token of one row. At each site, the hooks store the expected values, and replace
/// the tensor by the values that the kernel output.
struct Follow<'a> {
    records: Option<&'a Records>,
    coded: Coded<'a>,
    found: &'a KernelValues,
    /// Index of the run, and of the row.
    at: [usize; 2],
    taps: &'a mut [Vec<Expected>],
    logits: &'a mut Vec<Expected>,
    mixing: &'a mut Followed,
}

impl Follow<'_> {
    /// Returns the values that the kernel output at a site, and the slice to which the expected values are written; `None` if
    /// kernels do not output this site.
    fn places(&mut self, site: &Site) -> Option<(&[f32], &mut [Expected])> {
        let tap = TAPS.iter().position(|tap| tap.site == site.name)?;
        let (kept, layer, [run, row]) = (&self.found.taps[tap], site.layer?, self.at);
        let group = run * kept.layers.len() + kept.number(layer)?;
        let expected = &mut self.taps[tap][group * kept.cols..][..kept.cols];
        Some((kept.row([run, layer, row]), expected))
    }
}

impl Numerics<Bounded> for Follow<'_> {
    fn site(&mut self, site: &Site, tensor: &mut Tensor<Bounded>) {
        let ([run, row], (fp8, bf16)) = (self.at, self.coded);
        let place = [run, site.layer.unwrap_or(0), row];
        if let Some(bf16) = bf16 {
            bf16.at(site.name, place, site.first_row, tensor);
        }
        if site.name == sites::LOGITS {
            let logits = tensor.data.iter().map(|x| (x.value(), x.error()));
            self.logits.extend(logits);
            return;
        }
        if let (Some(fp8), Some(_)) = (fp8, site.layer) {
            fp8.after_product(site.name, place, site.first_row, tensor);
        }
        let indexed = site
            .layer
            .and_then(|layer| self.found.tap(sites::INDEX_KEY).number(layer));
        let records = self.records;
        // If kernels do not output this site, continue with the reference's values. The input streams of a layer are the output
        // streams of the layer before, which kernels output.
        let Some((found, expected)) = self.places(site) else {
            return;
        };
        expect(expected, &tensor.data);
        let mut found = found.to_vec();
        if bf16.is_some() {
            Bf16::rounded(site.name, &mut found);
        }
        let passed = match (&mut self.mixing.index, indexed, records) {
            (Some(query), Some(layer), _) if site.name == sites::INDEX_QUERY => query.set(layer, &found),
            (Some(query), Some(layer), _) if site.name == sites::INDEX_KEY => query.add(layer, &found),
            (_, _, Some(records)) => records.pass(site.name, found),
            _ => found,
        };
        tensor.data = exact([passed.len()], &passed).data;
    }

    fn choice(&mut self, site: &Site, choice: &mut Choice<Bounded>) {
        let ordered = site.name == sites::ROUTER;
        let mut wanted = choice.indices.clone();
        if !ordered {
            // Kernels output the selected entries in ascending order of their indices.
            wanted.sort_unstable_by_key(|index| if *index < 0 { i32::MAX } else { *index });
        }
        let Some((found, expected)) = self.places(site) else {
            return;
        };
        let found: Vec<i32> = found.iter().map(|x| *x as i32).collect();
        let scores = &choice.scores.data;
        let possible = found == wanted || possible(scores, &found, &wanted, ordered);
        let right = found == wanted || possible && admissible(scores, &found, ordered);
        for (expected, index) in expected.iter_mut().zip(if right { &found } else { &wanted }) {
            *expected = (f64::from(*index), 0.0);
        }
        // Continue with the kernel's choice if it is well-formed, even if it is wrong: later sites can then still be compared.
        choice.indices = if possible { found } else { wanted };
    }

    fn operations(&self) -> &dyn Operations<Bounded> {
        &*self.mixing
    }
}
