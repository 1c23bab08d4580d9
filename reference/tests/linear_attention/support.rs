//! Files, random cases, distances.

pub use crate::measure::*;
use std::collections::BTreeMap;
use std::f64::consts::TAU;
use std::path::Path;

use reference::ops::linear_attention::{
    Chunked, Decay, Form, Inputs, Kv, Layout, Recurrent, State, forward, l2_normalize,
};
use reference::{Real, Tensor};
use safetensors::{Dtype, SafeTensors};

/// Unit roundoffs of f32 and f64.
pub const U32: f64 = 1.0 / (1 << 24) as f64;
pub const U64: f64 = f64::EPSILON / 2.0;

/// Tensors of a fixture, all as f64, which holds f32 and I32 exactly.
pub struct File(BTreeMap<String, Tensor<f64>>, serde_json::Value);

impl File {
    pub fn read(name: &str) -> Self {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/linear-attention");
        let bytes = std::fs::read(folder.join(format!("{name}.safetensors"))).expect(name);
        let (_, header) = SafeTensors::read_metadata(&bytes).expect(name);
        let meta = &header.metadata().as_ref().expect("metadata")["meta"];
        let tensors = SafeTensors::deserialize(&bytes).expect(name).tensors().into_iter();
        let tensors = tensors.map(|(name, view)| (name, Tensor::new(view.shape(), decode(view.dtype(), view.data()))));
        Self(tensors.collect(), serde_json::from_str(meta).expect("JSON"))
    }

    pub fn find(&self, name: &str) -> Option<&Tensor<f64>> {
        self.0.get(name)
    }

    pub fn get(&self, name: &str) -> &Tensor<f64> {
        self.find(name).unwrap_or_else(|| panic!("no tensor {name}"))
    }

    /// A tensor `[B, T, ..]` as `[B·T, ..]`.
    pub fn packed(&self, name: &str) -> Tensor<f64> {
        let tensor = self.get(name);
        let tokens = tensor.shape[0] * tensor.shape[1];
        Tensor::new([&[tokens], &tensor.shape[2..]].concat(), tensor.data.clone())
    }

    pub fn meta(&self, key: &str) -> &serde_json::Value {
        &self.1[key]
    }
}

fn decode(dtype: Dtype, data: &[u8]) -> Vec<f64> {
    match dtype {
        Dtype::F64 => data
            .as_chunks()
            .0
            .iter()
            .map(|&word| f64::from_le_bytes(word))
            .collect(),
        Dtype::F32 => data
            .as_chunks()
            .0
            .iter()
            .map(|&word| f32::from_le_bytes(word).into())
            .collect(),
        Dtype::I32 => data
            .as_chunks()
            .0
            .iter()
            .map(|&word| i32::from_le_bytes(word).into())
            .collect(),
        other => panic!("no decoder for {other:?}"),
    }
}

#[derive(Clone, Debug)]
pub enum Decays {
    Head(Tensor<f64>),
    Channel(Tensor<f64>),
    Constant(Vec<f64>),
}

/// Inputs with the states they start from, all values in f32's set.
#[derive(Clone, Debug)]
pub struct Case {
    pub cu_seqlens: Vec<usize>,
    pub q: Tensor<f64>,
    pub k: Tensor<f64>,
    pub v: Tensor<f64>,
    pub decay: Decays,
    pub beta: Option<Tensor<f64>>,
    pub scale: f64,
    /// `[N, HV, K, V]`.
    pub state: Tensor<f64>,
}

/// o `[tokens, HV, V]` and the final states `[N, HV, K, V]`.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome<T> {
    pub o: Tensor<T>,
    pub state: Tensor<T>,
}

impl Case {
    pub fn fixture(file: &File) -> Self {
        let op = file.meta("op").as_str();
        let (q, v) = (file.packed("q"), file.packed("v"));
        let cu_seqlens: Vec<usize> = file.get("cu_seqlens").data.iter().map(|&x| x as usize).collect();
        let zero = Tensor::full([cu_seqlens.len() - 1, v.shape[1], q.cols(), v.cols()], 0.0);
        Self {
            decay: match op {
                Some("gdn") => Decays::Head(file.packed("g")),
                Some("kda") => Decays::Channel(file.packed("g")),
                Some("la") => Decays::Constant(file.get("decay_scales").data.iter().map(|s| -s).collect()),
                other => panic!("{other:?}"),
            },
            k: file.packed("k"),
            beta: file.find("beta").map(|_| file.packed("beta")),
            scale: file.meta("scale").as_f64().expect("a scale"),
            state: file.find("h0_kv").cloned().unwrap_or(zero),
            cu_seqlens,
            q,
            v,
        }
    }

