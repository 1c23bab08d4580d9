//! Every family through a saved folder: names and shapes as `transformers` writes them, read by the door of the command line.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use reference::Plain;
use reference::paths::{self, Config, Input, Model, Weights};
use safetensors::Dtype;
use serde_json::{Map, Value, json};
use ulplab::dataset::Checkpoint;

use super::{Written, f32s, fails, tensor, write};

pub type Keys = Map<String, Value>;

/// Configurations that `transformers` wrote, one or more of every family, by names. Those of `text_config` are within one, too.
pub fn configs() -> BTreeMap<String, Keys> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("reference/tests/fixtures");
    let read = |file: &str| std::fs::read_to_string(root.join(file)).unwrap();
    let mut all = BTreeMap::new();
    for file in ["gqa", "hybrid"] {
        let some: BTreeMap<String, Keys> = serde_json::from_str(&read(&format!("families/{file}.json"))).unwrap();
        // Those of real sizes are too large to be written many times.
        for (name, mut keys) in some.into_iter().filter(|(name, _)| !name.contains("real")) {
            keys.remove("scale");
            all.insert(name, keys);
        }
    }
    for (name, kind) in [("qwen35", "qwen3_5"), ("qwen35_moe", "qwen3_5_moe")] {
        let text = all[name].clone();
        let outer = json!({"model_type": kind, "text_config": text, "tie_word_embeddings": true, "vision_config": {"depth": 1}});
        all.insert(format!("{name}_nested"), outer.as_object().unwrap().clone());
    }
    all.insert(
        "dsv4".into(),
        serde_json::from_str(&read("dsv4-small/config.json")).unwrap(),
    );
    all
}

/// Numbers that a name gives.
pub struct Drawn;

impl Weights for Drawn {
    type Error = String;

    fn floats(&mut self, name: &str, shape: &[usize]) -> Result<Vec<f32>, String> {
        let seed = blake3::hash(name.as_bytes());
        let mut word = u64::from_le_bytes(seed.as_bytes()[..8].try_into().unwrap()) | 1;
        let mut next = || {
            word ^= word << 13;
            word ^= word >> 7;
            word ^= word << 17;
            (word >> 40) as f32 / (1 << 23) as f32 - 1.0
        };
        let center = if name.ends_with("norm.weight") { 1.0 } else { 0.0 };
        Ok((0..shape.iter().product()).map(|_| center + 0.25 * next()).collect())
    }

    fn integers(&mut self, _: &str, shape: &[usize]) -> Result<Vec<u32>, String> {
        Ok((0..shape.iter().product::<usize>()).map(|at| (at % 5) as u32).collect())
    }
}

/// The tensors of a model by the names that it asks for.
pub fn tensors(config: &dyn Config) -> Vec<Written> {
    let one = |spec: paths::TensorSpec| match spec.integer {
        false => f32s(&spec.name, &spec.shape, &Drawn.floats(&spec.name, &spec.shape).unwrap()),
        true => {
            let ids = Drawn.integers(&spec.name, &spec.shape).unwrap();
            let bytes: Vec<u8> = ids.iter().flat_map(|id| i64::from(*id).to_le_bytes()).collect();
            tensor(&spec.name, Dtype::I64, &spec.shape, bytes)
        }
    };
    config.tensors().into_iter().map(one).collect()
}

/// Cuts a stack `[count, rows, cols]` into matrices of so many rows, with the names that a function gives.
fn cut(stack: Written, parts: usize, name: impl Fn(usize, usize) -> String) -> Vec<Written> {
    let [count, rows, cols] = stack.shape[..].try_into().unwrap();
    let rows = rows / parts;
    let pieces = stack.bytes.chunks_exact(4 * rows * cols).enumerate();
    let piece =
        |(at, bytes): (usize, &[u8])| tensor(&name(at / parts, at % parts), Dtype::F32, &[rows, cols], bytes.to_vec());
    let all: Vec<Written> = pieces.map(piece).collect();
    assert_eq!(all.len(), count * parts);
    all
}

