//! Transposes recurrent states [B, H, K, V] to [B, H, V, K].

use rayon::prelude::*;
use safetensors::Dtype;

use super::grid::{Grid, element_bytes};
use super::judge::Judge;
use super::{Batch, Buffer, Case, Data, Op, Parameters, Problem};

pub struct StateTranspose;

/// Rows and columns of whole chunks of 16 bytes, which some kernels need: their addresses are large where these are repeated.
const CHUNKS: [i64; 4] = [3, 1, 40, 72];

impl Op for StateTranspose {
    fn name(&self) -> &'static str {
        "state_transpose"
    }

    fn doc(&self) -> &'static str {
        "states [B, H, K, V] as [B, H, V, K]"
    }

    fn cases(&self) -> Vec<Case> {
        ["f32", "bf16"].into_iter().flat_map(cases).collect()
    }

    fn parameters(&self) -> Option<Parameters> {
        let parameters = Parameters::new(&self.cases(), &["B", "H", "K", "V"], &["dtype"]);
        Some(parameters.tensor("x", &["B", "H", "K", "V"]))
    }

    fn also_large(&self, case: &Case) -> bool {
        CHUNKS == ["B", "H", "K", "V"].map(|dim| case.dim(dim) as i64)
    }

    fn problem(&self, case: &Case, data: &Data) -> Result<Problem, String> {
        let [b, h, k, v] = ["B", "H", "K", "V"].map(|dim| case.dim(dim));
        let dtype = if case.key("dtype") == "f32" {
            Dtype::F32
        } else {
            Dtype::BF16
        };
        let size = case.dim("size");
        // The kernel only moves data, so the inputs are random bits, NaN and subnormals included.
        let x = match data.given(case, "x", dtype, &[b, h, k, v])? {
            Some(x) => x,
            None => data.bytes("state_transpose/x", b * h * k * v * size),
        };
        let want = transposed(&x, k, v, size);
        let shape = [b, h, v, k];
        Ok(Problem {
            bytes: 2 * x.len() as u64,
            buffers: vec![
                Buffer::input("x", dtype, &[b, h, k, v], x),
                Buffer::output("y", dtype, &shape),
            ],
            scalars: vec![],
            flops: 0,
            batch: Some(Batch::new("B", &["x", "y"])),
            runs: 1,
            large: false,
            judges: vec![Judge::equal(
                "y",
                dtype,
                &shape,
                want,
                "numbers are moved and nothing is computed",
            )],
        })
    }
}

fn cases(dtype: &'static str) -> Vec<Case> {
    let size = element_bytes(dtype);
    let dims = |[b, h, k, v]: [i64; 4]| vec![("B", b), ("H", h), ("K", k), ("V", v), ("size", size)];
    Grid::new(dtype, &[("dtype", dtype)], dims)
        .timed("b1", [1, 64, 128, 128])
        .timed("b8", [8, 64, 128, 128])
        .timed("b256", [256, 64, 128, 128])
        .random("wide", [2, 3, 64, 192])
        .random("tall", [2, 3, 136, 8])
        .random("odd", [3, 5, 37, 129])
        .random("column", [2, 2, 131, 1])
        .random("chunks", CHUNKS)
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
