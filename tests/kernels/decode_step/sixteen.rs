//! Products that take bfloat16, and attention on records: the reference in f32, but for what is rounded and for the sums of tensor
//! cores, in the place of a kernel.

use reference::ops::hyper_connection::HyperHead;
use reference::ops::rmsnorm::rmsnorm;
use reference::ops::rope::Rope;
use reference::ops::router::{sqrt_softplus, weights as expert_weights};
use reference::paths::deepseek_v4::{Config, LayerType, Model, RouterType, StateParts};
use reference::{Choice, Site, Tensor};
use ulplab::ops::Problem;
use ulplab::ops::data::{bf16_bytes, f32_bytes, round_to_bf16};
use ulplab_core::accumulator::{Factor, Operand, WGMMA_BF16};

use super::super::{buffer, integers, values};
use super::eight::Keep;
use super::weights::{Stacked, read};
use super::{Mistake, Together, bytes, formats, outputs_of, small, told_at_their_places, wrong};

/// The first or the second matrices of all experts, as tensor cores read them, and the rows and columns of each.
struct Experts(Vec<Factor>, [usize; 2]);

/// A row's step in sixteen bits.
pub(super) struct Sixteen<'a> {
    problem: &'a Problem,
    config: &'a Config,
    gate_up: Experts,
    down: Experts,
    gate: Vec<f32>,
    head: Tensor<f32>,
    head_mixer: HyperHead<f32>,
    rope: Rope<f32>,
    /// The token that the row reads.
    pub token: usize,
    /// What is read of the records of each layer's window, and of its entries.
    keys: Vec<[Vec<Vec<f32>>; 2]>,
    /// What has passed last: queries, what router and experts read, streams, and a choice.
    query: Vec<f32>,
    input: Vec<f32>,
    streams: Vec<f32>,
    pub chosen: Vec<i32>,
}

/// Columns that are summed from 0.
const PART: usize = 1024;

fn factor(x: &f32) -> Factor {
    Operand::Bf16.factor(half::bf16::from_f32(*x).to_bits())
}

fn linear(values: Vec<f32>, cols: usize) -> Tensor<f32> {
    Tensor::new([values.len() / cols, cols], values)
}

impl Experts {
    fn new(problem: &Problem, name: &str, shape: [usize; 2]) -> Self {
        Self(read(problem, name).iter().map(factor).collect(), shape)
    }

    /// A row by an expert's matrix: sums of 1,024 columns, added up in turn.
    fn product(&self, expert: usize, x: &[f32]) -> Vec<f32> {
        let Self(all, [rows, cols]) = self;
        let x: Vec<Factor> = x.iter().map(factor).collect();
        let rows = all[expert * rows * cols..][..rows * cols].chunks_exact(*cols);
        let sum = |w: &[Factor]| {
            let parts = x.chunks(PART).zip(w.chunks(PART));
            let parts = parts.map(|(x, w)| WGMMA_BF16.dot(x, w, 0.0));
            parts.reduce(|sum, part| sum + part).expect("rows have columns")
        };
        rows.map(sum).collect()
    }
}

impl<'a> Sixteen<'a> {
    pub fn new(problem: &'a Problem, config: &'a Config) -> Self {
        let (hidden, inner) = (config.hidden_size, config.moe_intermediate_size);
        let mut rope = Rope::new(config.rope_frequencies(LayerType::Heavy));
        rope.extend(buffer(problem, "cos").shape[0]);
        Self {
            problem,
            config,
            gate_up: Experts::new(problem, "gate_up", [2 * inner, hidden]),
            down: Experts::new(problem, "down", [hidden, inner]),
            gate: read(problem, "gate"),
            head: linear(read(problem, "head"), hidden),
            head_mixer: HyperHead {
                projection: linear(values(problem, "head_fn"), 4 * hidden),
                base: values(problem, "head_base"),
                scale: values(problem, "head_scale")[0],
                norm_eps: 1e-6,
                eps: 1e-6,
            },
            rope,
            token: 0,
            keys: Vec::new(),
            query: Vec::new(),
            input: Vec::new(),
            streams: Vec::new(),
            chosen: Vec::new(),
        }
    }

    /// Begins a row whose keys are what is read of records.
    pub fn begin(&mut self, parts: &StateParts<f32>) {
        let rows = |keys: &Tensor<f32>| (0..keys.rows()).map(|at| keys.row(at).to_vec()).collect();
        let layers = parts.layers.iter();
        let layers = layers.map(|layer| [&layer.window, &layer.compressed.as_ref().unwrap().entries]);
        self.keys = layers.map(|caches| caches.map(|cache| rows(&cache.keys))).collect();
    }

