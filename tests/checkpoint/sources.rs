//! Sources as people have them: each is found for every matrix, and a matrix with its rows upside down is named through each.

use std::collections::BTreeMap;
use std::path::Path;

use half::bf16;
use safetensors::Dtype;
use serde_json::{Value, json};
use ulplab_checkpoint::checkpoint::{Checkpoint, Report, Selection, Severity};

use super::made::{Array, KINDS, config, f32s, parts, random, write};
use super::whole::told;

/// Inputs of most matrices. `q_proj` and `o_proj` are square, and k has other rows than v.
const H: usize = 128;
/// Inputs of `down_proj`.
const I: usize = 96;
/// Experts of layer 1.
const E: usize = 2;

/// A matrix of a model: rows, columns, values.
pub type Matrix = (usize, usize, Vec<f32>);
/// Matrices by name, without `.weight`.
pub type Model = BTreeMap<String, Matrix>;

/// A model with a dense layer, and one with experts.
pub fn model() -> Model {
    let mut model = Model::new();
    let mut add = |name: String, rows: usize, cols: usize| {
        let seed = model.len() as u64 + 100;
        model.insert(name, (rows, cols, random(seed, rows * cols)));
    };
    for layer in 0..2 {
        let rows = [("q_proj", H), ("k_proj", 32), ("v_proj", 48), ("o_proj", H)];
        for (name, rows) in rows {
            add(format!("model.layers.{layer}.self_attn.{name}"), rows, H);
        }
    }
    let within = (0..E).map(|expert| format!("model.layers.1.mlp.experts.{expert}"));
    for within in ["model.layers.0.mlp".to_string()].into_iter().chain(within) {
        add(format!("{within}.gate_proj"), I, H);
        add(format!("{within}.up_proj"), I, H);
        add(format!("{within}.down_proj"), H, I);
    }
    model
}

/// The rows of both, one after the other.
fn stacked(all: &[&Matrix]) -> Matrix {
    let values = all.iter().flat_map(|(.., values)| values.clone()).collect();
    (all.iter().map(|(rows, ..)| rows).sum(), all[0].1, values)
}

/// Puts matrices with these last components in place of their rows one after the other.
fn fuse(model: &mut Model, members: &[&str], fused: &str) {
    let first = |name: &String| Some(name.strip_suffix(&format!(".{}", members[0]))?.to_string());
    let modules: Vec<String> = model.keys().filter_map(first).collect();
    for module in modules {
        let all: Vec<Matrix> = members
            .iter()
            .map(|member| model.remove(&format!("{module}.{member}")).unwrap())
            .collect();
        model.insert(format!("{module}.{fused}"), stacked(&all.iter().collect::<Vec<_>>()));
    }
}

fn turned((rows, cols, values): &Matrix) -> Matrix {
    let at = |(col, row): (usize, usize)| values[row * cols + col];
    let all = (0..*cols).flat_map(|col| (0..*rows).map(move |row| (col, row)));
    (*cols, *rows, all.map(at).collect())
}

/// Rows by turns of the first and the second half.
fn by_turns((rows, cols, values): &Matrix) -> Matrix {
    let row = |at: usize| values[(at % 2 * rows / 2 + at / 2) * cols..][..*cols].to_vec();
    (*rows, *cols, (0..*rows).flat_map(row).collect())
}

/// Tensors of a model in bf16, with experts in stacks if `stack` gives the tensor of an expert.
fn tensors(model: &Model, stack: Option<fn(&str, &Matrix) -> Matrix>) -> BTreeMap<String, Array> {
    let mut arrays = BTreeMap::new();
    let mut stacks: BTreeMap<String, Vec<Matrix>> = BTreeMap::new();
    let bytes = |values: &[f32]| {
        values
            .iter()
            .flat_map(|x| bf16::from_f32(*x).to_le_bytes())
            .collect::<Vec<u8>>()
    };
    for (name, matrix) in model {
        match (name.split_once(".experts."), stack) {
            (Some((within, rest)), Some(stack)) => {
                let leaf = rest.split('.').nth(1).unwrap();
                stacks
                    .entry(format!("{within}.experts.{leaf}"))
                    .or_default()
                    .push(stack(leaf, matrix));
            }
            _ => {
                let (rows, cols, values) = matrix;
                arrays.insert(
                    format!("{name}.weight"),
                    (Dtype::BF16, vec![*rows, *cols], bytes(values)),
                );
            }
        }
    }
    for (name, all) in stacks {
        let (rows, cols, values) = stacked(&all.iter().collect::<Vec<_>>());
        arrays.insert(
            name,
            (Dtype::BF16, vec![all.len(), rows / all.len(), cols], bytes(&values)),
        );
    }
    arrays
}

