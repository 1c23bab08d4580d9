//! Files, distances, and a `Numerics` that records and changes what passes.

pub use crate::measure::*;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use reference::paths::deepseek_v4::Config;
use reference::paths::{TensorSpec, Weights};
use reference::weights::Safetensors;
use reference::{Choice, Numerics, Real, Role, Site, Tensor};
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};

/// Tensors of safetensors files; integers become floats, exactly.
#[derive(Clone)]
pub struct File(pub BTreeMap<String, Tensor<f32>>);

impl File {
    /// What an oracle gave, infinities included.
    pub fn fixture(path: &str) -> Self {
        let path = fixture(path);
        let bytes = std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let read = SafeTensors::deserialize(&bytes).expect("a safetensors file");
        let tensor = |(name, view): (String, TensorView<'_>)| {
            let words = view.data().as_chunks().0.iter();
            let data = match view.dtype() {
                Dtype::F32 => words.map(|&word| f32::from_le_bytes(word)).collect(),
                Dtype::I32 => words.map(|&word| i32::from_le_bytes(word) as f32).collect(),
                Dtype::U8 => view.data().iter().map(|&byte| byte.into()).collect(),
                other => panic!("no decoder for {other:?}"),
            };
            (name, Tensor::new(view.shape(), data))
        };
        Self(read.tensors().into_iter().map(tensor).collect())
    }

    /// The tensors of a checkpoint.
    pub fn checkpoint(path: &Path, config: &Config) -> Self {
        let read = Safetensors::open(path).expect("a checkpoint");
        let tensor = |spec: TensorSpec| {
            let data = match spec.integer {
                false => read.floats(&spec.name, &spec.shape).expect("a tensor"),
                true => {
                    let integers = read.integers(&spec.name, &spec.shape, 1 << 24).expect("a tensor");
                    integers.into_iter().map(|x| x as f32).collect()
                }
            };
            (spec.name, Tensor::new(spec.shape, data))
        };
        assert!(read.unused(&config.tensors()).is_empty());
        Self(config.tensors().into_iter().map(tensor).collect())
    }

    pub fn get(&self, name: &str) -> &Tensor<f32> {
        self.find(name).unwrap_or_else(|| panic!("no tensor {name}"))
    }

    pub fn find(&self, name: &str) -> Option<&Tensor<f32>> {
        self.0.get(name)
    }

    pub fn numbers(&self, name: &str) -> Vec<usize> {
        self.get(name).data.iter().map(|&x| x as usize).collect()
    }
}

pub fn fixture(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(path)
}

impl Weights for &File {
    type Error = String;

    fn floats(&mut self, name: &str, shape: &[usize]) -> Result<Vec<f32>, String> {
        assert_eq!(self.get(name).shape, shape, "{name}");
        Ok(self.get(name).data.clone())
    }

    fn integers(&mut self, name: &str, shape: &[usize]) -> Result<Vec<u32>, String> {
        self.floats(name, shape)
            .map(|values| values.iter().map(|&x| x as u32).collect())
    }
}

pub fn span<T: Copy>(x: &Tensor<T>, rows: std::ops::Range<usize>) -> Tensor<T> {
    x.pick(rows)
}

/// Prints a measured error and holds it to its bound.
pub fn within(what: &str, error: f64, bound: f64) {
    println!("{what}: {error:.2e} (bound {bound:.2e})");
    assert!(error <= bound, "{what}: {error:e} is more than {bound:e}");
}

/// Relative error of one block fed the oracle's own input. Its outputs are sums of up to n = 192 products, which two orders of
/// summation leave 2√n·u = 28 u apart (u = 2⁻²⁴); norm, softmax and Sinkhorn add a few.
pub const LOCAL: f64 = 32.0 / (1 << 24) as f64;

/// Checks a block fed the oracle's own input.
pub fn agrees<T: Real, U: Real>(what: &str, got: &[T], want: &[U]) {
    within(what, relative(got, want), LOCAL);
}

type Edit<'a, X> = Box<dyn FnMut(&Site, &mut X) + 'a>;

/// Records what passes at the sites for which `keep` says so, before `edit` and `overrule` change it.
pub struct Watch<'a, T> {
    pub keep: Box<dyn Fn(&Site) -> bool + 'a>,
    pub edit: Edit<'a, Tensor<T>>,
    pub overrule: Edit<'a, Choice<T>>,
    pub wants: bool,
    pub splits: bool,
    /// Every call in order, with the shape that passed (`[rows, k]` of a choice).
    pub calls: Vec<(Site, Vec<usize>)>,
    /// By printed site, all chunks one after the other. Value copies have `:value` at the end.
    pub tensors: BTreeMap<String, Tensor<T>>,
    pub choices: BTreeMap<String, Vec<Choice<T>>>,
}

impl<'a, T: Real> Watch<'a, T> {
    pub fn new(keep: impl Fn(&Site) -> bool + 'a) -> Self {
        Self {
            keep: Box::new(keep),
            edit: Box::new(|_, _| {}),
            overrule: Box::new(|_, _| {}),
            wants: false,
            splits: false,
            calls: Vec::new(),
            tensors: BTreeMap::new(),
            choices: BTreeMap::new(),
        }
    }

    pub fn all() -> Self {
        Self::new(|_| true)
    }

    pub fn editing(mut self, edit: impl FnMut(&Site, &mut Tensor<T>) + 'a) -> Self {
        self.edit = Box::new(edit);
        self
    }

    pub fn overruling(mut self, overrule: impl FnMut(&Site, &mut Choice<T>) + 'a) -> Self {
        self.overrule = Box::new(overrule);
        self
    }

    pub fn tensor(&self, site: &str) -> &Tensor<T> {
        self.tensors
            .get(site)
            .unwrap_or_else(|| panic!("nothing passed {site}"))
    }

    pub fn choice(&self, site: &str) -> &[Choice<T>] {
        self.choices.get(site).unwrap_or_else(|| panic!("no choice at {site}"))
    }
}

impl<T: Real> Numerics<T> for Watch<'_, T> {
    fn site(&mut self, site: &Site, tensor: &mut Tensor<T>) {
        self.calls.push((*site, tensor.shape.clone()));
        if (self.keep)(site) {
            let copy = if site.role == Role::Value { ":value" } else { "" };
            let all = self
                .tensors
                .entry(format!("{site}{copy}"))
                .or_insert_with(|| Tensor::new([&[0], &tensor.shape[1..]].concat(), Vec::new()));
            all.shape[0] += tensor.shape[0];
            all.data.extend_from_slice(&tensor.data);
        }
        (self.edit)(site, tensor);
    }

    fn choice(&mut self, site: &Site, choice: &mut Choice<T>) {
        self.calls.push((*site, vec![choice.rows(), choice.k]));
        if (self.keep)(site) {
            self.choices.entry(site.to_string()).or_default().push(choice.clone());
        }
        (self.overrule)(site, choice);
    }

    fn wants(&self, _site: &Site) -> bool {
        self.wants
    }

    fn splits(&self, _site: &Site) -> bool {
        self.splits
    }
}
