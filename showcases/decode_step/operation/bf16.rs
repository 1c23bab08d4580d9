//! Activations in bfloat16 wherever they are not in eight bits: what compressors, index heads, routers, experts and the head multiply, and
//! queries. Weights are bfloat16, those of experts MXFP4, the shared one's behind them. The f32 numbers before are kept where they are a
//! site's, so what is rounded is known to the bit. Attention and experts are then defined as by [`record_attention`] and [`moe_fp4`],
//! given the queries, keys and choices that the kernel had.
//!
//! Besides sites, these are kept: the experts of each row and their weights, what lies between the experts' products, and the head's
//! input.

use std::collections::HashMap;

use rayon::prelude::*;
use reference::ops::hyper_connection::HyperHead;
use reference::ops::linear::Linear;
use reference::ops::rmsnorm::rmsnorm;
use reference::ops::rope::Rope;
use reference::ops::router::{Selection, select, sqrt_softplus, weights as expert_weights};
use reference::paths::deepseek_v4::{Config, LayerType, RouterType, StateParts, sites};
use reference::{Bounded, Real, Tensor};
use safetensors::Dtype;

use super::buffers::{of_shape, shared_halves};
use super::records::Records;
use super::weights::Source;
use super::{EPS, STREAMS, WHY};
use ulplab_core::accumulator::Factor;
use ulplab_operations::ops::data::{exact, f32_values, round_to_bf16};
use ulplab_operations::ops::fp4_gemm::{product, weights};
use ulplab_operations::ops::judge::{Judge, Part, bf16_error};
use ulplab_operations::ops::moe_fp4::between;
use ulplab_operations::ops::record_attention::attend;
use ulplab_operations::ops::stored::{Matrices, Storage};
use ulplab_operations::ops::sums::{Sums, factor};
use ulplab_operations::ops::{Batch, Buffer, Outputs};

const WHY_HIDDEN: &str = "the sums of both products are defined to the bit, given the row and its experts; f32 arithmetic then errs by at most \
                          (13 + 2|g|) units of 2^-24, and half a step of bfloat16 is added";

/// A format of experts' weights has a scale for so many columns.
const BLOCK: usize = 32;

