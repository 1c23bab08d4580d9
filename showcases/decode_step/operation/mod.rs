//! A whole decode step of DeepSeek-V4. One token of each of B sequences passes through all layers and gives the next token, which
//! is the input of the next step. A test case has several consecutive steps, called runs.
//!
//! The reference implementation of the model, `deepseek_v4`, defines the operation. All numbers are f32, except that keys may be
//! stored as KV records, and matrices as bfloat16 or as codes with scales ([`Formats`]); the model's weights are then the decoded
//! values. The projections of attention may take 8-bit activations; they are then products of codes, whose results are known to
//! the bit ([`fp8`]). All other products may take bfloat16 ([`bf16`]).
//!
//! The check runs the reference on the kernel's values: at every site (named tensor) of every layer, the reference continues with
//! the values that the kernel output, and computes expected values with error bounds for the next site ([`follow`]). So a fault
//! shows at the first site after it, and errors do not accumulate over layers.

mod bf16;
mod buffers;
mod cases;
mod follow;
mod followed;
mod formats;
mod fp8;
mod index;
mod large;
mod parts;
mod projections;
mod records;
mod sequence;
mod sizes;
mod state;
mod weights;

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use reference::Real;
use reference::ops::rope::Rope;
use reference::paths::deepseek_v4::{Config, LayerType, RouterType, StateParts, sites};
use safetensors::Dtype;

use cases::{Plan, plans};
pub use formats::{Formats, WEIGHTS};
pub use index::{INDEX_RECORDS, IndexPages};
use parts::{Kept, equal};
pub use projections::ACTIVATIONS;
pub use records::Records;
use records::Stored;
pub use sequence::{Generation, Reading};
use sizes::Sizes;
pub use state::Caches;
pub use ulplab_operations::ops::sample::Draw;
use weights::Source;

use ulplab_operations::ops::data::i32_bytes;
use ulplab_operations::ops::judge::{Judge, Part};
use ulplab_operations::ops::{Batch, Buffer, Case, Data, Inputs, Op, Outputs, Problem, Role, Scalar};

/// The operation `decode_step`.
pub struct DecodeStep;

const STREAMS: usize = 4;
const EPS: f32 = 1e-6;
/// Text whose bytes are the first tokens of every sequence: the trained model is a byte-level model of English text.
pub const PROMPT: &[u8] = b"First Citizen:\nBefore we proceed any further, hear me speak.\n\nAll:\nSpeak, speak.\n\n\
First Citizen:\nYou are all resolved rather to die than to famish?\n\nAll:\nResolved. resolved.\n\n";

/// A site (named tensor of the model) whose values kernels copy to an output buffer for comparison with the reference.
pub(super) struct Tap {
    /// Name of the site in the reference.
    pub site: &'static str,
    /// Name of the output buffer, of shape `[S, layers, B, cols]`.
    pub buffer: &'static str,
    pub cols: fn(&Config) -> usize,
    /// Type of the values: f32, or i32 for the indices of a choice (experts, top-k entries).
    pub dtype: Dtype,
    /// Returns true if a layer has the site.
    pub has: fn(&Config, usize) -> bool,
}

impl Tap {
    const fn of(site: &'static str, buffer: &'static str, cols: fn(&Config) -> usize) -> Self {
        Self {
            site,
            buffer,
            cols,
            dtype: Dtype::F32,
            has: |_, _| true,
        }
    }

    /// Returns this tap, restricted to sparse layers.
    const fn sparse(self) -> Self {
        Self {
            has: |config, layer| config.layer_types[layer] == LayerType::Sparse,
            ..self
        }
    }

    /// Returns this tap with values of type i32, for the indices of a choice (experts, top-k entries).
    const fn choice(self) -> Self {
        let dtype = Dtype::I32;
        Self { dtype, ..self }
    }

    /// Returns the layers that have the site.
    pub fn layers(&self, config: &Config) -> Vec<usize> {
        let layers = 0..config.num_hidden_layers;
        layers.filter(|layer| (self.has)(config, *layer)).collect()
    }

    /// Returns the shape `[S, layers, B, cols]` of the buffer for S runs and B rows.
    pub fn shape(&self, config: &Config, [runs, rows]: [usize; 2]) -> [usize; 4] {
        [runs, self.layers(config).len(), rows, (self.cols)(config)]
    }