fn renamed(model: &Model, name: impl Fn(&str) -> String) -> Model {
    model.iter().map(|(old, matrix)| (name(old), matrix.clone())).collect()
}

/// The tensors of a source and its configuration.
pub type Source = (BTreeMap<String, Array>, Value);

/// A form of the hub: its name, and the source in that form.
pub type Form = (&'static str, fn(&Model) -> Source);

fn plain(model: &Model) -> Source {
    (tensors(model, None), json!({}))
}

fn with_fused(model: &Model) -> Model {
    let mut model = model.clone();
    fuse(&mut model, &["q_proj", "k_proj", "v_proj"], "qkv_proj");
    fuse(&mut model, &["gate_proj", "up_proj"], "gate_up_proj");
    model
}

/// A release in FP8.
fn in_fp8(model: &Model, kind: &str) -> Source {
    let each = |(name, (_, cols, values)): (&String, &Matrix)| parts(kind, &format!("{name}.weight"), values, *cols);
    let tensors = model.iter().flat_map(each).collect();
    (tensors, json!({ "quantization_config": config(kind) }))
}

/// Names as Meta and DeepSeek write them. Rows of q and k are kept, so that their names are too.
fn native(name: &str) -> String {
    let names = [
        ("model.", ""),
        ("self_attn", "attention"),
        ("mlp", "feed_forward"),
        ("v_proj", "wv"),
        ("o_proj", "wo"),
    ];
    let experts = [("gate_proj", "w1"), ("up_proj", "w3"), ("down_proj", "w2")];
    names
        .into_iter()
        .chain(experts)
        .fold(name.into(), |name, (from, to)| name.replace(from, to))
}

pub const FORMS: &[Form] = &[
    ("as it is", plain),
    ("another prefix", |model| {
        plain(&renamed(model, |name| name.replace("model.", "model.language_model.")))
    }),
    ("without a prefix", |model| {
        plain(&renamed(model, |name| name.replace("model.", "")))
    }),
    ("fused rows", |model| plain(&with_fused(model))),
    ("native names", |model| plain(&renamed(model, native))),
    ("W_pack", |model| {
        let mut model = model.clone();
        fuse(&mut model, &["q_proj", "k_proj", "v_proj"], "W_pack");
        plain(&renamed(&model, |name| format!("language_model.{name}")))
    }),
    ("transposed", |model| {
        let model: Model = model
            .iter()
            .map(|(name, matrix)| (name.clone(), turned(matrix)))
            .collect();
        plain(&model)
    }),
    ("stacked experts", |model| {
        let mut model = model.clone();
        fuse(&mut model, &["gate_proj", "up_proj"], "gate_up_proj");
        (tensors(&model, Some(|_, matrix| matrix.clone())), json!({}))
    }),
    ("stacked experts, gate and up apart", |model| {
        (tensors(model, Some(|_, matrix| matrix.clone())), json!({}))
    }),
    ("stacked experts, inputs first, another prefix", |model| {
        let model = with_fused(&renamed(model, |name| name.replace("model.", "language_model.model.")));
        (tensors(&model, Some(|_, matrix| turned(matrix))), json!({}))
    }),
    ("stacked experts of gpt-oss", |model| {
        let mut model = model.clone();
        fuse(&mut model, &["gate_proj", "up_proj"], "gate_up_proj");
        let arrange = |leaf: &str, matrix: &Matrix| match leaf {
            "gate_up_proj" => turned(&by_turns(matrix)),
            _ => turned(matrix),
        };
        (tensors(&model, Some(arrange)), json!({ "model_type": "gpt_oss" }))
    }),
    ("FP8 in tiles", |model| in_fp8(model, "DeepSeek v3")),
    ("FP8 with a scale for a row, another prefix", |model| {
        in_fp8(
            &renamed(model, |name| name.replace("model.", "")),
            "compressed-tensors fp8",
        )
    }),
    ("FP8, fused rows", |model| in_fp8(&with_fused(model), "ModelOpt fp8")),
];

/// A quantized model in a form: names of tensors to matrices, or to the experts of a stack.
pub type Quantized = BTreeMap<String, Vec<Matrix>>;

/// Experts apart, rows as they are.
pub fn apart(model: &Model) -> Quantized {
    model
        .iter()
        .map(|(name, matrix)| (name.clone(), vec![matrix.clone()]))
        .collect()
}

/// Experts in stacks, rows of gate and up one after the other.
fn in_stacks(model: &Model) -> Quantized {
    let mut quantized = Quantized::new();
    for (name, matrix) in with_fused(model) {
        let name = match name.split_once(".experts.") {
            Some((within, rest)) => format!("{within}.experts.{}", rest.split('.').nth(1).unwrap()),
            None => name,
        };
        quantized.entry(name).or_default().push(matrix);
    }
    quantized
}

/// The tensors of a quantized model.
fn quantized(kind: &str, model: &Quantized) -> BTreeMap<String, Array> {
    let mut arrays: BTreeMap<String, Array> = BTreeMap::new();
    for (name, all) in model {
        for (expert, (_, cols, values)) in all.iter().enumerate() {
            for (part, (dtype, shape, bytes)) in parts(kind, &format!("{name}.weight"), values, *cols) {
                let shape = if all.len() > 1 {
                    [&[all.len()], &shape[..]].concat()
                } else {
                    shape
                };
                match arrays.get_mut(&part) {
                    Some((.., before)) if expert > 0 => before.extend(bytes),
                    _ => drop(arrays.insert(part, (dtype, shape, bytes))),
                }
            }
        }
    }
    arrays
}

/// Judges a quantized model against a source.
pub fn judge(kind: &str, model: &Quantized, (source, source_config): &Source) -> Report {
    let folder = tempfile::tempdir().unwrap();
    let save = |name: &str, arrays: &BTreeMap<String, Array>, config: &Value| {
        let path = folder.path().join(name);
        std::fs::create_dir(&path).unwrap();
        write(&path.join("model.safetensors"), arrays.iter());
        std::fs::write(path.join("config.json"), config.to_string()).unwrap();
        path
    };
    // Names tell the convention of the other kinds.
    let stated = if KINDS.contains(&kind) {
        json!({ "quantization_config": config(kind) })
    } else {
        json!({})
    };
    let path = save("model", &quantized(kind, model), &stated);
    let source = save("source", source, source_config);
    judge_paths(&path, &source)
}

fn judge_paths(path: &Path, source: &Path) -> Report {
    let source = Checkpoint::source(source).unwrap();
    let selection = Selection {
        source: Some(&source),
        ..Selection::default()
    };
    Checkpoint::open(path)
        .unwrap()
        .judge(&selection, |_| {}, |_, _| {})
        .unwrap()
}

pub fn upside_down((_, cols, values): &mut Matrix) {
    *values = values.rchunks(*cols).flatten().copied().collect();
}

/// The kinds and the forms of quantized models that are tried.
const QUANTIZED: &[(&str, fn(&Model) -> Quantized)] = &[
    ("ModelOpt nvfp4 weights", apart),
    ("GPTQ", apart),
    ("Quark mxfp4", apart),
    ("ModelOpt nvfp4 weights", in_stacks),
    ("ModelOpt nvfp4 weights", |model| apart(&with_fused(model))),
];

#[test]
fn every_form_of_a_source_is_found() {
    let (model, mut wrong) = (model(), Vec::new());
    for (kind, form) in [QUANTIZED[1]] {
        let quantized = form(&model);
        for (source, make) in FORMS.iter().filter(|(source, _)| !source.contains("gpt-oss")) {
            let report = judge(kind, &quantized, &make(&model));
            let judged = report
                .matrices
                .iter()
                .filter(|judged| judged.sqnr.is_some_and(|db| db > 14.0))
                .count();
            if !report.findings.is_empty() || judged != quantized.len() {
                wrong.push((kind, *source, judged, told(&report)));
            }
        }
    }
    assert!(wrong.is_empty(), "{} wrong, the first: {:#?}", wrong.len(), wrong[0]);
}

#[test]
fn a_matrix_that_is_upside_down_is_named_through_every_form() {
    let (model, mut missed) = (model(), Vec::new());
    for (kind, form) in QUANTIZED {
        // The rules of the others take long.
        let some = if ["GPTQ", "ModelOpt nvfp4 weights"].contains(kind) {
            1
        } else {
            4
        };
        for (at, (source, make)) in FORMS.iter().enumerate().step_by(some) {
            let mut quantized = form(&model);
            let count = quantized.len();
            let (name, all) = quantized.iter_mut().nth((5 * at + 1) % count).unwrap();
            let (name, expert) = (name.clone(), all.len() - 1);
            upside_down(&mut all[expert]);
            let report = judge(kind, &quantized, &make(&model));
            // The rows of gate and up may be by turns in a matrix that has both.
            let by_turns = source.contains("gpt-oss") && quantized.keys().any(|name| name.contains("gate_up_proj"));
            let open = if by_turns { E } else { 0 };
            let named = |check: &str| {
                let found = report.findings.iter().filter(|finding| finding.check.name == check);
                found
                    .filter(|finding| finding.matrix.trim_end_matches(".weight") == name)
                    .count()
            };
            if named("low_sqnr") != 1 || report.findings.len() != 1 + open || report.count(Severity::NotJudged) != open
            {
                missed.push((*kind, *source, name, told(&report)));
            }
        }
    }
    assert!(
        missed.is_empty(),
        "{} missed, the first: {:#?}",
        missed.len(),
        missed[0]
    );
}

/// A source that is not there, or that may be one of several, is not judged; none of it is an error.
#[test]
fn a_source_in_doubt_is_not_judged() {
    let model = model();
    type Doubt = (&'static str, fn(&mut Source), usize);
    let doubts: &[Doubt] = &[
        (
            "one tensor is missing",
            |(source, _)| drop(source.remove("model.layers.0.mlp.up_proj.weight")),
            1,
        ),
        (
            "one has other rows",
            |(source, _)| {
                let (_, shape, bytes) = source.get_mut("model.layers.0.mlp.up_proj.weight").unwrap();
                shape[0] = I - 1;
                bytes.truncate((I - 1) * H * 2);
            },
            1,
        ),
        (
            "two models that fit as well",
            |(source, _)| {
                let of = |prefix: &str| {
                    source
                        .iter()
                        .map(|(name, array)| (name.replace("model.", prefix), array.clone()))
                        .collect::<Vec<_>>()
                };
                let both = [of("draft."), of("target.")].concat();
                *source = both.into_iter().collect();
            },
            17,
        ),
        (
            "a NaN",
            |(source, _)| {
                source.get_mut("model.layers.1.self_attn.k_proj.weight").unwrap().2[..2].copy_from_slice(&[0xff; 2])
            },
            1,
        ),
        (
            "experts fewer than the stack has",
            |(source, _)| source.retain(|name, _| !name.contains("experts.1.")),
            3,
        ),
        (
            "a matrix under a name of another kind",
            |(source, _)| {
                let array = source.remove("model.layers.0.self_attn.o_proj.weight").unwrap();
                source.insert("model.layers.0.self_attn.dense.weight".into(), array);
            },
            1,
        ),
        (
            "nothing that fits",
            |(source, _)| source.retain(|name, _| name.contains("nothing")),
            17,
        ),
        (
            "a mystery of experts",
            |(source, _)| {
                source.retain(|name, _| !name.contains("experts"));
                source.insert(
                    "model.layers.1.mlp.experts.gate_up_proj".into(),
                    (Dtype::BF16, vec![E, I, H], vec![0; E * I * H * 2]),
                );
            },
            6,
        ),
    ];
    for (doubt, change, want) in doubts {
        let mut source = plain(&model);
        change(&mut source);
        source
            .0
            .insert("other.weight".into(), (Dtype::F32, vec![1, 1], f32s(&[1.0])));
        let report = judge("ModelOpt nvfp4 weights", &apart(&model), &source);
        let open = report
            .findings
            .iter()
            .filter(|finding| finding.check.name == "no_source")
            .count();
        assert_eq!(
            (open, report.count(Severity::Error)),
            (*want, 0),
            "{doubt}: {:#?}",
            told(&report)
        );
    }
}

/// A release against itself says nothing; one matrix that a mixed checkpoint keeps as it was does.
#[test]
fn a_checkpoint_is_not_its_own_source() {
    let model = model();
    let itself = in_fp8(&model, "DeepSeek v3");
    let report = judge("DeepSeek v3", &apart(&model), &itself);
    assert_eq!(report.count(Severity::NotJudged), model.len(), "{:#?}", told(&report));
}

/// The orientation of square matrices follows from those that are not square.
#[test]
fn a_square_matrix_from_the_transposed_source_is_named() {
    let model = model();
    for (kind, form) in &QUANTIZED[1..2] {
        for (source, make) in FORMS {
            let mut quantized = form(&model);
            let name = "model.layers.1.self_attn.o_proj";
            let all = quantized.get_mut(name).unwrap();
            all[0] = turned(&all[0]);
            let report = judge(kind, &quantized, &make(&model));
            let named = report
                .findings
                .iter()
                .filter(|finding| finding.check.name == "transposed")
                .count();
            assert_eq!(
                (named, report.findings.len()),
                (1, 1),
                "{kind}, {source}: {:#?}",
                told(&report)
            );
        }
    }
}
