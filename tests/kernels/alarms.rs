//! Whether judgements refuse kernels that are right: sums in orders that are drawn, fused or not, reciprocals one unit off, stored in the
//! type of the output. `ULPLAB_DRAWS=1000 cargo test --test kernels right_kernels -- --nocapture` prints how near they come to their
//! bounds.

use std::fs;
use std::path::Path;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::Rng;
use safetensors::Dtype;
use safetensors::tensor::TensorView;
use ulplab::backend::cuda::{Plan, Source};
use ulplab::formats::GlobalScale;
use ulplab::metrics::{BOUND_RATIO, VIOLATIONS};
use ulplab::ops::data::f32_bytes;
use ulplab::ops::{Case, Data, Inputs, Outputs, Problem, Scalar, find};
use ulplab_core::pattern::matches;
use ulplab_core::random::stream;

use super::quantize::format;
use super::{buffer, integers, matrices, stored, values};

/// How often each operation is drawn where nobody asks for more.
const DRAWS: usize = 12;
/// Product of the sizes of the largest case that is drawn.
const MOST: f64 = 3e6;

/// A way in which a kernel may compute.
struct Way {
    rng: ChaCha8Rng,
    /// Products are fused with the additions that follow.
    fused: bool,
    /// Sums that are kept side by side.
    lanes: usize,
    /// Whether these are added pairwise, or one after the other.
    pairwise: bool,
    /// Whether terms are taken in an order that is drawn, from the last to the first, or as they come.
    order: u32,
    /// Whether products of three are taken from the left.
    left: bool,
}

impl Way {
    fn drawn(op: &str, draw: usize) -> Self {
        let mut rng = stream(draw as u64, &format!("alarms/{op}"));
        let bits = rng.next_u32();
        Self {
            fused: bits & 1 == 1,
            lanes: 1 << (bits >> 1 & 7),
            pairwise: bits >> 4 & 1 == 1,
            order: bits >> 5 & 3,
            left: bits >> 7 & 1 == 1,
            rng,
        }
    }

    fn add(&self, sum: f32, a: f32, b: f32) -> f32 {
        if self.fused { a.mul_add(b, sum) } else { sum + a * b }
    }

    fn dot(&mut self, a: &[f32], b: &[f32]) -> f32 {
        let mut order: Vec<usize> = (0..a.len()).collect();
        match self.order {
            1 => order.reverse(),
            2 => (1..order.len()).for_each(|at| order.swap(at, self.rng.next_u32() as usize % (at + 1))),
            _ => {}
        }
        let mut lanes = vec![0f32; self.lanes];
        for (place, at) in order.into_iter().enumerate() {
            let lane = &mut lanes[place % self.lanes];
            *lane = self.add(*lane, a[at], b[at]);
        }
        while self.pairwise && lanes.len() > 1 {
            lanes = lanes.chunks(2).map(|pair| pair.iter().sum()).collect();
        }
        lanes.into_iter().sum()
    }

    /// 1 / √x, as hardware gives it: at most one unit off.
    fn rsqrt(&mut self, x: f32) -> f32 {
        let right = f64::from(x).sqrt().recip() as f32;
        [right, right.next_up(), right.next_down()][self.rng.next_u32() as usize % 3]
    }

    fn product(&self, [a, b, c]: [f32; 3]) -> f32 {
        if self.left { a * b * c } else { a * (b * c) }
    }
}

fn scalar(problem: &Problem, name: &str) -> f32 {
    match problem.scalars.iter().find(|(scalar, _)| *scalar == name) {
        Some((_, Scalar::F32(value))) => *value,
        other => panic!("{name}: {other:?}"),
    }
}

fn normed(case: &Case, problem: &Problem, way: &mut Way) -> Vec<f32> {
    let (x, weight, eps) = (values(problem, "x"), values(problem, "weight"), scalar(problem, "eps"));
    let mut y = Vec::new();
    for row in x.chunks(case.dim("C")) {
        let mean = way.dot(row, row) * (1.0 / row.len() as f32);
        let root = way.rsqrt(mean + eps);
        y.extend(row.iter().zip(&weight).map(|(x, w)| way.product([*x, root, *w])));
    }
    y
}

