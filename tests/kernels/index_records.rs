use super::wgmma::rule;
use super::{accepts_only, bytes, integers, problems, values, violations};
use half::bf16;
use ulplab::formats::{E2M1, E4M3};
use ulplab::ops::data::f32_bytes;
use ulplab::ops::{Case, Problem, Scalar};

/// What can be got wrong.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Mistake {
    None,
    /// Sums of f32 in place of those of tensor cores.
    PlainSums,
    /// Products below 0 count.
    NoRelu,
    /// All heads in one sum.
    OneSum,
    /// Pages in the order of rows.
    NoTable,
    /// Entries that a row may not see score 0.
    Zeros,
    /// The high nibble of a byte comes first, or the scale of a key of FP8 is its neighbour's.
    OtherBytes,
}

/// The codes of a key as its tensor cores take them, and what its sums are multiplied by.
fn key(fp8: bool, page: &[u8], slot: usize, mistake: Mistake) -> (Vec<u16>, f32) {
    let other = usize::from(mistake == Mistake::OtherBytes);
    if fp8 {
        let scale = &page[64 * 128 + (slot ^ other) * 4..][..4];
        let codes = &page[slot * 128..][..128];
        return (
            codes.iter().map(|code| u16::from(*code)).collect(),
            f32::from_le_bytes(scale.try_into().unwrap()),
        );
    }
    let number = |channel: usize| {
        let code = page[slot * 64 + channel / 2] >> (4 * ((channel + other) % 2)) & 15;
        let scale = match page[64 * 64 + slot * 4 + channel / 32] {
            255 => f64::NAN,
            scale => 2f64.powi(i32::from(scale) - 127),
        };
        bf16::from_f32((f64::from(E2M1.decode(code.into())) * scale) as f32).to_bits()
    };
    ((0..128).map(number).collect(), 1.0)
}

fn outputs(case: &Case, problem: &Problem, mistake: Mistake) -> Vec<u8> {
    let [b, h, n] = ["B", "H", "N"].map(|dim| case.dim(dim));
    let fp8 = case.key("record") == "index_fp8";
    let (rule, terms) = match fp8 {
        true => (rule("e4m3"), 32),
        false => (rule("bf16"), 16),
    };
    let (weights, pages) = (values(problem, "head_weights"), bytes(problem, "pages"));
    let (table, counts) = (integers(problem, "table"), integers(problem, "count"));
    let q: Vec<u16> = match fp8 {
        true => bytes(problem, "q").iter().map(|code| u16::from(*code)).collect(),
        false => {
            let pairs = bytes(problem, "q").chunks_exact(2);
            pairs.map(|pair| u16::from_le_bytes([pair[0], pair[1]])).collect()
        }
    };
    let number = |code: u16| match fp8 {
        true => E4M3.decode(code),
        false => bf16::from_bits(code).to_f32(),
    };
    let Scalar::F32(scale) = problem.scalars[0].1 else {
        panic!("scale")
    };
    let (width, stride) = (n.div_ceil(64), if fp8 { 8448 } else { 4352 });
    let mut scores = Vec::new();
    for at in 0..b * n {
        let (row, entry) = (at / n, at % n);
        if entry >= counts[row] as usize {
            scores.push(match mistake {
                Mistake::Zeros => 0.0,
                _ => f32::NEG_INFINITY,
            });
            continue;
        }
        let page = row * width + entry / 64;
        let page = match mistake {
            Mistake::NoTable => page,
            _ => table[page] as usize,
        };
        let (key, key_scale) = key(fp8, &pages[page * stride..][..stride], entry % 64, mistake);
        let mut parts = [0f32; 4];
        for head in 0..h {
            let query = &q[(row * h + head) * 128..][..128];
            let product: f32 = match mistake {
                Mistake::PlainSums => query.iter().zip(&key).map(|(q, k)| number(*q) * number(*k)).sum(),
                _ => {
                    let steps = key.chunks(terms).zip(query.chunks(terms));
                    steps.fold(0.0, |c, (a, b)| rule.step(a, b, !fp8, c))
                }
            };
            let dead = product < 0.0 && mistake != Mistake::NoRelu;
            let part = if mistake == Mistake::OneSum { 0 } else { head % 8 / 2 };
            parts[part] = (weights[row * h + head] * scale).mul_add(if dead { 0.0 } else { product }, parts[part]);
        }
        scores.push((parts[0] + parts[1] + (parts[2] + parts[3])) * key_scale);
    }
    f32_bytes(&scores)
}

#[test]
fn index_records_want_the_sums_that_are_defined() {
    let all = problems("index_records");
    for (case, problem) in &all {
        let sizes = ["B", "H", "N"].map(|dim| case.dim(dim));
        if sizes.iter().product::<usize>() > 1 << 18 {
            continue;
        }
        accepts_only(case, problem, &[("scores", outputs(case, problem, Mistake::None))]);
    }
    for record in ["index_fp8", "index_mxfp4"] {
        let name = format!("{record}.b7.h64.99");
        let (case, problem) = all.iter().find(|(case, _)| case.name == name).unwrap();
        for mistake in [
            Mistake::PlainSums,
            Mistake::NoRelu,
            Mistake::OneSum,
            Mistake::NoTable,
            Mistake::Zeros,
            Mistake::OtherBytes,
        ] {
            let found = violations(problem, vec![("scores", outputs(case, problem, mistake))]);
            assert!(found >= 1.0, "{name}: {mistake:?}");
        }
    }
}
