//! Data on which faults show: which operations have them, taken from the bytes of their inputs, and faults to which Gaussian numbers are
//! blind.
//!
//! What an operation should have and has not is listed with the reason, and the list must be exact.

use std::collections::BTreeSet;

use safetensors::Dtype;
use ulplab::formats::{Format, GlobalScale, Single, codec, hadamard};
use ulplab::ops::data::f32_values;
use ulplab::ops::{Buffer, Case, Inputs, Problem, Role};
use ulplab::studies::kernels::power::smallest_first;
use ulplab_core::random::{gaussian, stream};

use super::quantize::format;
use super::{problems, problems_of, values, with_own_cases};

/// Something in the data of an operation on which faults show.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Telling {
    /// Activations or weights of the model.
    Real,
    /// A channel whose numbers are at least eight times as large as those of most.
    Outliers,
    /// Four neighbouring blocks of 32 whose largest magnitudes have four exponents.
    Exponents,
    /// Numbers that lie where two codes of the operation's format meet.
    Ties,
    /// A power of two with the next numbers above and below.
    Powers,
    /// A block of 32 zeros beside one that is not.
    Dead,
    /// Finite numbers whose double is infinite.
    Top,
    /// Numbers below the smallest normal one.
    Subnormal,
    /// Equal scores in a row, at least one of them not zero.
    Equal,
    /// Scores in a row that differ by at most 16 units in the last place.
    Near,
    /// A decay of 1e-12 and less, which leaves nothing of a state.
    Decay,
}
use Telling::{Dead, Decay, Equal, Exponents, Near, Outliers, Powers, Real, Subnormal, Ties, Top};

/// What quantizers should have.
const QUANTIZED: &[Telling] = &[Real, Outliers, Exponents, Ties, Powers, Dead, Top, Subnormal];
/// What rows that are normed or activated should have.
const ROWS: &[Telling] = &[Real, Outliers, Dead, Subnormal];
/// What products should have.
const PRODUCT: &[Telling] = &[Real, Outliers, Dead];
/// What choices should have.
const CHOICE: &[Telling] = &[Real, Equal, Near];
/// What recurrences should have.
const STATE: &[Telling] = &[Real, Dead, Decay];

/// The data of each operation: the input that is looked at, and what it should have. Inputs of codes alone are not looked at: in random
/// bytes all codes occur.
const DATA: &[(&str, &str, &[Telling])] = &[
    ("compressor", "kv", ROWS),
    ("decode_step", "embedding", &[Real]),
    ("delta_decode", "q", &[Real, Dead]),
    ("delta_handover", "g", STATE),
    ("delta_prefill", "g", &[Real, Decay]),
    ("dequantize", "", &[Real]),
    ("diagonal_ssm", "a", &[Decay]),
    ("experts", "x", PRODUCT),
    ("fp4_gemm", "x", PRODUCT),
    ("fp8_gemm", "", &[Real]),
    ("hyper_head", "x", ROWS),
    ("index_records", "", &[Real]),
    ("index_scores", "keys", &[Real, Dead]),
    ("linear", "x", PRODUCT),
    ("mhc_post", "x", ROWS),
    ("mhc_pre", "x", ROWS),
    ("moe_fp4", "x", PRODUCT),
    ("quantize", "x", QUANTIZED),
    ("record_attention", "q", &[Real, Dead]),
    ("record_read", "", &[Real]),
    (
        "record_write",
        "x",
        &[Real, Outliers, Exponents, Powers, Dead, Top, Subnormal],
    ),
    ("rmsnorm", "x", ROWS),
    ("rmsnorm_quantize", "x", &[Real, Outliers, Exponents, Dead, Subnormal]),
    ("rope", "x", &[Real, Top, Subnormal]),
    ("router", "logits", CHOICE),
    ("sample", "logits", CHOICE),
    ("scale_layout", "", &[]),
    ("sparse_attention", "q", &[Real, Dead]),
    ("state_transpose", "x", &[]),
    ("swap_ffn", "x", &[Real]),
    ("swiglu", "gate_up", &[Real, Outliers, Dead, Top, Subnormal]),
    (
        "swiglu_quantize",
        "gate_up",
        &[Real, Outliers, Exponents, Dead, Top, Subnormal],
    ),
    ("top_k", "scores", CHOICE),
    ("wgmma", "", &[]),
];

