//! Exact top-K: the K best entries of each row, in ascending order of their indices.
//!
//! The K largest of the first `count` scores are chosen, and ties go to the smaller index, as [`top_k`] defines: −0 equals 0, and
//! NaN of either sign is larger than any number. So the chosen set is unique. Its indices are written in ascending order, because
//! attention reads memory in this order. If `count` is less than K, the rest of the output is −1.

use rayon::prelude::*;
use reference::ops::top_k::top_k;
use safetensors::Dtype;

use super::data::{i32_bytes, round_to_bf16};
use super::{Batch, Buffer, Case, Data, Grid, Inputs, Judge, KernelOp, Problem};

pub(super) const TOP_K: KernelOp = KernelOp {
    name: "top_k",
    doc: "indices of the K largest of the first count scores of each row, ascending; of equal ones the first",
    cases,
    problem,
    ..KernelOp::NONE
};

fn cases() -> Vec<Case> {
    Grid::of("", &[], ["B", "N", "K"])
        .named(|[rows, entries, best]| format!("b{rows}.{entries}.k{best}"))
        .each("", &[[1, 1000, 32], [2, 20, 32]], Grid::random)
        .each("", &[[7, 4097, 512]], Grid::large)
        .each("", &[[8, 33_000, 512], [9, 1057, 1024]], Grid::random)
        .each("", &[[2, 100_003, 1024], [3, 16_384, 512]], Grid::random)
        .each("", &[[1, 262_144, 1024], [70_000, 41, 32]], Grid::random)
        .each("", &[[3, 50_001, 2048]], Grid::random)
        .each("edges", &[[120, 3001, 32], [120, 3003, 512]], Grid::edges)
        .each("edges", &[[121, 4100, 1024], [16, 40_002, 2048]], Grid::edges)
        .each("edges", &[[15, 262_144, 512], [65, 1, 32]], Grid::edges)
        // Kernels split a row into one part per CTA, and keep only the maximum of each group of scores. In these shapes, the last
        // part of row 43 ends with an incomplete vector of three scores, and has more scores than group maxima.
        .each("edges", &[[44, 4203, 32], [44, 33_791, 32]], Grid::edges)
        .each("edges", &[[46, 8191, 512], [45, 12_003, 2048]], Grid::edges)
        .each("", &[1, 64].map(|rows| [rows, 8192, 512]), Grid::timed)
        .each("", &[1, 8, 64].map(|rows| [rows, 262_144, 512]), Grid::timed)
        .done()
}

fn problem(case: &Case, data: &Data) -> Result<Problem, String> {
    let [rows, entries, best] = case.sizes(["B", "N", "K"]);
    let mut scores = data.normal("top_k/scores", rows * entries);
    let edges = case.inputs == Inputs::Edges;
    let count = |row: usize| match edges {
        true => count(row / KINDS, entries, best),
        // Rows have different lengths; the first has all entries.
        false if !case.timed => entries - row * 7 % (entries / 2 + 1),
        false => entries,
    };
    let counts: Vec<usize> = (0..rows).map(count).collect();
    let each = scores.par_chunks_mut(entries).zip(&counts).enumerate();
    each.for_each(|(row, (scores, &count))| {
        if edges {
            edge(row % KINDS, &mut scores[..count], best);
        }
        // Fill with NaN the scores that kernels must not read: a kernel that reads them chooses them.
        scores[count..].fill(f32::NAN);
    });

    let mut want = vec![0; rows * best];
    let each = want.par_chunks_mut(best).zip(scores.par_chunks(entries)).zip(&counts);
    each.for_each(|((want, scores), &count)| {
        top_k(scores, count, best, want);
        want[..count.min(best)].sort_unstable();
    });
    let judge = Judge::equal("indices", Dtype::I32, &[rows, best], i32_bytes(&want), WHY);
    let buffers = vec![
        Buffer::f32("scores", &[rows, entries], &scores),
        Buffer::integers("count", 4, counts.iter().map(|count| *count as i64)),
    ];
    // Traffic excludes the scores of rows with at most K scores: a kernel need not read them, because it chooses all of them.
    let read: usize = counts.iter().filter(|count| **count > best).sum();
    Ok(Problem {
        bytes: 4 * (read + rows + rows * best) as u64,
        batch: Some(Batch::new("B", &["scores", "count", "indices"])),
        ..Problem::new(buffers, vec![judge])
    })
}

