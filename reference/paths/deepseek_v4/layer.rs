//! One decoder layer: attention and experts (MoE), each with a hyper-connection before and after it.

use rayon::prelude::*;

use super::config::LayerType;
use super::sites::*;
use super::state::{CompressedParts, LayerParts};
use crate::ops::BLOCK;
use crate::ops::attention::{KeyRows, Sizes, attend};
use crate::ops::compressor::Pooling;
use crate::ops::experts::Experts;
use crate::ops::hyper_connection::HyperConnection;
use crate::ops::linear::Product;
use crate::ops::rope::Rope;
use crate::ops::router::{Selection, select, sqrt_softplus, weights};
use crate::{Choice, Real, Tensor};

/// Number of queries whose attention is computed as one block.
const QUERIES: usize = 32;

pub(super) struct Layer<T> {
    pub kind: LayerType,
    pub attention_mixer: HyperConnection<T>,
    pub attention_norm: Vec<T>,
    pub query_down: Tensor<T>,
    pub query_norm: Vec<T>,
    pub query_up: Tensor<T>,
    pub kv: Tensor<T>,
    pub kv_norm: Vec<T>,
    pub sinks: Vec<T>,
    pub output_down: Tensor<T>,
    pub output_groups: usize,
    pub output_up: Tensor<T>,
    pub window: usize,
    pub compressor: Option<Compressor<T>>,
    pub indexer: Option<Indexer<T>>,
    pub moe_mixer: HyperConnection<T>,
    pub moe_norm: Vec<T>,
    pub router: Tensor<T>,
    pub selection: Selection<T>,
    pub experts_per_token: usize,
    pub router_scale: T,
    pub experts: Experts<T>,
    pub eps: T,
}

pub(super) struct Compressor<T> {
    pub sizes: Pooling,
    pub kv: Tensor<T>,
    pub gate: Tensor<T>,
    /// Bias `[rate, width]` that is added to the logits: one row per position within the window.
    pub position_bias: Tensor<T>,
    pub norm: Vec<T>,
}

pub(super) struct Indexer<T> {
    pub compressor: Compressor<T>,
    pub query_up: Tensor<T>,
    pub head_weights: Tensor<T>,
    pub top_k: usize,
}

/// Context of a call of a layer (layer index, position, hooks), with the RoPE of the layer.
pub(super) type Context<'a, T> = crate::paths::context::Context<'a, T, &'a Rope<T>>;

impl<T: Real> Context<'_, T> {
    /// Rotates rows by RoPE; token i is at `position(i)`.
    fn rope(&self, x: &mut Tensor<T>, heads: usize, position: &(dyn Fn(usize) -> usize + Sync), inverse: bool) {
        self.numerics.operations().rope(self.rope, x, heads, position, inverse);
    }
}

impl<T: Real> Layer<T> {
    /// Runs the layer on the residual streams `[T, n, D]` of T tokens, in place.
    pub fn forward(&self, x: &mut Tensor<T>, state: &mut LayerParts<T>, ids: &[u32], cx: &mut Context<'_, T>) {
        cx.pass(INPUT, x);

        let operations = cx.numerics.operations();
        let (mut input, mixing) = operations.mhc_pre(&self.attention_mixer, x, &self.attention_norm, self.eps);
        cx.pass(ATTENTION_INPUT, &mut input);
        let mut output = self.attention(&input, state, cx);
        cx.pass(ATTENTION_OUTPUT, &mut output);
        mixing.mix(x, &output);

        let operations = cx.numerics.operations();
        let (mut input, mixing) = operations.mhc_pre(&self.moe_mixer, x, &self.moe_norm, self.eps);
        cx.pass(MOE_INPUT, &mut input);
        let mut output = self.moe(&input, ids, cx);
        cx.pass(MOE_OUTPUT, &mut output);
        mixing.mix(x, &output);

        cx.pass(OUTPUT, x);
    }

