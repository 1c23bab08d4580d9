//! Loads the weights of projections (linear layers), and passes each weight to the hook `Numerics::site`, which may change it.

use super::decoder::Decodes;
use super::parts::Parts;
use crate::ops::gated_mlp::{Activation, GatedMlp};
use crate::ops::projection::Projection;
use crate::paths::LoadError;
use crate::{Real, Site, Tensor};

/// Copies the rows `rows` of a tensor. Returns no rows for the empty tensors of a dry read, which only lists the tensors of the
/// model.
pub(in crate::paths) fn pick<T: Real>(all: &Tensor<T>, rows: impl Iterator<Item = usize>) -> Tensor<T> {
    match all.data.is_empty() {
        true => Tensor::new([0, all.cols()], Vec::new()),
        false => all.pick(rows),
    }
}

impl<T: Real, O: Decodes> Parts<'_, '_, '_, T, O> {
    /// Loads the weight of a norm, and adds 1 to it if the norm is zero-centred.
    pub fn norm(&mut self, name: &str, len: usize) -> Result<Vec<T>, LoadError> {
        let weight = self.load.vector(name, len)?;
        Ok(match self.config.own.centred() {
            true => weight.into_iter().map(|w| T::ONE + w).collect(),
            false => weight,
        })
    }

    /// Makes a SwiGLU layer from the tensors `STEM.NAME`; `sites` has the sites, and `names` the tensor names, of the gate, up
    /// and down weights. `number` is the index of the expert if experts share these sites, else 0.
    pub fn gated_mlp(
        &mut self,
        (sites, number): ([&'static str; 3], usize),
        (stem, names): (&str, [&str; 3]),
        [hidden, inner]: [usize; 2],
        bias: bool,
    ) -> Result<GatedMlp<T>, LoadError> {
        let shapes = [[inner, hidden], [inner, hidden], [hidden, inner]];
        let mut one = |at: usize| {
            let name = format!("{stem}.{}", names[at]);
            self.linear_from(number * shapes[at][0], sites[at], &name, shapes[at], bias)
        };
        Ok(GatedMlp {
            gate: one(0)?,
            up: one(1)?,
            down: one(2)?,
            activation: Activation::Silu,
        })
    }

    /// Makes a projection from the tensor `NAME.weight` and, if `bias` is true, `NAME.bias`.
    pub fn linear(
        &mut self,
        site: &'static str,
        name: &str,
        shape: [usize; 2],
        bias: bool,
    ) -> Result<Projection<T>, LoadError> {
        self.linear_from(0, site, name, shape, bias)
    }

    /// Same as [`Self::linear`], for experts, whose weights share a site. `first` is the index of the first row of this weight at
    /// the site.
    fn linear_from(
        &mut self,
        first: usize,
        site: &'static str,
        name: &str,
        shape: [usize; 2],
        bias: bool,
    ) -> Result<Projection<T>, LoadError> {
        let weight = self.load.tensor(&format!("{name}.weight"), &shape)?;
        let bias = match bias {
            true => Some(self.load.vector(&format!("{name}.bias"), shape[0])?),
            false => None,
        };
        Ok(self.projection(site, first, weight, bias))
    }

    /// Splits the tensor `NAME.weight` `[sum of outputs, inputs]` by rows into `N` projections of the same input.
    pub fn fused<const N: usize>(
        &mut self,
        name: &str,
        sites: [&'static str; N],
        outputs: [usize; N],
        inputs: usize,
    ) -> Result<[Projection<T>; N], LoadError> {
        let all = self
            .load
            .tensor(&format!("{name}.weight"), &[outputs.iter().sum(), inputs])?;
        let mut first = 0;
        Ok(std::array::from_fn(|at| {
            let rows = first..first + outputs[at];
            first = rows.end;
            self.projection(sites[at], 0, pick(&all, rows), None)
        }))
    }

    /// Calls the hook at `site`, which may change the weight, and makes a projection from the weight. `first` is the row number
    /// that the hook gets for the weight's first row. The experts of a layer share a site: their rows are numbered one expert
    /// after another.
    pub fn projection(
        &mut self,
        site: &'static str,
        first: usize,
        mut weight: Tensor<T>,
        bias: Option<Vec<T>>,
    ) -> Projection<T> {
        self.pass(site, first, &mut weight);
        Projection::new(weight, bias)
    }

    /// Calls the hook `Numerics::site` with a weight; `first` is the index of the weight's first row at the site. Skips empty
    /// tensors: a dry read, which only collects the names of tensors, returns empty tensors.
    pub fn pass(&mut self, site: &'static str, first: usize, weight: &mut Tensor<T>) {
        if !weight.data.is_empty() {
            let site = Site::new(self.layer, site).from_row(first);
            self.numerics.site(&site, weight);
        }
    }
}
