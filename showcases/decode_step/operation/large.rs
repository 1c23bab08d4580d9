//! Timed case: DeepSeek-V4-Flash at its real sizes, with random weights and states. The model does not fit into host memory, so
//! only the first rows of each buffer are generated, and all other rows repeat these. The experts do not fit into device memory,
//! so there are experts for [`Source::banks`] layers, which all layers use in turn. A reference model of this size would be too
//! large, so outputs are only checked for properties such as finite numbers and valid indices. That kernels are correct at these
//! sizes is shown by the cases of the single operations. The first two layers, which have only a window in the original, have a
//! compressor here.

use std::collections::{BTreeMap, BTreeSet};

use reference::paths::deepseek_v4::{Config, LayerType, RopeByLayer, RopeParameters, RouterType, StateParts};
use safetensors::Dtype;

use super::cases::Plan;
use super::parts::equal;
use super::state::Caches;
use super::weights::Source;
use super::{STREAMS, Step, TAPS};
use ulplab_operations::ops::data::{f32_values, i32_values};
use ulplab_operations::ops::judge::{Judge, Part};
use ulplab_operations::ops::sample::best;
use ulplab_operations::ops::{Buffer, Data, Outputs, Role};

const WHY: &str = "every number that is kept is finite, a choice is a choice, a token is the best of its logits, and rows that begin alike \
                   have the same bits; weights that repeat are no model that could be followed";

const WHY_SPREAD: &str =
    "what is timed must read as many experts as are counted: rows that go to the same ones would look fast";

/// Number of positions for which random cache contents are drawn; later positions repeat these contents.
const DRAWN_POSITIONS: usize = 1 << 14;

const LAYERS: usize = 43;

/// Largest batch size for which layers route as in DeepSeek-V4-Flash, where only the first three layers look up experts by token
/// id. With more rows, all layers except the last do so: all rows have equal states, for which learned routers would select fewer
/// different experts than for different texts.
const ROUTED: usize = 8;

/// Returns the configuration of DeepSeek-V4-Flash, with the routers that [`ROUTED`] requires for a batch of `rows` rows.
pub(super) fn config(rows: usize) -> Config {
    let by_token = if rows > ROUTED { LAYERS - 1 } else { 3 };
    let kind = |layer: usize| match layer >= 2 && layer.is_multiple_of(2) {
        true => LayerType::Sparse,
        false => LayerType::Heavy,
    };
    config_of((0..LAYERS).map(kind).collect(), by_token)
}

/// Returns a configuration with the sizes of DeepSeek-V4-Flash and layers of the types `layer_types`. The first `by_token` layers
/// look up experts by token id.
pub(super) fn config_of(layer_types: Vec<LayerType>, by_token: usize) -> Config {
    let layers = layer_types.len();
    let by_token = [(RouterType::Hash, by_token), (RouterType::Learned, layers - by_token)];
    Config {
        vocab_size: 129_280,
        hidden_size: 4096,
        moe_intermediate_size: 2048,
        num_hidden_layers: layers,
        num_attention_heads: 64,
        head_dim: 512,
        qk_rope_head_dim: 64,
        q_lora_rank: 1024,
        num_experts_per_tok: 6,
        n_routed_experts: 256,
        routed_scaling_factor: 1.5,
        swiglu_limit: 10.0,
        sliding_window: 128,
        o_groups: 8,
        o_lora_rank: 1024,
        index_n_heads: 64,
        index_head_dim: 128,
        index_topk: 512,
        hc_mult: STREAMS,
        hc_sinkhorn_iters: 20,
        hc_eps: super::EPS.into(),
        rms_norm_eps: super::EPS.into(),
        compress_rates: rates([4, 128]),
        rope_parameters: RopeByLayer {
            main: RopeParameters::plain(1e4),
            compress: RopeParameters::plain(1.6e5),
        },
        layer_types,
        mlp_layer_types: by_token
            .into_iter()
            .flat_map(|(kind, count)| vec![kind; count])
            .collect(),
        max_position_embeddings: None,
    }
}