    /// Reads the values that a kernel wrote to the buffer of this site, for a batch of `rows` rows.
    fn kept(&self, config: &Config, rows: usize, outputs: &Outputs) -> Kept {
        let bytes = outputs.get(self.buffer);
        Kept::new(bytes, self.dtype, self.layers(config), [rows, (self.cols)(config)])
    }
}

/// Sites (named tensors of the model) that kernels copy to output buffers, in the order in which a layer computes them.
pub(super) const TAPS: [Tap; 13] = [
    Tap::of(sites::ATTENTION_INPUT, "at_attention_input", |c| c.hidden_size),
    Tap::of(sites::QUERY, "at_query", |c| c.num_attention_heads * c.head_dim),
    Tap::of(sites::WINDOW, "at_kv_window", |c| c.head_dim),
    Tap::of(sites::COMPRESSED, "at_kv_compressed", |c| c.head_dim),
    Tap::of(sites::INDEX_QUERY, "at_index_query", |c| {
        c.index_n_heads * c.index_head_dim
    })
    .sparse(),
    Tap::of(sites::INDEX_KEY, "at_index_key", |c| c.index_head_dim).sparse(),
    Tap::of(sites::TOPK, "at_topk", |c| c.index_topk).sparse().choice(),
    Tap::of(sites::HEADS, "at_heads", |c| c.num_attention_heads * c.head_dim),
    Tap::of(sites::ATTENTION_OUTPUT, "at_attention_output", |c| c.hidden_size),
    Tap::of(sites::MOE_INPUT, "at_moe_input", |c| c.hidden_size),
    Tap {
        has: |config, layer| config.mlp_layer_types[layer] == RouterType::Learned,
        ..Tap::of(sites::ROUTER, "at_router", |c| c.num_experts_per_tok).choice()
    },
    Tap::of(sites::MOE_OUTPUT, "at_moe_output", |c| c.hidden_size),
    Tap::of(sites::OUTPUT, "at_output", |c| STREAMS * c.hidden_size),
];

impl Op for DecodeStep {
    fn name(&self) -> &'static str {
        "decode_step"
    }

    fn doc(&self) -> &'static str {
        "a token of each of B sequences through all layers of DeepSeek-V4, and the next token"
    }

    fn cases(&self) -> Vec<Case> {
        let case = |plan: Plan| {
            // Launches are planned before the checkpoint of the trained model is opened, so take the sizes of this model from a
            // constant.
            let dims = match plan.inputs {
                Inputs::Weights => plan.dims(&Sizes::MODEL, Sizes::MODEL.layers()),
                _ => plan
                    .drawn(0)
                    .and_then(|source| plan.dims(&Sizes::of(&source)?, source.banks())),
            };
            Case {
                name: plan.name(),
                keys: plan.formats.keys().0,
                dims: dims.expect("the drawn model has layers, and plans have formats, that kernels know"),
                inputs: plan.inputs,
                timed: plan.timed,
                large: plan.name == "small.b3",
            }
        };
        plans().into_iter().map(case).collect()
    }

    fn problem(&self, case: &Case, data: &Data) -> Result<Problem, String> {
        let plan = Plan::of(case)?;
        let source = plan.source(data)?;
        let sizes = Sizes::of(&source)?;
        for (name, size) in plan.dims(&sizes, source.banks())? {
            let expected = case.dim(name) as i64;
            if size != expected {
                return Err(format!("the model's {name} is {size}, this case is for {expected}"));
            }
        }
        let step = match source.repeats() {
            true => large::step(source, &plan, data)?,
            false => Step::new(source, &plan)?,
        };
        step.problem()
    }
}

/// Returns the configuration of a case's model.
///
/// # Errors
/// Returns an error if the case is unknown, or the model cannot be opened.
pub fn config(case: &Case, data: &Data) -> Result<Config, String> {
    Ok(Plan::of(case)?.source(data)?.config)
}

