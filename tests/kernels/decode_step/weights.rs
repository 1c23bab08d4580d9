//! The weights of a problem, as kernels read them.

use std::cell::RefCell;
use std::collections::HashMap;

use reference::paths::Weights;
use safetensors::Dtype;
use ulplab::ops::Problem;

use super::{buffer, integers};

/// The weights of a problem's buffers, by the names of a checkpoint.
pub(super) struct Stacked<'a> {
    problem: &'a Problem,
    /// What is read of each buffer that has been asked for: it has all layers, which are asked for one by one.
    read: RefCell<HashMap<String, Vec<f32>>>,
}

impl<'a> Stacked<'a> {
    pub fn new(problem: &'a Problem) -> Self {
        let read = RefCell::default();
        Self { problem, read }
    }

    /// Part `at` of as many as a buffer has of equal length.
    fn part(&self, name: &str, at: usize, parts: usize) -> Vec<f32> {
        let mut all = self.read.borrow_mut();
        let values = all.entry(name.into()).or_insert_with(|| read(self.problem, name));
        let each = values.len() / parts;
        values[at * each..][..each].to_vec()
    }
}

impl Weights for Stacked<'_> {
    type Error = String;

    fn floats(&mut self, name: &str, _: &[usize]) -> Result<Vec<f32>, String> {
        let problem = self.problem;
        let Some((layer, tensor)) = name.strip_prefix("model.layers.").and_then(|rest| rest.split_once('.')) else {
            let name = match name {
                "model.embed_tokens.weight" => "embedding",
                "model.hc_head.hc_fn" => "head_fn",
                "model.hc_head.hc_base" => "head_base",
                "model.hc_head.hc_scale" => "head_scale",
                "model.norm.weight" => "final_norm",
                "lm_head.weight" => "head",
                other => return Err(format!("no {other}")),
            };
            return Ok(self.part(name, 0, 1));
        };
        let part = |name: &str, at: usize| self.part(name, at, buffer(problem, name).shape[0]);
        let layer: usize = layer.parse().unwrap();
        // Heavy, heavy, sparse, heavy, sparse, heavy.
        let (kind, at) = [("hca", 0), ("hca", 1), ("csa", 0), ("hca", 2), ("csa", 1), ("hca", 3)][layer];
        let compressor = |rest: &str, prefix: &str| {
            let end = match rest {
                "kv_proj.weight" => "kv",
                "gate_proj.weight" => "gate",
                "position_bias" => "ape",
                "kv_norm.weight" => "norm",
                other => return Err(format!("no {other}")),
            };
            Ok(part(&format!("{prefix}_{end}"), at))
        };
        // In sixteen bits, the shared expert is behind the routed ones.
        let behind = problem.buffers.iter().all(|buffer| buffer.name != "shared_gate_up");
        let expert = |name: &str, shared: bool| {
            let all = part(name, layer);
            let routed = all.len() - all.len() / buffer(problem, name).shape[1];
            if shared { &all[routed..] } else { &all[..routed] }.to_vec()
        };
        let shared = |half: usize| {
            let both = match behind {
                true => expert("gate_up", true),
                false => part("shared_gate_up", layer),
            };
            both[half * both.len() / 2..][..both.len() / 2].to_vec()
        };
        if let Some(rest) = tensor.strip_prefix("self_attn.compressor.indexer.") {
            return match rest {
                "q_b_proj.weight" => Ok(part("index_q", at)),
                "scorer.weights_proj.weight" => Ok(part("index_heads", at)),
                rest => compressor(rest, "index"),
            };
        }
        if let Some(rest) = tensor.strip_prefix("self_attn.compressor.") {
            return compressor(rest, kind);
        }
        Ok(match tensor {
            "mlp.shared_experts.gate_proj.weight" => shared(0),
            "mlp.shared_experts.up_proj.weight" => shared(1),
            "mlp.shared_experts.down_proj.weight" if behind => expert("down", true),
            "mlp.experts.gate_up_proj" if behind => expert("gate_up", false),
            "mlp.experts.down_proj" if behind => expert("down", false),
            other => part(
                match other {
                    "attn_hc.fn" => "attn_fn",
                    "attn_hc.base" => "attn_base",
                    "attn_hc.scale" => "attn_scale",
                    "input_layernorm.weight" => "attn_norm",
                    "self_attn.q_a_proj.weight" => "q_a",
                    "self_attn.q_a_norm.weight" => "q_norm",
                    "self_attn.q_b_proj.weight" => "q_b",
                    "self_attn.kv_proj.weight" => "kv",
                    "self_attn.kv_norm.weight" => "kv_norm",
                    "self_attn.sinks" => "sinks",
                    "self_attn.o_a_proj.weight" => "o_a",
                    "self_attn.o_b_proj.weight" => "o_b",
                    "ffn_hc.fn" => "moe_fn",
                    "ffn_hc.base" => "moe_base",
                    "ffn_hc.scale" => "moe_scale",
                    "post_attention_layernorm.weight" => "moe_norm",
                    "mlp.gate.weight" => "gate",
                    "mlp.gate.e_score_correction_bias" => "bias",
                    "mlp.experts.gate_up_proj" => "gate_up",
                    "mlp.experts.down_proj" => "down",
                    "mlp.shared_experts.down_proj.weight" => "shared_down",
                    other => return Err(format!("no {other}")),
                },
                layer,
            ),
        })
    }

    fn integers(&mut self, name: &str, _: &[usize]) -> Result<Vec<u32>, String> {
        assert_eq!(name, "model.layers.0.mlp.gate.tid2eid");
        Ok(integers(self.problem, "table")
            .into_iter()
            .map(i32::cast_unsigned)
            .collect())
    }
}