    fn attention(&self, x: &Tensor<T>, state: &mut LayerParts<T>, cx: &mut Context<'_, T>) -> Tensor<T> {
        let (tokens, start, dim, heads) = (x.rows(), cx.start, self.kv_norm.len(), self.sinks.len());

        let mut low = self.query_down.apply(x);
        cx.rmsnorm(&mut low, Some(&self.query_norm), self.eps);
        let mut query = self.query_up.apply(&low);
        query.shape = vec![tokens, heads, dim];
        cx.rmsnorm(&mut query, None, self.eps);
        cx.rope(&mut query, heads, &|token| start + token, false);
        cx.pass(QUERY, &mut query);

        let mut kv = self.kv.apply(x);
        cx.rmsnorm(&mut kv, Some(&self.kv_norm), self.eps);
        cx.rope(&mut kv, 1, &|token| start + token, false);
        let values = cx.pass_both(WINDOW, &mut kv);
        state.window.push(kv, values);

        if let (Some(compressor), Some(compressed)) = (&self.compressor, &mut state.compressed)
            && let Some((first, mut entries)) = compressor.compress(x, compressed, cx, self.eps)
        {
            let site = cx.at(COMPRESSED).from_row(first);
            let values = cx.numerics.keys_and_values(&site, &mut entries);
            compressed.entries.push(entries, values);
        }
        let choice = self.index(x, &low, state, cx);
        let mut mixed = self.attend(&query, choice.as_ref(), state, cx);
        // Drop rows of the window cache that no later token reads, once there are more than `window` such rows.
        let excess = state.window.keys.rows().saturating_sub(self.window - 1);
        if excess > self.window {
            state.window.drop_first(excess);
        }
        cx.rope(&mut mixed, heads, &|token| start + token, true);
        cx.pass(HEADS, &mut mixed);
        self.project(&mixed)
    }

    /// Selects the compressed entries that each token reads; `None` if the layer has no indexer.
    fn index(
        &self,
        x: &Tensor<T>,
        low: &Tensor<T>,
        state: &mut LayerParts<T>,
        cx: &mut Context<'_, T>,
    ) -> Option<Choice<T>> {
        let (Some(indexer), Some(index)) = (&self.indexer, &mut state.index) else {
            return None;
        };
        let (tokens, start) = (x.rows(), cx.start);
        let heads = indexer.head_weights.rows();
        let dim = indexer.compressor.norm.len();
        let mut query = indexer.query_up.apply(low);
        query.shape = vec![tokens, heads, dim];
        cx.rope(&mut query, heads, &|token| start + token, false);
        cx.pass(INDEX_QUERY, &mut query);
        if let Some((first, mut keys)) = indexer.compressor.compress(x, index, cx, self.eps) {
            cx.numerics.site(&cx.at(INDEX_KEY).from_row(first), &mut keys);
            index.entries.push(keys, None);
        }
        let mut head_weights = indexer.head_weights.apply(x);
        let scale = T::ONE / T::from_f64((dim * heads) as f64).sqrt();
        head_weights.data.iter_mut().for_each(|weight| *weight *= scale);
        let rate = indexer.compressor.sizes.rate;
        let visible = |row: usize| (start + row + 1) / rate;
        let operations = cx.numerics.operations();
        let mut choice = operations.index(&query, &head_weights, &index.entries.keys.data, indexer.top_k, &visible);
        cx.numerics.choice(&cx.at(TOPK), &mut choice);
        Some(choice)
    }

