//! The sums of tensor cores, written again from the description with 128-bit integers.

use rayon::prelude::*;
use ulplab::ops::data::f32_bytes;
use ulplab::ops::{Case, Problem};

use super::{accepts_only, buffer, problems, values, violations};

/// How a step is summed; some are wrong.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    terms: usize,
    aligned: i32,
    kept: i32,
    /// C is added to the sum of the products in f32.
    c_afterwards: bool,
    /// The sum is rounded to nearest.
    nearest: bool,
    /// Terms are cut towards minus infinity.
    floor: bool,
    /// The exponent of a product is that of its value.
    normalized: bool,
    /// Zeros count with the exponent of their factors.
    zeros_count: bool,
}

pub fn rule(operand: &str) -> Rule {
    let (terms, aligned, kept) = match operand {
        "e4m3" => (32, 13, 13),
        _ => (16, 25, 23),
    };
    Rule {
        terms,
        aligned,
        kept,
        c_afterwards: false,
        nearest: false,
        floor: false,
        normalized: false,
        zeros_count: false,
    }
}

/// `significand · 2^exponent`.
#[derive(Clone, Copy)]
struct Term {
    significand: i128,
    exponent: i32,
    /// The exponent that terms are aligned by.
    align: i32,
}

impl Rule {
    pub fn step(&self, a: &[u16], b: &[u16], bf16: bool, c: f32) -> f32 {
        let number = |code: u16| match bf16 {
            true => half::bf16::from_bits(code).to_f64(),
            false => ulplab::formats::E4M3.decode(code).into(),
        };
        let products: Vec<f64> = a.iter().zip(b).map(|(a, b)| number(*a) * number(*b)).collect();
        let exact: f64 = f64::from(c) + products.iter().sum::<f64>();
        if !exact.is_finite() {
            return if exact.is_nan() {
                f32::from_bits(0x7fff_ffff)
            } else {
                exact as f32
            };
        }
        // Exponents of subnormal factors are the least.
        let (least, fraction) = if bf16 { (-126, 7) } else { (-6, 3) };
        let exponent = |x: f64| {
            if x == 0.0 {
                least
            } else {
                (x.abs().log2().floor() as i32).max(least)
            }
        };
        let term = |a: f64, b: f64| {
            let exponent = exponent(a) + exponent(b);
            let significand = (a * b / 2f64.powi(exponent - 2 * fraction)) as i128;
            let top = significand.unsigned_abs().checked_ilog2().unwrap_or(0) as i32;
            Term {
                significand,
                exponent: exponent - 2 * fraction,
                align: match self.normalized {
                    true => exponent - 2 * fraction + top,
                    false => exponent,
                },
            }
        };
        let mut terms: Vec<Term> = a.iter().zip(b).map(|(a, b)| term(number(*a), number(*b))).collect();
        if !self.c_afterwards {
            let exponent = if c == 0.0 {
                -126
            } else {
                (f64::from(c).abs().log2().floor() as i32).max(-126)
            };
            terms.push(Term {
                significand: (f64::from(c) / 2f64.powi(exponent - 23)) as i128,
                exponent: exponent - 23,
                align: exponent,
            });
        }
        let products = a.len();
        let counts = |(at, term): &(usize, &Term)| term.significand != 0 || self.zeros_count && *at < products;
        let Some(top) = terms
            .iter()
            .enumerate()
            .filter(counts)
            .map(|(_, term)| term.align)
            .max()
        else {
            return if self.c_afterwards { c + 0.0 } else { 0.0 };
        };
        let sum = terms
            .iter()
            .map(|term| self.cut(term.significand, term.exponent - (top - self.aligned)))
            .sum();
        let sum = self.rounded(sum, top - self.aligned);
        if self.c_afterwards { sum + c } else { sum }
    }

    /// A term in units of the alignment.
    fn cut(&self, x: i128, shift: i32) -> i128 {
        match shift {
            // A zero has no exponent, and may be far above the others.
            _ if x == 0 => 0,
            0.. => x << shift,
            _ if self.floor => x >> (-shift).min(120),
            _ => x.signum() * ((x.abs()) >> (-shift).min(120)),
        }
    }

    fn rounded(&self, sum: i128, unit: i32) -> f32 {
        if sum == 0 {
            return 0.0;
        }
        let exponent = sum.abs().ilog2() as i32 + unit;
        let last = (exponent - self.kept).max(-149);
        let shift = (last - unit).min(120);
        let mut kept = if shift >= 0 {
            sum.abs() >> shift
        } else {
            sum.abs() << -shift
        };
        if self.nearest && shift > 0 {
            let rest = sum.abs() - (kept << shift);
            let half = 1 << (shift - 1);
            kept += i128::from(rest > half || rest == half && kept % 2 == 1);
        }
        let value = (kept as f64 * 2f64.powi(last)) as f32;
        if sum < 0 && value != 0.0 { -value } else { value }
    }
}

fn outputs(rule: &Rule, case: &Case, problem: &Problem) -> Vec<u8> {
    let [width, terms] = ["N", "K"].map(|dim| case.dim(dim));
    let bf16 = case.key("operand") == "bf16";
    let codes = |name: &str| -> Vec<u16> {
        let buffer = buffer(problem, name);
        match bf16 {
            true => buffer
                .bytes
                .as_chunks()
                .0
                .iter()
                .map(|bytes| u16::from_le_bytes(*bytes))
                .collect(),
            false => buffer.bytes.iter().map(|code| u16::from(*code)).collect(),
        }
    };
    let (a, b) = (codes("a"), codes("b"));
    let mut d = values(problem, "c");
    d.par_chunks_mut(width).enumerate().for_each(|(row, d)| {
        let a = &a[row * terms..][..terms];
        for (col, d) in d.iter_mut().enumerate() {
            let b = &b[(row / 64 * width + col) * terms..][..terms];
            let steps = a.chunks(rule.terms).zip(b.chunks(rule.terms));
            *d = steps.fold(*d, |c, (a, b)| rule.step(a, b, bf16, c));
        }
    });
    f32_bytes(&d)
}

#[test]
fn wgmma_wants_sums_as_tensor_cores_make_them() {
    // One width has all kinds of vectors; what the widths share is not tried again.
    let all = problems("wgmma");
    for (case, problem) in all
        .iter()
        .filter(|(case, _)| case.dim("N") == 8 && case.name.ends_with("chain"))
    {
        let right = rule(case.key("operand"));
        accepts_only(case, problem, &[("d", outputs(&right, case, problem))]);
        let wrong = [
            Rule {
                aligned: right.aligned + 1,
                ..right
            },
            Rule {
                aligned: right.aligned - 1,
                ..right
            },
            Rule {
                kept: right.kept - 1,
                ..right
            },
            Rule {
                terms: right.terms / 2,
                ..right
            },
            Rule {
                c_afterwards: true,
                ..right
            },
            Rule { nearest: true, ..right },
            Rule { floor: true, ..right },
            Rule {
                normalized: true,
                ..right
            },
            Rule {
                zeros_count: true,
                ..right
            },
        ];
        for wrong in wrong {
            // The least exponent of products of bfloat16 is below that of every C.
            if wrong.zeros_count && case.key("operand") == "bf16" {
                continue;
            }
            let found = violations(problem, vec![("d", outputs(&wrong, case, problem))]);
            assert!(found >= 1.0, "{}: {wrong:?}", case.name);
        }
    }
}