/// DeepSeek-V4's names as published, from those of `transformers`' model: the table of DeepSeek's `convert.py`, backwards.
const PUBLISHED: &[(&str, &str)] = &[
    ("model.", ""),
    ("embed_tokens.", "embed."),
    ("lm_head.", "head."),
    ("hc_head.hc_", "hc_head_"),
    ("input_layernorm.", "attn_norm."),
    ("post_attention_layernorm.", "ffn_norm."),
    ("attn_hc.", "hc_attn_"),
    ("ffn_hc.", "hc_ffn_"),
    ("compressor.indexer.scorer.weights_proj", "indexer.weights_proj"),
    ("compressor.indexer.q_b_proj", "indexer.wq_b"),
    ("compressor.indexer.kv_norm", "indexer.compressor.norm"),
    ("compressor.indexer.", "indexer.compressor."),
    ("compressor.kv_norm", "compressor.norm"),
    ("position_bias", "ape"),
    ("self_attn.sinks", "attn.attn_sink"),
    ("self_attn.", "attn."),
    ("q_a_proj", "wq_a"),
    ("q_b_proj", "wq_b"),
    ("q_a_norm", "q_norm"),
    ("kv_proj", "wkv"),
    ("o_a_proj", "wo_a"),
    ("o_b_proj", "wo_b"),
    ("compressor.gate_proj", "compressor.wgate"),
    ("shared_experts.gate_proj", "shared_experts.w1"),
    ("shared_experts.up_proj", "shared_experts.w3"),
    ("shared_experts.down_proj", "shared_experts.w2"),
    ("gate.e_score_correction_bias", "gate.bias"),
    ("mlp.", "ffn."),
];

/// Names as published, or as `transformers` saves them: with `model.` before all but the head.
fn published(name: &str, saved: bool) -> String {
    let name = PUBLISHED
        .iter()
        .fold(name.to_string(), |name, (new, old)| name.replace(new, old));
    match saved && name != "head.weight" {
        true => format!("model.{name}"),
        false => name,
    }
}

/// Ways in which the tensors of a model are stored, each with a name.
pub fn stored(kind: &str, config: &dyn Config) -> Vec<(&'static str, Vec<Written>)> {
    let own = || tensors(config);
    let renamed = |old: &str, new: &str| {
        let mut all = own();
        all.iter_mut()
            .for_each(|tensor| tensor.name = tensor.name.replace(old, new));
        all
    };
    match kind {
        "kimi_linear" => {
            // `transformers` has one name for both kinds of layers.
            let dense = [".mlp.gate_proj", ".mlp.up_proj", ".mlp.down_proj"];
            let mut all = own();
            for tensor in &mut all {
                for name in dense {
                    tensor.name = tensor.name.replace(name, &name.replace(".mlp.", ".block_sparse_moe."));
                }
            }
            vec![("published", own()), ("saved", all)]
        }
        "qwen3_5_moe_text" | "qwen3_5_moe" => {
            let (mut all, mut stacks) = (Vec::new(), BTreeMap::<String, Vec<Written>>::new());
            for tensor in own() {
                match tensor.name.split_once(".experts.") {
                    Some((stem, rest)) if rest.starts_with(|c: char| c.is_ascii_digit()) => {
                        let part = if rest.contains("down_proj") {
                            "down_proj"
                        } else {
                            "gate_up_proj"
                        };
                        stacks.entry(format!("{stem}.experts.{part}")).or_default().push(tensor);
                    }
                    _ => all.push(tensor),
                }
            }
            for (name, parts) in stacks {
                let each = if name.ends_with("down_proj") { 1 } else { 2 };
                let shape = [parts.len() / each, each * parts[0].shape[0], parts[0].shape[1]];
                let bytes: Vec<u8> = parts.into_iter().flat_map(|part| part.bytes).collect();
                all.push(tensor(&name, Dtype::F32, &shape, bytes));
            }
            vec![("apart", own()), ("stacked", all)]
        }
        "deepseek_v4" => {
            let by = |saved: bool| {
                let mut all = Vec::new();
                for mut tensor in own() {
                    let name = published(&tensor.name, saved);
                    if let Some(stem) = name.strip_suffix(".gate_up_proj") {
                        all.extend(cut(tensor, 2, |expert, part| {
                            format!("{stem}.{expert}.{}.weight", ["w1", "w3"][part])
                        }));
                    } else if let Some(stem) = name.strip_suffix(".experts.down_proj") {
                        all.extend(cut(tensor, 1, |expert, _| format!("{stem}.experts.{expert}.w2.weight")));
                    } else {
                        tensor.name = name;
                        all.push(tensor);
                    }
                }
                all
            };
            vec![("in memory", own()), ("published", by(false)), ("saved", by(true))]
        }
        _ => vec![("saved", renamed("", ""))],
    }
}

