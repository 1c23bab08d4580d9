//! Check of decode steps that use bfloat16 for queries, and for the activations of all products that do not take 8-bit codes
//! (compressors, index heads, routers, experts, head). Weights are bfloat16; weights of experts are MXFP4, with the shared expert
//! last. Kernels output the f32 numbers of sites (named tensors of the model) before rounding to bfloat16, so the check knows the
//! rounded numbers to the bit. From the kernel's queries, keys and choices, [`record_attention`] and [`moe_fp4`] then compute the
//! expected outputs of attention and experts.
//!
//! In addition, a kernel outputs the experts of each row, the experts' weights, the hidden numbers between the experts' two
//! products, and the input of the output head.

use std::collections::HashMap;

use rayon::prelude::*;
use reference::ops::rope::Rope;
use reference::paths::deepseek_v4::{Config, LayerType, Model, StateParts, sites};
use reference::{Bounded, Plain, Tensor};
use safetensors::Dtype;

use super::buffers::{of_shape, shared_halves};
use super::follow::KernelValues;
use super::parts::{Expected, Kept, Place, as_is, expect, part};
use super::records::Records;
use super::weights::Source;
use super::{STREAMS, Tap, WHY, rope};
use ulplab_core::accumulator::Factor;
use ulplab_operations::ops::data::{exact, round_to_bf16};
use ulplab_operations::ops::judge::{Part, bf16_error};
use ulplab_operations::ops::moe_fp4::{Matrices as Mxfp4, between};
use ulplab_operations::ops::record_attention::attend;
use ulplab_operations::ops::stored::{Matrices, Storage};
use ulplab_operations::ops::sums::{Sums, factor};
use ulplab_operations::ops::{Buffer, Outputs};

const WHY_HIDDEN: &str = "the sums of both products are defined to the bit, given the row and its experts; f32 arithmetic then errs by at most \
                          (13 + 2|g|) units of 2^-24, and half a step of bfloat16 is added";

/// Number of columns of experts' weights (MXFP4) that share a scale.
const BLOCK: usize = 32;

/// Buffers that kernels output only for this check: chosen experts, their weights, their hidden numbers, and the input of the
/// output head. Shapes are `[S, layers, B, ..]` for S runs and B rows; the last buffer has `[S, B, ..]`.
const KEPT: [Tap; 4] = [
    Tap::of("", "at_experts", |c| c.num_experts_per_tok).choice(),
    Tap::of("", "at_expert_weights", |c| c.num_experts_per_tok),
    Tap {
        dtype: Dtype::BF16,
        ..Tap::of("", "at_hidden", |c| {
            (c.num_experts_per_tok + 1) * c.moe_intermediate_size
        })
    },
    Tap {
        has: |_, layer| layer == 0,
        ..Tap::of("", HEAD_INPUT, |c| c.hidden_size)
    },
];
const HEAD_INPUT: &str = "at_head_input";

/// Returns names, types and shapes of the buffers of [`KEPT`], for the given numbers of runs and rows.
pub(super) fn kept(
    config: &Config,
    [runs, rows]: [usize; 2],
) -> impl Iterator<Item = (&'static str, Dtype, Vec<usize>)> {
    KEPT.iter().map(move |tap| {
        let [_, layers, _, cols] = tap.shape(config, [runs, rows]);
        let shape = match tap.buffer {
            HEAD_INPUT => vec![runs, rows, cols],
            _ => vec![runs, layers, rows, cols],
        };
        (tap.buffer, tap.dtype, shape)
    })
}

