//! The path `gqa` against `transformers`, and against its own laws. `fixtures/README.md` says what the fixtures are.

use std::collections::BTreeMap;
use std::path::PathBuf;

use reference::paths::{Config, Input, Model, Scalar, Weights, gqa, load, read};
use reference::weights::Safetensors;
use reference::{Numerics, Plain, Real, Site, Tensor};
use serde_json::{Map, Value, json};

use super::support::numbers;

/// Tokens whose streams and logits are kept.
const ROWS: [usize; 6] = [0, 1, 2, 7, 18, 36];
const TOKENS: u32 = 37;

fn file(name: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/gqa")).join(name)
}

/// The configurations by their names.
pub fn configs() -> BTreeMap<String, Map<String, Value>> {
    let text = std::fs::read_to_string(file("configs.json")).expect("configurations");
    serde_json::from_str(&text).expect("objects by name")
}

/// A `config.json`, and what its matrices are multiplied by.
fn taken(mut keys: Map<String, Value>) -> (String, f32) {
    let scale = keys.remove("scale").and_then(|scale| scale.as_f64()).unwrap_or(1.0);
    (Value::Object(keys).to_string(), scale as f32)
}

/// Weights that are drawn from their names, as `make.py` draws them.
struct Named(f32);

impl Weights for Named {
    type Error = String;

    fn floats(&mut self, name: &str, shape: &[usize]) -> Result<Vec<f32>, String> {
        let values = numbers(name, shape.iter().product()).into_iter();
        Ok(if name.ends_with("norm.weight") {
            values.map(|x| 1.0 + x).collect()
        } else if name.ends_with("sinks") {
            values.map(|x| 8.0 * x).collect()
        } else if shape.len() == 1 || name.ends_with("bias") {
            values.collect()
        } else {
            values.map(|x| self.0 * x).collect()
        })
    }

    fn integers(&mut self, name: &str, _: &[usize]) -> Result<Vec<u32>, String> {
        Err(format!("'{name}' is no table of indices"))
    }
}

fn ids(config: &dyn Config) -> Vec<u32> {
    let vocabulary = config.vocabulary().expect("ids are read") as u32;
    (0..TOKENS).map(|at| (at * at * 7 + 3 * at + 1) % vocabulary).collect()
}

/// What leaves each layer, and the logits.
struct Outputs(Vec<Tensor<f64>>);

impl<T: Real> Numerics<T> for Outputs {
    fn site(&mut self, site: &Site, tensor: &mut Tensor<T>) {
        if site.name == gqa::sites::OUTPUT {
            let layer = site.layer.expect("a layer");
            match self.0.get_mut(layer) {
                None => self.0.push(tensor.cast()),
                Some(seen) => {
                    seen.shape[0] += tensor.shape[0];
                    seen.data.extend(tensor.cast::<f64>().data);
                }
            }
        }
    }
}

/// What a model gives of the text, read in calls of so many tokens: the streams that leave its layers, then the logits.
fn outputs<T: Scalar>(keys: &Map<String, Value>, calls: &[usize]) -> Vec<Tensor<f64>> {
    let (json, scale) = taken(keys.clone());
    let config = read(&json).unwrap_or_else(|error| panic!("{json}: {error}"));
    let model: Box<dyn Model<T>> = load(&*config, &mut Named(scale), &mut Plain).expect("a model");
    let (ids, mut state) = (ids(&*config), model.state(Vec::new()).expect("a state"));
    let (mut seen, mut logits, mut rest) = (Outputs(Vec::new()), Vec::new(), &ids[..]);
    for &tokens in calls {
        let now;
        (now, rest) = rest.split_at(tokens);
        let rows = model.run(&mut *state, Input::Ids(now), &mut seen).expect("ids");
        logits.extend(rows.cast::<f64>().data);
    }
    let shape = [ids.len(), config.vocabulary().expect("ids are read")];
    seen.0.push(Tensor::new(shape, logits));
    seen.0
}

/// |got − want| / |want| in the 2-norm; NaN is passed on.
fn distance(got: &[f64], want: &[f64]) -> f64 {
    assert_eq!(got.len(), want.len());
    let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|x| x * x).sum::<f64>().sqrt();
    norm(&mut got.iter().zip(want).map(|(a, b)| a - b)) / norm(&mut want.iter().copied())
}

/// What `transformers` gave: a row of streams for each layer, then the logits, of the tokens that are kept.
fn wanted(name: &str) -> Vec<Vec<f64>> {
    let file = Safetensors::open(file("outputs.safetensors")).expect("outputs");
    let get = |what: &str| {
        let name = format!("{name}.{what}");
        let shape = file.shape(&name).expect("a tensor").to_vec();
        let values = file
            .floats(&name, &shape)
            .expect("floats")
            .into_iter()
            .map(f64::from)
            .collect::<Vec<_>>();
        (shape[0], values)
    };
    let ((layers, streams), (_, logits)) = (get("streams"), get("logits"));
    let each = streams.len() / layers;
    streams.chunks(each).map(<[f64]>::to_vec).chain([logits]).collect()
}