const IN_STEP: &str = "the decode step calls its kernels on the model's own numbers, and judges each";
const NO_LAYER: &str = "the model has no such layer";
const NO_SITE: &str = "no case has the model's numbers yet";
const NORMED: &str = "rows come from a norm or a projection, whose channels are of a size";
const F32: &str = "numbers are far from the subnormal ones, to which nothing in the operation leads";

/// What is missing, and why.
const MISSING: &[(&str, Telling, &str)] = &[
    ("compressor", Real, IN_STEP),
    ("compressor", Outliers, NORMED),
    (
        "compressor",
        Dead,
        "a window of zeros is pooled to zeros, whatever the weights",
    ),
    ("compressor", Subnormal, F32),
    ("delta_decode", Real, NO_LAYER),
    ("delta_handover", Real, NO_LAYER),
    (
        "delta_handover",
        Dead,
        "decays of zeros are those of no gate; delta_prefill has them",
    ),
    (
        "delta_handover",
        Decay,
        "delta_prefill and delta_decode, whose kernels these are, have it",
    ),
    ("delta_prefill", Real, NO_LAYER),
    ("experts", Real, IN_STEP),
    ("experts", Outliers, NORMED),
    ("fp4_gemm", Real, NO_SITE),
    ("fp4_gemm", Outliers, NORMED),
    ("fp8_gemm", Real, NO_SITE),
    ("hyper_head", Real, IN_STEP),
    (
        "hyper_head",
        Outliers,
        "edges have a large number in a row, but no channel of them",
    ),
    ("hyper_head", Subnormal, F32),
    ("index_records", Real, NO_SITE),
    ("index_scores", Real, IN_STEP),
    ("linear", Real, IN_STEP),
    ("mhc_post", Real, IN_STEP),
    ("mhc_post", Subnormal, F32),
    (
        "mhc_pre",
        Outliers,
        "the cases of the model's streams have them, and are not looked at here",
    ),
    ("mhc_pre", Subnormal, F32),
    ("moe_fp4", Real, NO_SITE),
    ("moe_fp4", Outliers, NORMED),
    ("record_attention", Real, NO_SITE),
    ("router", Real, IN_STEP),
    ("sample", Real, IN_STEP),
    ("sparse_attention", Real, IN_STEP),
    ("swap_ffn", Real, NO_LAYER),
    ("top_k", Real, IN_STEP),
];

/// The rows of an input, as f32.
struct Seen {
    values: Vec<f32>,
    cols: usize,
    dtype: Dtype,
    /// The format to which they are quantized, if they are.
    format: Option<Format>,
}

impl Seen {
    fn new(case: &Case, buffer: &Buffer) -> Self {
        let key = case.keys.iter().find(|(key, _)| *key == "format");
        Self {
            values: f32_values(&buffer.bytes, buffer.dtype),
            cols: buffer.shape.last().copied().unwrap_or(1).max(1),
            dtype: buffer.dtype,
            format: key.map(|(_, name)| format(name)),
        }
    }

    fn rows(&self) -> impl Iterator<Item = &[f32]> {
        self.values.chunks_exact(self.cols)
    }

    fn has(&self, telling: Telling) -> bool {
        match telling {
            Real => false,
            Outliers => self.outliers(),
            Exponents => self.rows().any(distinct_exponents),
            Ties => self.ties() > 0,
            Powers => {
                let bits: BTreeSet<u32> = self.values.iter().map(|x| x.to_bits()).collect();
                let step = if self.dtype == Dtype::BF16 { 1 << 16 } else { 1 };
                let power = |bits: &&u32| **bits & 0x7f_ffff == 0 && **bits & 0x7fff_ffff > 1 << 23;
                bits.iter()
                    .filter(power)
                    .any(|at| bits.contains(&(at + step)) && bits.contains(&(at - step)))
            }
            Dead => {
                self.rows().any(|row| {
                    let blocks = || row.chunks(32.min(self.cols));
                    blocks().any(|block| block.iter().all(|x| *x == 0.0))
                }) && self.values.iter().any(|x| *x != 0.0)
            }
            Top => self.values.iter().any(|x| x.is_finite() && (2.0 * x).is_infinite()),
            Subnormal => self.values.iter().any(|x| x.is_subnormal()),
            Equal => self.rows().any(|row| neighbours(row).any(|(a, b)| a == b && a != 0.0)),
            Near => self.rows().any(|row| {
                let apart = |(a, b): (f32, f32)| {
                    a != b
                        && (0..16)
                            .scan(a, |x, _| {
                                *x = x.next_up();
                                Some(*x)
                            })
                            .any(|x| x == b)
                };
                neighbours(row).any(apart)
            }),
            Decay => self
                .values
                .iter()
                .any(|x| *x <= 1e-12f32.ln() || (0.0..=1e-12).contains(x)),
        }
    }