/// Returns weights of the experts of all layers, with the shared expert last: buffers of codes, block scales and global scales
/// (all 1, because MXFP4 has none). If `first` is true, returns the first matrix of each expert (gate and up), otherwise the
/// second matrix (down).
///
/// # Errors
/// Returns an error if weights cannot be read, or are not whole blocks.
pub(super) fn experts(source: &Source, first: bool) -> Result<Vec<Buffer>, String> {
    let config = &source.config;
    let (hidden, inner, count) = (
        config.hidden_size,
        config.moe_intermediate_size,
        config.n_routed_experts,
    );
    let ([rows, cols], halves, names, level, routed) = match first {
        true => (
            [2 * inner, hidden],
            2,
            ["gate_up", "gate_up_scales"],
            "gate_up_level",
            "experts.gate_up_proj",
        ),
        false => (
            [hidden, inner],
            1,
            ["down", "down_scales"],
            "down_level",
            "experts.down_proj",
        ),
    };
    if !cols.is_multiple_of(BLOCK) {
        return Err(format!(
            "experts have rows of {cols} columns, expected a multiple of {BLOCK}, which share a scale"
        ));
    }
    let mut all = Matrices::new(Storage::named("mxfp4")?, cols);
    for layer in 0..config.num_hidden_layers {
        let name = |tensor: &str| format!("model.layers.{layer}.mlp.{tensor}");
        let routed = [name(routed)];
        let (routed, shape) = source.parts(&routed, &[count, rows, cols]);
        all.append(source.stored(&routed[0], &shape)?);
        if source.repeats() {
            break;
        }
        let shared = match first {
            true => shared_halves(layer).to_vec(),
            false => vec![name("shared_experts.down_proj.weight")],
        };
        for tensor in shared {
            all.append(source.stored(&tensor, &[rows / halves, cols])?);
        }
    }
    let lead = [source.banks(), count + 1, rows];
    let made = source.made(&[count * rows, cols]);
    let matrices = all.buffers(names, if source.repeats() { &made[..1] } else { &lead })?;
    let mut buffers: Vec<Buffer> = matrices.iter().map(|matrix| of_shape(matrix, &lead)).collect();
    let levels = [lead[0], lead[1], halves];
    buffers.push(Buffer::f32(level, &levels, &vec![1.0; levels.iter().product()]));
    Ok(buffers)
}

/// Returns the matrices of [`experts`] as an [`Mxfp4`], which computes products with them.
fn matrices(source: &Source, first: bool) -> Result<Mxfp4, String> {
    let [codes, scales, _] = <[Buffer; 3]>::try_from(experts(source, first)?).expect("there are three buffers");
    let shape = [codes.shape[2], 2 * codes.shape[3]];
    Ok(Mxfp4::mxfp4(shape, codes.bytes, scales.bytes))
}

/// Computes the expected outputs of a step with bfloat16 activations from the intermediate values that the kernel output.
pub(super) struct Bf16<'a> {
    config: &'a Config,
    model: &'a Model<Bounded>,
    gate_up: Mxfp4,
    down: Mxfp4,
    rope: Rope<Bounded>,
    outputs: &'a Outputs,
    found: &'a KernelValues,
    /// Contents of the buffers of [`KEPT`], by name.
    kept: HashMap<&'static str, Kept>,
    /// Expected outputs of attention before the inverse RoPE, by run, layer and row.
    attended: HashMap<Place, Vec<Bounded>>,
}

impl<'a> Bf16<'a> {
    /// Creates the check of the outputs of a kernel. `positions` is the length of the RoPE table, `rows` the batch size.
    ///
    /// # Errors
    /// Returns an error if weights cannot be read.
    pub fn new(
        (source, model): (&'a Source, &'a Model<Bounded>),
        positions: usize,
        rows: usize,
        (outputs, found): (&'a Outputs, &'a KernelValues),
    ) -> Result<Self, String> {
        let config = &source.config;
        let kept = KEPT.iter().map(|tap| (tap.buffer, tap.kept(config, rows, outputs)));
        Ok(Self {
            config,
            model,
            gate_up: matrices(source, true)?,
            down: matrices(source, false)?,
            rope: rope(config, positions),
            outputs,
            found,
            kept: kept.collect(),
            attended: HashMap::new(),
        })
    }

    /// Returns the values of one row of the buffer `name` of [`KEPT`].
    fn kept(&self, name: &str, place: Place) -> &[f32] {
        self.kept[name].row(place)
    }

    /// Returns the values of one row that the kernel output at a site (named tensor), rounded to bfloat16.
    fn rounded_row(&self, site: &str, place: Place) -> Vec<f32> {
        let mut row = self.found.tap(site).row(place).to_vec();
        round_to_bf16(&mut row);
        row
    }

