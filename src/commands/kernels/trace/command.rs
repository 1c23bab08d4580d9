//! The command.

use std::path::PathBuf;

use serde::Serialize;

use super::{Micros, Trace, html, terminal};
use crate::backend::cuda::plan::SMS;
use crate::backend::cuda::session::Bench;
use crate::backend::cuda::{Device, Plan, Session, Source, Variant};
use crate::json;
use crate::ops;
use crate::run::ceilings::Ceilings;
use crate::studies::kernels::{OnDevice, file};
use ulplab_core::atomic::write_text;
use ulplab_core::error::{Error, Exit, Result};
use ulplab_operations::ops::{Case, Op};

/// Show the launches of a kernel: bytes, operations, time, and share of the possible speed of each.
///
/// Times need a GPU; each launch is timed alone, and only if the whole kernel is right. Give --variant twice to compare two
/// variants.
#[derive(Debug, clap::Args)]
pub struct TraceArgs {
    /// The operation: a name from `ulplab kernels list`.
    #[arg(value_name = "OP")]
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
    /// The GPU, or why there are no times.
    pub device: String,
    pub ceilings: Option<Ceilings>,
    pub traces: Vec<Trace>,
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
        let kernels = session.load(&source);
        all.ceilings = Some(session.watch.ceilings()?);
        let bench = kernels.case(&case, &problem);
        for ((variant, _), trace) in planned.iter().zip(&mut all.traces) {
            time(&bench, variant, trace)?;
        }
    }
    if let Some(file) = &args.html {
        write_text(file, &html::page(&all))?;
    }
    json::print_or(args.json, &all, || terminal::text(&all))?;
    Ok(Exit::Pass)
}

/// The case and the variants that the user names, or their defaults.
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
    if variants.is_empty() {
        let (op, case) = (op.name(), case.name);
        return Err(Error::Usage(format!("no variant of {op} accepts case '{case}'")));
    }
    Ok((case, variants))
}

/// Checks a variant, and times it as a whole and launch by launch.
fn time(bench: &Bench, variant: &Variant, trace: &mut Trace) -> Result<()> {
    let running = bench.right(variant)?;
    let times = running.time()?;
    trace.us = Some(Micros {
        graph: times.graph.map(|graph| graph.median),
        rotated: times.rotated.map(|rotated| rotated.median),
        cached: times.cached.map(|cached| cached.median),
        hot: times.hot.median,
    });
    for (launch, times) in trace.launches.iter_mut().zip(running.trace()?) {
        [launch.us, launch.us_cached] = [times.alone, times.cached].map(|time| time.map(|time| time.median));
        launch.us_added = times.added;
    }
    Ok(())
}