/// A folder with a configuration and tensors.
pub fn folder(keys: &Keys, tensors: &[Written]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(
        folder.path().join("config.json"),
        Value::Object(keys.clone()).to_string(),
    )
    .unwrap();
    write(&folder.path().join("model.safetensors"), tensors);
    folder
}

fn logits(model: &dyn Model<f32>, config: &dyn Config) -> Vec<f32> {
    let vocabulary = config.vocabulary().unwrap();
    let ids: Vec<u32> = (0..40).map(|at| ((7 * at * at + 3) % vocabulary) as u32).collect();
    let mut state = model.state(Vec::new()).unwrap();
    model.run(&mut *state, Input::Ids(&ids), &mut Plain).unwrap().data
}

/// Through the file as in memory, to the last bit; others of the kind: whatever family is added, by its fixture.
#[test]
fn a_saved_folder_is_the_model_in_memory() {
    let mut families = BTreeSet::new();
    for (name, keys) in configs() {
        let config =
            paths::read(&Value::Object(keys.clone()).to_string()).unwrap_or_else(|why| panic!("{name}: {why}"));
        let kind = keys["model_type"].as_str().unwrap();
        let model = paths::load::<f32, _>(&*config, &mut Drawn, &mut Plain).unwrap();
        let want = logits(&*model, &*config);
        assert!(want.iter().all(|x| x.is_finite()), "{name}");
        for (how, tensors) in stored(kind, &*config) {
            shapes(&tensors);
            let folder = folder(&keys, &tensors);
            let mut checkpoint = Checkpoint::open(folder.path()).unwrap_or_else(|why| panic!("{name}, {how}: {why}"));
            assert!(checkpoint.notes.is_empty(), "{name}, {how}: {:?}", checkpoint.notes);
            let read: Box<dyn Model<f32>> = checkpoint.load().unwrap();
            assert_eq!(logits(&*read, &*config), want, "{name}, {how}");
        }
        families.insert(kind.to_string());
    }
    let known: BTreeSet<String> = paths::readers()
        .iter()
        .flat_map(|path| (path.model_types)())
        .map(ToString::to_string)
        .collect();
    assert_eq!(families, known, "every family has a fixture");
}

/// Shapes that torch gives: biases and norms have one dimension, and a bias is as long as its weight has rows.
fn shapes(tensors: &[Written]) {
    let shapes: BTreeMap<&str, &[usize]> = tensors
        .iter()
        .map(|tensor| (tensor.name.as_str(), &tensor.shape[..]))
        .collect();
    for (name, shape) in &shapes {
        let weight = name
            .strip_suffix(".bias")
            .and_then(|stem| shapes.get(format!("{stem}.weight").as_str()));
        match weight {
            Some(weight) => assert_eq!(**shape, [weight[0]], "{name}"),
            None if name.contains("norm") => assert_eq!(shape.len(), 1, "{name}"),
            None if name.ends_with("proj.weight") => assert_eq!(shape.len(), 2, "{name}"),
            None => {}
        }
    }
}

pub fn opened(keys: &Keys, tensors: &[Written]) -> ulplab::Result<Checkpoint> {
    Checkpoint::open(folder(keys, tensors).path())
}

/// A head that a file has next to the embedding that it is tied to.
#[test]
fn an_own_head_of_a_tied_model_is_compared() {
    let tied = |kind: &str| !["qwen3_5", "qwen3_5_moe", "deepseek_v4"].contains(&kind);
    for (name, mut keys) in configs()
        .into_iter()
        .filter(|(_, keys)| tied(keys["model_type"].as_str().unwrap()))
    {
        keys.insert("tie_word_embeddings".into(), true.into());
        let config = paths::read(&Value::Object(keys.clone()).to_string()).unwrap();
        let mut all = tensors(&*config);
        let embedding = all
            .iter()
            .position(|tensor| tensor.name.ends_with("embed_tokens.weight"))
            .unwrap();
        let (shape, bytes) = (all[embedding].shape.clone(), all[embedding].bytes.clone());
        all.push(tensor("lm_head.weight", Dtype::F32, &shape, bytes));
        let notes = opened(&keys, &all).unwrap().notes;
        assert_eq!(notes.len(), 1, "{name}: {notes:?}");
        assert!(
            notes[0].contains("'lm_head.weight'") && notes[0].contains("equals"),
            "{}",
            notes[0]
        );
        // The default of smollm3 is a tied head.
        if name == "smollm3" {
            keys.remove("tie_word_embeddings");
        }
        let last = all.last_mut().unwrap();
        *last.bytes.last_mut().unwrap() ^= 1;
        fails(
            opened(&keys, &all),
            &[
                "'lm_head.weight' differs from",
                "embed_tokens.weight",
                "tie_word_embeddings",
            ],
        );
    }
}