fn activated(case: &Case, problem: &Problem, way: &mut Way) -> Vec<f32> {
    let (x, cols, limit) = (values(problem, "gate_up"), case.dim("C"), scalar(problem, "limit"));
    let of_row = |row: &[f32]| {
        let (gate, up) = row.split_at(cols);
        let pairs = gate
            .iter()
            .zip(up)
            .map(|(gate, up)| [gate.min(limit), up.clamp(-limit, limit)]);
        let y = pairs.map(|[gate, up]| {
            // The power of two of a rounded argument, or the exponential.
            let power = if way.fused {
                (-gate).exp()
            } else {
                (-gate * std::f32::consts::LOG2_E).exp2()
            };
            way.product([gate, 1.0 / (1.0 + power), up])
        });
        y.collect::<Vec<f32>>()
    };
    x.chunks(2 * cols).flat_map(of_row).collect()
}

fn linear(case: &Case, problem: &Problem, way: &mut Way) -> Vec<f32> {
    let [b, g, n, k] = ["B", "G", "N", "K"].map(|dim| case.dim(dim));
    let x = values(problem, "x");
    let w = matrices(problem, case.key("stored"), "w", "w_scale", None, k);
    let each = |at: usize| way.dot(&x[at / n * k..][..k], &w[(at / n % g * n + at % n) * k..][..k]);
    (0..b * g * n).map(each).collect()
}

fn mixed_back(case: &Case, problem: &Problem, way: &mut Way) -> Vec<f32> {
    let dim = case.dim("C");
    let [x, y, post, comb] = ["x", "y", "post", "comb"].map(|name| values(problem, name));
    let each = |at: usize| {
        let (row, k, channel) = (at / dim / 4, at / dim % 4, at % dim);
        let weights: Vec<f32> = (0..4)
            .map(|j| comb[(row * 4 + j) * 4 + k])
            .chain([post[row * 4 + k]])
            .collect();
        let terms: Vec<f32> = (0..4)
            .map(|j| x[(row * 4 + j) * dim + channel])
            .chain([y[row * dim + channel]])
            .collect();
        way.dot(&weights, &terms)
    };
    (0..x.len()).map(each).collect()
}

fn head(case: &Case, problem: &Problem, way: &mut Way) -> Vec<f32> {
    let dim = case.dim("C");
    let [x, projection, base, scale, weight] = ["x", "fn", "base", "scale", "weight"].map(|name| values(problem, name));
    let mut y = Vec::new();
    for x in x.chunks(4 * dim) {
        let mean = way.dot(x, x) / x.len() as f32;
        let root = way.rsqrt(mean + 1e-5);
        let weights: Vec<f32> = (0..4)
            .map(|j| {
                let logit = way.dot(&projection[j * 4 * dim..][..4 * dim], x) * root;
                1.0 / (1.0 + (-way.add(base[j], logit, scale[0])).exp()) + 1e-6
            })
            .collect();
        let mixed: Vec<f32> = (0..dim)
            .map(|c| way.dot(&weights, &[0, 1, 2, 3].map(|j| x[j * dim + c])))
            .collect();
        let mean = way.dot(&mixed, &mixed) / dim as f32;
        let root = way.rsqrt(mean + 1e-5);
        y.extend(mixed.iter().zip(&weight).map(|(x, w)| way.product([*x, root, *w])));
    }
    y
}

fn scores(case: &Case, problem: &Problem, way: &mut Way) -> Vec<f32> {
    let [h, d, n] = ["H", "D", "N"].map(|dim| case.dim(dim));
    let [q, keys, weights] = ["q", "keys", "head_weights"].map(|name| values(problem, name));
    let (scale, counts) = (scalar(problem, "scale"), integers(problem, "count"));
    let mut scores = Vec::new();
    for (row, count) in counts.iter().enumerate() {
        let weights: Vec<f32> = weights[row * h..][..h].iter().map(|weight| weight * scale).collect();
        for entry in 0..n {
            let key = &keys[(row * n + entry) * d..][..d];
            let mut products = || -> Vec<f32> {
                (0..h)
                    .map(|head| way.dot(&q[(row * h + head) * d..][..d], key).max(0.0))
                    .collect()
            };
            scores.push(match (entry as i32) < *count {
                true => {
                    let products = products();
                    way.dot(&weights, &products)
                }
                false => f32::NEG_INFINITY,
            });
        }
    }
    scores
}

