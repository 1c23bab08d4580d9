//! One bad matrix among good ones is named, however small the part of it is that is wrong; and values that no fault explains are right.

use super::made::{COLS, Made, ROWS, clean, f32s, matrices, random};
use super::whole::told;

/// A change of the values that are quantized, of which the source knows nothing.
pub type Plant = fn(&mut Vec<f32>);

fn swap_columns(x: &mut [f32], rows: std::ops::Range<usize>, a: usize, b: usize, count: usize) {
    for row in rows {
        for col in 0..count {
            x.swap(row * COLS + a + col, row * COLS + b + col);
        }
    }
}

fn each(x: &mut [f32], rows: std::ops::Range<usize>, cols: std::ops::Range<usize>, change: impl Fn(f32) -> f32) {
    for row in rows {
        for x in &mut x[row * COLS..][cols.clone()] {
            *x = change(*x);
        }
    }
}

/// Adds noise until the SQNR is that of a number of dB, with what rounding to 17 dB adds.
fn noisy(x: &mut [f32], db: f64) {
    let noise = random(9_999, x.len());
    let energy = |x: &[f32]| x.iter().map(|x| f64::from(*x) * f64::from(*x)).sum::<f64>();
    let want = energy(x) * (10f64.powf(-db / 10.0) - 10f64.powf(-1.7));
    let factor = (want / energy(&noise)).sqrt() as f32;
    x.iter_mut().zip(noise).for_each(|(x, noise)| *x += factor * noise);
}

const PLANTS: &[(&str, Plant)] = &[
    ("rows upside down", |x| {
        *x = x.rchunks(COLS).flatten().copied().collect()
    }),
    ("two rows exchanged", |x| {
        (0..COLS).for_each(|col| x.swap(3 * COLS + col, 90 * COLS + col))
    }),
    ("two groups of a row exchanged", |x| {
        swap_columns(x, 77..78, 0, 128, 128)
    }),
    ("two groups of all rows exchanged", |x| {
        swap_columns(x, 0..ROWS, 64, 192, 64)
    }),
    ("a column negated", |x| each(x, 0..ROWS, 17..18, |x| -x)),
    ("a column of zeros", |x| each(x, 0..ROWS, 255..256, |_| 0.0)),
    ("a column doubled", |x| each(x, 0..ROWS, 100..101, |x| 2.0 * x)),
    ("a row half as large again", |x| each(x, 127..128, 0..COLS, |x| 1.5 * x)),
    ("a row of another matrix", |x| {
        x[40 * COLS..41 * COLS].copy_from_slice(&random(777, COLS))
    }),
    ("a shard of zeros", |x| each(x, 96..128, 0..COLS, |_| 0.0)),
    ("a shard of other values", |x| {
        x[96 * COLS..].copy_from_slice(&random(778, 32 * COLS))
    }),
    ("noise down to 8.3 dB", |x| noisy(x, 8.3)),
    ("noise down to 10.5 dB", |x| noisy(x, 10.5)),
    ("two neighbouring columns exchanged", |x| {
        swap_columns(x, 0..ROWS, 30, 31, 1)
    }),
    ("the order of inputs off by one in a group", |x| {
        x.chunks_exact_mut(COLS).for_each(|row| row[64..128].rotate_left(1));
    }),
    ("a row shifted by a column", |x| x[5 * COLS..6 * COLS].rotate_right(1)),
    ("a tile of zeros", |x| each(x, 16..32, 48..64, |_| 0.0)),
    ("the sign of a group of a row", |x| each(x, 64..65, 128..256, |x| -x)),
    ("the last row a copy of the one before", |x| {
        x.copy_within(126 * COLS..127 * COLS, 127 * COLS)
    }),
    ("the last inputs not copied", |x| each(x, 0..ROWS, 240..256, |_| 0.0)),
    ("values clipped to a quarter", |x| {
        each(x, 0..ROWS, 0..COLS, |x| x.clamp(-0.045, 0.045))
    }),
    ("rows rotated by one", |x| x.rotate_right(COLS)),
    ("two tiles exchanged", |x| swap_columns(x, 32..48, 16, 160, 16)),
    ("a row half as large", |x| each(x, 9..10, 0..COLS, |x| 0.5 * x)),
    ("the signs of a row", |x| each(x, 11..12, 0..COLS, |x| -x)),
    ("a constant added to a group of a row", |x| {
        each(x, 70..71, 128..256, |x| x + 0.05)
    }),
    ("signs alone in a shard", |x| {
        each(x, 32..64, 0..COLS, |x| 0.03 * x.signum())
    }),
    ("rows by turns in a head", |x| {
        let head: Vec<f32> = (0..64)
            .flat_map(|row| x[(row % 2 * 32 + row / 2) * COLS..][..COLS].to_vec())
            .collect();
        x[..64 * COLS].copy_from_slice(&head);
    }),
    ("halves of rows exchanged", |x| x.rotate_right(64 * COLS)),
    ("a column copied over the next", |x| {
        x.chunks_exact_mut(COLS).for_each(|row| row[201] = row[200])
    }),
    ("a shard a quarter larger", |x| each(x, 0..32, 0..COLS, |x| 1.25 * x)),
    ("a row a quarter larger", |x| each(x, 33..34, 0..COLS, |x| 1.25 * x)),
    ("a value lost", |x| {
        let at = (1000..2000).max_by(|a, b| x[*a].abs().total_cmp(&x[*b].abs())).unwrap();
        x[at] = 0.0;
    }),
    ("the sign of a value", |x| {
        let at = (9000..9999).max_by(|a, b| x[*a].abs().total_cmp(&x[*b].abs())).unwrap();
        x[at] = -x[at];
    }),
    ("noise down to 12 dB", |x| noisy(x, 12.0)),
    ("inputs of a group in reverse", |x| {
        x.chunks_exact_mut(COLS).for_each(|row| row[128..192].reverse())
    }),
    ("a quarter of a row of zeros", |x| each(x, 88..89, 0..64, |_| 0.0)),
    ("the first column in place of the last", |x| {
        x.chunks_exact_mut(COLS).for_each(|row| row[COLS - 1] = row[0])
    }),
    ("rows of one value", |x| each(x, 0..8, 0..COLS, |_| 0.01)),
    ("values rounded to a few", |x| {
        each(x, 1..ROWS, 0..COLS, |x| (x / 0.05).round() * 0.05)
    }),
    ("inputs rotated by a block", |x| {
        x.chunks_exact_mut(COLS).for_each(|row| row.rotate_right(16))
    }),
];