/// What is read of a weight, whichever way it is stored.
pub(super) fn read(problem: &Problem, name: &str) -> Vec<f32> {
    let scales = format!("{name}_scales");
    let Some(scales) = problem.buffers.iter().find(|other| other.name == scales) else {
        return super::super::values(problem, name);
    };
    let codes = buffer(problem, name);
    if codes.shape.len() == 3 && scales.shape.len() == 3 && scales.shape[1] != codes.shape[1] {
        return of_tiles(problem, name, scales.name);
    }
    let (format, halves) = match (codes.dtype, scales.dtype) {
        (Dtype::F32, _) => ("f32", 1),
        (Dtype::BF16, _) => ("bf16", 1),
        (Dtype::F8_E4M3, Dtype::F32) => ("fp8_b64_f32", 1),
        (Dtype::U8, Dtype::F8_E8M0) => ("mxfp4", 2),
        (Dtype::U8, Dtype::F8_E4M3) => ("nvfp4", 2),
        other => panic!("{name} is stored as {other:?}"),
    };
    let [.., rows, cols] = codes.shape[..] else {
        panic!("{name} has no rows")
    };
    let level = format!("{name}_level");
    let level = (halves == 2).then_some((level.as_str(), rows * cols * halves));
    super::super::matrices(problem, format, name, scales.name, level, cols * halves)
}

/// What is read of E4M3 codes `[layers, rows, cols]` with a scale for each tile of 128 × 128, of grouped weights for each group apart.
fn of_tiles(problem: &Problem, name: &str, scales: &str) -> Vec<f32> {
    let (codes, values) = (buffer(problem, name), super::super::values(problem, scales));
    let (&[_, rows, cols], &[_, down, across]) = (&codes.shape[..], &buffer(problem, scales).shape[..]) else {
        panic!("{name} is no matrix of each layer")
    };
    let groups = if name == "o_a" { 2 } else { 1 };
    let (each, tiles) = (rows / groups, down / groups);
    let mut numbers = super::super::e4m3(&codes.bytes);
    for (at, row_numbers) in numbers.chunks_mut(cols).enumerate() {
        let (layer, row) = (at / rows, at % rows);
        let scales = &values[(layer * down + row / each * tiles + row % each / 128) * across..][..across];
        for (tile, scale) in row_numbers.chunks_mut(128).zip(scales) {
            tile.iter_mut().for_each(|x| *x *= scale);
        }
    }
    numbers
}