/// Returns the number of tokens per compressed entry for sparse and for heavy layers, keyed by layer type as in `config.json`.
pub(super) fn rates([sparse, heavy]: [usize; 2]) -> BTreeMap<String, usize> {
    let rates = [
        ("compressed_sparse_attention", sparse),
        ("heavily_compressed_attention", heavy),
    ];
    rates.map(|(name, rate)| (name.to_string(), rate)).into()
}

/// Creates the decode step of a case with its initial state. Each sequence of the batch reads a different token, except that the
/// last one reads the same token as the first. The input tokens of all runs are given: with sampled tokens, all sequences would
/// soon read the same token and use the same experts.
///
/// # Errors
/// Returns an error if no kernel supports the formats.
pub(super) fn step(source: Source, plan: &Plan, data: &Data) -> Result<Step, String> {
    let rows = plan.starts.len();
    let start = |tokens: i64| StateParts {
        tokens: tokens as usize,
        layers: Vec::new(),
    };
    let mut few = source.config.clone();
    few.layer_types = vec![LayerType::Heavy, LayerType::Sparse];
    few.num_hidden_layers = few.layer_types.len();
    let mut caches = Caches::empty(&few, 1, plan.positions.min(DRAWN_POSITIONS), plan.formats)?;
    caches.draw(data);
    let tokens: Vec<i32> = (0..rows)
        .map(|row| if row + 1 == rows { 0 } else { row as i32 })
        .collect();
    let starts = plan.starts.iter().map(|tokens| Some(start(*tokens))).collect();
    let forced = tokens.repeat(plan.runs + 1);
    let sizes = [plan.runs, plan.positions];
    Step::with_caches(source, starts, sizes, (tokens, forced), plan.formats, caches)
}

/// Returns the buffers of the KV caches for all layers and rows. Their contents repeat the random values of one layer and row.
pub(super) fn state(step: &Step) -> Vec<Buffer> {
    let size = |name: &str| step.size(name);
    let enlarged = |mut buffer: Buffer| {
        // Keep only the bytes of one layer and row: a `Buffer` with fewer bytes than its shape needs repeats its bytes.
        buffer.bytes.truncate(buffer.bytes.len() / buffer.shape[0]);
        let layers = match buffer.name {
            name if name.starts_with("window") => "layers",
            name if name.starts_with("hca") => "heavy",
            _ => "sparse",
        };
        let pages = match buffer.name {
            "window_pages" => Some("window_pages_of_row"),
            "csa_pages" | "index_pages" => Some("csa_pages_of_row"),
            "hca_pages" => Some("hca_pages_of_row"),
            _ => None,
        };
        let [_, _, slots, width] = buffer.shape[..] else {
            unreachable!("the state is [layers, B, slots or pages, width]")
        };
        let shape = vec![size(layers), size("B"), pages.map_or(slots, size), width];
        Buffer { shape, ..buffer }
    };
    step.caches.buffers().map(enlarged).collect()
}

/// Returns the expected number of experts of a layer that at least one row uses, if the router selects all experts with equal
/// probability.
fn reached(step: &Step) -> f64 {
    let [experts, chosen, rows] = ["E", "K", "B"].map(|name| step.size(name) as f64);
    // The last of several rows reads the same token as the first row, and so uses the same experts.
    let rows = if rows > 1.0 { rows - 1.0 } else { rows };
    experts * (1.0 - (1.0 - chosen / experts).powf(rows))
}

/// Returns the number of bytes that a step must move: all weights except those of experts that no row is expected to use, and the
/// part of the state that attention and the indexer read.
pub(super) fn bytes(step: &Step, buffers: &[Buffer]) -> u64 {
    let size = |name: &str| step.size(name) as f64;
    let of = |names: &[&str]| -> f64 {
        let all = buffers.iter().filter(|buffer| names.contains(&buffer.name));
        all.map(|buffer| buffer.size() as f64).sum()
    };
    let experts = of(&["gate_up", "gate_up_scales", "down", "down_scales"]) / size("banks") / (size("E") + 1.0);
    let reached = reached(step);
    let inputs = buffers.iter().filter(|buffer| buffer.role == Role::In);
    let tables = "embedding cos sin table gate_up gate_up_scales down down_scales forced".split(' ');
    let dense = inputs.filter(|buffer| tables.clone().all(|table| table != buffer.name));
    let dense: f64 = dense.map(|buffer| buffer.size() as f64).sum();
    let chosen = size("topk") / size("Ns").max(size("topk"));
    let state = of(&["window_pages", "hca_pages", "index_pages"]) + of(&["csa_pages"]) * chosen;
    (dense + experts * (reached + 1.0) * size("layers") + state) as u64
}