/// The number of plants.
pub const COUNT_OF_PLANTS: usize = PLANTS.len();

/// All plants.
pub fn plants() -> impl Iterator<Item = (&'static str, Plant)> {
    PLANTS.iter().copied()
}

/// The kinds that are tried: all but AWQ have the matrix itself as source.
const TRIED: &[&str] = &[
    "ModelOpt nvfp4",
    "compressed-tensors nvfp4",
    "compressed-tensors fp8",
    "compressed-tensors int4",
    "ModelOpt fp8",
    "DeepSeek v3",
    "gpt-oss",
    "GPTQ",
];

/// Two entries of a table at a time, each with its matrix: one of layer 0 and one of layer 1, so that most matrices are as they were.
fn pairs<T: Copy>(table: &[T], first: usize) -> impl Iterator<Item = Vec<(T, String)>> {
    let names = matrices();
    let of = move |(turn, entry): (usize, &T)| (*entry, names[(first + turn * names.len() / 2) % names.len()].clone());
    table
        .chunks(2)
        .map(move |pair| pair.iter().enumerate().map(&of).collect())
}

/// Puts a matrix of changed values in place of one, and leaves the source.
fn replace(made: &mut Made, name: &str, change: impl Fn(&mut Vec<f32>)) {
    let source = made.source[name].clone();
    let (mut x, _) = made.source_of(name);
    change(&mut x);
    made.source.get_mut(name).unwrap().2 = f32s(&x);
    let kind = made.kind;
    made.put_as(kind, name);
    made.source.insert(name.into(), source);
}

#[test]
fn a_bad_matrix_among_good_ones_is_named() {
    let mut missed = Vec::new();
    for (at, kind) in TRIED.iter().enumerate() {
        let clean = clean(kind);
        for planted in pairs(PLANTS, at) {
            let mut made = clean.clone();
            planted
                .iter()
                .for_each(|((_, change), name)| replace(&mut made, name, change));
            let report = made.judge(true);
            let others = report.findings.iter();
            let mut others = others.filter(|finding| planted.iter().all(|(_, name)| finding.matrix != *name));
            let wrong = others.next().is_some();
            for ((plant, _), name) in &planted {
                let named = report.findings.iter().filter(|finding| {
                    finding.matrix == *name && ["low_sqnr", "part_off", "transposed"].contains(&finding.check.name)
                });
                if named.count() != 1 || wrong {
                    let sqnr = report.judged(name).and_then(|judged| judged.sqnr);
                    missed.push((*plant, *kind, sqnr, told(&report)));
                }
            }
        }
    }
    assert!(missed.is_empty(), "{} missed: {missed:#?}", missed.len());
}

/// Heavy tails: values of a normal distribution, each divided by one of a few small sizes.
fn tailed(seed: u64, count: usize) -> Vec<f32> {
    let (values, sizes) = (random(seed, count), random(seed + 1, count));
    let value = |(x, size): (f32, f32)| x / (0.05 + (size / 0.03).abs());
    let tailed: Vec<f32> = values.into_iter().zip(sizes).map(value).collect();
    let amax = tailed.iter().fold(0f32, |amax, x| amax.max(x.abs()));
    tailed.into_iter().map(|x| x * 0.18 / amax).collect()
}

