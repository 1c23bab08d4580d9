//! Tiny models of every family, as `fixtures/families/make.py` has run them by `transformers`.

use std::collections::BTreeMap;
use std::path::PathBuf;

use reference::paths::{Config, Input, Model, Scalar, State, Weights, load, read};
use reference::weights::Safetensors;
use reference::{Numerics, Plain, Real, Site, Tensor};
use serde_json::{Map, Value};

use super::support::numbers;

/// Tokens whose streams and logits are kept, the last of a text among them.
const ROWS: [usize; 6] = [0, 1, 2, 7, 18, 36];
const LONG_ROWS: [usize; 8] = [0, 1, 2, 36, 63, 64, 65, 149];

pub fn file(name: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/families")).join(name)
}

/// The configurations of a path by their names.
pub fn configs(path: &str) -> BTreeMap<String, Map<String, Value>> {
    let text = std::fs::read_to_string(file(&format!("{path}.json"))).expect("configurations");
    serde_json::from_str(&text).expect("objects by name")
}

/// The tokens that are kept of a model.
fn rows(keys: &Map<String, Value>) -> &'static [usize] {
    let most = ["max_position_embeddings", "model_max_length"];
    match most.iter().find_map(|key| keys.get(*key)?.as_u64()) {
        Some(128) => &ROWS,
        _ => &LONG_ROWS,
    }
}

/// How long its text is.
pub fn tokens(keys: &Map<String, Value>) -> usize {
    rows(keys).last().expect("tokens") + 1
}

/// A `config.json`, and what its matrices are multiplied by.
fn taken(mut keys: Map<String, Value>) -> (String, f32) {
    let scale = keys.remove("scale").and_then(|scale| scale.as_f64()).unwrap_or(1.0);
    (Value::Object(keys).to_string(), scale as f32)
}

/// Weights that are drawn from their names, as `make.py` draws them, and then changed.
struct Named<'a>(f32, &'a dyn Fn(&str, &mut [f32]));

impl Weights for Named<'_> {
    type Error = String;

    fn floats(&mut self, name: &str, shape: &[usize]) -> Result<Vec<f32>, String> {
        let mut values = numbers(name, shape.iter().product());
        let change: fn(f32, f32) -> f32 = if name.ends_with("norm.weight") {
            |x, _| 1.0 + x
        } else if name.ends_with("sinks") {
            |x, _| 8.0 * x
        } else if name.ends_with("A_log") {
            |x, _| 8.0 * x - 3.0
        } else if shape.len() == 1 || name.ends_with("bias") {
            |x, _| x
        } else {
            |x, scale| scale * x
        };
        values.iter_mut().for_each(|x| *x = change(*x, self.0));
        (self.1)(name, &mut values);
        Ok(values)
    }

    fn integers(&mut self, name: &str, _: &[usize]) -> Result<Vec<u32>, String> {
        Err(format!("'{name}' is no table of indices"))
    }
}

fn ids(config: &dyn Config, tokens: usize) -> Vec<u32> {
    let vocabulary = config.vocabulary().expect("ids are read");
    let id = |at: usize| ((at * at * 7 + 3 * at + 1) % vocabulary) as u32;
    (0..tokens).map(id).collect()
}

/// Changes what passes at a site of a call.
pub type Edit<'a, T> = &'a dyn Fn(&Site, &mut Tensor<T>);

/// What leaves each layer, and an edit on the way.
struct Outputs<'a, T>(Vec<Tensor<f64>>, Edit<'a, T>);