fn scanned(case: &Case, problem: &Problem, way: &mut Way) -> Vec<f32> {
    let [u, a, b, c] = ["u", "a", "b", "c"].map(|name| values(problem, name));
    let (steps, states) = (case.dim("S"), case.dim("N"));
    let mut y = Vec::new();
    for (head, u) in u.chunks(steps).enumerate() {
        let [a, b, c] = [&a, &b, &c].map(|x| &x[head * states..][..states]);
        let mut x = vec![0f32; states];
        for u in u {
            x.iter_mut()
                .enumerate()
                .for_each(|(n, x)| *x = way.add(b[n] * u, a[n], *x));
            y.push(way.dot(c, &x));
        }
    }
    y
}

/// The output of a right kernel, and what computes it.
type Right = (&'static str, &'static str, fn(&Case, &Problem, &mut Way) -> Vec<f32>);

const RIGHT: [Right; 9] = [
    ("rmsnorm", "y", normed),
    ("rmsnorm_quantize", "data", normed),
    ("swiglu", "y", activated),
    ("swiglu_quantize", "data", activated),
    ("linear", "y", linear),
    ("mhc_post", "x", mixed_back),
    ("hyper_head", "y", head),
    ("index_scores", "scores", scores),
    ("diagonal_ssm", "y", scanned),
];

fn outputs(case: &Case, problem: &Problem, output: &'static str, y: &[f32]) -> Outputs {
    if output != "data" {
        let bf16 = buffer(problem, output).dtype == Dtype::BF16;
        let bytes = if bf16 { stored(true, y) } else { f32_bytes(y) };
        return Outputs(vec![(output, bytes)]);
    }
    let amax = values(problem, "amax");
    let encoded = format(case.key("format")).encode(y, case.dim("C"), GlobalScale::Stored(&amax));
    Outputs(["data", "scale"].map(|part| (part, encoded.part(part).to_vec())).into())
}

/// A file of the inputs of RMSNorm in which few numbers of those drawn are repeated: all one, in turn, or in runs.
fn repeated(folder: &Path, case: &Case, problem: &Problem, few: usize) -> &'static str {
    let cols = case.dim("C");
    let filled = |(name, shape): (&'static str, Vec<usize>)| {
        let drawn = values(problem, name);
        let at = |at: usize| {
            if few.is_multiple_of(2) {
                at % few
            } else {
                at * few / drawn.len()
            }
        };
        let all: Vec<f32> = (0..drawn.len()).map(|place| drawn[at(place)]).collect();
        let dtype = buffer(problem, name).dtype;
        (name, dtype, shape, stored(dtype == Dtype::BF16, &all))
    };
    let tensors = [("x", vec![case.dim("T"), cols]), ("weight", vec![cols])].map(filled);
    let view = |(name, dtype, shape, bytes)| (name, TensorView::new(dtype, shape, bytes).unwrap());
    let views = tensors
        .iter()
        .map(|(name, dtype, shape, bytes)| view((name, *dtype, shape.clone(), bytes.as_slice())));
    let path = folder.join("inputs.safetensors");
    fs::write(&path, safetensors::serialize(views, None).unwrap()).unwrap();
    String::leak(path.to_str().unwrap().into())
}

