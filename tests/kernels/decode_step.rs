//! The reference in f32 in the place of a kernel.

use std::collections::BTreeSet;
use std::sync::Arc;

use reference::paths::deepseek_v4::{Config, Model, State, StateParts};
use reference::{Choice, Numerics, Site, Tensor};
use safetensors::Dtype;
use ulplab::metrics::VIOLATIONS;
use ulplab::ops::data::{f32_bytes, f32_values, round_to_bf16};
use ulplab::ops::{Case, Data, Outputs, Problem};
use ulplab_decode_step::{Caches, Formats};

use super::{buffer, integers, problems_of};
use eight::Eight;
use sixteen::Sixteen;
use stored::{Stored, read_of_records};
use weights::Stacked;

#[path = "decode_step/eight.rs"]
mod eight;
#[path = "decode_step/flash.rs"]
mod flash;
#[path = "decode_step/sixteen.rs"]
mod sixteen;
#[path = "decode_step/stored.rs"]
mod stored;
#[path = "decode_step/text.rs"]
mod text;
#[path = "decode_step/weights.rs"]
mod weights;

/// Mistake of a kernel at one site of one layer, in one run. A kernel may make several mistakes together.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Mistake {
    /// All numbers are a thousandth too large.
    Scaled(&'static str),
    /// Numbers are rounded to bf16.
    Rounded(&'static str),
    /// The worst candidate is chosen in place of the best.
    Chosen(&'static str),
    /// The state after the last run lacks its newest vector.
    StateStale,
    /// A token is not the one with the largest logit.
    Token,
    /// The records of the last run are not stored.
    RecordStale,
    /// Attention reads numbers in place of the records that they are stored as.
    NumbersRead,
    /// A number of a product is the next one of f32.
    Bit(&'static str),
    /// The last code of a row is another one.
    Code(&'static str),
    /// The last scale of a row is the next number of f32.
    Scale(&'static str),
    /// All groups of heads have the weights of the first.
    FirstGroup,
    /// A sum of products of codes is multiplied by both scales in turn.
    InTurn,
    /// What follows reads numbers of f32 that it should read in bf16.
    Unrounded(&'static str),
    /// A key, a sink or an expert is left out.
    LeftOut(&'static str),
    /// The first two experts of a row have each other's places.
    Swapped,
}

/// Mistakes that a kernel makes together, each with the outputs that it makes wrong. No such output is computed directly from another
/// one: if the judgement refused an output only because of the mistake before it, the test would see one output too many.
type Together<'a> = &'a [(Mistake, &'a [&'a str])];

/// Asserts that the judgement refuses exactly the outputs of these mistakes.
fn told_at_their_places(together: Together, wrong: impl FnOnce(&[Mistake]) -> Vec<&'static str>) {
    let mistakes: Vec<Mistake> = together.iter().map(|(mistake, _)| *mistake).collect();
    let places: BTreeSet<&str> = together.iter().flat_map(|(_, places)| places.iter().copied()).collect();
    let found: BTreeSet<&str> = wrong(&mistakes).into_iter().collect();
    assert_eq!(found, places, "{mistakes:?}");
}

/// Keeps what passes as the kernels' taps do.
struct Kernel<'a, 'p> {
    problem: &'a Problem,
    taps: &'a mut Vec<(&'static str, Vec<u8>)>,
    /// Run and row.
    at: [usize; 2],
    mistakes: &'a [Mistake],
    formats: Formats<'a>,
    eight: Option<Eight<'a>>,
    sixteen: Option<&'a mut Sixteen<'p>>,
}

/// Sites and the buffers that keep them.
const TAPS: [(&str, &str); 13] = [
    ("attention.input", "at_attention_input"),
    ("attention.query", "at_query"),
    ("attention.kv.window", "at_kv_window"),
    ("attention.kv.compressed", "at_kv_compressed"),
    ("attention.indexer.query", "at_index_query"),
    ("attention.indexer.key", "at_index_key"),
    ("attention.indexer.topk", "at_topk"),
    ("attention.heads", "at_heads"),
    ("attention.output", "at_attention_output"),
    ("moe.input", "at_moe_input"),
    ("moe.router", "at_router"),
    ("moe.output", "at_moe_output"),
    ("output", "at_output"),
];

impl Kernel<'_, '_> {
    /// Sparse layers, which have indexers, and heavy ones take turns after the first heavy ones; the first layers have no learned
    /// router.
    fn keep(&mut self, site: &Site, bytes: &[u8]) {
        let Some((_, name)) = TAPS.iter().find(|(tap, _)| *tap == site.name) else {
            return;
        };
        let layer = site.layer.unwrap();
        let layers = |name: &str| buffer(self.problem, name).shape[1];
        let all = layers("at_output");
        let layer = match site.name {
            name if name.starts_with("attention.indexer") => (layer + 2 * layers("at_topk") - all) / 2,
            "moe.router" => layer + layers("at_router") - all,
            _ => layer,
        };
        keep_row(self.problem, self.taps, name, [self.at[0], layer, self.at[1]], bytes);
    }

    /// True if this mistake is made at the site: in the fourth layer, or the fifth if the fourth has no such site.
    fn hit(&self, site: &Site, mistake: Mistake) -> bool {
        let last = if site.name.starts_with("attention.indexer") {
            4
        } else {
            3
        };
        let here = site.layer == Some(last) && self.at[1] == 0 && self.at[0] + 3 > self.problem.runs;
        here && self.mistakes.contains(&mistake)
    }
}

/// Keeps a row of a layer in a run.
fn keep_row(
    problem: &Problem,
    taps: &mut [(&'static str, Vec<u8>)],
    name: &str,
    [run, layer, row]: [usize; 3],
    bytes: &[u8],
) {
    let (layers, rows) = match buffer(problem, name).shape[..] {
        [_, layers, rows, _] => (layers, rows),
        [_, rows, _] => (1, rows),
        _ => unreachable!("taps have three dimensions, or four"),
    };
    let (_, tap) = taps.iter_mut().find(|(tap, _)| *tap == name).unwrap();
    let width = buffer(problem, name).size() / (problem.runs * layers * rows);
    assert_eq!(bytes.len(), width, "{name}");
    tap[((run * layers + layer) * rows + row) * width..][..width].copy_from_slice(bytes);
}

impl Numerics<f32> for Kernel<'_, '_> {
    fn site(&mut self, site: &Site, tensor: &mut Tensor<f32>) {
        let [run, row] = self.at;
        // Products go wrong where other mistakes are made.
        let hit = matches!(site.layer, None | Some(3)) && row == 0 && run + 3 > self.problem.runs;
        let mistakes = if hit { self.mistakes } else { &[] };
        let (problem, taps, place) = (self.problem, &mut *self.taps, [run, site.layer.unwrap_or(0), row]);
        let mut keep = |name: &str, bytes: &[u8]| keep_row(problem, taps, name, place, bytes);
        if let Some(eight) = &self.eight {
            eight.before(site, tensor, mistakes);
        }
        if let Some(sixteen) = &self.sixteen {
            sixteen.before(site, tensor, mistakes, &mut keep);
        }
        if self.hit(site, Mistake::Scaled(site.name)) {
            tensor.data.iter_mut().for_each(|x| *x *= 1.001);
        }
        if self.hit(site, Mistake::Rounded(site.name)) {
            round_to_bf16(&mut tensor.data);
        }
        self.keep(site, &f32_bytes(&tensor.data));
        if let Some(eight) = &mut self.eight {
            let (problem, taps) = (self.problem, &mut *self.taps);
            let mut keep = |name: &str, bytes: &[u8]| keep_row(problem, taps, name, place, bytes);
            eight.after(site, &tensor.data, mistakes, &mut keep);
        }
        read_of_records(self.formats, site, tensor);
        if let Some(sixteen) = &mut self.sixteen {
            sixteen.after(site, tensor, mistakes);
        }
    }

    fn choice(&mut self, site: &Site, choice: &mut Choice<f32>) {
        if site.name != "moe.router" {
            // In the order of entries, as attention reads them.
            choice
                .indices
                .sort_unstable_by_key(|index| u32::try_from(*index).unwrap_or(u32::MAX));
        }
        if self.hit(site, Mistake::Chosen(site.name)) {
            let scores = &choice.scores.data;
            let left = (0..scores.len() as i32).filter(|index| !choice.indices.contains(index));
            let left = left.filter(|index| scores[*index as usize].is_finite());
            let worst = left
                .min_by(|a, b| scores[*a as usize].total_cmp(&scores[*b as usize]))
                .unwrap();
            choice.indices[0] = worst;
            choice.indices[..choice.k].sort_unstable();
        }
        let bytes: Vec<u8> = choice.indices.iter().flat_map(|index| index.to_le_bytes()).collect();
        self.keep(site, &bytes);
        if let Some(sixteen) = &mut self.sixteen {
            sixteen.chosen.clone_from(&choice.indices);
        }
    }
}

fn bytes(values: &[i32]) -> Vec<u8> {
    values.iter().flat_map(|x| x.to_le_bytes()).collect()
}

/// Returns the outputs of a kernel that computes as the reference does in f32, except for these mistakes.
fn outputs(config: &Config, problem: &Problem, formats: Formats, mistakes: &[Mistake]) -> Outputs {
    let model: Model<f32> = Model::load(config.clone(), &mut Stacked::new(problem)).unwrap();
    outputs_of(&model, problem, formats, mistakes)
}

/// The same, with this model.
fn outputs_of(model: &Model<f32>, problem: &Problem, formats: Formats, mistakes: &[Mistake]) -> Outputs {
    let config = model.config();
    let (runs, vocabulary) = (problem.runs, config.vocab_size);
    let (mut token, mut position) = (integers(problem, "token"), integers(problem, "position"));
    let forced = integers(problem, "forced");
    let rows = token.len();
    let written = problem
        .buffers
        .iter()
        .filter(|buffer| buffer.role != ulplab::ops::Role::In);
    let mut outputs: Vec<(&'static str, Vec<u8>)> =
        written.map(|buffer| (buffer.name, vec![0; buffer.size()])).collect();
    let last = buffer(problem, "cos").shape[0];
    let mut caches = Caches::empty(config, rows, last, formats).unwrap();
    for cache in &mut caches.arrays {
        cache.values = super::values(problem, cache.name);
    }
    let mut logits = vec![0.0; runs * rows * vocabulary];
    let mut tokens = vec![-1; runs * rows];
    let in_sixteen = problem.buffers.iter().any(|buffer| buffer.name == "at_hidden");
    let mut sixteen = in_sixteen.then(|| Sixteen::new(problem, config));
    for row in 0..rows {
        if position[row] < 0 {
            continue;
        }
        let start = position[row] as usize;
        let mut state = begin(config, model, start, formats.record);
        if formats.record.is_some() {
            // What is stored once more is read once more.
            let mut parts = state.to_parts();
            caches.put(config, row, &mut parts);
            sixteen.iter_mut().for_each(|sixteen| sixteen.begin(&parts));
            state = State::from_parts(config, parts).unwrap();
        }
        for run in 0..runs {
            sixteen
                .iter_mut()
                .for_each(|sixteen| sixteen.token = token[row] as usize);
            let mut kernel = Kernel {
                problem,
                taps: &mut outputs,
                at: [run, row],
                mistakes,
                formats: Formats {
                    record: formats.record.filter(|_| !mistakes.contains(&Mistake::NumbersRead)),
                    ..formats
                },
                eight: formats.activations.map(|_| Eight::new(problem, config)),
                sixteen: sixteen.as_mut(),
            };
            let found = model.run(&mut state, &[token[row] as u32], &mut kernel).unwrap();
            let at = run * rows + row;
            logits[at * vocabulary..][..vocabulary].copy_from_slice(&found.data);
            let order = |a: &usize, b: &usize| found.data[*a].total_cmp(&found.data[*b]).then(b.cmp(a));
            tokens[at] = (0..vocabulary).max_by(order).unwrap() as i32;
            if mistakes.contains(&Mistake::Token) && run + 1 == runs {
                tokens[at] = (tokens[at] + 1) % vocabulary as i32;
            }
            let given = forced[at + rows];
            token[row] = if given >= 0 { given } else { tokens[at] };
            position[row] = (position[row] + 1).min(last as i32 - 1);
        }
        let mut parts: StateParts<f32> = state.to_parts();
        if mistakes.contains(&Mistake::StateStale) {
            let keys = &mut parts.layers[1].window.keys;
            let end = keys.data.len();
            keys.data[end - 3..].fill(0.0);
        }
        if let Some(records) = &mut caches.records {
            for run in 0..runs - usize::from(mistakes.contains(&Mistake::RecordStale)) {
                let vector = |site: &str, layer: usize| {
                    let (_, name) = TAPS.iter().find(|(tap, _)| *tap == site).unwrap();
                    let (_, values) = outputs.iter().find(|(tap, _)| tap == name).unwrap();
                    let at = (run * config.num_hidden_layers + layer) * rows + row;
                    f32_values(&values[at * 512 * 4..][..512 * 4], Dtype::F32)
                };
                records.step(config, row, start + run, vector);
            }
            let (stored, mut index) = (records.clone(), caches.index.clone());
            if let Some(index) = &mut index {
                let keys = &outputs.iter().find(|(tap, _)| *tap == "at_index_key").unwrap().1;
                let sparse = buffer(problem, "at_index_key").shape[1];
                for run in 0..runs {
                    Arc::make_mut(index).step(config, row, start + run, |layer| {
                        // Sparse layers are the third and the fifth.
                        let at = ((run * sparse + (layer - 2) / 2) * rows + row) * 128 * 4;
                        f32_values(&keys[at..][..128 * 4], Dtype::F32)
                    });
                }
            }
            caches.put(config, row, &mut parts);
            (caches.records, caches.index) = (Some(stored), index);
        } else {
            caches.put(config, row, &mut parts);
        }
    }
    let mut set = |name: &str, bytes: Vec<u8>| {
        outputs.iter_mut().find(|(output, _)| *output == name).unwrap().1 = bytes;
    };
    for buffer in caches.buffers() {
        set(buffer.name, buffer.bytes);
    }
    set("logits", f32_bytes(&logits));
    set("tokens", bytes(&tokens));
    set("token", bytes(&token));
    set("position", bytes(&position));
    set("clock", bytes(&[runs as i32]));
    Outputs(outputs)
}

/// The state after the tokens that the case begins with.
fn begin(config: &Config, model: &Model<f32>, tokens: usize, record: Option<&str>) -> State<f32> {
    let prompt = ulplab_decode_step::PROMPT.iter().cycle().take(tokens);
    let ids = prompt.map(|id| u32::from(*id) % config.vocab_size as u32);
    let mut state = model.state();
    if tokens > 0 {
        let ids: Vec<u32> = ids.collect();
        model.run(&mut state, &ids, &mut Stored(record)).unwrap();
    }
    state
}

/// The outputs that are wrong.
fn wrong(problem: &Problem, outputs: &Outputs) -> Vec<&'static str> {
    let found = problem.judge(outputs).into_iter();
    let wrong = found.filter(|found| found.metric == &VIOLATIONS && found.value != 0.0);
    wrong.map(|found| found.output).collect()
}

/// Some of the cases of a small model, that are not timed.
fn small(wanted: impl Fn(&Case) -> bool) -> Vec<(Case, Problem, Config)> {
    let none = |_: &str| Err(String::new());
    let config = |case: &Case| ulplab_decode_step::config(case, &Data::new(1, &none)).unwrap();
    let cases = ulplab::ops::find("decode_step").unwrap().cases().into_iter();
    let cases = cases.filter(|case| !case.inputs.need_model() && !case.timed && wanted(case));
    problems_of("decode_step", cases)
        .into_iter()
        .map(|(case, problem)| {
            let config = config(&case);
            (case, problem, config)
        })
        .collect()
}

/// How a case stores keys; weights are those of its buffers.
fn formats(case: &Case) -> Formats<'_> {
    let key = |name: &str| {
        case.keys
            .iter()
            .find(|(key, _)| *key == name)
            .map(|(_, format)| format.as_str())
    };
    Formats {
        record: key("record"),
        index: key("index"),
        activations: key("activations"),
        ..Formats::F32
    }
}

/// Where keys are records, each byte of them follows from the vectors that were stored, and attention reads what they hold.
#[test]
fn decode_step_reads_the_records_that_it_stores() {
    let all = small(|case| case.name == "v4_nvfp4.small.b3");
    let (case, problem, config) = &all[0];
    let all: [Together; 2] = [
        &[(Mistake::Scaled("attention.kv.window"), &["at_kv_window"])],
        &[
            (Mistake::RecordStale, &["window_pages", "csa_pages"]),
            (Mistake::NumbersRead, &["at_heads"]),
        ],
    ];
    for together in all {
        told_at_their_places(together, |mistakes| {
            wrong(problem, &outputs(config, problem, formats(case), mistakes))
        });
    }
}

/// Where index keys are records, too, the choice is that of the codes, and every byte of the keys is judged.
#[test]
fn decode_step_scores_the_index_keys_that_it_stores() {
    // The numbers of row 0 are got wrong here, which is padding in some cases. Scores do not depend on what experts read.
    let all = small(|case| {
        let sixteen = case.name.starts_with("w8a16");
        formats(case).index.is_some() && !case.name.ends_with("padding") && !sixteen
    });
    let mut count = 0;
    for (case, problem, config) in &all {
        let numbers: Together = &[
            (Mistake::Scaled("attention.indexer.key"), &["at_index_key"]),
            (Mistake::Scaled("attention.indexer.query"), &["at_index_query"]),
        ];
        told_at_their_places(numbers, |mistakes| {
            wrong(problem, &outputs(config, problem, formats(case), mistakes))
        });
        let choice = Mistake::Chosen("attention.indexer.topk");
        told_at_their_places(&[(choice, &["at_topk", "index_pages"])], |mistakes| {
            let mut outputs = outputs(config, problem, formats(case), mistakes);
            let pages = outputs.0.iter_mut().find(|(name, _)| *name == "index_pages").unwrap();
            let at = pages.1.iter().position(|byte| *byte != 0xff).unwrap();
            pages.1[at] ^= 1;
            wrong(problem, &outputs)
        });
        count += 1;
    }
    assert_eq!(count, 3);
}

#[test]
fn decode_step_accepts_the_reference_in_f32() {
    // One of the wide ones is enough here, and `sixteen` tells that nothing is wrong with one more but what it does: each takes 10 s.
    let elsewhere = ["mxfp4.wide.b2", "w8a16.bf16+mxfp4.v4_fp8.index_fp8.small.b3"];
    for (case, problem, config) in &small(|case| !elsewhere.iter().any(|end| case.name.ends_with(end))) {
        let outputs = outputs(config, problem, formats(case), &[]);
        assert_eq!(wrong(problem, &outputs), [""; 0], "{}", case.name);
        for (name, bytes) in outputs.0.iter().filter(|(name, _)| !name.ends_with("pages")) {
            let some = f32_values(bytes, Dtype::F32).iter().any(|x| *x != 0.0);
            assert!(some || *name == "token", "{}: {name} is zeros", case.name);
        }
    }
}

/// A fault is told at its own site, and what follows is judged given what the kernel had there.
#[test]
fn decode_step_tells_a_fault_at_its_site() {
    let all = small(|case| case.name == "small.b3");
    let (_, problem, config) = &all[0];
    let all: [Together; 3] = [
        &[
            (Mistake::Scaled("attention.input"), &["at_attention_input"]),
            (Mistake::Chosen("attention.indexer.topk"), &["at_topk"]),
            (Mistake::Rounded("attention.output"), &["at_attention_output"]),
            (Mistake::Scaled("moe.output"), &["at_moe_output"]),
            (Mistake::StateStale, &["window"]),
        ],
        &[
            (Mistake::Rounded("attention.query"), &["at_query"]),
            (Mistake::Scaled("attention.kv.window"), &["at_kv_window"]),
            (Mistake::Rounded("attention.indexer.query"), &["at_index_query"]),
            (Mistake::Chosen("moe.router"), &["at_router"]),
            (Mistake::Scaled("output"), &["at_output"]),
        ],
        &[
            (Mistake::Scaled("attention.heads"), &["at_heads"]),
            // The next run would read the wrong token.
            (Mistake::Token, &["tokens", "token"]),
        ],
    ];
    for together in all {
        told_at_their_places(together, |mistakes| {
            wrong(problem, &outputs(config, problem, Formats::F32, mistakes))
        });
    }
}