/// Tensors that no family reads; others of the kind: every tensor of another family, and what quantizers leave.
#[test]
fn a_tensor_that_is_not_read_is_a_note_or_an_error() {
    let keys = &configs()["mistral"];
    let config = paths::read(&Value::Object(keys.clone()).to_string()).unwrap();
    let with = |name: &str, values: &[f32]| {
        let mut all = tensors(&*config);
        all.push(f32s(name, &[values.len()], values));
        opened(keys, &all)
    };
    let layer = "model.layers.1.self_attn";
    for name in [
        format!("{layer}.q_proj.bias"),
        format!("{layer}.o_proj.bias"),
        "model.layers.0.mlp.up_proj.bias".into(),
        "lm_head.bias".into(),
        format!("{layer}.q_norm.weight"),
        format!("{layer}.k_proj.weight_scale"),
        format!("{layer}.k_proj.weight_scale_inv"),
        format!("{layer}.k_proj.scale"),
        format!("{layer}.k_proj.pre_quant_scale"),
        format!("{layer}.q_proj.lora_A.weight"),
        format!("{layer}.sinks"),
        "model.layers.0.pre_feedforward_layernorm.weight".into(),
        "model.norm.bias".into(),
        "layers.2.ffn_norm.bias".into(),
    ] {
        fails(
            with(&name, &[0.5, 1.0]),
            &[&format!("tensor '{name}' [2] is not read, and would change the result")],
        );
    }
    for (name, why) in [
        ("mtp.layers.0.norm.weight", "predict further tokens"),
        ("model.layers.3.norm.weight", "predict further tokens"),
        ("model.layers.0.self_attn.rotary_emb.inv_freq", "frequencies"),
        ("model.layers.0.self_attn.q_proj.input_scale", "scales of activations"),
        ("model.layers.0.self_attn.k_scale", "scales of activations"),
        ("visual.blocks.0.norm.weight", "outside of the language model"),
    ] {
        let notes = with(name, &[0.5]).unwrap_or_else(|why| panic!("{name}: {why}")).notes;
        assert!(
            notes.len() == 1 && notes[0].contains(name) && notes[0].contains(why),
            "{notes:?}"
        );
    }
    let notes = with(&format!("{layer}.q_proj.bias"), &[0.0, -0.0]).unwrap().notes;
    assert!(notes[0].contains("biases of zeros"), "{notes:?}");
}