/// Returns the check of the outputs. It tests only properties that need no reference: finite numbers, valid indices, and equal
/// rows for equal inputs.
pub(super) fn judge(step: Step) -> Judge {
    let parts = move |outputs: &Outputs| {
        let (rows, runs) = (step.starts.len(), step.runs);
        let (experts, vocabulary) = (step.size("E") as i32, step.size("V"));
        let mut parts = Vec::new();
        let config = &step.source.config;
        for tap in TAPS.iter().filter(|tap| tap.dtype == Dtype::F32) {
            parts.push(finite(tap.buffer, &tap.shape(config, [runs, rows]), outputs));
        }
        parts.push(finite("logits", &[runs, rows, vocabulary], outputs));
        parts.push(choices(
            "at_experts",
            &[runs, config.num_hidden_layers, rows, step.size("K")],
            outputs,
            |chosen| {
                let there = chosen.iter().all(|expert| (0..experts).contains(expert));
                let mut slots = chosen.iter().enumerate();
                there && slots.all(|(at, expert)| !chosen[..at].contains(expert))
            },
        ));
        parts.push(spread(&step, outputs));
        let sparse = step.size("sparse");
        parts.push(choices(
            "at_topk",
            &[runs, sparse, rows, step.size("topk")],
            outputs,
            |chosen| chosen.windows(2).all(|pair| pair[0] < pair[1]) && chosen[0] >= 0,
        ));
        let logits = f32_values(outputs.get("logits"), Dtype::F32);
        let tokens: Vec<i32> = logits.chunks_exact(vocabulary).map(best).collect();
        parts.push(equal("tokens", &[runs, rows], &tokens, outputs));
        parts.extend(step.counters(outputs));
        parts.push(step.repeated(outputs, WHY));
        parts
    };
    Judge::parts("step", parts, WHY)
}

/// Checks that all numbers are finite. The output is compared with itself, with 0 in place of NaN and infinities, so that exactly
/// these elements fail.
fn finite(name: &'static str, shape: &[usize], outputs: &Outputs) -> Part {
    let mut want = outputs.get(name).to_vec();
    for number in want.as_chunks_mut::<4>().0 {
        if !f32::from_le_bytes(*number).is_finite() {
            *number = [0; 4];
        }
    }
    Judge::equal(name, Dtype::F32, shape, want, WHY).of(outputs)
}

/// Checks that `right` is true for every row of chosen indices. The output is compared with itself, but with −2 (never an index)
/// in rows for which `right` is false, so that these rows fail.
fn choices(name: &'static str, shape: &[usize; 4], outputs: &Outputs, right: impl Fn(&[i32]) -> bool) -> Part {
    let mut want = i32_values(outputs.get(name));
    let wrong = want.chunks_exact_mut(shape[3]).filter(|chosen| !right(chosen));
    wrong.for_each(|chosen| chosen.fill(-2));
    equal(name, shape, &want, outputs)
}

/// Checks the number of different experts that the batch uses, summed over layers. It must be within 10 % of the number that
/// [`bytes`] assumes for the memory traffic.
fn spread(step: &Step, outputs: &Outputs) -> Part {
    let of_layer = step.starts.len() * step.size("K");
    let distinct = |chosen: &[i32]| chosen.iter().collect::<BTreeSet<_>>().len();
    let experts = i32_values(outputs.get("at_experts"));
    let found: usize = experts.chunks_exact(of_layer).map(distinct).sum();
    let expected = reached(step) * (experts.len() / of_layer) as f64;
    let near = (found as f64 - expected).abs() <= 0.1 * expected;
    let [want, found] =
        [if near { found } else { expected as usize }, found].map(|count| (count as i32).to_le_bytes().to_vec());
    Judge::equal("experts reached", Dtype::I32, &[1], want, WHY_SPREAD).on(found)
}
