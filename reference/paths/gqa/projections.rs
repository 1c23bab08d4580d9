//! Loads the weights of projections and hands each to the hook `Numerics::site` under the name of its site.

use super::decoder::Decodes;
use super::parts::Parts;
use super::sites::*;
use crate::ops::gated_mlp::{Activation, GatedMlp};
use crate::ops::projection::Projection;
use crate::paths::LoadError;
use crate::{Real, Site, Tensor};

/// Copies some rows of a tensor. Returns no rows for the empty tensors of a dry read, which only lists the tensors of the model.
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

    /// Makes a SwiGLU layer; `sites` and `names` are those of the gate, up and down projections, each with a tensor of its own.
    pub fn gated_mlp(
        &mut self,
        sites: [&'static str; 3],
        names: [&str; 3],
        [hidden, inner]: [usize; 2],
        bias: bool,
    ) -> Result<GatedMlp<T>, LoadError> {
        Ok(GatedMlp {
            gate: self.linear(sites[0], names[0], [inner, hidden], bias)?,
            up: self.linear(sites[1], names[1], [inner, hidden], bias)?,
            down: self.linear(sites[2], names[2], [hidden, inner], bias)?,
            activation: Activation::Silu,
        })
    }

    /// Makes `count` SwiGLU experts from the tensors `STEM.NUMBER.NAME.weight`, one tensor for each matrix of each expert.
    pub fn each_expert(
        &mut self,
        stem: &str,
        names: [&str; 3],
        count: usize,
        [hidden, inner]: [usize; 2],
    ) -> Result<Vec<GatedMlp<T>>, LoadError> {
        let shapes = [[inner, hidden], [inner, hidden], [hidden, inner]];
        let mut experts = Vec::new();
        for number in 0..count {
            let mut one = |at: usize| -> Result<_, LoadError> {
                let weight = self
                    .load
                    .tensor(&format!("{stem}.{number}.{}.weight", names[at]), &shapes[at])?;
                Ok(self.projection(EXPERT_WEIGHTS[at], number * shapes[at][0], weight, None))
            };
            experts.push(GatedMlp {
                gate: one(0)?,
                up: one(1)?,
                down: one(2)?,
                activation: Activation::Silu,
            });
        }
        Ok(experts)
    }

    /// Makes a projection from the tensor `NAME.weight` and, if `bias` is true, `NAME.bias`.
    pub fn linear(
        &mut self,
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
        Ok(self.projection(site, 0, weight, bias))
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

    /// Makes a projection after the hook at `site` has seen its weight. `first` is the index of the weight's first row at the
    /// site: the weights of all experts follow each other there.
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

    /// Calls the hook `Numerics::site` with a weight, whose first row has the index `first` at the site. Skips a tensor without
    /// elements, as in a dry read, which only collects names.
    pub fn pass(&mut self, site: &'static str, first: usize, weight: &mut Tensor<T>) {
        if !weight.data.is_empty() {
            let site = Site::new(self.layer, site).from_row(first);
            self.numerics.site(&site, weight);
        }
    }
}
