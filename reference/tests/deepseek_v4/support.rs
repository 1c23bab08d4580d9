//! Files, distances, and a `Numerics` that records and changes what passes.

pub use super::measure::*;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::path::{Path, PathBuf};

use reference::paths::Weights;
use reference::{Choice, Numerics, Real, Role, Site, Tensor};
use safetensors::{Dtype, SafeTensors};

/// Tensors of safetensors files; integers become floats, exactly.
#[derive(Clone)]
pub struct File(pub BTreeMap<String, Tensor<f32>>);

impl File {
    pub fn read(paths: &[PathBuf]) -> Self {
        let mut tensors = BTreeMap::new();
        for path in paths {
            let bytes = std::fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            for (name, view) in SafeTensors::deserialize(&bytes).expect("a safetensors file").tensors() {
                tensors.insert(name, Tensor::new(view.shape(), decode(view.dtype(), view.data())));
            }
        }
        Self(tensors)
    }

    pub fn fixture(path: &str) -> Self {
        Self::read(&[fixture(path)])
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

fn decode(dtype: Dtype, data: &[u8]) -> Vec<f32> {
    let words = data.as_chunks().0.iter();
    match dtype {
        Dtype::F32 => words.map(|&word| f32::from_le_bytes(word)).collect(),
        Dtype::I32 => words.map(|&word| i32::from_le_bytes(word) as f32).collect(),
        Dtype::U8 => data.iter().map(|&byte| byte.into()).collect(),
        Dtype::F8_E4M3 => data.iter().map(|&code| e4m3(code)).collect(),
        other => panic!("no decoder for {other:?}"),
    }
}

/// Sign, 4 bits of exponent with bias 7, 3 bits of mantissa; no infinities.
fn e4m3(code: u8) -> f32 {
    let (exponent, mantissa) = (i32::from(code >> 3 & 15), f32::from(code & 7));
    let magnitude = match (exponent, code & 7) {
        (15, 7) => f32::NAN,
        (0, _) => mantissa * 2f32.powi(-9),
        _ => (8.0 + mantissa) * 2f32.powi(exponent - 10),
    };
    if code & 128 == 0 { magnitude } else { -magnitude }
}

impl Weights for &File {
    type Error = Infallible;

    fn floats(&mut self, name: &str, shape: &[usize]) -> Result<Vec<f32>, Infallible> {
        let tensor = self.get(name);
        assert_eq!(tensor.shape, shape, "{name}");
        let mut data = tensor.data.clone();
        if let Some(scales) = self.find(&format!("{name}_scale")) {
            let block = tensor.cols() / scales.cols();
            data.iter_mut()
                .enumerate()
                .for_each(|(i, x)| *x *= scales.data[i / block]);
        }
        Ok(data)
    }

    fn integers(&mut self, name: &str, shape: &[usize]) -> Result<Vec<u32>, Infallible> {
        assert_eq!(self.get(name).shape, shape, "{name}");
        Ok(self.get(name).data.iter().map(|&x| x as u32).collect())
    }
}

pub fn cast<T: Real>(x: &Tensor<f32>) -> Tensor<T> {
    Tensor::new(x.shape.clone(), x.data.iter().map(|&x| T::from_f64(x.into())).collect())
}

/// `[a, b, ..]` → `[b, a, ..]`.
pub fn swap<T: Copy>(x: &Tensor<T>) -> Tensor<T> {
    let (a, b) = (x.shape[0], x.shape[1]);
    let size = x.data.len() / (a * b);
    let pieces = (0..b).flat_map(|j| (0..a).map(move |i| i * b + j));
    let data = pieces.flat_map(|piece| x.data[piece * size..(piece + 1) * size].iter().copied());
    Tensor::new([&[b, a], &x.shape[2..]].concat(), data.collect())
}

/// Rows of the first dimension.
pub fn pick<T: Copy>(x: &Tensor<T>, rows: &[usize]) -> Tensor<T> {
    let size = x.data.len() / x.shape[0];
    let data = rows
        .iter()
        .flat_map(|row| x.data[row * size..(row + 1) * size].iter().copied());
    Tensor::new([&[rows.len()], &x.shape[1..]].concat(), data.collect())
}

pub fn span<T: Copy>(x: &Tensor<T>, rows: std::ops::Range<usize>) -> Tensor<T> {
    pick(x, &rows.collect::<Vec<_>>())
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