    /// Computes the expected attention outputs of one sequence (row) in all decode steps (runs). `start` holds the KV caches of
    /// this sequence before the first step, with keys decoded from their records.
    pub fn attend(&mut self, records: &Records, row: usize, start: &StateParts<f32>, runs: usize) {
        let config = self.config;
        let scale = (config.head_dim as f32).sqrt().recip();
        let of_layer = |layer: usize| {
            let parts = &start.layers[layer];
            let rows = |keys: &Tensor<f32>| (0..keys.rows()).map(|at| keys.row(at).to_vec()).collect::<Vec<_>>();
            let mut window = rows(&parts.window.keys);
            let compressed = parts.compressed.as_ref();
            let mut entries = compressed.map_or(Vec::new(), |of| rows(&of.entries.keys));
            let of_run = |run: usize| {
                let place = [run, layer, row];
                window.push(records.read(self.found.tap(sites::WINDOW).row(place)));
                let rate = config.compress_rate(layer);
                if rate.is_some_and(|rate| (start.tokens + run + 1).is_multiple_of(rate)) {
                    entries.push(records.read(self.found.tap(sites::COMPRESSED).row(place)));
                }
                let recent = &window[window.len().saturating_sub(config.sliding_window)..];
                let chosen: Vec<usize> = match config.layer_types[layer] {
                    LayerType::Sparse => {
                        let chosen = self.found.tap(sites::TOPK).row(place).iter();
                        let there = chosen.filter(|slot| (0.0..entries.len() as f32).contains(*slot));
                        there.map(|slot| *slot as usize).collect()
                    }
                    _ => (0..entries.len()).collect(),
                };
                let keys = recent.iter().chain(chosen.iter().map(|at| &entries[*at]));
                let keys: Vec<&[f32]> = keys.map(Vec::as_slice).collect();
                let query = self.rounded_row(sites::QUERY, place);
                let heads = query.chunks_exact(config.head_dim).zip(self.model.sinks(layer));
                let heads = heads.flat_map(|(q, sink)| {
                    let head = attend(q, &keys, (sink.value() as f32, scale), Dtype::BF16);
                    let numbers = head.want.into_iter().zip(head.bounds);
                    numbers.map(|(want, bound)| Bounded::new(want, bound))
                });
                (place, heads.collect())
            };
            (0..runs).map(of_run).collect::<Vec<_>>()
        };
        let found: Vec<_> = (0..config.num_hidden_layers).into_par_iter().map(of_layer).collect();
        self.attended.extend(found.into_iter().flatten());
    }

    /// Replaces the reference's values at a site (named tensor) by the results of the bfloat16 computation. Only heads, the
    /// output of the experts and logits are replaced. `place` holds the indices of run, layer and row; `position` is the position
    /// of the row's token.
    pub fn at(&self, site: &str, place: Place, position: usize, tensor: &mut Tensor<Bounded>) {
        match site {
            sites::HEADS => {
                let heads = self.config.num_attention_heads;
                let mut attended = Tensor::new([heads, self.config.head_dim], self.attended[&place].clone());
                self.rope.apply(&mut attended, heads, |_| position, true);
                tensor.data = attended.data;
            }
            sites::MOE_OUTPUT => tensor.data = exact([1, self.config.hidden_size], &self.mixture(place)).data,
            sites::LOGITS => {
                let mut input = self.kept(HEAD_INPUT, [place[0], 0, place[2]]).to_vec();
                round_to_bf16(&mut input);
                tensor.data = self.model.head(&exact([1, input.len()], &input)).data;
            }
            _ => {}
        }
    }

    /// Rounds the values of a site to bfloat16, if a bfloat16 product reads the values.
    pub fn rounded(site: &str, found: &mut [f32]) {
        if [sites::ATTENTION_INPUT, sites::MOE_INPUT].contains(&site) {
            round_to_bf16(found);
        }
    }

    /// Returns the pairs (expert, slot among the chosen experts) of a row, in the order in which kernels add the outputs of
    /// experts; the shared expert is last. Invalid indices are left out.
    fn added(&self, place: Place) -> Vec<(usize, usize)> {
        let count = self.config.n_routed_experts;
        let experts = self.kept("at_experts", place);
        let there = experts.iter().enumerate();
        let there = there.filter(|(_, expert)| (0.0..count as f32).contains(*expert));
        let mut all: Vec<(usize, usize)> = there.map(|(slot, expert)| (*expert as usize, slot)).collect();
        all.sort_unstable();
        all.push((count, experts.len()));
        all
    }

    /// Returns the product of a row x with the matrix of an expert of a layer.
    fn products(&self, of: &Mxfp4, [layer, expert]: [usize; 2], x: &[f32]) -> Vec<f32> {
        let x: Vec<Factor> = x.iter().map(|x| factor(*x)).collect();
        let number = layer * (self.config.n_routed_experts + 1) + expert;
        of.products(Sums::Defined, number, &[&x])
    }

