//! A path that is not the crate's: layers either attend to keys and values that are cached apart, or have a state of fixed size.

use reference::ops::linear::dot;
use reference::paths::{Config, Input, LoadError, Loader, Loads, Model, Path, Source, State, Takes, TensorSpec, asked};
use reference::sites::{Growth, Held};
use reference::{Numerics, Real, Site, Tensor};
use serde::Deserialize;

const FULL: &[&str] = &["full_attention"];
const LINEAR: &[&str] = &["linear_attention"];

reference::sites! { pub SITES =
    KEYS: "attention.keys" [T, width] "keys" .layered_if(FULL).cached(Growth::Token, Held::Key).compared();
    VALUES: "attention.values" [T, width] "values" .layered_if(FULL).cached(Growth::Token, Held::Value).compared();
    STATE: "linear.state" [width] "state after a call" .layered_if(LINEAR).cached(Growth::State, Held::State);
    OUTPUT: "output" [T, width] "residual stream that leaves the layer" .layered().leaves().compared();
    LOGITS: "logits" [T, vocab_size] "logits" .output();
}

pub static PATH: Path = Path {
    name: "tiny",
    model_types: || vec!["tiny", "tiny_text"],
    sites: SITES,
    read: |json, _| {
        let sizes: Sizes = serde_json::from_str(json).map_err(|error| error.to_string())?;
        Ok(Box::new(sizes))
    },
    nearest: |_| None,
};

#[derive(Clone, Debug, Deserialize)]
struct Sizes {
    vocab_size: usize,
    width: usize,
    full: Vec<bool>,
}

impl Config for Sizes {
    fn path(&self) -> &'static Path {
        &PATH
    }
    fn layers(&self) -> usize {
        self.full.len()
    }
    fn takes(&self) -> Takes {
        Takes::Ids {
            vocabulary: self.vocab_size,
        }
    }
    reference::sizes!(vocab_size, width);
    fn layer_types(&self, layer: usize) -> Vec<&'static str> {
        if self.full[layer] { FULL } else { LINEAR }.to_vec()
    }
    fn tensors(&self) -> Vec<TensorSpec> {
        asked::<f32, _>(|load| Tensors::load(self, load))
    }
}

impl<T: Real> Loads<T> for Sizes {
    fn load(&self, weights: &mut Source<'_>, _: &mut dyn Numerics<T>) -> Result<Box<dyn Model<T>>, LoadError> {
        Ok(Box::new(Tensors::load(self, &mut Loader::new(weights))?))
    }
}

/// A model: its embedding, and what gives each layer's keys and values.
struct Tensors<T>(Sizes, Tensor<T>, Vec<[Tensor<T>; 2]>);

impl<T: Real> Tensors<T> {
    fn load(sizes: &Sizes, load: &mut Loader<'_, T>) -> Result<Self, LoadError> {
        let (width, embedding) = (sizes.width, load.tensor("embed", &[sizes.vocab_size, sizes.width])?);
        let mut layers = Vec::new();
        for layer in 0..sizes.layers() {
            let mut linear = |name| load.tensor(&format!("layers.{layer}.{name}"), &[width, width]);
            layers.push([linear("k")?, linear("v")?]);
        }
        Ok(Self(sizes.clone(), embedding, layers))
    }
}

/// Tokens seen, and for each layer keys and values, or the state as only value.
#[derive(Clone, Debug)]
struct Cached<T>(usize, Vec<[Vec<T>; 2]>);

impl<T: Real> State<T> for Cached<T> {
    fn tokens(&self) -> usize {
        self.0
    }
}

impl<T: Real> Model<T> for Tensors<T> {
    fn config(&self) -> &dyn Config {
        &self.0
    }
    fn state(&self, _: Vec<Tensor<T>>) -> Result<Box<dyn State<T>>, String> {
        Ok(Box::new(Cached(0, vec![[vec![], vec![]]; self.0.layers()])))
    }
    fn run(&self, state: &mut dyn State<T>, ids: Input<'_, T>, see: &mut dyn Numerics<T>) -> Result<Tensor<T>, String> {
        let (ids, width) = (ids.ids()?, self.0.width);
        let Cached(seen, caches) = state.of_mut()?;
        let rows = ids.iter().flat_map(|&id| self.1.row(id as usize));
        let mut x = Tensor::new([ids.len(), width], rows.copied().collect());
        for (layer, (weights, [keys, values])) in self.2.iter().zip(caches).enumerate() {
            let mut pass = |name, x: &mut Tensor<T>| see.site(&Site::new(Some(layer), name).from_row(*seen), x);
            let [mut k, mut v] = weights.each_ref().map(|linear| linear.apply(&x));
            if !self.0.full[layer] {
                values.resize(width, T::ZERO);
                let mut state = Tensor::new([width], std::mem::take(values));
                for (at, x) in x.data.iter_mut().enumerate() {
                    let state = &mut state.data[at % width];
                    (*state, *x) = (state.sigmoid() + k.data[at], *x + *state * v.data[at]);
                }
                pass(STATE, &mut state);
                *values = state.data;
            } else {
                pass(KEYS, &mut k);
                pass(VALUES, &mut v);
                for row in 0..ids.len() {
                    keys.extend(k.row(row));
                    values.extend(v.row(row));
                    let query = x.row(row).to_vec();
                    for (key, value) in keys.chunks_exact(width).zip(values.chunks_exact(width)) {
                        let p = dot(key, &query).sigmoid();
                        x.row_mut(row).iter_mut().zip(value).for_each(|(x, &v)| *x += p * v);
                    }
                }
            }
            pass(OUTPUT, &mut x);
        }
        let mut logits = self.1.apply(&x);
        see.site(&Site::new(None, LOGITS).from_row(*seen), &mut logits);
        *seen += ids.len();
        Ok(logits)
    }
}
