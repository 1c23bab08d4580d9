//! `ulplab kernels trace`: the launches of a kernel, with the bytes, operations and time of each.

mod command;
mod html;
mod terminal;

use std::collections::BTreeSet;

use serde::Serialize;

use crate::backend::cuda::header::Factor;
use crate::backend::cuda::plan::{Named, Plan, Step, Work};
use crate::backend::cuda::{Source, Variant};
use crate::run::ceilings::Ceilings;
use ulplab_operations::ops::Problem;

pub use command::{TraceArgs, run};

/// A variant on a case.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Trace {
    /// `op.variant`
    pub kernel: String,
    pub doc: String,
    /// Launched once, when inputs are there: no part of a run.
    pub prepare: Vec<String>,
    /// In the order of their first turns.
    pub launches: Vec<Launch>,
    /// The bytes and operations that no way to compute this can avoid.
    pub least: Cost,
    /// The type of the factors of its products.
    pub products: Factor,
    /// Microseconds of a run; none without a GPU.
    pub us: Option<Micros>,
}

/// All turns of one launch of a variant.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Launch {
    pub name: String,
    /// Its entry point and grid, or the sizes of the product.
    pub what: String,
    pub turns: usize,
    /// Cost of one turn.
    pub cost: Cost,
    /// Microseconds of one turn, as one of many of this launch alone in a graph; none without a GPU.
    pub us: Option<f64>,
    /// The same with all memory in the L2 cache, however large it is.
    pub us_cached: Option<f64>,
    /// Microseconds that all turns add to a run: little, if others run at the same time.
    pub us_added: Option<f64>,
}

/// Microseconds of a run as one of many in a graph.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Micros {
    /// On the same memory, so that small buffers stay in the cache.
    pub graph: Option<f64>,
    /// On other memory each time, none of it in the cache.
    pub rotated: Option<f64>,
    /// With all memory in the cache, however large it is.
    pub cached: Option<f64>,
    /// Put into the stream launch by launch, back to back.
    pub hot: f64,
}

/// Bytes that must be moved, and operations of products of matrices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Cost {
    pub bytes: u64,
    pub flops: u64,
}

impl Cost {
    fn new(bytes: u64, flops: u64) -> Self {
        Self { bytes, flops }
    }

    /// Least possible microseconds: the longer of memory time and arithmetic time.
    pub fn limit(self, ceilings: &Ceilings, products: Factor) -> f64 {
        let memory = self.bytes as f64 / (ceilings.copy_gb_s * 1e3);
        let rate = products.rate(ceilings);
        let arithmetic = rate.map_or(0.0, |rate| self.flops as f64 / (rate * 1e6));
        memory.max(arithmetic)
    }
}

impl Launch {
    /// Bytes and operations of all its turns.
    pub fn all(&self) -> Cost {
        let turns = self.turns as u64;
        Cost::new(turns * self.cost.bytes, turns * self.cost.flops)
    }

    /// The time of all its turns, if one takes `us`.
    pub fn of_all(&self, us: Option<f64>) -> Option<f64> {
        Some(us? * self.turns as f64)
    }
}

impl Trace {
    /// Counts bytes and operations, without a GPU.
    pub fn count(source: &Source, variant: &Variant, problem: &Problem, plan: &Plan) -> Self {
        let least = Cost::new(problem.bytes, problem.flops);
        let turns = |at: usize| plan.run.turns.iter().filter(move |turn| turn.step == at);
        let launch = |(at, step): (usize, &Step)| Launch {
            name: step.name.clone(),
            what: what(step),
            turns: turns(at).count(),
            // A launch that is all there is does what must be done.
            cost: match plan.run.turns.len() {
                1 => least,
                _ => {
                    let arguments = turns(at).next().map_or(&[][..], |turn| &turn.arguments);
                    cost(step, arguments, problem, plan)
                }
            },
            us: None,
            us_cached: None,
            us_added: None,
        };
        let steps = plan.run.steps.iter().enumerate().filter(|(_, step)| !step.tap);
        Self {
            kernel: format!("{}.{}", source.op, variant.name),
            doc: variant.doc.clone(),
            prepare: plan.prepare.steps.iter().map(|step| step.name.clone()).collect(),
            launches: steps.map(launch).collect(),
            least,
            products: plan.products,
            us: None,
        }
    }

    /// Launches of a run.
    pub fn turns(&self) -> usize {
        self.launches.iter().map(|launch| launch.turns).sum()
    }

    /// Bytes and operations of all launches together.
    pub fn cost(&self) -> Cost {
        let sum = |of: fn(Cost) -> u64| self.launches.iter().map(|launch| of(launch.all())).sum();
        Cost::new(sum(|cost| cost.bytes), sum(|cost| cost.flops))
    }

    /// The sum of the launches' own times.
    pub fn us_of_launches(&self) -> Option<f64> {
        self.launches.iter().map(|launch| launch.of_all(launch.us)).sum()
    }

    /// The time of a run for its share of the limit: with cold caches, if that was measured.
    pub fn whole(&self) -> Option<f64> {
        let us = self.us?;
        Some(us.rotated.or(us.graph).unwrap_or(us.hot))
    }
}

/// Bytes and operations of a launch: from its header, or each of its buffers once.
fn cost(step: &Step, arguments: &[Named], problem: &Problem, plan: &Plan) -> Cost {
    let size = |argument: &Named| {
        let Some(name) = argument.name() else { return 0 };
        let part = matches!(argument, Named::Part(..));
        let buffer = problem.buffers.iter().find(|buffer| buffer.name == name);
        let size = buffer.map(|buffer| match (part, buffer.shape.first()) {
            (true, Some(parts)) => buffer.size() / (*parts).max(1),
            _ => buffer.size(),
        });
        size.or(plan.scratch(name).map(|scratch| scratch.bytes)).unwrap_or(0) as u64
    };
    let names: BTreeSet<&Named> = arguments.iter().collect();
    let bytes = step.bytes.unwrap_or_else(|| names.into_iter().map(size).sum());
    Cost::new(bytes, step.flops)
}

fn what(step: &Step) -> String {
    let times = |numbers: &[u32]| {
        let last = numbers.iter().rposition(|number| *number != 1).unwrap_or(0);
        let numbers: Vec<String> = numbers[..=last].iter().map(u32::to_string).collect();
        numbers.join("×")
    };
    match &step.work {
        Work::Kernel { entry, shape } => {
            let cluster = shape
                .cluster
                .map(|cluster| format!(" in clusters of {}", times(&cluster)));
            let (grid, block, cluster) = (times(&shape.grid), times(&shape.block), cluster.unwrap_or_default());
            format!("{entry}, {grid} blocks of {block}{cluster}")
        }
        Work::Matmul(product) => {
            let [m, n, k] = product.sizes;
            format!("cuBLASLt, [{m}, {k}] · [{n}, {k}]ᵀ")
        }
    }
}