/// The draws of an operation that are refused, and the largest ratio of error to bound of each that has one, the smallest first.
/// `few`: the distinct numbers of each input, in operations that read files; 0: inputs are drawn.
fn judged((op, output, compute): Right, draws: usize, few: usize, spoil: impl Fn(&mut Vec<f32>)) -> (usize, Vec<f64>) {
    let found = find(op).unwrap();
    let volume = |case: &Case| case.dims.iter().map(|(_, size)| (*size).max(1) as f64).product::<f64>();
    let mut cases = found.cases();
    cases.retain(|case| case.inputs == Inputs::Random && !case.timed && volume(case) <= MOST);
    assert!(!cases.is_empty(), "{op}");
    let (mut refused, mut ratios) = (0, Vec::new());
    let folder = tempfile::tempdir().unwrap();
    for draw in 0..draws {
        let none = |_: &str| Err("no model".to_string());
        let data = Data::new(draw as u64, &none);
        let mut case = cases[draw % cases.len()].clone();
        let mut problem = found.problem(&case, &data).unwrap();
        if few > 0 {
            case.inputs = Inputs::File(repeated(folder.path(), &case, &problem, few));
            let drawn = std::mem::replace(&mut problem, found.problem(&case, &data).unwrap());
            assert_ne!(values(&problem, "x"), values(&drawn, "x"), "{op} reads no files");
        }
        let case = &case;
        let mut way = Way::drawn(op, draw);
        if few > 0 {
            // The bound is that of kernels on a GPU: a square goes through cols / 32 additions in a lane, and 10 over lanes.
            (way.lanes, way.pairwise) = (way.lanes.max(32), true);
        }
        let mut y = compute(case, &problem, &mut way);
        spoil(&mut y);
        let measured = problem.judge(&outputs(case, &problem, output, &y));
        refused += usize::from(
            measured
                .iter()
                .any(|found| found.metric == &VIOLATIONS && found.value > 0.0),
        );
        ratios.extend(
            measured
                .iter()
                .find(|found| found.metric == &BOUND_RATIO)
                .map(|found| found.value),
        );
    }
    ratios.sort_by(f64::total_cmp);
    (refused, ratios)
}

#[test]
fn right_kernels_are_never_refused() {
    let draws = std::env::var("ULPLAB_DRAWS").map_or(DRAWS, |draws| draws.parse().expect("a number of draws"));
    for right in RIGHT {
        let (refused, ratios) = judged(right, draws, 0, |_| {});
        let at = |share: f64| ratios.get(((ratios.len() as f64 - 1.0) * share).round() as usize);
        println!(
            "{}: {refused} of {draws} refused; error over bound {:?}",
            right.0,
            [0.5, 0.99, 1.0].map(at)
        );
        assert_eq!(refused, 0, "{} of {draws}", right.0);
    }
}

/// Equal terms round in the same way. Of the kernels here those of RMSNorm read files; all others are given drawn numbers only, and
/// right kernels over few numbers are drawn by python/tests/test_operations.py.
#[test]
fn right_kernels_over_few_numbers_are_not_refused() {
    for right in &RIGHT[..2] {
        for few in [1, 2, 3, 7, 16] {
            let (refused, _) = judged(*right, DRAWS, few, |_| {});
            assert_eq!(refused, 0, "{}, {few} numbers", right.0);
        }
    }
    let (refused, _) = judged(RIGHT[0], DRAWS, 1, |y| y.iter_mut().for_each(|y| *y *= 1.01));
    assert_eq!(refused, DRAWS, "a gain of 1 %");
}

/// The same with a gain of 1 %: every draw is refused.
#[test]
fn right_kernels_with_a_gain_are_refused() {
    for right in RIGHT {
        let (refused, _) = judged(right, DRAWS, 0, |y| y.iter_mut().for_each(|y| *y *= 1.01));
        assert_eq!(refused, DRAWS, "{}", right.0);
    }
}

/// The experiment that draws right kernels on a GPU has a case for each variant that it names.
#[test]
fn shipped_draws_reach_every_variant() {
    let root = Path::new(crate::ROOT);
    let text = fs::read_to_string(root.join("experiments/draws.toml")).unwrap();
    let experiment: toml::Table = text.parse().unwrap();
    let patterns = |key: &str| -> Vec<String> {
        let all = experiment[key].as_array().unwrap().iter();
        all.map(|pattern| pattern.as_str().unwrap().into()).collect()
    };
    let (kernels, cases) = (patterns("kernels"), patterns("cases"));
    let any = |patterns: &[String], name: &str| patterns.iter().any(|pattern| matches(pattern, name));
    let mut drawn = 0;
    for source in Source::read_all(&root.join("kernels"), &ulplab::ops::COMPOSITIONS).unwrap() {
        let chosen = find(&source.op).unwrap().cases().into_iter();
        let chosen: Vec<Case> = chosen.filter(|case| any(&cases, &case.name)).collect();
        for variant in &source.header.variants {
            let name = format!("{}.{}", source.op, variant.name);
            if any(&kernels, &name) {
                let taken = chosen
                    .iter()
                    .any(|case| Plan::new(variant, case, 132).unwrap().is_some());
                assert!(taken, "{name} takes none of its cases");
                drawn += 1;
            }
        }
    }
    assert!(drawn > 70, "{drawn} variants");
}
