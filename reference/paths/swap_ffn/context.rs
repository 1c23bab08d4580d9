//! Hooks of the path's parts at their sites.

use crate::{Choice, Numerics, Real, Site, Tensor};

/// Position of a call, and the hooks at its sites.
pub(super) struct Context<'a, T: Real> {
    numerics: &'a mut dyn Numerics<T>,
    event: Option<usize>,
    token: usize,
}

impl<'a, T: Real> Context<'a, T> {
    pub fn new(numerics: &'a mut dyn Numerics<T>, event: Option<usize>, token: usize) -> Self {
        Self { numerics, event, token }
    }

    fn at(&self, name: &'static str) -> Site {
        Site::new(self.event, name).from_row(self.token)
    }

    pub fn rmsnorm(&self, x: &mut Tensor<T>, weight: &[T], eps: T) {
        self.numerics.operations().rmsnorm(x, Some(weight), eps);
    }

    pub fn pass(&mut self, name: &'static str, tensor: &mut Tensor<T>) {
        self.numerics.site(&self.at(name), tensor);
    }

    /// Offers a decision of one candidate a row to be overruled, and gives what was decided in the end.
    pub fn choose(&mut self, name: &'static str, scores: Tensor<T>, chosen: Vec<i32>) -> Result<Vec<u8>, String> {
        let site = self.at(name);
        let candidates = scores.cols();
        let mut choice = Choice {
            indices: chosen,
            k: 1,
            scores,
        };
        self.numerics.choice(&site, &mut choice);
        let index = |(row, &index): (usize, &i32)| match usize::try_from(index) {
            Ok(valid) if valid < candidates => Ok(valid as u8),
            _ => Err(format!(
                "{site}: row {row} was given {index}, expected 0 to {}",
                candidates - 1
            )),
        };
        choice.indices.iter().enumerate().map(index).collect()
    }
}