    fn outliers(&self) -> bool {
        let rows = self.values.len() / self.cols;
        if rows < 4 || self.cols < 16 {
            return false;
        }
        let mut sizes: Vec<f64> = (0..self.cols)
            .map(|channel| {
                self.rows()
                    .map(|row| f64::from(row[channel]).powi(2))
                    .filter(|x| x.is_finite())
                    .sum::<f64>()
                    .sqrt()
            })
            .collect();
        sizes.sort_by(f64::total_cmp);
        sizes[self.cols - 1] >= 8.0 * sizes[self.cols / 2] && sizes[self.cols / 2] > 0.0
    }

    /// Numbers that lie where two codes meet: the next number has another code, and the one before has another still or the same.
    fn ties(&self) -> usize {
        let Some(format) = self.format.as_ref() else { return 0 };
        let Some(single) = Single::new(format, 1.0) else {
            return 0;
        };
        let width = if format.to_string().contains("b16") { 16 } else { 32 };
        let in_block = |block: &[f32]| {
            let amax = block.iter().fold(0f32, |top, x| top.max(x.abs()));
            let factor = single.factor(single.scale(amax), amax);
            let tie = |x: &&f32| {
                let x = x.abs();
                x.is_finite() && x > 0.0 && single.code(x.next_up(), factor) != single.code(x.next_down(), factor)
            };
            block.iter().filter(tie).count()
        };
        self.rows().flat_map(|row| row.chunks(width)).map(in_block).sum()
    }
}

/// Neighbours among the finite numbers of a row, in the order of size.
fn neighbours(row: &[f32]) -> impl Iterator<Item = (f32, f32)> {
    let mut sorted: Vec<f32> = row.iter().copied().filter(|x| x.is_finite()).collect();
    sorted.sort_by(f32::total_cmp);
    let pairs: Vec<(f32, f32)> = sorted.windows(2).map(|pair| (pair[0], pair[1])).collect();
    pairs.into_iter()
}

fn distinct_exponents(row: &[f32]) -> bool {
    let blocks = row.as_chunks::<32>().0.iter();
    let exponents: Vec<u32> = blocks
        .map(|block| block.iter().map(|x| x.to_bits() & 0x7fff_ffff).max().unwrap() >> 23)
        .collect();
    exponents
        .windows(4)
        .any(|four| four.iter().collect::<BTreeSet<_>>().len() == 4)
}

/// A few cases of an operation with each kind of inputs and each set of keys, the smallest first.
fn few(op: &str) -> Vec<(Case, Problem)> {
    let cases = smallest_first(ulplab::ops::find(op).unwrap());
    let (edges, others): (Vec<Case>, Vec<Case>) = cases.into_iter().partition(|case| case.inputs == Inputs::Edges);
    problems_of(op, edges.into_iter().take(8).chain(others.into_iter().take(8)))
}

#[test]
fn every_operation_has_data_that_tell_or_a_reason() {
    assert!(with_own_cases().map(|op| op.name()).eq(DATA.iter().map(|(op, ..)| *op)));
    let mut missing = BTreeSet::new();
    for (op, input, wanted) in DATA {
        let cases = ulplab::ops::find(op).unwrap().cases();
        let real = cases.iter().any(|case| case.inputs.need_model());
        let looked_at = wanted.iter().any(|telling| *telling != Real);
        let seen: Vec<Seen> = match looked_at {
            true => few(op)
                .iter()
                .filter_map(|(case, problem)| {
                    let of = |buffer: &&Buffer| buffer.name == *input && buffer.role != Role::Out;
                    problem.buffers.iter().find(of).map(|buffer| Seen::new(case, buffer))
                })
                .collect(),
            false => Vec::new(),
        };
        assert!(!looked_at || !seen.is_empty(), "{op}: no '{input}'");
        for telling in *wanted {
            let there = if *telling == Real {
                real
            } else {
                seen.iter().any(|seen| seen.has(*telling))
            };
            if !there {
                missing.insert(format!("{op}: {telling:?}"));
            }
        }
    }
    let known: BTreeSet<String> = MISSING.iter().map(|(op, what, _)| format!("{op}: {what:?}")).collect();
    let without: Vec<_> = missing.difference(&known).collect();
    assert!(
        without.is_empty(),
        "no case has these, and no reason is given: {without:#?}"
    );
    let needless: Vec<_> = known.difference(&missing).collect();
    assert!(needless.is_empty(), "cases have these: strike them off: {needless:#?}");
}