    /// Computes the attention of every token over its window and its compressed entries, block by block.
    fn attend(
        &self,
        query: &Tensor<T>,
        choice: Option<&Choice<T>>,
        state: &LayerParts<T>,
        cx: &mut Context<'_, T>,
    ) -> Tensor<T> {
        let (heads, dim, start) = (self.sinks.len(), query.cols(), cx.start);
        let site = cx.at(MASS);
        let wanted = choice.filter(|_| cx.numerics.wants(&site));
        let mut mass = wanted.map(|choice| Tensor::full([query.shape[0], choice.k], T::ZERO));
        let mut out = Tensor::full(query.shape.clone(), T::ZERO);
        let width = heads * dim;
        let kept_from = start + query.shape[0] - state.window.keys.rows();
        let rate = self.compressor.as_ref().map_or(1, |compressor| compressor.sizes.rate);
        let block = |(number, (query, out)): (usize, (&[T], &mut [T]))| {
            let first = number * QUERIES;
            let rows = query.len() / width;
            let entries = Entries::new(state, choice, [start, rate], first..first + rows);
            let positions = start + first..start + first + rows;
            let oldest = (positions.start + 1).saturating_sub(self.window);
            let kept = oldest - kept_from..positions.end - kept_from;
            let recent = state.window.read(kept);
            let visible = |part: usize, row: usize, key: usize| match part {
                0 => {
                    let (now, then) = (positions.start + row, oldest + key);
                    then <= now && now < then + self.window
                }
                _ => entries.visible[row * entries.numbers.len() + key],
            };
            let parts = [recent, entries.rows()];
            let (result, p) = attend(query, &self.sinks, Sizes::of(dim), parts, visible);
            out.copy_from_slice(&result);
            let offset = recent.keys.len() / dim;
            wanted.map_or(Vec::new(), |choice| {
                entries.mass(choice, first..first + rows, heads, &p, offset)
            })
        };
        let blocks = query.data.par_chunks(QUERIES * width);
        let blocks = blocks.zip(out.data.par_chunks_mut(QUERIES * width)).enumerate();
        let masses: Vec<Vec<T>> = blocks.map(block).collect();
        if let Some(mass) = &mut mass {
            mass.data = masses.concat();
            cx.numerics.site(&site, mass);
        }
        out
    }

    /// Computes the grouped output projection: each group of heads is multiplied by its rows of `output_down`, and the results of
    /// all groups together by `output_up`.
    fn project(&self, heads: &Tensor<T>) -> Tensor<T> {
        let groups = self.output_groups;
        let (width, inner) = (heads.shape[1] * heads.cols(), self.output_down.rows());
        let (part, rank) = (width / groups, inner / groups);
        let mut low = Tensor::full([heads.shape[0], inner], T::ZERO);
        let blocks = heads.data.par_chunks(BLOCK * width);
        let blocks = blocks.zip(low.data.par_chunks_mut(BLOCK * inner));
        blocks.for_each(|(x, low)| {
            for group in 0..groups {
                let w = &self.output_down.data[group * rank * part..(group + 1) * rank * part];
                let product = Product {
                    x_stride: width,
                    y_stride: inner,
                    ..Product::new([x.len() / width, rank, part], &x[group * part..], w)
                };
                product.run(&mut low[group * rank..]);
            }
        });
        self.output_up.apply(&low)
    }

    /// Selects experts for each row of x, and computes the weights of the experts. If the experts are selected by scores, the
    /// closure `learned` may change the selection; if a table gives the experts of a token id, `learned` is not called.
    pub fn route(&self, x: &Tensor<T>, ids: &[u32], learned: impl FnOnce(&mut Choice<T>)) -> (Choice<T>, Tensor<T>) {
        let mut sigma = self.router.apply(x);
        sqrt_softplus(&mut sigma);
        let mut choice = select(&sigma, &self.selection, ids, self.experts_per_token);
        if matches!(self.selection, Selection::Bias(_)) {
            learned(&mut choice);
        }
        let weights = weights(&sigma, &choice, self.router_scale);
        (choice, weights)
    }

    fn moe(&self, x: &Tensor<T>, ids: &[u32], cx: &mut Context<'_, T>) -> Tensor<T> {
        let site = cx.at(ROUTER);
        let (choice, weights) = self.route(x, ids, |choice| cx.numerics.choice(&site, choice));
        if cx.numerics.wants(&cx.at(GATE_UP)) {
            cx.pass(GATE_UP, &mut self.experts.shared.gate_up.apply(x));
        }
        self.experts.apply(x, &choice, &weights, cx.numerics.operations())
    }
}

