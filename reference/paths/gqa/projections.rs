//! Weights of projections, passed at their sites as they are loaded.

use super::decoder::Decodes;
use super::parts::Parts;
use super::sites::*;
use crate::ops::gated_mlp::{Activation, GatedMlp};
use crate::ops::projection::Projection;
use crate::paths::LoadError;
use crate::{Real, Site, Tensor};

/// Some rows of a tensor; none where it has no elements, as in a dry read, which only lists the tensors that the model needs.
pub(in crate::paths) fn pick<T: Real>(all: &Tensor<T>, rows: impl Iterator<Item = usize>) -> Tensor<T> {
    match all.data.is_empty() {
        true => Tensor::new([0, all.cols()], Vec::new()),
        false => all.pick(rows),
    }
}

impl<T: Real, O: Decodes> Parts<'_, '_, '_, T, O> {
    /// The weight of a norm, with 1 added if it is zero-centred.
    pub fn norm(&mut self, name: &str, len: usize) -> Result<Vec<T>, LoadError> {
        let weight = self.load.vector(name, len)?;
        Ok(match self.config.own.centred() {
            true => weight.into_iter().map(|w| T::ONE + w).collect(),
            false => weight,
        })
    }

    /// A SwiGLU layer with a tensor for each of gate, up and down projection, whose sites these are.
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

    /// So many experts `[hidden, inner]` with tensors `STEM.NUMBER.NAME.weight` of their own.
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

    /// A layer's tensors `NAME.weight` and `NAME.bias`.
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

    /// Several projections of one input that are one tensor, one below the other.
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

    /// Passes a weight at its site, as the rows from `first` on of all that pass there.
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

    /// Passes a tensor that is not a projection at its site. A tensor without elements (a dry read, which only collects names)
    /// passes nowhere.
    pub fn pass(&mut self, site: &'static str, first: usize, weight: &mut Tensor<T>) {
        if !weight.data.is_empty() {
            let site = Site::new(self.layer, site).from_row(first);
            self.numerics.site(&site, weight);
        }
    }
}
