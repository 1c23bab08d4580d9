//! The Hadamard rotation that spreads outliers over a row before rounding.

/// Replaces each row `x` of `cols` channels by `x · H · cols^-1/2`, `H` in Sylvester's natural order
/// (`H_2n = [[H_n, H_n], [H_n, −H_n]]`): symmetric, and its own inverse.
///
/// In f32 by butterflies, the factor last, as in the fast_hadamard_transform package. Does not depend on the machine.
pub fn hadamard(x: &mut [f32], cols: usize) -> Result<(), String> {
    if !cols.is_power_of_two() {
        return Err(format!(
            "a Hadamard rotation needs a power of two of channels, not {cols}"
        ));
    }
    if !x.len().is_multiple_of(cols) {
        return Err(format!("{} elements are not whole rows of {cols}", x.len()));
    }
    pulp::Arch::new().dispatch(Butterflies { x, cols });
    Ok(())
}

struct Butterflies<'a> {
    x: &'a mut [f32],
    cols: usize,
}

impl pulp::WithSimd for Butterflies<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: pulp::Simd>(self, _: S) {
        let mut half = 1;
        while half < self.cols {
            for pair in self.x.chunks_exact_mut(2 * half) {
                let (upper, lower) = pair.split_at_mut(half);
                for (a, b) in upper.iter_mut().zip(lower) {
                    (*a, *b) = (*a + *b, *a - *b);
                }
            }
            half *= 2;
        }
        let factor = 1.0 / (self.cols as f32).sqrt();
        self.x.iter_mut().for_each(|x| *x *= factor);
    }
}
