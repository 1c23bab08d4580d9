use std::path::{Path, PathBuf};

use reference::paths::{self, Weights};
use safetensors::Dtype;
use ulplab::dataset::Checkpoint;

use super::{Written, f32s, fails, tensor, write};

fn mini() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("datasets/dsv4-mini")
}

/// Bits of single weights, computed in numpy from the codes and scales of the files.
const SPOTS: [(&str, &[usize], &[usize], u32); 8] = [
    ("model.embed_tokens.weight", &[256, 64], &[101, 3], 0x3bbc7f00),
    (
        "model.layers.5.self_attn.compressor.position_bias",
        &[4, 1024],
        &[2, 900],
        0xbcc8f9d4,
    ),
    (
        "model.layers.10.self_attn.o_a_proj.weight",
        &[64, 512],
        &[3, 200],
        0x3cf8aaf0,
    ),
    (
        "model.layers.7.mlp.experts.gate_up_proj",
        &[4, 96, 64],
        &[2, 50, 10],
        0xbccb292a,
    ),
    (
        "model.layers.60.mlp.experts.down_proj",
        &[4, 64, 48],
        &[3, 63, 47],
        0x3d6574dd,
    ),
    (
        "model.layers.4.self_attn.compressor.position_bias",
        &[128, 512],
        &[127, 511],
        0x3c1283a4,
    ),
    ("model.layers.33.attn_hc.fn", &[24, 256], &[23, 255], 0xbc8afe1e),
    ("lm_head.weight", &[256, 64], &[255, 63], 0xbf004d1d),
];

#[test]
fn dsv4_mini_is_read() {
    let mut checkpoint = Checkpoint::open(&mini()).unwrap();
    assert!(checkpoint.notes.is_empty(), "{:?}", checkpoint.notes);
    let (mut count, mut sum) = (0, 0.0);
    for spec in checkpoint.config.tensors() {
        if spec.integer {
            assert!(
                checkpoint
                    .integers(&spec.name, &spec.shape)
                    .unwrap()
                    .iter()
                    .all(|&expert| expert < 4)
            );
            continue;
        }
        let values = checkpoint.floats(&spec.name, &spec.shape).unwrap();
        count += values.len();
        sum += values.iter().map(|&value| f64::from(value.abs())).sum::<f64>();
    }
    // Both from numpy. A sum of n positive f64 is off by at most n·2⁻⁵³ of itself, in each of the two orders.
    let expected = 1_052_504.294_618_211_2;
    assert_eq!(count, 20_937_973);
    assert!(
        (sum - expected).abs() <= 2.0 * count as f64 * 2f64.powi(-53) * expected,
        "{sum}"
    );

    for (name, shape, index, bits) in SPOTS {
        let flat = index.iter().zip(shape).fold(0, |flat, (i, size)| flat * size + i);
        assert_eq!(
            checkpoint.floats(name, shape).unwrap()[flat].to_bits(),
            bits,
            "{name} {index:?}"
        );
    }
    let experts = checkpoint
        .integers("model.layers.1.mlp.gate.tid2eid", &[256, 2])
        .unwrap();
    assert_eq!([&experts[..4], &experts[510..]].concat(), [2, 3, 3, 2, 2, 0]);
}

/// The configuration of dsv4-mini cut to two layers, and a weight 0.5 for all it needs.
fn small() -> (serde_json::Value, Vec<Written>) {
    let text = std::fs::read_to_string(mini().join("config.json")).unwrap();
    let mut json: serde_json::Value = serde_json::from_str(&text).unwrap();
    json["num_hidden_layers"] = 2.into();
    json["layer_types"] = serde_json::json!(["heavily_compressed_attention", "compressed_sparse_attention"]);
    json["mlp_layer_types"] = serde_json::json!(["hash_moe", "moe"]);
    let config = paths::read(&json.to_string()).unwrap();
    let written = config.tensors().into_iter().map(|spec| {
        let elements = spec.shape.iter().product();
        match spec.integer {
            true => tensor(&spec.name, Dtype::I64, &spec.shape, vec![0; 8 * elements]),
            false => f32s(&spec.name, &spec.shape, &vec![0.5; elements]),
        }
    });
    (json, written.collect())
}

