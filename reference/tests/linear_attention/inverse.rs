//! Inverses of triangular matrices.

use reference::ops::linear_attention::{Exact, Inversion, inverse};

#[test]
fn times_the_matrix_is_one() {
    for size in [1, 2, 15, 16, 17, 32, 40, 64] {
        // NaN on and above the diagonal: not read.
        let entry = |i: usize, j: usize| match j < i {
            true => ((i * 7 + j * 13) as f64).sin() * 0.4,
            false => f64::NAN,
        };
        let a: Vec<f64> = (0..size * size).map(|at| entry(at / size, at % size)).collect();
        for inversion in [Inversion::Substitution, Inversion::Neumann] {
            let x = inverse(&a, size, inversion, &Exact);
            let largest = x.iter().fold(1.0, |top: f64, x| top.max(x.abs()));
            for i in 0..size {
                for j in 0..size {
                    let sum = x[i * size + j] + (0..i).map(|m| a[i * size + m] * x[m * size + j]).sum::<f64>();
                    let one = f64::from(u8::from(i == j));
                    assert!(
                        (sum - one).abs() <= 64.0 * f64::EPSILON * largest * size as f64,
                        "{size} {i} {j}"
                    );
                    assert!(j <= i || x[i * size + j] == 0.0);
                }
            }
        }
    }
}
