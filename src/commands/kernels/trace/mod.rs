//! `ulplab kernels trace`: the launches of a kernel, with the bytes, operations and time of each.

mod html;
mod terminal;

use std::collections::BTreeSet;
use std::path::PathBuf;

use serde::Serialize;

use crate::backend::cuda::header::Factor;
use crate::backend::cuda::plan::{Named, SMS, Step, Work};
use crate::backend::cuda::time::Times;
use crate::backend::cuda::{Device, Plan, Session, Source, Variant};
use crate::run::ceilings::Ceilings;
use crate::studies::kernels::{OnDevice, file};
use crate::{json, ops};
use ulplab_core::atomic::write_text;
use ulplab_core::error::{Error, Exit, Result};
use ulplab_operations::ops::{Case, Op, Problem};

/// Show the launches of a kernel: bytes, operations, time, and the share of the possible speed that each reaches.
///
/// Times need a GPU; each launch is timed alone, and only if the whole kernel is right. Give --variant twice to compare two
/// variants.
#[derive(Debug, clap::Args)]
pub struct TraceArgs {
    /// The operation: a name from `ulplab kernels list`.
    pub op: String,
    /// A variant; give several to compare [default: the last variant in the file that accepts the case].
    #[arg(long = "variant", value_name = "NAME")]
    pub variants: Vec<String>,
    /// The case [default: the first timed case that all variants accept].
    #[arg(long, value_name = "NAME")]
    pub case: Option<String>,
    /// Measure times on a GPU, or only count bytes and operations. Without a GPU, `cuda` only counts.
    #[arg(long, value_enum, default_value = "cuda")]
    pub device: OnDevice,
    /// Also write an HTML page.
    #[arg(long, value_name = "FILE", value_parser = crate::output::file_name())]
    pub html: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Traces of variants on the same case.
#[derive(Debug, Serialize)]
pub struct Traces {
    pub op: String,
    pub doc: String,
    pub case: String,
    /// Name of the GPU, or the reason why there are no times.
    pub device: String,
    pub ceilings: Option<Ceilings>,
    pub traces: Vec<Trace>,
}

/// Trace of a variant (kernel implementation) on a case: its launches, their costs and times.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Trace {
    /// Name as `op.variant`.
    pub kernel: String,
    pub doc: String,
    /// Steps that run once, as soon as the inputs are on the device. They are not part of a timed run.
    pub prepare: Vec<String>,
    /// Launches, in the order in which they first run.
    pub launches: Vec<Launch>,
    /// The bytes and operations that every implementation of the operation needs.
    pub least: Cost,
    /// Element type of the factors of the matrix products.
    pub products: Factor,
    /// Microseconds of a run; `None` without a GPU.
    pub us: Option<Times>,
}

/// All turns (repetitions in a run) of one launch of a variant.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Launch {
    pub name: String,
    /// Description of the launch: entry point and grid of a kernel, or sizes of a matrix product.
    pub what: String,
    pub turns: usize,
    /// Cost of one turn.
    pub cost: Cost,
    /// Microseconds of one turn, measured in a graph that repeats only this launch; `None` without a GPU.
    pub us: Option<f64>,
    /// Microseconds of one turn with all data in the L2 cache: all parts of a large buffer are mapped to the same small part of
    /// memory.
    pub us_cached: Option<f64>,
    /// Microseconds that all turns of this launch add to a run: the time of a run minus the time of a run without this launch.
    /// Small if launches overlap.
    pub us_added: Option<f64>,
}

/// Bytes that must be moved, and operations of matrix products.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Cost {
    pub bytes: u64,
    pub flops: u64,
}

impl Cost {
    fn new(bytes: u64, flops: u64) -> Self {
        Self { bytes, flops }
    }

    /// Returns the least possible time in microseconds: the longer of the memory time and the arithmetic time.
    pub fn limit(self, ceilings: &Ceilings, products: Factor) -> f64 {
        let memory = self.bytes as f64 / (ceilings.copy_gb_s * 1e3);
        let rate = products.rate(ceilings);
        let arithmetic = rate.map_or(0.0, |rate| self.flops as f64 / (rate * 1e6));
        memory.max(arithmetic)
    }
}

impl Launch {
    /// Returns the bytes and operations of all turns of this launch in a run.
    pub fn all(&self) -> Cost {
        let turns = self.turns as u64;
        Cost::new(turns * self.cost.bytes, turns * self.cost.flops)
    }

    /// Returns the time of all turns of this launch, if one turn takes `us`.
    pub fn of_all(&self, us: Option<f64>) -> Option<f64> {
        Some(us? * self.turns as f64)
    }
}