/// Methods of quantization are named in one sentence, and blocks are of the size that is said.
#[test]
fn how_weights_are_stored_is_read() {
    let keys = &configs()["llama"];
    let config = paths::read(&Value::Object(keys.clone()).to_string()).unwrap();
    let with = |quantized: Value, change: &dyn Fn(&mut Vec<Written>)| {
        let mut keys = keys.clone();
        keys.insert("quantization_config".into(), quantized);
        let mut all = tensors(&*config);
        change(&mut all);
        opened(&keys, &all)
    };
    let packed = |bits: u64, kind: &str, format: &str| {
        json!({"quant_method": "compressed-tensors", "format": format,
            "config_groups": {"group_0": {"weights": {"num_bits": bits, "type": kind}}}})
    };
    for (quantized, named) in [
        (json!({"quant_method": "gptq", "bits": 4}), "gptq"),
        (json!({"quant_method": "awq"}), "awq"),
        (
            json!({"quant_method": "bitsandbytes", "load_in_4bit": true}),
            "bitsandbytes",
        ),
        (
            json!({"quant_method": "modelopt", "quant_algo": "NVFP4"}),
            "modelopt (NVFP4)",
        ),
        (
            json!({"quant_method": "modelopt", "quantization": {"quant_algo": "NVFP4"}}),
            "modelopt (NVFP4)",
        ),
        (packed(4, "int", "pack-quantized"), "pack-quantized: int of 4 bits"),
        (
            packed(4, "float", "nvfp4-pack-quantized"),
            "nvfp4-pack-quantized: float of 4 bits",
        ),
        (packed(8, "int", "int-quantized"), "int of 8 bits"),
        (json!({"quant_method": "hqq"}), "hqq"),
    ] {
        let error = fails(with(quantized, &|_| {}), &["config.json", named, "ulplab dequantize"]);
        assert_eq!(error.lines().count(), 1, "{error}");
    }
    fails(with(json!({"bits": 4}), &|_| {}), &["quant_method is missing"]);
    for wrong in [
        json!([128]),
        json!(128),
        json!([0, 128]),
        json!([1.5, 2]),
        json!([128, u64::MAX]),
    ] {
        let error = with(json!({"quant_method": "fp8", "weight_block_size": wrong}), &|_| {});
        fails(
            error,
            &["quantization_config.weight_block_size is", "expected two whole numbers"],
        );
    }
    // A matrix of 56 × 48 with scales [2, 2]: 32 × 32 by the key; by 128 × 128 there would be one.
    let name = "model.layers.0.mlp.up_proj.weight";
    let blocks = |all: &mut Vec<Written>| {
        let at = all.iter().position(|tensor| tensor.name == name).unwrap();
        assert_eq!(all[at].shape, [56, 48]);
        all[at] = tensor(name, Dtype::F8_E4M3, &[56, 48], vec![0x38; 56 * 48]);
        all.push(f32s(&format!("{name}_scale_inv"), &[2, 2], &[1.0, 2.0, 3.0, 4.0]));
    };
    let mut read = with(json!({"quant_method": "fp8", "weight_block_size": [32, 32]}), &blocks).unwrap();
    let values = read.floats(name, &[56, 48]).unwrap();
    let each = [(0, 0, 1.0), (31, 31, 1.0), (31, 32, 2.0), (32, 31, 3.0), (55, 47, 4.0)];
    each.iter()
        .for_each(|(row, col, want)| assert_eq!(values[row * 48 + col], *want, "[{row}, {col}]"));
    let mut read = with(json!({"quant_method": "fp8", "weight_block_size": [40, 24]}), &blocks).unwrap();
    let values = read.floats(name, &[56, 48]).unwrap();
    let each = [(39, 23, 1.0), (39, 24, 2.0), (40, 23, 3.0)];
    each.iter()
        .for_each(|(row, col, want)| assert_eq!(values[row * 48 + col], *want, "[{row}, {col}]"));
    fails(
        with(json!({"quant_method": "fp8", "weight_block_size": [16, 16]}), &blocks),
        &[name, "16 × 16 (weight_block_size of config.json)"],
    );
    // MXFP8 as most store it: bytes of E8M0 for 32 columns of a row each.
    let wide = "model.layers.0.mlp.down_proj.weight";
    let mut keys = keys.clone();
    keys.insert("intermediate_size".into(), 64.into());
    keys.insert(
        "quantization_config".into(),
        json!({"quant_method": "modelopt", "quant_algo": "MXFP8"}),
    );
    let config = paths::read(&Value::Object(keys.clone()).to_string()).unwrap();
    let shape = config
        .tensors()
        .into_iter()
        .find(|spec| spec.name == wide)
        .unwrap()
        .shape;
    assert_eq!(shape[1] % 32, 0);
    let mut all = tensors(&*config);
    let at = all.iter().position(|tensor| tensor.name == wide).unwrap();
    all[at] = tensor(wide, Dtype::F8_E4M3, &shape, vec![0x38; shape[0] * shape[1]]);
    let scales = [shape[0], shape[1] / 32];
    all.push(tensor(
        &format!("{wide}_scale"),
        Dtype::U8,
        &scales,
        vec![128; scales[0] * scales[1]],
    ));
    let mut read = opened(&keys, &all).unwrap();
    assert!(read.floats(wide, &shape).unwrap().iter().all(|x| *x == 2.0));
}
