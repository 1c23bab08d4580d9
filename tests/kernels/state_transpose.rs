use super::{accepts_only, problems};

#[test]
fn state_transpose_wants_keys_and_values_exchanged() {
    for (case, problem) in &problems("state_transpose") {
        let [k, v, size] = ["K", "V", "size"].map(|dim| case.dim(dim));
        let x = &problem.buffers[0].bytes;
        let mut y = vec![0; x.len()];
        for (at, element) in x.chunks(size).enumerate() {
            let (matrix, row, col) = (at / (k * v), at / v % k, at % v);
            y[((matrix * v + col) * k + row) * size..][..size].copy_from_slice(element);
        }
        accepts_only(case, problem, &[("y", y)]);
    }
}