/// A test case with its model, its input tokens, and the KV caches before the first run.
struct Step {
    source: Source,
    runs: usize,
    /// Number of runs whose intermediate values fit into the output buffers.
    kept: usize,
    /// Initial state of each row; `None` for a padding row.
    starts: Vec<Option<StateParts<f32>>>,
    /// Input token of each row in the first run. `forced` `[S + 1, B]` holds the input tokens of each of the S runs; its last row
    /// is for later runs, which are only timed. −1 stands for the token that was sampled in the run before.
    tokens: Vec<i32>,
    forced: Vec<i32>,
    temperature: f32,
    seed: i64,
    caches: Caches,
    dims: Vec<(&'static str, i64)>,
}

impl Step {
    fn new(source: Source, plan: &Plan) -> Result<Self, String> {
        let model = source.model::<f32>()?;
        let vocabulary = source.config.vocab_size;
        let token = |position: usize| u32::from(PROMPT[position % PROMPT.len()]) % vocabulary as u32;
        let mut known: BTreeMap<i64, StateParts<f32>> = BTreeMap::new();
        for &start in plan.starts.iter().filter(|start| **start >= 0) {
            if let Entry::Vacant(unknown) = known.entry(start) {
                let mut state = model.state();
                let ids: Vec<u32> = (0..start as usize).map(token).collect();
                if !ids.is_empty() {
                    model.run(&mut state, &ids, &mut Stored::new(plan.formats.record)?)?;
                }
                unknown.insert(state.to_parts());
            }
        }
        let starts = plan.starts.iter().map(|start| known.get(start).cloned()).collect();
        // The input tokens of runs 0 to `runs / 2` are given; with random weights, the last of these tokens is 0. Later runs read
        // the tokens that the kernel sampled.
        let zero = source.is_drawn().then_some(plan.runs / 2);
        let given = |run: usize, start: i64| match start {
            0.. if Some(run) == zero => 0,
            0.. if run <= plan.runs / 2 => token(start as usize + run) as i32,
            _ => -1,
        };
        let all = |run: usize| plan.starts.iter().map(move |start| given(run, *start));
        let forced = (0..=plan.runs).flat_map(all).collect();
        Self::begin(
            source,
            starts,
            [plan.runs, plan.positions],
            (all(0).collect(), forced),
            plan.formats,
        )
    }

    /// Creates the step of sequences whose states (KV caches of the reference) are `starts`. Copies these states to kernel caches
    /// for `positions` positions.
    fn begin(
        source: Source,
        mut starts: Vec<Option<StateParts<f32>>>,
        [runs, positions]: [usize; 2],
        (tokens, forced): (Vec<i32>, Vec<i32>),
        formats: Formats,
    ) -> Result<Self, String> {
        let mut caches = Caches::empty(&source.config, starts.len(), positions, formats)?;
        for (row, parts) in starts.iter_mut().enumerate() {
            if let Some(parts) = parts {
                caches.put(&source.config, row, parts);
            }
        }
        Self::with_caches(source, starts, [runs, positions], (tokens, forced), formats, caches)
    }

    /// Same as [`Self::begin`], but with kernel caches that are already filled.
    fn with_caches(
        source: Source,
        starts: Vec<Option<StateParts<f32>>>,
        [runs, positions]: [usize; 2],
        (tokens, forced): (Vec<i32>, Vec<i32>),
        formats: Formats,
        caches: Caches,
    ) -> Result<Self, String> {
        let dims = Sizes::of(&source)?.dims([starts.len(), runs, positions], formats, source.banks())?;
        Ok(Self {
            source,
            runs,
            kept: runs,
            starts,
            tokens,
            forced,
            temperature: 0.0,
            seed: 0,
            caches,
            dims,
        })
    }

    /// Checks two outputs of the kernels: the position of each row after the last run, and the number of runs (`clock`).
    fn counters(&self, outputs: &Outputs) -> [Part; 2] {
        let (runs, last) = (self.runs as i32, self.size("P") as i32 - 1);
        let after = |start: &StateParts<f32>| (start.tokens as i32 + runs).min(last);
        let positions = self.starts.iter().map(|start| start.as_ref().map_or(-1, after));
        let positions: Vec<i32> = positions.collect();
        [
            equal("position", &[positions.len()], &positions, outputs),
            equal("clock", &[1], &[runs], outputs),
        ]
    }

    fn size(&self, name: &str) -> usize {
        let found = self.dims.iter().find(|(other, _)| *other == name);
        found.map_or(0, |(_, size)| *size as usize)
    }