const COLS: usize = 1024;
const ROWS_DRAWN: usize = 64;

fn drawn() -> Vec<f32> {
    gaussian(&mut stream(7, "palette"), ROWS_DRAWN * COLS)
}

/// The numbers that `quantize` gets in one of its cases, and how many of them a row has.
fn ours(inputs: Inputs) -> (Vec<f32>, usize) {
    let found = problems("quantize").into_iter().find(|(case, _)| {
        case.inputs == inputs
            && case.dim("C") % COLS == 0
            && case.key("dtype") == "f32"
            && case.key("format") == "mxfp4"
    });
    let (case, problem) = found.expect("a case with such inputs");
    (values(&problem, "x"), case.dim("C"))
}

fn seen(x: &[f32], name: &str) -> Seen {
    Seen {
        values: x.to_vec(),
        cols: COLS,
        dtype: Dtype::F32,
        format: Some(format(name)),
    }
}

/// A cast that takes ties away from zero gives the same codes of Gaussian numbers, and others of ours.
#[test]
fn ties_show_in_our_data_only() {
    assert_eq!(
        seen(&drawn(), "mxfp4").ties(),
        0,
        "of {} Gaussian numbers",
        ROWS_DRAWN * COLS
    );
    let ties = seen(&ours(Inputs::Edges).0, "mxfp4").ties();
    assert!(ties > 1000, "{ties}");
}

/// Relative error of numbers that are read with the scales of the block below, in blocks of 32.
fn read_with_the_scales_below((x, cols): (&[f32], usize)) -> [f64; 2] {
    let format = format("mxfp8");
    let mut encoded = format.encode(x, cols, GlobalScale::Own);
    let mut right = vec![0.0; x.len()];
    format.decode(&encoded, &mut right);
    let scales = encoded
        .parts
        .iter_mut()
        .find(|part| part.name == "scale")
        .expect("scales");
    let before = scales.bytes.clone();
    scales.bytes.rotate_left(cols / 32);
    let same = before.iter().zip(&scales.bytes).filter(|(a, b)| a == b).count() as f64 / before.len() as f64;
    let mut wrong = vec![0.0; x.len()];
    format.decode(&encoded, &mut wrong);
    [same, relative(&wrong, &right)]
}

fn relative(got: &[f32], want: &[f32]) -> f64 {
    let squares = |x: &mut dyn Iterator<Item = f64>| x.map(|x| x * x).sum::<f64>();
    let pairs = || got.iter().zip(want).map(|(a, b)| (f64::from(*a), f64::from(*b)));
    (squares(&mut pairs().map(|(a, b)| a - b)) / squares(&mut pairs().map(|(_, b)| b))).sqrt()
}

/// Scales of Gaussian blocks are so alike that most blocks read with those of another are as they were.
#[test]
fn scales_of_other_blocks_show_in_our_data() {
    let [same, _] = read_with_the_scales_below((&drawn(), COLS));
    assert!(same > 0.5, "{same} of the blocks are as they were");
    let (x, cols) = ours(Inputs::Random);
    let [same, off] = read_with_the_scales_below((&x, cols));
    assert!(same < 0.4 && off > 0.5, "{same} of ours are as they were, {off} off");
}

/// Whether numbers are rotated before they are quantized makes no difference to Gaussian ones.
#[test]
fn a_missing_rotation_shows_in_our_data_only() {
    let codec = codec("mxfp4").unwrap();
    let error = |x: &[f32]| {
        let mut back = x.to_vec();
        codec.round(&mut back, COLS);
        relative(&back, x)
    };
    let better = |x: &[f32]| {
        let mut rotated = x.to_vec();
        hadamard(&mut rotated, COLS).unwrap();
        error(x) / error(&rotated)
    };
    let (gaussian, ours) = (better(&drawn()), better(&ours(Inputs::Random).0));
    assert!((gaussian - 1.0).abs() < 0.02, "{gaussian}");
    assert!(ours > 1.2, "{ours}");
}