const WHY: &str = "scores are compared, not computed, ties fall to the smaller index, and the chosen are written in the order \
                   of their indices, so every bit is defined";

/// Number of kinds of edge rows.
const KINDS: usize = 15;

/// Number of valid scores of a row: all, K + 1, all but one, K, none, about half, K − 1, or one.
fn count(number: usize, entries: usize, best: usize) -> usize {
    let counts = [
        entries,
        best + 1,
        entries - 1,
        best,
        0,
        entries / 2 + 1,
        best.saturating_sub(1),
        1,
    ];
    counts[number % counts.len()].min(entries)
}

/// Replaces random scores by edge scores of one kind: faulty kernels often choose wrong entries among them.
fn edge(kind: usize, scores: &mut [f32], best: usize) {
    // Permute the indices, so that equal scores are not adjacent.
    let count = scores.len();
    let place = move |at: usize| at * 7919 % count;
    let set = |scores: &mut [f32], range: std::ops::Range<usize>, value: &dyn Fn(usize) -> f32| {
        let range = range.start.min(count)..range.end.min(count);
        range.for_each(|at| scores[place(at)] = value(at));
    };
    match kind {
        0 => {}
        1 => scores.fill(0.25),
        // 1,100 scores equal the K-th largest; all others are larger or smaller.
        2 => {
            let above = best - 7;
            set(scores, 0..above, &|at| 2.0 + at as f32);
            set(scores, above..above + 1100, &|_| 1.0);
            set(scores, above + 1100..count, &|at| -(at as f32));
        }
        // Fewer than K scores are finite, so some −∞ must be chosen. f32::MIN must still be chosen before any −∞.
        3 => {
            scores.fill(f32::NEG_INFINITY);
            set(scores, 0..best / 2, &|at| {
                if at % 4 == 0 { f32::MIN } else { at as f32 }
            });
        }
        // NaN scores of both signs and with several payloads: fewer than K in kind 4, more than K in kind 5. Kind 4 also has
        // infinities.
        4 => {
            set(scores, 0..best - 3, &nan);
            set(scores, best - 3..best, &|_| f32::INFINITY);
        }
        5 => set(scores, 0..2 * best, &nan),
        6 => round_to_bf16(scores),
        // The K-th largest score is a zero. There are many zeros, of both signs.
        7 => {
            set(scores, 0..best / 2, &|at| 1.0 + at as f32);
            set(scores, best / 2..3 * best, &|at| if at % 3 == 0 { 0.0 } else { -0.0 });
            set(scores, 3 * best..count, &|_| -f32::from_bits(1));
        }
        // The scores differ only in their last bits. They are negative if the number of scores is even.
        8 => {
            let sign = if count.is_multiple_of(2) { -1.0 } else { 1.0 };
            set(scores, 0..count, &|at| {
                sign * f32::from_bits(1f32.to_bits() + (at % 3000) as u32)
            });
        }
        // The largest scores are adjacent: at the end (kind 9), at the beginning (kind 10), or in the middle (kind 11).
        9 => (0..count).for_each(|at| scores[at] = at as f32),
        10 => (0..count).for_each(|at| scores[at] = -(at as f32)),
        11 => {
            let middle = count / 2..(count / 2 + 2 * best).min(count);
            scores[middle].iter_mut().for_each(|score| *score += 100.0);
        }
        // Round the scores to few different values, so that thousands tie, and set one score far above all others.
        12 => {
            scores.iter_mut().for_each(|score| *score = score.round());
            set(scores, 0..1, &|_| f32::MAX);
        }
        // K isolated scores near the end are the largest. They are so low that a kernel that reads beyond the first `count`
        // scores finds larger numbers.
        13 => {
            scores.fill(-1e30);
            let apart = ((count / 16).saturating_sub(64) / best).max(1);
            (0..best.min(count)).for_each(|at| scores[count - 1 - at * apart] = -1e20 - at as f32 * 1e16);
        }
        // The scores are ascending subnormal numbers, so the last K are the largest.
        _ => (0..count).for_each(|at| scores[at] = f32::from_bits(at as u32)),
    }
}

/// NaNs of both signs, quiet and signalling.
fn nan(at: usize) -> f32 {
    let bits = [0x7fc0_0000, 0xffc0_0000, 0x7f80_0001, 0xffff_ffff, 0xff80_0001];
    f32::from_bits(bits[at % bits.len()])
}