    /// Puts what follows from bfloat16 in the place of what the reference has.
    pub fn before(&self, site: &Site, tensor: &mut Tensor<f32>, mistakes: &[Mistake], keep: &mut Keep) {
        match site.name {
            "attention.heads" => {
                let heads = self.config.num_attention_heads;
                tensor.data = self.heads(site.layer.unwrap(), mistakes);
                round_to_bf16(&mut tensor.data);
                self.rope.apply(tensor, heads, |_| site.first_row, true);
            }
            "moe.output" => {
                tensor.data = self.mixture(site.layer.unwrap(), mistakes, keep);
                if mistakes.contains(&Mistake::Bit(site.name)) {
                    tensor.data[3] = tensor.data[3].next_up();
                }
            }
            "logits" => {
                let streams = Tensor::new([1, 4, self.config.hidden_size], self.streams.clone());
                let mut input = self.head_mixer.apply(&streams);
                rmsnorm(&mut input, Some(&values(self.problem, "final_norm")), 1e-6);
                if mistakes.contains(&Mistake::Scaled("at_head_input")) {
                    input.data.iter_mut().for_each(|x| *x *= 1.0001);
                }
                keep("at_head_input", &f32_bytes(&input.data));
                rounded(&mut input.data, site, mistakes);
                tensor.data = self.head.apply(&input).data;
            }
            _ => {}
        }
    }

    /// Rounds what passes on from a site, and keeps what is read behind others.
    pub fn after(&mut self, site: &Site, tensor: &mut Tensor<f32>, mistakes: &[Mistake]) {
        let layer = site.layer.unwrap_or(0);
        let x = &mut tensor.data;
        match site.name {
            "attention.input" => rounded(x, site, mistakes),
            "attention.query" => {
                rounded(x, site, mistakes);
                self.query.clone_from(x);
            }
            "attention.kv.window" => self.keys[layer][0].push(x.clone()),
            "attention.kv.compressed" => self.keys[layer][1].push(x.clone()),
            "moe.input" => {
                rounded(x, site, mistakes);
                self.input.clone_from(x);
            }
            "output" => self.streams.clone_from(x),
            _ => {}
        }
    }

    /// Attention of a layer to its window and to its entries, those that were chosen if any are.
    fn heads(&self, layer: usize, mistakes: &[Mistake]) -> Vec<f32> {
        let config = self.config;
        let [window, entries] = &self.keys[layer];
        let recent = window.len().saturating_sub(config.sliding_window);
        let mut keys: Vec<&Vec<f32>> = window[recent..].iter().collect();
        match config.layer_types[layer] {
            LayerType::Sparse => {
                let chosen = self.chosen.iter().filter(|entry| **entry >= 0);
                keys.extend(chosen.map(|entry| &entries[*entry as usize]));
            }
            _ => keys.extend(entries),
        }
        if mistakes.contains(&Mistake::LeftOut("key")) {
            keys.pop();
        }
        let scale = (config.head_dim as f32).sqrt().recip();
        let sinks = values(self.problem, "sinks");
        let sinks = &sinks[layer * config.num_attention_heads..];
        let head = |(query, sink): (&[f32], &f32)| {
            let dot = |key: &&Vec<f32>| query.iter().zip(*key).map(|(q, k)| q * k).sum::<f32>() * scale;
            let scores: Vec<f32> = keys.iter().map(dot).collect();
            let top = scores.iter().copied().fold(*sink, f32::max);
            let p: Vec<f32> = scores.iter().map(|score| (score - top).exp()).collect();
            let of_sink = if mistakes.contains(&Mistake::LeftOut("sink")) {
                0.0
            } else {
                (sink - top).exp()
            };
            let sum = p.iter().sum::<f32>() + of_sink;
            let mixed = |at: usize| p.iter().zip(&keys).map(|(p, key)| p * key[at]).sum::<f32>() / sum;
            (0..config.head_dim).map(mixed).collect::<Vec<_>>()
        };
        self.query
            .chunks_exact(config.head_dim)
            .zip(sinks)
            .flat_map(head)
            .collect()
    }