impl<T: Real> Compressor<T> {
    /// Adds the tokens of the call to the compressor's state. Returns the cache entries that are now complete (each pools a
    /// window of tokens), after RMSNorm and RoPE, and the index of the first of these entries; `None` if no entry is complete.
    /// The RoPE position of an entry is the position of the first token of its window.
    fn compress(
        &self,
        x: &Tensor<T>,
        state: &mut CompressedParts<T>,
        cx: &Context<'_, T>,
        eps: T,
    ) -> Option<(usize, Tensor<T>)> {
        let rate = self.sizes.rate;
        let values = self.kv.apply(x);
        let mut logits = self.gate.apply(x);
        for row in 0..logits.rows() {
            let bias = self.position_bias.row((cx.start + row) % rate);
            let biased = logits.row_mut(row).iter_mut().zip(bias);
            biased.for_each(|(logit, &bias)| *logit += bias);
        }
        let pending = [&mut state.pending_values, &mut state.pending_logits];
        let (first, mut entries) = (cx.start / rate, self.sizes.push(cx.start, pending, [&values, &logits]));
        if entries.rows() == 0 {
            return None;
        }
        cx.rmsnorm(&mut entries, Some(&self.norm), eps);
        cx.rope(&mut entries, 1, &|entry| (first + entry) * rate, false);
        Some((first, entries))
    }
}

/// The compressed entries that a block of queries reads.
struct Entries<T> {
    /// Indices of the entries, ascending.
    numbers: Vec<usize>,
    keys: Vec<T>,
    /// Values of the entries; `None` if the values equal the keys.
    values: Option<Vec<T>>,
    /// True if a query reads an entry, `[queries, entries]`.
    visible: Vec<bool>,
}

impl<T: Real> Entries<T> {
    /// Collects the compressed cache entries that the queries `rows` of a call read: the entries that `choice` selects, or all
    /// complete entries if `choice` is `None`. `start` is the position of the call's first token; `rate` is the number of tokens
    /// per entry.
    fn new(
        state: &LayerParts<T>,
        choice: Option<&Choice<T>>,
        [start, rate]: [usize; 2],
        rows: std::ops::Range<usize>,
    ) -> Self {
        let Some(compressed) = &state.compressed else {
            return Self {
                numbers: Vec::new(),
                keys: Vec::new(),
                values: None,
                visible: Vec::new(),
            };
        };
        let complete = |row: usize| (start + row + 1) / rate;
        let read: Vec<Vec<usize>> = rows
            .map(|row| choice.map_or_else(|| (0..complete(row)).collect(), |choice| choice.selected(row).collect()))
            .collect();
        let mut wanted = vec![false; compressed.entries.keys.rows()];
        read.iter().flatten().for_each(|&number| wanted[number] = true);
        let numbers: Vec<usize> = (0..wanted.len()).filter(|&number| wanted[number]).collect();
        let mut column = vec![0; wanted.len()];
        numbers.iter().enumerate().for_each(|(i, &number)| column[number] = i);
        let mut visible = vec![false; read.len() * numbers.len()];
        for (visible, read) in visible.chunks_exact_mut(numbers.len().max(1)).zip(&read) {
            read.iter().for_each(|&number| visible[column[number]] = true);
        }
        let (keys, values) = compressed.entries.gather(&numbers);
        Self {
            numbers,
            keys,
            values,
            visible,
        }
    }

    fn rows(&self) -> KeyRows<'_, T> {
        KeyRows {
            keys: &self.keys,
            values: self.values.as_ref().unwrap_or(&self.keys),
        }
    }

    /// Returns the attention mass of each selected entry, `[rows, k]`: the mean over heads of its attention probability. `p`
    /// holds the probabilities `[rows, heads, keys]`; the keys of the entries begin at column `offset`.
    fn mass(&self, choice: &Choice<T>, rows: std::ops::Range<usize>, heads: usize, p: &[T], offset: usize) -> Vec<T> {
        let width = offset + self.numbers.len();
        let mut mass = vec![T::ZERO; rows.len() * choice.k];
        let rows = rows.zip(mass.chunks_exact_mut(choice.k));
        for (p, (row, mass)) in p.chunks_exact(heads * width).zip(rows) {
            for (slot, number) in choice.selected(row).enumerate() {
                let column = offset + self.numbers.partition_point(|n| *n < number);
                let mut sum = T::ZERO;
                p.chunks_exact(width).for_each(|p| sum += p[column]);
                mass[slot] = sum / T::from_f64(heads as f64);
            }
        }
        mass
    }
}
