//! The order of sums in products of matrices.

use reference::Real;
use reference::ops::linear::{FEW, PIECE, Product, SMALL, dot};

/// A number with all digits, of either sign.
fn number<T: Real>(i: usize) -> T {
    let hash = (i as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    T::from_f64((hash >> 11) as f64 / (1u64 << 52) as f64 - 1.0)
}

/// The order of sums that [`Product`] promises, one element at a time.
fn plain<T: Real>(product: &Product<'_, T>, y: &mut [T], fused: fn(T, T, T) -> T) {
    let Product { m, n, k, .. } = *product;
    let x = |row: usize, i: usize| product.x[row * product.x_stride + i];
    let w = |i: usize, column: usize| product.w[column * product.w_strides.0 + i * product.w_strides.1];
    for (row, column) in (0..m).flat_map(|row| (0..n).map(move |column| (row, column))) {
        let y = &mut y[row * product.y_stride + column];
        let before = if product.add { *y } else { T::ZERO };
        *y = if m.min(n).min(k) > FEW && m * n > SMALL {
            let piece = k.div_ceil(k.div_ceil(PIECE));
            (0..k).step_by(piece).fold(before, |sum, start| {
                let part = start..(start + piece).min(k);
                sum + part.fold(T::ZERO, |sum, i| fused(x(row, i), w(i, column), sum))
            })
        } else if product.w_strides.1 == 1 {
            let column: Vec<T> = (0..k).map(|i| w(i, column)).collect();
            before + dot(&product.x[row * product.x_stride..][..k], &column)
        } else {
            (0..k).fold(before, |sum, i| sum + x(row, i) * w(i, column))
        };
    }
}

fn check<T: Real + PartialEq>(fused: fn(T, T, T) -> T) {
    let long = [1, 2, 3, 31, 511, 512, 513, 700, 1023, 1024, 1025, 1537, 2048, 4097];
    // Every length of a piece, and sums of several.
    let lengths = (1..=PIECE).map(|k| (3, 86, k));
    let sizes = [
        (1, 700),
        (2, 300),
        (300, 1),
        (257, 2),
        (16, 16),
        (3, 85),
        (17, 16),
        (65, 70),
        (70, 129),
        (130, 64),
    ];
    let shapes = lengths.chain(sizes.into_iter().flat_map(|(m, n)| long.map(|k| (m, n, k))));
    for (m, n, k) in shapes {
        for (transposed, add) in [(false, false), (true, false), (false, true), (true, true)] {
            let x: Vec<T> = (0..m * (k + 3)).map(number).collect();
            let w: Vec<T> = (0..n * k).map(|i| number(i + 7)).collect();
            let product = Product {
                m,
                n,
                k,
                x: &x,
                x_stride: k + 3,
                w: &w,
                w_strides: if transposed { (1, n) } else { (k, 1) },
                y_stride: n,
                add,
            };
            let mut got: Vec<T> = (0..m * n).map(|i| number(i + 3)).collect();
            let mut want = got.clone();
            product.run(&mut got);
            plain(&product, &mut want, fused);
            assert!(
                got == want,
                "[{m}, {k}] x [{k}, {n}], w transposed: {transposed}, added: {add}"
            );
        }
    }
}

#[test]
fn sums_have_one_order_on_every_machine() {
    check::<f32>(f32::mul_add);
    check::<f64>(f64::mul_add);
}