fn open(json: &str, tensors: &[Written]) -> ulplab::Result<Checkpoint> {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("config.json"), json).unwrap();
    write(&folder.path().join("model.safetensors"), tensors);
    Checkpoint::open(folder.path())
}

#[test]
fn a_small_checkpoint_is_read() {
    let (json, mut tensors) = small();
    tensors.push(f32s("model.mtp.norm.weight", &[1], &[1.0]));
    let mut checkpoint = open(&json.to_string(), &tensors).unwrap();
    let note = "tensor 'model.mtp.norm.weight' is not read: layers that predict further tokens";
    assert_eq!(checkpoint.notes, [note]);
    assert_eq!(checkpoint.floats("model.norm.weight", &[64]).unwrap(), [0.5; 64]);
    assert_eq!(
        checkpoint
            .integers("model.layers.0.mlp.gate.tid2eid", &[256, 2])
            .unwrap(),
        [0; 512]
    );
    fails(
        checkpoint.floats("model.norm.weight", &[65]),
        &["'model.norm.weight' is [64], the model needs [65]"],
    );
}

#[test]
fn experts_that_do_not_exist_are_refused() {
    let (json, mut tensors) = small();
    let ids = tensors
        .iter_mut()
        .find(|tensor| tensor.name.ends_with("tid2eid"))
        .unwrap();
    ids.bytes[8 * 7] = 4;
    let mut checkpoint = open(&json.to_string(), &tensors).unwrap();
    let read = checkpoint.integers("model.layers.0.mlp.gate.tid2eid", &[256, 2]);
    fails(read, &["model.safetensors", "tid2eid' has 4 at [3, 1], expected 0 … 3"]);
}

#[test]
fn a_checkpoint_that_lacks_tensors_tells_them_all() {
    let (json, mut tensors) = small();
    for tensor in &mut tensors {
        tensor.name = tensor.name.replace("kv_norm", "kv_nrom");
    }
    let config = json.to_string();
    fails(
        open(&config, &tensors),
        &[
            "5 problems",
            "layers.1.self_attn.kv_norm.weight' [512] is missing; did you mean 'model.layers.1.self_attn.kv_nrom",
        ],
    );
}

#[test]
fn a_bad_configuration_is_told() {
    let (json, tensors) = small();
    fails(open("{", &tensors), &["config.json", "line 1"]);
    fails(
        open("{}", &tensors),
        &["config.json", "model_type is missing", "'deepseek_v4'"],
    );
    fails(open("[]", &tensors), &["config.json", "expected an object"]);
    fails(
        open(r#"{"model_type": 3}"#, &tensors),
        &["config.json", "model_type is 3"],
    );
    fails(
        open(r#"{"model_type": "deepseek_v4"}"#, &tensors),
        &["config.json", "is missing"],
    );
    // Other models are named, whatever keys they have or lack.
    for (model_type, architecture) in [("bert", "BertModel"), ("mamba2", "Mamba2ForCausalLM")] {
        let other = format!(
            r#"{{"model_type": "{model_type}", "architectures": ["{architecture}"], "layer_types": ["full_attention"]}}"#
        );
        let found = format!("model_type is '{model_type}' ({architecture})");
        fails(open(&other, &tensors), &["config.json", &found, "'deepseek_v4'"]);
    }
    let mut wrong = json.clone();
    wrong["num_hidden_layers"] = 3.into();
    fails(open(&wrong.to_string(), &tensors), &["config.json", "3"]);
    let folder = tempfile::tempdir().unwrap();
    fails(Checkpoint::open(folder.path()), &["config.json", "cannot read"]);
}