/// What is kept besides sites: name, dtype, and columns of a row; all but the last `[S, layers, B, ..]`, and that `[S, B, ..]`.
type Kept = (&'static str, Dtype, fn(&Config) -> usize);
const KEPT: [Kept; 4] = [
    ("at_experts", Dtype::I32, |c| c.num_experts_per_tok),
    ("at_expert_weights", Dtype::F32, |c| c.num_experts_per_tok),
    ("at_hidden", Dtype::BF16, |c| {
        (c.num_experts_per_tok + 1) * c.moe_intermediate_size
    }),
    ("at_head_input", Dtype::F32, |c| c.hidden_size),
];

/// The buffers that keep it, for so many runs and rows.
pub(super) fn buffers(config: &Config, [runs, rows]: [usize; 2], batch: Batch) -> (Vec<Buffer>, Batch) {
    KEPT.iter()
        .fold((Vec::new(), batch), |(mut buffers, batch), (name, dtype, cols)| {
            let layers = if *name == "at_head_input" {
                None
            } else {
                Some(config.num_hidden_layers)
            };
            let shape: Vec<usize> = [runs].into_iter().chain(layers).chain([rows, cols(config)]).collect();
            buffers.push(Buffer::output(name, *dtype, &shape));
            (buffers, batch.along(shape.len() - 2, &[name]))
        })
}

/// The first or the second matrices of all layers' experts, those of the shared one last: codes, scales, and the number above these, which
/// MXFP4 does not have.
///
/// # Errors
/// Weights that cannot be read, or are no whole blocks.
pub(super) fn experts(source: &Source, first: bool) -> Result<Vec<Buffer>, String> {
    let config = &source.config;
    let (hidden, inner, count) = (
        config.hidden_size,
        config.moe_intermediate_size,
        config.n_routed_experts,
    );
    let ([rows, cols], halves) = if first {
        ([2 * inner, hidden], 2)
    } else {
        ([hidden, inner], 1)
    };
    if !cols.is_multiple_of(BLOCK) {
        return Err(format!(
            "experts have rows of {cols} columns, expected a multiple of {BLOCK}, which share a scale"
        ));
    }
    let mut all = Matrices::new(Storage::named("mxfp4")?, cols);
    for layer in 0..config.num_hidden_layers {
        let name = |tensor: &str| format!("model.layers.{layer}.mlp.{tensor}");
        let routed = [name(if first {
            "experts.gate_up_proj"
        } else {
            "experts.down_proj"
        })];
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
    let names = if first {
        ["gate_up", "gate_up_scales"]
    } else {
        ["down", "down_scales"]
    };
    let levels = [lead[0], lead[1], halves];
    let level = if first { "gate_up_level" } else { "down_level" };
    let ones = vec![1.0; levels.iter().product()];
    let matrices = match source.repeats() {
        true => all.buffers(names, &source.made(&[count * rows, cols])[..1])?,
        false => all.buffers(names, &lead)?,
    };
    let matrices = matrices.map(|matrix| of_shape(&matrix, &lead));
    Ok(matrices
        .into_iter()
        .chain([Buffer::f32(level, &levels, &ones)])
        .collect())
}

/// The matrices of all layers' experts.
struct Experts {
    codes: Vec<u8>,
    scales: Vec<u8>,
    /// Rows and columns of each.
    shape: [usize; 2],
    /// Matrices of a layer.
    count: usize,
}

impl Experts {
    fn new(source: &Source, first: bool) -> Result<Self, String> {
        let [codes, scales, _] = <[Buffer; 3]>::try_from(experts(source, first)?).expect("there are three buffers");
        let cols = source.config.hidden_size;
        let inner = source.config.moe_intermediate_size;
        Ok(Self {
            codes: codes.bytes,
            scales: scales.bytes,
            shape: if first { [2 * inner, cols] } else { [cols, inner] },
            count: source.config.n_routed_experts + 1,
        })
    }

    /// The products of a row with an expert of a layer.
    fn products(&self, [layer, expert]: [usize; 2], x: &[Factor]) -> Vec<f32> {
        let [rows, cols] = self.shape;
        let first = (layer * self.count + expert) * rows;
        let (codes, scales) = (cols / 2, cols / BLOCK);
        let of_row = |row: usize| {
            let at = first + row;
            let w = weights(
                &self.codes[at * codes..][..codes],
                &self.scales[at * scales..][..scales],
                BLOCK,
            );
            product::<f32>(Sums::Defined, x, &w)
        };
        (0..rows).map(of_row).collect()
    }
}

struct Layer {
    sinks: Vec<f32>,
    router: Linear<Bounded>,
    selection: Selection<Bounded>,
}

/// A step whose activations are bfloat16 where they are not in eight bits, with what a kernel has kept.
pub(super) struct Sixteen<'a> {
    config: &'a Config,
    rows: usize,
    layers: Vec<Layer>,
    gate_up: Experts,
    down: Experts,
    head: Linear<Bounded>,
    head_mixer: HyperHead<Bounded>,
    final_norm: Vec<Bounded>,
    rope: Rope<Bounded>,
    outputs: &'a Outputs,
    /// The numbers of the buffers that are read.
    found: HashMap<&'static str, Vec<f32>>,
    /// What attention gives, RoPE not undone, for a run, layer and row.
    attended: HashMap<[usize; 3], Vec<Bounded>>,
}

fn numbers(dtype: Dtype, bytes: &[u8]) -> Vec<f32> {
    match dtype {
        Dtype::I32 => super::parts::numbers(dtype, bytes),
        _ => f32_values(bytes, dtype.bitsize() / 8),
    }
}

impl<'a> Sixteen<'a> {
    /// Follows what a kernel has left of a model's step, with so many positions and rows of a batch.
    ///
    /// # Errors
    /// Weights that cannot be read.
    pub fn new(source: &'a Source, positions: usize, rows: usize, outputs: &'a Outputs) -> Result<Self, String> {
        let config = &source.config;
        let hidden = config.hidden_size;
        let bounded =
            |name: &str, shape: &[usize]| Ok::<_, String>(exact(shape.to_vec(), &source.floats(name, shape)?));
        let linear = |name: &str, shape: [usize; 2]| {
            Ok::<_, String>(Linear {
                weight: bounded(name, &shape)?,
            })
        };
        let layer = |layer: usize| {
            let name = |tensor: &str| format!("model.layers.{layer}.{tensor}");
            let experts = config.n_routed_experts;
            let selection = match config.mlp_layer_types[layer] {
                RouterType::Hash => {
                    let shape = [config.vocab_size, config.num_experts_per_tok];
                    Selection::Table(source.integers(&name("mlp.gate.tid2eid"), &shape)?)
                }
                _ => Selection::Bias(bounded(&name("mlp.gate.e_score_correction_bias"), &[experts])?.data),
            };
            Ok(Layer {
                sinks: source.floats(&name("self_attn.sinks"), &[config.num_attention_heads])?,
                router: linear(&name("mlp.gate.weight"), [experts, hidden])?,
                selection,
            })
        };
        let mut rope = Rope::new(config.rope_frequencies(LayerType::Heavy));
        rope.extend(positions);
        let read = super::TAPS.iter().map(|tap| (tap.buffer, tap.dtype));
        let read = read.chain(KEPT.map(|(name, dtype, _)| (name, dtype)));
        Ok(Self {
            config,
            rows,
            layers: (0..config.num_hidden_layers)
                .map(layer)
                .collect::<Result<_, String>>()?,
            gate_up: Experts::new(source, true)?,
            down: Experts::new(source, false)?,
            head: linear("lm_head.weight", [config.vocab_size, hidden])?,
            head_mixer: HyperHead {
                projection: linear("model.hc_head.hc_fn", [STREAMS, STREAMS * hidden])?,
                base: bounded("model.hc_head.hc_base", &[STREAMS])?.data,
                scale: bounded("model.hc_head.hc_scale", &[1])?.data[0],
                norm_eps: Bounded::from_f64(EPS.into()),
                eps: Bounded::from_f64(EPS.into()),
            },
            final_norm: bounded("model.norm.weight", &[hidden])?.data,
            rope,
            outputs,
            found: read
                .map(|(name, dtype)| (name, numbers(dtype, outputs.get(name))))
                .collect(),
            attended: HashMap::new(),
        })
    }

    /// What a buffer has of a place: a run, the number of a layer among those that it has, and a row.
    fn kept(&self, name: &str, layers: usize, [run, layer, row]: [usize; 3]) -> &[f32] {
        let all = &self.found[name];
        let runs = self.outputs.get("tokens").len() / 4 / self.rows;
        let cols = all.len() / (runs * layers * self.rows);
        &all[((run * layers + layer) * self.rows + row) * cols..][..cols]
    }

    /// Follows attention of a row through its runs, from the state in which it begins, whose keys are what is read of their records.
    pub fn attend(&mut self, records: &Records, row: usize, start: &StateParts<f32>, runs: usize) {
        let config = self.config;
        let count = config.num_hidden_layers;
        let sparse: Vec<usize> = (0..count)
            .filter(|layer| config.layer_types[*layer] == LayerType::Sparse)
            .collect();
        let scale = (config.head_dim as f32).sqrt().recip();
        let of_layer = |layer: usize| {
            let parts = &start.layers[layer];
            let rows = |keys: &Tensor<f32>| (0..keys.rows()).map(|at| keys.row(at).to_vec()).collect::<Vec<_>>();
            let mut window = rows(&parts.window.keys);
            let mut entries = parts
                .compressed
                .as_ref()
                .map_or(Vec::new(), |of| rows(&of.entries.keys));
            let of_run = |run: usize| {
                let place = [run, layer, row];
                window.push(records.read(self.kept("at_kv_window", count, place)));
                let rate = config.compress_rate(layer);
                if rate.is_some_and(|rate| (start.tokens + run + 1).is_multiple_of(rate)) {
                    entries.push(records.read(self.kept("at_kv_compressed", count, place)));
                }
                let recent = &window[window.len().saturating_sub(config.sliding_window)..];
                let chosen: Vec<usize> = match sparse.iter().position(|other| *other == layer) {
                    None => (0..entries.len()).collect(),
                    Some(at) => {
                        let chosen = self.kept("at_topk", sparse.len(), [run, at, row]).iter();
                        chosen
                            .filter(|slot| **slot >= 0.0 && (**slot as usize) < entries.len())
                            .map(|slot| *slot as usize)
                            .collect()
                    }
                };
                let keys: Vec<&[f32]> = recent
                    .iter()
                    .chain(chosen.iter().map(|at| &entries[*at]))
                    .map(Vec::as_slice)
                    .collect();
                let mut query = self.kept("at_query", count, place).to_vec();
                round_to_bf16(&mut query);
                let heads = query.chunks_exact(config.head_dim).zip(&self.layers[layer].sinks);
                let heads = heads.flat_map(|(q, sink)| {
                    let head = attend(q, &keys, (*sink, scale), Dtype::BF16);
                    head.want
                        .into_iter()
                        .zip(head.bounds)
                        .map(|(want, bound)| Bounded::new(want, bound))
                });
                (place, heads.collect())
            };
            (0..runs).map(of_run).collect::<Vec<_>>()
        };
        let found: Vec<_> = (0..count).into_par_iter().map(of_layer).collect();
        self.attended.extend(found.into_iter().flatten());
    }

    /// Replaces what the reference has at a site by what follows from bfloat16; `place` is a run, a layer and a row whose token is at this
    /// position.
    pub fn at(&self, site: &str, place: [usize; 3], position: usize, tensor: &mut Tensor<Bounded>) {
        match site {
            sites::HEADS => {
                let heads = self.config.num_attention_heads;
                let mut attended = Tensor::new([heads, self.config.head_dim], self.attended[&place].clone());
                self.rope.apply(&mut attended, heads, |_| position, true);
                tensor.data = attended.data;
            }
            sites::MOE_OUTPUT => tensor.data = exact([1, self.config.hidden_size], &self.mixture(place)).data,
            sites::LOGITS => {
                let mut input = self.kept("at_head_input", 1, [place[0], 0, place[2]]).to_vec();
                round_to_bf16(&mut input);
                tensor.data = self.head.apply(&exact([1, input.len()], &input)).data;
            }
            _ => {}
        }
    }

    /// What goes on from a site: bfloat16, if what follows multiplies it.
    pub fn rounded(site: &str, found: &mut [f32]) {
        if [sites::ATTENTION_INPUT, sites::MOE_INPUT].contains(&site) {
            round_to_bf16(found);
        }
    }

    /// The experts of a row that exist, with their slots, in the order in which they are added, the shared one last.
    fn added(&self, place: [usize; 3]) -> Vec<(usize, usize)> {
        let count = self.config.n_routed_experts;
        let experts = self.kept("at_experts", self.layers.len(), place);
        let there = experts
            .iter()
            .enumerate()
            .filter(|(_, expert)| **expert >= 0.0 && (**expert as usize) < count);
        let mut all: Vec<(usize, usize)> = there.map(|(slot, expert)| (*expert as usize, slot)).collect();
        all.sort_unstable();
        all.push((count, experts.len()));
        all
    }

    /// The sum of a row's experts, of the numbers between their products that the kernel had.
    fn mixture(&self, place: [usize; 3]) -> Vec<f32> {
        let inner = self.config.moe_intermediate_size;
        let hidden = self.kept("at_hidden", self.layers.len(), place);
        let mut y = vec![0.0f32; self.config.hidden_size];
        for (expert, slot) in self.added(place) {
            let x: Vec<Factor> = hidden[slot * inner..][..inner].iter().map(|x| factor(*x)).collect();
            let products = self.down.products([place[1], expert], &x);
            y.iter_mut().zip(products).for_each(|(y, product)| *y += product);
        }
        y
    }

    /// What is kept besides sites, judged; `token` tells which one a row reads in a run. Rows of padding may have anything.
    pub fn parts(&self, steps: &[[usize; 2]], token: impl Fn(usize, usize) -> u32 + Sync) -> Vec<Part> {
        let mut expected = KEPT.map(|(name, ..)| {
            self.found[name]
                .iter()
                .map(|x| (f64::from(*x), 0.0))
                .collect::<Vec<(f64, f64)>>()
        });
        let places = steps
            .iter()
            .flat_map(|[run, row]| (0..self.layers.len()).map(move |layer| [*run, layer, *row]));
        let places: Vec<[usize; 3]> = places.collect();
        let routed: Vec<_> = places
            .par_iter()
            .map(|place| self.routed(*place, token(place[0], place[2])))
            .collect();
        for (place, of_place) in places.iter().zip(routed) {
            let number = (place[0] * self.layers.len() + place[1]) * self.rows + place[2];
            for (expected, of_place) in expected.iter_mut().zip(of_place) {
                expected[number * of_place.len()..][..of_place.len()].copy_from_slice(&of_place);
            }
        }
        for [run, row] in steps {
            let input = self.head_input([*run, *row]);
            let at = (run * self.rows + row) * input.len();
            expected[3][at..][..input.len()].copy_from_slice(&input);
        }
        let parts = KEPT.iter().zip(expected).map(|((name, dtype, _), expected)| {
            let shape = [expected.len()];
            let (want, bounds): (Vec<f64>, Vec<f64>) = expected.into_iter().unzip();
            let why = if *dtype == Dtype::BF16 { WHY_HIDDEN } else { WHY };
            let bound = move |at: usize, _: f64| bounds[at];
            let bytes = self.outputs.get(name).to_vec();
            match dtype {
                Dtype::I32 => {
                    let want = want.iter().flat_map(|x| (*x as i32).to_le_bytes()).collect();
                    Judge::equal(name, *dtype, &shape, want, why).on(bytes)
                }
                _ => Judge::within(name, *dtype, &shape, want, bound, why)
                    .without_metrics()
                    .on(bytes),
            }
        });
        parts.collect()
    }

    /// What is expected of a row in a layer: its experts, their weights, and what lies between the experts' products.
    fn routed(&self, place: [usize; 3], token: u32) -> [Vec<(f64, f64)>; 3] {
        let (config, layer) = (self.config, &self.layers[place[1]]);
        let (count, k, inner) = (
            self.layers.len(),
            config.num_experts_per_tok,
            config.moe_intermediate_size,
        );
        let mut input = self.kept("at_moe_input", count, place).to_vec();
        round_to_bf16(&mut input);
        let mut sigma = layer.router.apply(&exact([1, input.len()], &input));
        sqrt_softplus(&mut sigma);
        let mut choice = select(&sigma, &layer.selection, &[token], k);
        if let Selection::Bias(_) = layer.selection {
            // A learned router's choice is judged at its site.
            let learned: Vec<usize> = (0..count)
                .filter(|layer| config.mlp_layer_types[*layer] != RouterType::Hash)
                .collect();
            let at = learned
                .iter()
                .position(|layer| *layer == place[1])
                .expect("the layer's router is learned");
            let found = self.kept("at_router", learned.len(), [place[0], at, place[2]]).iter();
            let there = |expert: &i32| (0..config.n_routed_experts as i32).contains(expert);
            choice.indices = found
                .map(|expert| *expert as i32)
                .map(|expert| if there(&expert) { expert } else { -1 })
                .collect();
        }
        let of_experts = expert_weights(&sigma, &choice, Bounded::from_f64(config.routed_scaling_factor));
        let kept_weights = self.kept("at_expert_weights", count, place);
        let x: Vec<Factor> = input.iter().map(|x| factor(*x)).collect();
        let mut hidden = vec![(0.0, 0.0); (k + 1) * inner];
        for (expert, slot) in self.added(place) {
            let sums = self.gate_up.products([place[1], expert], &x);
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

    /// What is expected of the head's input, a run and a row, given the streams that leave the last layer.
    fn head_input(&self, [run, row]: [usize; 2]) -> Vec<(f64, f64)> {
        let (layers, hidden) = (self.layers.len(), self.config.hidden_size);
        let streams = self.kept("at_output", layers, [run, layers - 1, row]);
        let mut input = self.head_mixer.apply(&exact([1, STREAMS, hidden], streams));
        rmsnorm(&mut input, Some(&self.final_norm), Bounded::from_f64(EPS.into()));
        input.data.iter().map(|x| (x.value(), x.error())).collect()
    }
}