/// Values that are unusual and quantized as they are: nothing is wrong with any of them.
const TWINS: &[(&str, Plant)] = &[
    ("heavy tails", |x| *x = tailed(5, x.len())),
    ("a tenth of the size", |x| each(x, 0..ROWS, 0..COLS, |x| 0.1 * x)),
    ("one row large", |x| each(x, 1..ROWS, 0..COLS, |x| 0.02 * x)),
    ("rows of very different sizes", |x| {
        for row in 1..ROWS {
            each(x, row..row + 1, 0..COLS, |x| x * 0.5f32.powi(row as i32 % 20));
        }
    }),
    ("a column large", |x| each(x, 0..ROWS, 1..COLS, |x| 0.05 * x)),
    ("half of zeros", |x| {
        x.iter_mut().skip(1).step_by(2).for_each(|x| *x = 0.0)
    }),
    ("rows of zeros", |x| each(x, 50..60, 0..COLS, |_| 0.0)),
    ("columns of zeros", |x| each(x, 0..ROWS, 200..COLS, |_| 0.0)),
    ("all positive", |x| each(x, 0..ROWS, 0..COLS, f32::abs)),
    ("two values", |x| {
        each(x, 0..ROWS, 0..COLS, |x| if x > 0.0 { 0.18 } else { -0.09 })
    }),
    ("one value", |x| each(x, 0..ROWS, 0..COLS, |_| 0.18)),
    ("whole numbers of steps", |x| {
        each(x, 0..ROWS, 0..COLS, |x| (x * 100.0).round() / 100.0)
    }),
    ("an identity", |x| {
        x.iter_mut()
            .enumerate()
            .for_each(|(at, x)| *x = if at % (COLS + 1) == 0 { 0.18 } else { 0.0 })
    }),
    ("one value alone", |x| x.iter_mut().skip(1).for_each(|x| *x = 0.0)),
    ("tiny values in blocks", |x| each(x, 0..ROWS, 32..48, |x| 1e-5 * x)),
    ("a small value in tiny blocks", |x| {
        each(x, 0..ROWS, 32..48, |x| 1e-7 * x);
        each(x, 3..4, 40..41, |_| 2e-5);
    }),
    ("ascending values", |x| {
        let count = x.len() as f32;
        x.iter_mut()
            .enumerate()
            .for_each(|(at, x)| *x = 0.18 - 0.36 * (at as f32 / count));
    }),
    ("values of bf16", |x| {
        each(x, 0..ROWS, 0..COLS, |x| half::bf16::from_f32(x).to_f32())
    }),
    ("rows that are the same", |x| {
        (1..ROWS).for_each(|row| x.copy_within(0..COLS, row * COLS))
    }),
    ("a large group in each row", |x| each(x, 0..ROWS, 0..192, |x| 0.03 * x)),
    ("one row alone", |x| each(x, 1..ROWS, 0..COLS, |_| 0.0)),
    ("one column alone", |x| each(x, 0..ROWS, 1..COLS, |_| 0.0)),
    ("alternating signs", |x| {
        x.iter_mut()
            .enumerate()
            .for_each(|(at, x)| *x = if at % 2 == 0 { 0.05 } else { -0.05 })
    }),
    ("ties of codes", |x| {
        each(x, 0..ROWS, 0..COLS, |x| (x / 0.0128).floor() * 0.0128 + 0.0064)
    }),
    ("powers of two", |x| {
        each(x, 0..ROWS, 0..COLS, |x| {
            if x == 0.0 {
                0.0
            } else {
                2f32.powi(x.abs().log2().round() as i32) * x.signum()
            }
        })
    }),
    ("far from zero", |x| each(x, 0..ROWS, 0..COLS, |x| 0.12 + 0.2 * x)),
    ("subnormal values", |x| each(x, 0..ROWS, 64..128, |x| 1e-38 * x)),
    ("one value in each row", |x| {
        x.iter_mut()
            .enumerate()
            .for_each(|(at, x)| *x = if at % COLS == at / COLS { *x } else { 0.0 })
    }),
    ("values in half the range", |x| each(x, 0..ROWS, 0..COLS, |x| -x.abs())),
    ("a ramp of rows", |x| {
        for row in 0..ROWS {
            each(x, row..row + 1, 0..COLS, |x| x * (row + 1) as f32 / ROWS as f32);
        }
    }),
];

/// The kinds whose rules all have scales of their own groups, and AWQ.
#[test]
fn unusual_values_are_right() {
    let mut wrong = Vec::new();
    for (at, kind) in TRIED.iter().chain(["AWQ"].iter()).enumerate() {
        let clean = clean(kind);
        for twins in pairs(TWINS, at) {
            let mut made = clean.clone();
            for ((_, change), name) in &twins {
                let (mut x, _) = made.source_of(name);
                change(&mut x);
                // Fused matrices have one global scale, and so have the largest value.
                x[0] = 0.18;
                made.source.get_mut(name).unwrap().2 = f32s(&x);
                made.put_as(kind, name);
            }
            let report = made.judge(true);
            let against = [
                "low_sqnr",
                "part_off",
                "transposed",
                "code_order",
                "folded",
                "no_source",
            ];
            let found: Vec<String> = told(&report)
                .into_iter()
                .filter(|told| against.iter().any(|check| told.starts_with(check)))
                .collect();
            if !found.is_empty() {
                let twins: Vec<&str> = twins.iter().map(|((twin, _), _)| *twin).collect();
                wrong.push((twins, *kind, found));
            }
        }
    }
    assert!(wrong.is_empty(), "{} wrong: {wrong:#?}", wrong.len());
}