    fn problem(self) -> Result<Problem, String> {
        let config = &self.source.config;
        let (runs, rows) = (self.runs, self.starts.len());
        let position = |parts: &Option<StateParts<_>>| parts.as_ref().map_or(-1, |parts| parts.tokens as i32);
        let positions: Vec<i32> = self.starts.iter().map(position).collect();
        let last = self.size("P");
        let (cos, sin) = tables(config, last);
        let pairs = config.qk_rope_head_dim / 2;
        let sequences: Vec<i32> = (0..rows as i32).collect();
        let mut buffers = self.source.buffers()?;
        buffers.extend([
            Buffer::f32("cos", &[last, pairs], &cos),
            Buffer::f32("sin", &[last, pairs], &sin),
            Buffer::f32("temperature", &[rows], &vec![self.temperature; rows]),
            Buffer::i32("sequence", &[rows], &sequences),
            Buffer::i32("forced", &[runs + 1, rows], &self.forced),
            Buffer::in_place("token", Dtype::I32, &[rows], i32_bytes(&self.tokens)),
            Buffer::in_place("position", Dtype::I32, &[rows], i32_bytes(&positions)),
            Buffer::in_place("clock", Dtype::I32, &[1], i32_bytes(&[0])),
        ]);
        let mut batch = Batch::new("B", &["temperature", "sequence", "token", "position"]);
        batch = batch.along(1, &["forced", "logits", "tokens"]);
        let state = match self.source.repeats() {
            true => large::state(&self),
            false => self.caches.buffers().collect(),
        };
        for cache in state {
            batch = batch.along(1, &[cache.name]);
            buffers.push(cache);
        }
        let kept = [self.kept, rows];
        let taps = TAPS.iter();
        let taps = taps.map(|tap| (tap.buffer, tap.dtype, tap.shape(config, kept).to_vec()));
        let storages = &self.source.storages;
        let fp8 = storages.activations.into_iter();
        let fp8 = fp8.flat_map(|blocks| fp8::kept(config, blocks, kept));
        let bf16 = storages.sixteen.then(|| bf16::kept(config, kept));
        let bf16 = bf16.into_iter().flatten();
        for (name, dtype, shape) in taps.chain(fp8).chain(bf16) {
            buffers.push(Buffer::output(name, dtype, &shape));
            batch = batch.along(shape.len() - 2, &[name]);
        }
        let vocabulary = config.vocab_size;
        buffers.push(Buffer::output("logits", Dtype::F32, &[runs, rows, vocabulary]));
        buffers.push(Buffer::output("tokens", Dtype::I32, &[runs, rows]));
        let index = ((config.index_n_heads * config.index_head_dim) as f32).sqrt().recip();
        let scalars = vec![
            ("eps", Scalar::F32(EPS)),
            ("index_scale", Scalar::F32(index)),
            ("attention_scale", Scalar::F32((config.head_dim as f32).sqrt().recip())),
            ("router_scale", Scalar::F32(config.routed_scaling_factor as f32)),
            ("limit", Scalar::F32(config.swiglu_limit as f32)),
            ("seed", Scalar::I64(self.seed)),
        ];
        let weights = buffers.iter().filter(|buffer| buffer.role == Role::In);
        let bytes = match self.source.repeats() {
            true => large::bytes(&self, &buffers),
            false => weights.map(|buffer| buffer.size() as u64).sum(),
        };
        let batched = self.source.is_drawn();
        let judge = match self.source.repeats() {
            true => large::judge(self),
            false => Judge::parts("sites", move |outputs: &Outputs| self.followed(outputs), WHY),
        };
        Ok(Problem {
            scalars,
            bytes,
            // A row of the trained model has 40 MB of state, so only the small model is run with other batch sizes.
            batch: batched.then_some(batch),
            runs,
            ..Problem::new(buffers, vec![judge])
        })
    }
}

const WHY: &str = "the reference is run on the kernel's own values at every site, in numbers that carry the error bound of an f32 \
                   computation, so each site is judged given the sites before it; a choice must be the reference's unless the \
                   scores behind it lie nearer than their errors";

/// Returns the RoPE of layers with a compressor, for `positions` positions.
fn rope<T: Real>(config: &Config, positions: usize) -> Rope<T> {
    let mut rope = Rope::new(config.rope_frequencies(LayerType::Heavy));
    rope.extend(positions);
    rope
}

/// Returns the cosines and sines of [`rope`], `[positions, R / 2]`.
fn tables(config: &Config, positions: usize) -> (Vec<f32>, Vec<f32>) {
    let rope = rope::<f32>(config, positions);
    (0..positions)
        .flat_map(|position| rope.turns(position).iter().copied())
        .unzip()
}
