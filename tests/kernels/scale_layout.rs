use ulplab::ops::{Case, Problem};

use super::{accepts_only, problems, violations};

/// The formula of a tile, group by group, into a buffer of which the rest is zeros; and the number of bytes before those.
pub fn tiled(case: &Case, problem: &Problem) -> (Vec<u8>, usize) {
    let [h, w] = ["H", "W"].map(|dim| case.dim(dim));
    let (x, ends) = (&problem.buffers[0].bytes, &problem.buffers[1].bytes);
    let ends: Vec<usize> = ends
        .chunks(4)
        .map(|end| i32::from_le_bytes(end.try_into().unwrap()) as usize)
        .collect();
    let mut y = vec![0; problem.buffers[2].size()];
    assert_eq!(y.len(), case.dim("bytes"));
    let (mut at, mut begin) = (0, 0);
    for &end in &ends {
        let (rows, cols) = match case.key("groups") {
            "plain" => (0..h, 0..w),
            "m" => (begin..end, 0..w),
            _ => (0..h, begin..end),
        };
        let across = cols.len().div_ceil(4);
        for (r, row) in rows.clone().enumerate() {
            for (c, col) in cols.clone().enumerate() {
                let tile = r / 128 * across + c / 4;
                y[at + tile * 512 + r % 32 * 16 + r / 32 % 4 * 4 + c % 4] = x[row * w + col];
            }
        }
        at += rows.len().div_ceil(128) * across * 512;
        begin = end;
    }
    (y, at)
}

#[test]
fn scale_layout_wants_tiles_of_every_group() {
    for (case, problem) in &problems("scale_layout") {
        let (mut y, at) = tiled(case, problem);
        accepts_only(case, problem, &[("y", y.clone())]);
        if at < y.len() {
            y[at] = 1;
            assert!(
                violations(problem, vec![("y", y)]) > 0.0,
                "{}: what comes after the last group",
                case.name
            );
        }
    }
}