    /// The sum of the experts, those of the router in the order of their numbers and the shared one last.
    fn mixture(&self, layer: usize, mistakes: &[Mistake], keep: &mut Keep) -> Vec<f32> {
        let config = self.config;
        let (k, count) = (config.num_experts_per_tok, config.n_routed_experts);
        let inner = config.moe_intermediate_size;
        let mut input = Tensor::new([1, self.input.len()], self.input.clone());
        let each = count * input.data.len();
        let mut sigma = linear(self.gate[layer * each..][..each].to_vec(), input.data.len()).apply(&input);
        sqrt_softplus(&mut sigma);
        let mut experts = match config.mlp_layer_types[layer] {
            RouterType::Hash => integers(self.problem, "table")[self.token * k..][..k].to_vec(),
            RouterType::Learned => self.chosen.clone(),
        };
        let choice = Choice {
            indices: experts.clone(),
            k,
            scores: sigma.clone(),
        };
        let mut weights = expert_weights(&sigma, &choice, config.routed_scaling_factor as f32).data;
        if mistakes.contains(&Mistake::Scaled("at_expert_weights")) {
            weights[0] *= 1.0001;
        }
        keep("at_expert_weights", &f32_bytes(&weights));
        if mistakes.contains(&Mistake::Swapped) {
            experts.swap(0, 1);
        }
        keep("at_experts", &bytes(&experts));
        round_to_bf16(&mut input.data);
        let mut slots: Vec<usize> = (0..=k).collect();
        experts.push(count as i32);
        weights.push(1.0);
        slots.sort_by_key(|slot| experts[*slot]);
        let mut hidden = vec![0.0; (k + 1) * inner];
        let mut y = vec![0.0; input.data.len()];
        for slot in slots {
            let expert = layer * (count + 1) + experts[slot] as usize;
            let sums = self.gate_up.product(expert, &input.data);
            let own = &mut hidden[slot * inner..][..inner];
            for (own, (gate, up)) in own.iter_mut().zip(sums.iter().zip(&sums[inner..])) {
                let limit = config.swiglu_limit as f32;
                let gate = gate.min(limit);
                *own = gate / (1.0 + (-gate).exp()) * up.clamp(-limit, limit) * weights[slot];
            }
            round_to_bf16(own);
            if mistakes.contains(&Mistake::Bit("at_hidden")) && slot == 0 {
                // The next number of bf16 may be as near to what was rounded, if it lies between both.
                own[3] = f32::from_bits(own[3].to_bits() + (2 << 16));
            }
            if !mistakes.contains(&Mistake::LeftOut("shared expert")) || slot < k {
                let products = self.down.product(expert, own);
                y.iter_mut().zip(products).for_each(|(y, product)| *y += product);
            }
        }
        keep("at_hidden", &bf16_bytes(&hidden));
        y
    }
}

/// Rounds what passes on from a site.
fn rounded(x: &mut [f32], site: &Site, mistakes: &[Mistake]) {
    if !mistakes.contains(&Mistake::Unrounded(site.name)) {
        round_to_bf16(x);
    }
}

/// What is kept besides sites is judged given what the kernel had before, so that each of several mistakes is told at its own place, and
/// nothing else is then wrong.
#[test]
fn decode_step_follows_products_of_bf16() {
    let name = "w8a16.bf16+mxfp4.v4_fp8.index_fp8.small.b3";
    let all = small(|case| case.name == name);
    let [(case, problem, config)] = &all[..] else {
        panic!("no case {name}")
    };
    let model = Model::load(config.clone(), &mut Stacked::new(problem)).unwrap();
    let all: [Together; 3] = [
        &[
            (Mistake::LeftOut("key"), &["at_heads"]),
            (Mistake::Bit("moe.output"), &["at_moe_output"]),
            (Mistake::Unrounded("moe.input"), &["at_expert_weights"]),
            (Mistake::Scaled("at_head_input"), &["at_head_input"]),
            (Mistake::Unrounded("attention.input"), &["hca_ring_kv", "hca_ring_gate"]),
        ],
        &[
            (Mistake::LeftOut("sink"), &["at_heads"]),
            (Mistake::LeftOut("shared expert"), &["at_moe_output"]),
            (Mistake::Unrounded("logits"), &["logits"]),
            (Mistake::Scaled("at_expert_weights"), &["at_expert_weights"]),
        ],
        &[
            // A query's last bits move a probability by less than rounding it to bf16 does, which a kernel may do.
            (Mistake::Unrounded("attention.query"), &[]),
            (Mistake::Swapped, &["at_experts"]),
            (Mistake::Bit("at_hidden"), &["at_hidden"]),
        ],
    ];
    for together in all {
        told_at_their_places(together, |mistakes| {
            wrong(problem, &outputs_of(&model, problem, formats(case), mistakes))
        });
    }
}
