//! `ulplab kernels compare`: two kernels timed in turn, so that clocks and temperature are the same for both.

use serde::Serialize;

use crate::backend::cuda::run::Running;
use crate::backend::cuda::time::Replay;
use crate::backend::cuda::{Device, Session, Source};
use crate::statistics::outside;
use crate::studies::kernels::file;
use crate::{json, ops};
use ulplab_core::error::{Error, Exit, Result};
use ulplab_operations::ops::{Case, Problem};

/// Time two kernels in turn on this machine's GPU: the ratio of the second's time to the first's, with an interval.
///
/// Each kernel is checked first, and timed only if it is right. A time is that of a CUDA graph with many launches on the same
/// memory. The two kernels take turns at running first. The interval contains the median with a probability of 95 %, for any
/// distribution of the times.
#[derive(Debug, clap::Args)]
pub struct CompareArgs {
    /// The first kernel and case, e.g. delta_prefill.chunks/gdn.bf16.t8192.kv
    #[arg(value_name = "OP.VARIANT/CASE")]
    first: String,
    /// The second kernel and case.
    #[arg(value_name = "OP.VARIANT/CASE")]
    second: String,
    /// Number of pairs of times, at least 30.
    #[arg(long, default_value_t = 40, value_parser = clap::value_parser!(u32).range(30..))]
    pairs: u32,
    /// Exit with 100 unless the whole interval lies within this distance of 1, e.g. 0.01.
    #[arg(long, value_name = "SHARE")]
    within: Option<f64>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Result of a comparison.
#[derive(Debug, Serialize)]
pub struct Comparison {
    device: String,
    names: [String; 2],
    /// Median microseconds of a run of each kernel.
    us: [f64; 2],
    pairs: usize,
    /// Time of the second kernel divided by the time of the first: median over the pairs, and its 95 % interval.
    pub ratio: f64,
    pub interval: [f64; 2],
}

pub(super) fn run(args: &CompareArgs) -> Result<Exit> {
    if let Some(within) = args.within.filter(|within| !(*within > 0.0 && within.is_finite())) {
        let message = format!("--within {within}: expected a share above 0, e.g. 0.01");
        return Err(Error::Usage(message));
    }
    let names = [&args.first, &args.second];
    let [first, second] = names.map(|name| Kernel::find(name));
    let kernels = [first?, second?];
    let device = Device::open()?;
    let session = Session::open(&device)?;
    let loaded = [0, 1].map(|at| session.load(&kernels[at].source, None));
    let running = kernels.iter().zip(&loaded).map(|(kernel, loaded)| {
        let variant = kernel.source.named(&kernel.variant)?;
        loaded.case(&kernel.case, &kernel.problem).right(variant)
    });
    let running = running.collect::<Result<Vec<_>>>()?;
    let replays = [replay(&running[0])?, replay(&running[1])?];
    let turn = device.turns.alone();
    let pairs = (0..args.pairs).map(|pair| take(&replays, pair % 2 == 1));
    let pairs = pairs.collect::<Result<Vec<_>>>()?;
    drop(turn);
    let measured = Comparison::new(device.describe(), names, &pairs);
    json::print_or(args.json, &measured, || measured.text())?;
    let near = |end: f64| args.within.is_none_or(|within| (end - 1.0).abs() <= within);
    Ok(Exit::judged(measured.interval.into_iter().all(near)))
}

/// Captures many runs of a kernel as a CUDA graph.
fn replay<'a>(running: &'a Running) -> Result<Replay<'a>> {
    let replay = running.replay()?;
    replay.ok_or_else(|| Error::Setup("these launches cannot be captured as a graph".into()))
}

/// Times each kernel once; the second kernel runs first if `turned`.
fn take(replays: &[Replay; 2], turned: bool) -> Result<[f64; 2]> {
    let mut us = [0.0; 2];
    for at in if turned { [1, 0] } else { [0, 1] } {
        us[at] = replays[at].once()?;
    }
    Ok(us)
}

/// A variant (kernel implementation) on a case.
struct Kernel {
    source: Source,
    variant: String,
    case: Case,
    problem: Problem,
}

impl Kernel {
    fn find(name: &str) -> Result<Self> {
        let parts = name.split_once('/');
        let parts = parts.and_then(|(kernel, case)| Some((kernel.split_once('.')?, case)));
        let ((op, variant), case) = parts.ok_or_else(|| Error::Usage(format!("'{name}': expected OP.VARIANT/CASE")))?;
        let op = ops::find(op).map_err(Error::Usage)?;
        let source = file(op, &ops::COMPOSITIONS)?;
        source.named(variant)?;
        let case = ops::case(op, case).map_err(Error::Usage)?;
        Ok(Self {
            variant: variant.into(),
            problem: super::problem(op, &case)?,
            case,
            source,
        })
    }
}

impl Comparison {
    pub fn new(device: String, names: [&String; 2], pairs: &[[f64; 2]]) -> Self {
        let sorted = |of: &dyn Fn(&[f64; 2]) -> f64| {
            let mut values: Vec<f64> = pairs.iter().map(of).collect();
            values.sort_by(f64::total_cmp);
            values
        };
        let median = |values: &[f64]| f64::midpoint(values[(values.len() - 1) / 2], values[values.len() / 2]);
        let ratios = sorted(&|pair| pair[1] / pair[0]);
        let outside = outside(ratios.len());
        Self {
            device,
            names: names.map(Clone::clone),
            us: [0, 1].map(|at| median(&sorted(&|pair| pair[at]))),
            pairs: pairs.len(),
            ratio: median(&ratios),
            interval: [ratios[outside], ratios[ratios.len() - 1 - outside]],
        }
    }

    fn text(&self) -> String {
        let (device, names, us) = (&self.device, &self.names, &self.us);
        let (ratio, [low, high], pairs) = (self.ratio, self.interval, self.pairs);
        let width = names.iter().map(String::len).max().unwrap_or(0);
        let [first, second] = [0, 1].map(|at| format!("{:width$}  {:9.2} µs", names[at], us[at]));
        let summary = format!("second / first {ratio:.4}, 95 % interval {low:.4} to {high:.4}, {pairs} pairs");
        format!("{device}\n{first}\n{second}\n{summary}\n")
    }
}