impl Trace {
    /// Creates the trace of a variant without times: counts the bytes and operations of each launch. Needs no GPU.
    pub fn count(source: &Source, variant: &Variant, problem: &Problem, plan: &Plan) -> Self {
        let least = Cost::new(problem.bytes, problem.flops);
        let turns = |at: usize| plan.run.turns.iter().filter(move |turn| turn.step == at);
        let launch = |(at, step): (usize, &Step)| Launch {
            name: step.name.clone(),
            what: what(step),
            turns: turns(at).count(),
            // If a run has only one launch, this launch has the whole cost: the least cost of the operation.
            cost: match plan.run.turns.len() {
                1 => least,
                _ => {
                    let arguments = turns(at).next().map_or(&[][..], |turn| &turn.arguments);
                    cost(step, arguments, problem, plan)
                }
            },
            ..Launch::default()
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

    /// Returns the number of kernel starts in a run: the turns of all launches together.
    pub fn turns(&self) -> usize {
        self.launches.iter().map(|launch| launch.turns).sum()
    }

    /// Returns the bytes and operations of a run: those of all launches together.
    pub fn cost(&self) -> Cost {
        let sum = |of: fn(Cost) -> u64| self.launches.iter().map(|launch| of(launch.all())).sum();
        Cost::new(sum(|cost| cost.bytes), sum(|cost| cost.flops))
    }

    /// Returns the sum of the times of all launches, each timed alone.
    pub fn us_of_launches(&self) -> Option<f64> {
        self.launches.iter().map(|launch| launch.of_all(launch.us)).sum()
    }

    /// Returns the time of a run, for comparison with the least possible time: the time with data outside the L2 cache; if that
    /// is missing, the time in a CUDA graph; else the time of runs back to back.
    pub fn whole(&self) -> Option<f64> {
        let us = self.us?;
        Some(us.rotated.or(us.graph).unwrap_or(us.hot).median)
    }
}

/// Returns the bytes and operations of one turn of a launch. If the kernel's header does not state the number of bytes, assumes
/// that the launch moves each of its buffers once.
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

pub fn run(args: &TraceArgs) -> Result<Exit> {
    let op = ops::find(&args.op)
        .map_err(|why| Error::Usage(format!("{why}; `ulplab kernels list` lists all operations")))?;
    let source = file(op, &ops::COMPOSITIONS)?;
    let device = match args.device {
        OnDevice::Cuda => Device::open(),
        OnDevice::Compile => Err(Error::Setup("--device compile".into())),
    };
    let sms = device.as_ref().map_or(SMS, |device| device.sms);
    let (case, variants) = choose(args, op, &source, sms)?;
    let problem = crate::commands::kernels::problem(op, &case)?;
    let planned = variants.into_iter().map(|variant| {
        let plan = Plan::new(variant, &case, sms).map_err(Error::Usage)?;
        let refuses = || format!("{}.{} does not accept case '{}'", op.name(), variant.name, case.name);
        Ok((variant, plan.ok_or_else(|| Error::Usage(refuses()))?))
    });
    let planned = planned.collect::<Result<Vec<_>>>()?;
    let count = |(variant, plan): &(&Variant, Plan)| Trace::count(&source, variant, &problem, plan);
    let mut all = Traces {
        op: op.name().into(),
        doc: op.doc().into(),
        case: case.name.clone(),
        device: match &device {
            Ok(device) => device.describe(),
            Err(Error::Setup(why)) => format!("counted, not timed: {why}"),
            Err(why) => return Err(Error::Setup(why.to_string())),
        },
        ceilings: None,
        traces: planned.iter().map(count).collect(),
    };
    if let Ok(device) = &device {
        let session = Session::open(device)?;
        let kernels = session.load(&source, None);
        all.ceilings = Some(session.watch.ceilings()?);
        let bench = kernels.case(&case, &problem);
        for ((variant, _), trace) in planned.iter().zip(&mut all.traces) {
            // Checks the variant before it times the whole run and each launch.
            let running = bench.right(variant)?;
            trace.us = Some(running.time()?);
            for (launch, times) in trace.launches.iter_mut().zip(running.trace()?) {
                [launch.us, launch.us_cached] = [times.alone, times.cached].map(|time| time.map(|time| time.median));
                launch.us_added = times.added;
            }
        }
    }
    if let Some(file) = &args.html {
        write_text(file, &html::page(&all))?;
    }
    json::print_or(args.json, &all, || terminal::text(&all))?;
    Ok(Exit::Pass)
}

/// Returns the case and the variants that the user names, or the defaults.
fn choose<'a>(args: &TraceArgs, op: &dyn Op, source: &'a Source, sms: i64) -> Result<(Case, Vec<&'a Variant>)> {
    let all = &source.header.variants;
    let named = args.variants.iter().map(|name| source.named(name));
    let mut variants = named.collect::<Result<Vec<_>>>()?;
    let takes = |variant: &Variant, case: &Case| {
        let plan = Plan::new(variant, case, sms).map_err(|why| Error::data(&source.path, why))?;
        Ok(plan.is_some())
    };
    let case = match &args.case {
        Some(name) => ops::case(op, name).map_err(Error::Usage)?,
        None => {
            let mut cases = op.cases();
            cases.retain(|case| case.timed);
            for variant in &variants {
                let taken = cases.iter().map(|case| takes(variant, case));
                let mut taken = taken.collect::<Result<Vec<_>>>()?.into_iter();
                cases.retain(|_| taken.next() == Some(true));
            }
            let why = "no timed case is accepted by all of these variants; name a case with --case";
            cases.into_iter().next().ok_or_else(|| Error::Usage(why.into()))?
        }
    };
    if variants.is_empty() {
        for variant in all {
            if takes(variant, &case)? {
                variants = vec![variant];
            }
        }
    }
    let none = format_args!("no variant of {} accepts case '{}'", op.name(), case.name);
    Error::refuse(variants.is_empty(), none)?;
    Ok((case, variants))
}