    /// In slots of a pool; the states of the case are not read.
    pub fn run_in<T: Real, L: Layout>(
        &self,
        form: &impl Form<T>,
        pool: &mut State<T, L>,
        slots: Option<&[i64]>,
    ) -> Result<Tensor<T>, String> {
        let (q, k, v) = (self.q.cast(), self.k.cast(), self.v.cast());
        let beta = self.beta.as_ref().map(Tensor::cast);
        let tensor;
        let constant: Vec<T>;
        let decay = match &self.decay {
            Decays::Head(g) => {
                tensor = g.cast();
                Decay::Head(&tensor)
            }
            Decays::Channel(g) => {
                tensor = g.cast();
                Decay::Channel(&tensor)
            }
            Decays::Constant(g) => {
                constant = g.iter().map(|&g| T::from_f64(g)).collect();
                Decay::Constant(&constant)
            }
        };
        let inputs = Inputs {
            cu_seqlens: &self.cu_seqlens,
            q: &q,
            k: &k,
            v: &v,
            decay,
            beta: beta.as_ref(),
            scale: T::from_f64(self.scale),
        };
        forward(&inputs, form, pool, slots)
    }

    pub fn run<T: Real>(&self, form: &impl Form<T>) -> Outcome<T> {
        let mut state = State::<T, Kv>::new(self.state.cast()).expect("a state");
        let o = self.run_in(form, &mut state, None).expect("a good case");
        Outcome {
            o,
            state: state.tensor().clone(),
        }
    }

    pub fn recurrent<T: Real>(&self) -> Outcome<T> {
        self.run(&Recurrent::DEFINITION)
    }

    pub fn chunked<T: Real>(&self, chunk: usize) -> Outcome<T> {
        self.run(&Chunked::exact(chunk))
    }

    /// Sequence `n` alone, from its token `range.start` to `range.end`.
    pub fn cut(&self, n: usize, range: std::ops::Range<usize>) -> Self {
        let first = self.cu_seqlens[n];
        let range = first + range.start..first + range.end;
        Self {
            cu_seqlens: vec![0, range.len()],
            q: span(&self.q, range.clone()),
            k: span(&self.k, range.clone()),
            v: span(&self.v, range.clone()),
            decay: match &self.decay {
                Decays::Head(g) => Decays::Head(span(g, range.clone())),
                Decays::Channel(g) => Decays::Channel(span(g, range.clone())),
                Decays::Constant(g) => Decays::Constant(g.clone()),
            },
            beta: self.beta.as_ref().map(|beta| span(beta, range.clone())),
            scale: self.scale,
            state: span(&self.state, n..n + 1),
        }
    }

    pub fn tokens(&self, n: usize) -> usize {
        self.cu_seqlens[n + 1] - self.cu_seqlens[n]
    }

    /// Sizes K, V.
    pub fn dims(&self) -> (usize, usize) {
        (self.q.cols(), self.v.cols())
    }
}

/// Rows of the first dimension.
pub fn span<T: Copy>(x: &Tensor<T>, rows: std::ops::Range<usize>) -> Tensor<T> {
    let size: usize = x.shape[1..].iter().product();
    Tensor::new(
        [&[rows.len()], &x.shape[1..]].concat(),
        x.data[rows.start * size..rows.end * size].to_vec(),
    )
}

/// Which decays a random case has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    Gdn,
    Kda,
    /// Decays of heads without the delta rule.
    SimpleGla,
    Lightning,
}

pub const OPS: [Op; 4] = [Op::Gdn, Op::Kda, Op::SimpleGla, Op::Lightning];

/// A random case to make.
#[derive(Clone, Debug)]
pub struct Random {
    pub op: Op,
    pub lengths: Vec<usize>,
    pub heads: usize,
    /// Value heads of a key head.
    pub group: usize,
    pub dims: (usize, usize),
    /// Mean of the gates, which are exponentially distributed below 0.
    pub gate: f64,
    pub seed: u64,
}

