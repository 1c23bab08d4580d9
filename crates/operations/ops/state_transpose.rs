//! Transposes recurrent states from [B, H, K, V] to [B, H, V, K].

use rayon::prelude::*;

use super::grid::{Grid, element_bytes};
use super::{Batch, Buffer, Case, Data, Judge, KernelOp, Parameters, Problem};

pub(super) const STATE_TRANSPOSE: KernelOp = KernelOp {
    name: "state_transpose",
    doc: "states [B, H, K, V] as [B, H, V, K]",
    cases,
    parameters: Some(|| {
        let dims = ["B", "H", "K", "V"];
        Parameters::new(&cases(), &dims, &["dtype"]).tensor("x", &dims)
    }),
    problem,
    ..KernelOp::NONE
};

fn cases() -> Vec<Case> {
    ["f32", "bf16"].into_iter().flat_map(of_type).collect()
}

fn problem(case: &Case, data: &Data) -> Result<Problem, String> {
    let [b, h, k, v, size] = case.sizes(["B", "H", "K", "V", "size"]);
    let dtype = case.float_type("dtype");
    // The kernel only moves data, so the inputs are random bits, including NaN and subnormals.
    let x = match data.given(case, "x", dtype, &[b, h, k, v])? {
        Some(x) => x,
        None => data.bytes("state_transpose/x", b * h * k * v * size),
    };
    let (want, why) = (transposed(&x, k, v, size), "numbers are moved and nothing is computed");
    let judge = Judge::equal("y", dtype, &[b, h, v, k], want, why);
    Ok(Problem {
        batch: Some(Batch::new("B", &["x", "y"])),
        ..Problem::new(vec![Buffer::input("x", dtype, &[b, h, k, v], x)], vec![judge])
    })
}

fn of_type(dtype: &'static str) -> Vec<Case> {
    Grid::of(dtype, &[("dtype", dtype)], ["B", "H", "K", "V"])
        .also("size", element_bytes(dtype))
        .timed("b1", [1, 64, 128, 128])
        .timed("b8", [8, 64, 128, 128])
        .timed("b256", [256, 64, 128, 128])
        .random("wide", [2, 3, 64, 192])
        .random("tall", [2, 3, 136, 8])
        .large("odd", [3, 5, 37, 129])
        .random("column", [2, 2, 131, 1])
        // Rows and columns of this shape are whole chunks of 16 bytes, as kernels with vector loads require.
        .large("chunks", [3, 1, 40, 72])
        .done()
}

/// Transposes each matrix of `rows` × `cols` elements of `size` bytes.
fn transposed(x: &[u8], rows: usize, cols: usize, size: usize) -> Vec<u8> {
    let matrix = rows * cols * size;
    let mut y = vec![0; x.len()];
    y.par_chunks_mut(matrix).zip(x.par_chunks(matrix)).for_each(|(y, x)| {
        for (at, to) in y.chunks_exact_mut(size).enumerate() {
            let (col, row) = (at / rows, at % rows);
            to.copy_from_slice(&x[(row * cols + col) * size..][..size]);
        }
    });
    y
}