fn kept(outputs: &[Tensor<f64>]) -> Vec<Vec<f64>> {
    outputs.iter().map(|output| output.pick(ROWS).data).collect()
}

fn worst(got: &[Vec<f64>], want: &[Vec<f64>]) -> f64 {
    assert_eq!(got.len(), want.len());
    let each = got.iter().zip(want).map(|(got, want)| distance(got, want));
    each.fold(0.0, |worst, x| if x > worst || x.is_nan() { x } else { worst })
}

/// Both sides are FP32 with sums in another order, so that each is off by a few times √layers · 2⁻²⁴ · a factor of the model: f64 says
/// how far this side is, which is less than the bound by a factor of three.
#[test]
fn every_family_gives_what_transformers_gives() {
    for (name, keys) in configs() {
        let (single, double) = (outputs::<f32>(&keys, &[37]), outputs::<f64>(&keys, &[37]));
        let (single, double, want) = (kept(&single), kept(&double), wanted(&name));
        let (theirs, ours) = (worst(&single, &want), worst(&single, &double));
        println!("{name}: {theirs:.2e} from transformers, {ours:.2e} from f64");
        assert!(theirs <= 1e-5, "{name}: {theirs:.2e} from transformers");
        assert!(ours <= 1e-5, "{name}: {ours:.2e} from f64");
    }
}

/// A cut changes the order of sums only: over channels where one or two rows are multiplied by dot products, and over keys.
#[test]
fn a_text_may_be_cut_anywhere() {
    for (name, keys) in configs() {
        let whole = outputs::<f32>(&keys, &[37]);
        let each: &[&[usize]] = if name == "real" {
            &[&[20, 1, 16]]
        } else {
            &[&[20, 1, 2, 14], &[1; 37]]
        };
        for calls in each {
            let cut = outputs::<f32>(&keys, calls);
            let far = cut
                .iter()
                .zip(&whole)
                .map(|(cut, whole)| distance(&cut.data, &whole.data))
                .fold(0.0, f64::max);
            assert!(far <= 1e-5, "{name} in calls of {calls:?}: {far:.2e}");
        }
    }
}

/// The comparison can fail: each of these reads one key otherwise.
#[test]
fn a_key_that_is_read_otherwise_is_noticed() {
    let mut yarn = configs()["qwen3"]["rope_parameters"].clone();
    yarn["mscale"] = json!(0.7);
    let changes: Vec<(&str, &str, Value)> = vec![
        (
            "llama",
            "rope_parameters",
            json!({"rope_type": "default", "rope_theta": 500.0}),
        ),
        (
            "llama_linear",
            "rope_parameters",
            json!({"rope_type": "default", "rope_theta": 50.0}),
        ),
        ("mistral", "sliding_window", json!(10)),
        (
            "qwen2",
            "layer_types",
            json!(["full_attention", "full_attention", "sliding_attention"]),
        ),
        ("qwen3", "rms_norm_eps", json!(1e-3)),
        ("qwen3", "rope_parameters", yarn),
        ("qwen3_moe", "norm_topk_prob", json!(false)),
        ("gpt_oss", "swiglu_limit", json!(1.0)),
        ("gpt_oss", "swiglu_alpha", json!(1.0)),
        (
            "gpt_oss",
            "layer_types",
            json!(["full_attention", "sliding_attention", "full_attention"]),
        ),
        ("smollm3", "no_rope_layers", json!([1, 1, 1])),
        ("granite", "attention_multiplier", json!(0.3)),
        ("granite", "residual_multiplier", json!(0.5)),
        ("granite", "embedding_multiplier", json!(1.0)),
        ("granite", "logits_scaling", json!(1.0)),
    ];
    for (name, key, value) in changes {
        let mut keys = configs()[name].clone();
        keys.insert(key.into(), value);
        let far = worst(&kept(&outputs::<f32>(&keys, &[37])), &wanted(name));
        assert!(far > 1e-4, "{name} with another {key} is only {far:.2e} off");
    }
}

/// Blocks of MXFP4 as gpt-oss stores its experts, to the bit of what `transformers` makes of them.
#[test]
fn blocks_of_mxfp4_are_decoded_to_the_bit() {
    let file = Safetensors::open(file("mxfp4.safetensors")).expect("tensors");
    let want = file.floats("want", &[3, 64, 6]).expect("floats");
    let got = file.floats("stack", &[3, 64, 6]).expect("blocks");
    let bits = |values: Vec<f32>| values.into_iter().map(f32::to_bits).collect::<Vec<_>>();
    assert_eq!(bits(got), bits(want));
    let error = file
        .floats("stack", &[3, 6, 64])
        .expect_err("another shape")
        .to_string();
    assert!(error.contains("'stack_blocks'"), "{error}");
}