impl<T: Real> Numerics<T> for Outputs<'_, T> {
    fn site(&mut self, site: &Site, tensor: &mut Tensor<T>) {
        (self.1)(site, tensor);
        if site.name == "output" {
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

/// What a model gives of its text, read in calls of so many tokens: the streams that leave its layers, then the logits.
pub fn outputs<T: Scalar>(keys: &Map<String, Value>, calls: &[usize]) -> Vec<Tensor<f64>> {
    edited::<T>(keys, calls, &|_, _| {}, &|_, _| {})
}

/// The same with changed weights, and with changes on the way.
pub fn edited<T: Scalar>(
    keys: &Map<String, Value>,
    calls: &[usize],
    weights: &dyn Fn(&str, &mut [f32]),
    edit: Edit<'_, T>,
) -> Vec<Tensor<f64>> {
    let (json, scale) = taken(keys.clone());
    let config = read(&json).unwrap_or_else(|error| panic!("{json}: {error}"));
    let model: Box<dyn Model<T>> = load(&*config, &mut Named(scale, weights), &mut Plain).expect("a model");
    let mut state = model.state(Vec::new()).expect("a state");
    read_in_calls(&*model, &mut *state, &ids(&*config, tokens(keys)), calls, edit)
}

/// What a model gives of these tokens.
pub fn read_in_calls<T: Scalar>(
    model: &dyn Model<T>,
    state: &mut dyn State<T>,
    ids: &[u32],
    calls: &[usize],
    edit: Edit<'_, T>,
) -> Vec<Tensor<f64>> {
    let (mut seen, mut logits, mut rest) = (Outputs(Vec::new(), edit), Vec::new(), ids);
    for &tokens in calls {
        let now;
        (now, rest) = rest.split_at(tokens);
        let rows = model.run(state, Input::Ids(now), &mut seen).expect("ids");
        logits.extend(rows.cast::<f64>().data);
    }
    assert!(rest.is_empty(), "{} tokens were not read", rest.len());
    let shape = [ids.len(), model.config().vocabulary().expect("ids are read")];
    seen.0.push(Tensor::new(shape, logits));
    seen.0
}

/// |got − want| / |want| in the 2-norm; NaN is passed on.
pub fn distance(got: &[f64], want: &[f64]) -> f64 {
    assert_eq!(got.len(), want.len());
    let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|x| x * x).sum::<f64>().sqrt();
    norm(&mut got.iter().zip(want).map(|(a, b)| a - b)) / norm(&mut want.iter().copied())
}

/// What `transformers` gave: a row of streams for each layer, then the logits, of the tokens that are kept.
pub fn wanted(path: &str, name: &str) -> Vec<Vec<f64>> {
    let file = Safetensors::open(file(&format!("{path}.safetensors"))).expect("outputs");
    let get = |what: &str| {
        let name = format!("{name}.{what}");
        let shape = file.shape(&name).expect("a tensor").to_vec();
        let values = file.floats(&name, &shape).expect("floats").into_iter();
        (shape[0], values.map(f64::from).collect::<Vec<_>>())
    };
    let ((layers, streams), (_, logits)) = (get("streams"), get("logits"));
    let each = streams.len() / layers;
    streams.chunks(each).map(<[f64]>::to_vec).chain([logits]).collect()
}

/// The tokens that are kept.
pub fn kept(keys: &Map<String, Value>, outputs: &[Tensor<f64>]) -> Vec<Vec<f64>> {
    let pick = |output: &Tensor<f64>| output.pick(rows(keys).iter().copied()).data;
    outputs.iter().map(pick).collect()
}

/// The largest distance of layers and logits.
pub fn worst(got: &[Vec<f64>], want: &[Vec<f64>]) -> f64 {
    assert_eq!(got.len(), want.len());
    let each = got.iter().zip(want).map(|(got, want)| distance(got, want));
    each.fold(0.0, |worst, x| if x > worst || x.is_nan() { x } else { worst })
}

/// Both sides are FP32 with sums in another order, so that each is off by a few times √layers · 2⁻²⁴ · a factor of the model: f64 says
/// how far this side is, which is less than the bound by a factor of three.
pub fn every_family_gives_what_transformers_gives(path: &str) {
    for (name, keys) in configs(path) {
        let whole = [tokens(&keys)];
        let (single, double) = (outputs::<f32>(&keys, &whole), outputs::<f64>(&keys, &whole));
        let (single, double, want) = (kept(&keys, &single), kept(&keys, &double), wanted(path, &name));
        let (theirs, ours) = (worst(&single, &want), worst(&single, &double));
        println!("{name}: {theirs:.2e} from transformers, {ours:.2e} from f64");
        assert!(theirs <= 1e-5, "{name}: {theirs:.2e} from transformers");
        assert!(ours <= 1e-5, "{name}: {ours:.2e} from f64");
    }
}

/// Reads a text in these calls, and holds it to the text in one call.
pub fn a_cut_changes_little(name: &str, keys: &Map<String, Value>, each: &[&[usize]]) {
    let whole = outputs::<f32>(keys, &[tokens(keys)]);
    for calls in each {
        let cut = outputs::<f32>(keys, calls);
        let pairs = cut.iter().zip(&whole);
        let far = pairs.map(|(cut, whole)| distance(&cut.data, &whole.data));
        let far = far.fold(0.0, f64::max);
        println!("{name} in {} calls: {far:.2e}", calls.len());
        assert!(far <= 1e-5, "{name} in calls of {calls:?}: {far:.2e}");
    }
}

/// Asserts that a model with another key is far from what `transformers` gave with the key as it is.
pub fn another_key_is_noticed(path: &str, name: &str, key: &str, value: Value) {
    let mut keys = configs(path)[name].clone();
    let length = tokens(&keys);
    let want = wanted(path, name);
    let of = keys.clone();
    keys.insert(key.into(), value);
    let far = worst(&kept(&of, &outputs::<f32>(&keys, &[length])), &want);
    assert!(far > 1e-4, "{name} with another {key} is only {far:.2e} off");
}