    /// Returns the sum of the outputs of a row's experts. The second product of each expert is computed from the hidden numbers
    /// that the kernel output.
    fn mixture(&self, place: Place) -> Vec<f32> {
        let inner = self.config.moe_intermediate_size;
        let hidden = self.kept("at_hidden", place);
        let mut y = vec![0.0f32; self.config.hidden_size];
        for (expert, slot) in self.added(place) {
            let products = self.products(&self.down, [place[1], expert], &hidden[slot * inner..][..inner]);
            y.iter_mut().zip(products).for_each(|(y, product)| *y += product);
        }
        y
    }

    /// Compares the buffers of [`KEPT`] with their expected values, except in padding rows. `token(run, row)` returns the input
    /// token of a row in a decode step (run).
    pub fn parts(&self, places: &[Place], token: impl Fn(usize, usize) -> u32 + Sync) -> Vec<Part> {
        let mut expected = KEPT.each_ref().map(|tap| as_is(&self.kept[tap.buffer].values));
        let routed = places.par_iter();
        let routed = routed.map(|place| self.routed(*place, token(place[0], place[2])));
        let routed: Vec<_> = routed.collect();
        for (place, of_place) in places.iter().zip(routed) {
            for ((tap, expected), of_place) in KEPT.iter().zip(&mut expected).zip(of_place) {
                let at = self.kept[tap.buffer].at(*place).expect("all layers have experts");
                expected[at..][..of_place.len()].copy_from_slice(&of_place);
            }
        }
        for [run, _, row] in places.iter().filter(|place| place[1] == 0) {
            let at = self.kept[HEAD_INPUT].at([*run, 0, *row]).expect("it has one layer");
            expect(&mut expected[3][at..], &self.head_input([*run, *row]));
        }
        let parts = KEPT.iter().zip(expected).map(|(tap, expected)| {
            let why = if tap.dtype == Dtype::BF16 { WHY_HIDDEN } else { WHY };
            part(tap.buffer, tap.dtype, &[expected.len()], expected, why, self.outputs)
        });
        parts.collect()
    }

    /// Returns the expected experts of a row in a layer, their weights, and the hidden numbers between the experts' two products.
    fn routed(&self, place: Place, token: u32) -> [Vec<Expected>; 3] {
        let config = self.config;
        let (k, inner) = (config.num_experts_per_tok, config.moe_intermediate_size);
        let input = self.rounded_row(sites::MOE_INPUT, place);
        let row = exact([1, input.len()], &input);
        let (choice, of_experts) = self.model.route(place[1], &row, &[token], |choice| {
            // Use the experts that the kernel chose, right or wrong: the choice itself is checked elsewhere, at the site
            // `ROUTER`.
            let there = |expert: &i32| (0..config.n_routed_experts as i32).contains(expert);
            let found = self.found.tap(sites::ROUTER).row(place).iter();
            let found = found.map(|expert| Some(*expert as i32).filter(there).unwrap_or(-1));
            choice.indices = found.collect();
        });
        let kept_weights = self.kept("at_expert_weights", place);
        let mut hidden = vec![(0.0, 0.0); (k + 1) * inner];
        for (expert, slot) in self.added(place) {
            let sums = self.products(&self.gate_up, [place[1], expert], &input);
            let weight = kept_weights.get(slot).map_or(1.0, |weight| f64::from(*weight));
            for unit in 0..inner {
                let both = [unit, inner + unit].map(|row| f64::from(sums[row]));
                let (want, error) = between(both, weight, config.swiglu_limit);
                hidden[slot * inner + unit] = (want, bf16_error(want, error));
            }
        }
        let experts = choice.indices.iter().map(|expert| (f64::from(*expert), 0.0));
        let of_experts = of_experts.data.iter().map(|x| (x.value(), x.error()));
        [experts.collect(), of_experts.collect(), hidden]
    }

    /// Returns the expected input of the output head for a run and a row, computed from the residual streams that the kernel
    /// output after the last layer.
    fn head_input(&self, [run, row]: [usize; 2]) -> Vec<Bounded> {
        let last = self.config.num_hidden_layers - 1;
        let streams = self.found.tap(sites::OUTPUT).row([run, last, row]);
        let streams = exact([1, STREAMS, self.config.hidden_size], streams);
        self.model.head_input(&streams, &Plain).data
    }
}