impl Random {
    pub fn new(op: Op, lengths: &[usize], dims: (usize, usize)) -> Self {
        Self {
            op,
            lengths: lengths.to_vec(),
            heads: 1,
            group: 1,
            dims,
            gate: -0.1,
            seed: 1,
        }
    }

    /// q and k of length 1, v and the states normal, β in (0, 1).
    pub fn case(&self) -> Case {
        let mut draws = Draws(self.seed);
        let cu_seqlens: Vec<usize> = std::iter::once(0)
            .chain(self.lengths.iter().scan(0, |sum, length| {
                *sum += length;
                Some(*sum)
            }))
            .collect();
        let tokens = cu_seqlens[self.lengths.len()];
        let (keys, values) = self.dims;
        let value_heads = self.heads * self.group;
        let mut normal = |shape: &[usize]| draws.tensor(shape, |a, b| (-2.0 * a.ln()).sqrt() * (b * TAU).cos());
        let mut q = normal(&[tokens, self.heads, keys]);
        let mut k = normal(&[tokens, self.heads, keys]);
        let v = normal(&[tokens, value_heads, values]);
        let state = normal(&[self.lengths.len(), value_heads, keys, values]);
        l2_normalize(&mut q, 1e-6);
        l2_normalize(&mut k, 1e-6);
        let mut gates = |shape: &[usize]| draws.tensor(shape, |a, _| -self.gate * a.ln());
        let decay = match self.op {
            Op::Gdn | Op::SimpleGla => Decays::Head(gates(&[tokens, value_heads])),
            Op::Kda => Decays::Channel(gates(&[tokens, value_heads, keys])),
            Op::Lightning => Decays::Constant((0..value_heads).map(|h| -8.0 * h as f64 / value_heads as f64).collect()),
        };
        let delta = matches!(self.op, Op::Gdn | Op::Kda);
        Case {
            beta: delta.then(|| draws.tensor(&[tokens, value_heads], |a, _| a)),
            scale: 1.0 / (keys as f64).sqrt(),
            q: single(q),
            k: single(k),
            cu_seqlens,
            v,
            decay,
            state,
        }
    }
}

/// Values rounded to f32.
pub fn single(x: Tensor<f64>) -> Tensor<f64> {
    Tensor::new(x.shape, x.data.into_iter().map(|x| f64::from(x as f32)).collect())
}

/// SplitMix64.
struct Draws(u64);

impl Draws {
    /// Uniform in (0, 1).
    fn uniform(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / 2f64.powi(53) + 2f64.powi(-54)
    }

    /// Functions of two uniform numbers, rounded to f32.
    fn tensor(&mut self, shape: &[usize], of: impl Fn(f64, f64) -> f64) -> Tensor<f64> {
        let data = (0..shape.iter().product()).map(|_| of(self.uniform(), self.uniform()));
        single(Tensor::new(shape, data.collect()))
    }
}

/// Prints a measured error and holds it to its bound.
#[track_caller]
pub fn within(what: &str, error: f64, bound: f64) {
    println!("{what}: {error:.2e} (bound {bound:.2e})");
    assert!(error <= bound, "{what}: {error:e} is more than {bound:e}");
}

/// Holds o and the states to `bound`, each relative to the largest value there.
#[track_caller]
pub fn agrees<T: Real, U: Real>(what: &str, got: &Outcome<T>, want: &Outcome<U>, bound: f64) {
    assert_eq!((&got.o.shape, &got.state.shape), (&want.o.shape, &want.state.shape));
    let off = |got: &[T], want: &[U]| farthest(got, want) / top(want).max(f64::MIN_POSITIVE);
    within(&format!("{what}, o"), off(&got.o.data, &want.o.data), bound);
    within(&format!("{what}, state"), off(&got.state.data, &want.state.data), bound);
}

/// The bits, and so also where zeros are negative.
pub fn bits<T: Real>(outcome: &Outcome<T>) -> Vec<u64> {
    let values = outcome.o.data.iter().chain(&outcome.state.data);
    values.map(|&x| x.into().to_bits()).collect()
}
