//! Study of kernels on a device: every variant (kernel implementation) runs on every case (inputs of one test) of its operation.
//! The outputs are checked; then the variant is timed.

pub mod attest;
mod body;
pub mod capsules;
pub mod compile;
pub mod digests;
pub mod draws;
mod lines;
pub mod mutants;
pub mod operations;
mod options;
pub mod peers;
pub mod power;
pub mod programs;
mod ready;
mod relations;
mod selection;
mod show;
mod units;
pub mod workers;

use std::sync::atomic::{AtomicBool, Ordering};

use super::model::recorded;
use super::study::Text;
use crate::backend::cuda::header::Factor;
use crate::backend::cuda::session::Bench;
use crate::backend::cuda::time::Times;
use crate::backend::cuda::{Mutant, Session, Source as KernelFile, Variant};
use crate::run::ceilings::Ceilings;
use crate::run::plan::Cell;
use capsules::{Capsules, CellResult};
use draws::{Draw, Drawn};
use operations::Operation;
pub use options::{Devices, OnDevice, Options, Workers};
use peers::Peers;
use relations::relate;
use ulplab_core::error::{Error, Result, did_you_mean, refuse};
use ulplab_core::list::distinct;
use ulplab_core::metrics::{self, Metric};
use ulplab_core::record::{Failure, Phase, Record};
use ulplab_operations::ops::checks::failures;
use ulplab_operations::ops::guards::Checked;
use ulplab_operations::ops::judge::Measured;
use ulplab_operations::ops::sums::ACCUMULATOR;
use ulplab_operations::ops::{Case, Data, Problem, Rows};

pub use crate::backend::cuda::shipped::{file, folder};
pub use body::{Command, Described, KernelStudy};
pub use compile::ARCHITECTURES;
pub use lines::line_of;
pub use selection::{for_others, without_simple};
pub use show::{line, times};

/// Name of the shipped experiment with all kernels.
pub const SHIPPED: &str = "kernels";

/// Site (name in records) of measured times.
pub const TIME: &str = "time";

/// Checks that a planted fault with the name `op.mutant` exists.
pub fn check_mutant(name: &str, sources: &[KernelFile]) -> Result<()> {
    let of = |source: &KernelFile| -> Vec<String> {
        let mutants = source.header.mutants.iter();
        mutants.map(|mutant| source.full_name(&mutant.name)).collect()
    };
    let names: Vec<String> = sources.iter().flat_map(of).collect();
    let near = did_you_mean(name, names.iter().map(String::as_str));
    let why = format_args!("no mutant '{name}'{near}; `ulplab kernels list --all` lists all");
    refuse(!names.iter().any(|other| other == name), why).map_err(Error::Usage)
}

/// Takes the place of the function that reads tensors at a model's sites, and always returns an error. Only the first draw
/// (random inputs) of a case may read a model; later draws get this function.
const NO_MODEL: fn(&str) -> std::result::Result<Vec<Rows>, String> =
    |pattern| Err(format!("tensors at {pattern} are not drawn"));

/// Runs cells. A cell is one kernel or program on one case. `data` makes the inputs of the cases.
pub struct Cells<'a> {
    pub study: &'a KernelStudy,
    pub data: &'a Data<'a>,
    pub done: &'a dyn Fn(&Cell, Vec<Record>) -> Result<()>,
    pub stop: &'a AtomicBool,
    /// Folder and command line for the capsules (files that reproduce failed cells); `None` to write none.
    pub keep: Option<&'a Capsules>,
}

impl Cells<'_> {
    /// Runs the cells of an operation case by case, so that the inputs of a case are made only once. If `accumulator` is given,
    /// outputs must match sums in this accumulator instead of the operation's default.
    pub fn each(
        &self,
        op: &str,
        cells: &[&Cell],
        accumulator: Option<&str>,
        run: impl Fn(&Cell, Draw) -> Result<Vec<Record>>,
    ) -> Result<()> {
        let operation = Operation::find(self.study, op).map_err(Error::Usage)?;
        for case in operation.cases().map_err(|mistake| mistake.usage())? {
            let named = |cell: &&Cell| self.study.case_names[cell.window] == case.name;
            let here: Vec<&Cell> = cells.iter().copied().filter(named).collect();
            if here.is_empty() {
                continue;
            }
            let draws = match case.inputs.need_model() {
                true => 1,
                false => self.study.draws.unwrap_or(1),
            };
            let mut open: Vec<(&Cell, Drawn)> = here.into_iter().map(|cell| (cell, Drawn::new(draws))).collect();
            for draw in 0..draws {
                let seed = self.data.seed().wrapping_add(draw);
                let other = Data::new(seed, &NO_MODEL).with_checkpoint(self.data.checkpoint().ok());
                let data = if draw == 0 { self.data } else { &other };
                // Check addresses beyond 32 bits only on the first inputs: this check does not depend on the numbers, and takes a
                // hundred times as long as the other checks of a small case.
                let mut case = Case {
                    timed: case.timed && draw == 0,
                    large: case.large && draw == 0 && accumulator.is_none(),
                    ..case.clone()
                };
                let stated = accumulator.map(|stated| (ACCUMULATOR, stated.to_string()));
                case.keys.extend(stated);
                let problem = operation.problem(&case, data, self.stop)?;
                if let Err(why) = &problem {
                    errln!("{op} case {}: {why}", case.name);
                }
                for (cell, mut drawn) in std::mem::take(&mut open) {
                    if self.stop.load(Ordering::Relaxed) {
                        return Err(Error::Interrupted);
                    }
                    let records = match &problem {
                        Ok(problem) => {
                            let of_cell = Draw {
                                case: &case,
                                problem,
                                seed,
                                keep: drawn.is_right(),
                            };
                            run(cell, of_cell)?
                        }
                        Err(why) => vec![unknown(cell, &case, "inputs", why)],
                    };
                    drawn.add(seed, records)?;
                    // A variant that does not support the case gives no records: skip its other random inputs.
                    match draw + 1 == draws || drawn.is_empty() {
                        true => (self.done)(cell, drawn.records())?,
                        false => open.push((cell, drawn)),
                    }
                }
                if open.is_empty() {
                    break;
                }
            }
        }
        Ok(())
    }

    /// Writes a capsule (a file with inputs and outputs) of a cell, if the cell failed and --keep-failed is given.
    pub fn keep_failed(&self, cell: &Cell, draw: Draw, checked: &Checked) -> Result<()> {
        match self.keep {
            Some(capsules) if draw.keep && failures(&checked.measured).next().is_some() => {
                capsules.keep(cell, draw, &CellResult::Outputs(checked))
            }
            _ => Ok(()),
        }
    }

    /// Writes a capsule (a file with the inputs and the reason) of a cell that has no outputs to check, if --keep-failed is
    /// given.
    pub fn keep_unjudged(&self, cell: &Cell, draw: Draw, why: &str, file: Option<&[u8]>) -> Result<()> {
        self.keep.filter(|_| draw.keep).map_or(Ok(()), |capsules| {
            capsules.keep(cell, draw, &CellResult::Nothing { why, file })
        })
    }
}

/// Returns the product of a case's sizes.
pub fn volume(case: &Case) -> f64 {
    case.dims.iter().map(|(_, size)| (*size).max(1) as f64).product()
}

/// Returns the operations of cells, each once, in the order of the cells.
pub fn ops_of<'a>(cells: impl IntoIterator<Item = &'a Cell>) -> Vec<&'a str> {
    distinct(cells.into_iter().map(|cell| cell.kernel().0))
}

/// Returns the cells of an operation.
pub fn of_op<'a>(op: &str, cells: &[&'a Cell]) -> Vec<&'a Cell> {
    cells.iter().copied().filter(|cell| cell.kernel().0 == op).collect()
}

/// Runs the cells of kernel variants on a GPU; holds the options of the run.
pub struct Variants<'a> {
    pub cells: Cells<'a>,
    pub sources: &'a [KernelFile],
    pub session: Session<'a>,
    /// Hardware rates that measured times are compared with.
    pub ceilings: Option<Ceilings>,
    /// The fault to plant in the kernels that have it, as `op.mutant`; `None` to plant none.
    pub mutant: Option<&'a str>,
    /// Peers (other implementations) whose times are recorded next to those of the kernels.
    pub peers: Option<&'a Peers>,
}

impl Variants<'_> {
    /// Runs the cells, operation by operation.
    pub fn run(&self, cells: &[&Cell]) -> Result<()> {
        for source in self.sources {
            let here = of_op(&source.op, cells);
            if here.is_empty() {
                continue;
            }
            // Plant no fault in a file whose header does not list the fault.
            let planted = |fault: &&Mutant| self.mutant == Some(&*source.full_name(&fault.name));
            let fault = source.header.mutants.iter().find(planted);
            let cases = crate::ops::find(&source.op).map_err(Error::Usage)?.cases();
            let works = here.iter().filter_map(|cell| {
                let named = |case: &&Case| self.cells.study.case_names[cell.window] == case.name;
                Some((fault, source.variant(cell.kernel().1)?, cases.iter().find(named)?))
            });
            self.session.compile_ahead(source, &works.collect::<Vec<_>>());
            let kernels = self.session.load(source, fault);
            self.cells.each(&source.op, &here, None, |cell, draw| {
                let variant = source.variant(cell.kernel().1);
                let variant = variant.ok_or_else(|| Error::Usage(format!("no variant {}", cell.recipe)))?;
                let records = self.cell(cell, variant, draw, &kernels.case(draw.case, draw.problem));
                // After a refused launch the device is usable, and the cell gets a failed record. After an illegal access the
                // device is not usable, and the run ends.
                records.or_else(|why| {
                    let device = self.session.device;
                    device.wait().map_err(|_| why.to_string()).map_err(Error::Setup)?;
                    errln!("{why}");
                    let why = why.to_string();
                    self.cells.keep_unjudged(cell, draw, &why, None)?;
                    Ok(vec![unknown(cell, draw.case, "launch", &why)])
                })
            })?;
        }
        Ok(())
    }

    fn cell(&self, cell: &Cell, variant: &Variant, draw: Draw, bench: &Bench) -> Result<Vec<Record>> {
        let Draw { case, problem, .. } = draw;
        let place = |error: Error| Error::Setup(format!("{}: {error}", cell.id));
        let Some(plan) = bench.plan(variant)? else {
            return Ok(Vec::new());
        };
        let products = plan.products;
        let running = bench.ready(variant, plan).map_err(place)?;
        let mut checked = running.judged().map_err(place)?;
        relate(problem, &checked.outputs, &mut checked.measured);
        self.cells.keep_failed(cell, draw, &checked)?;
        let mut measured = checked.measured;
        if case.timed && self.mutant.is_none() && failures(&measured).next().is_none() {
            let times = self.figures(&running.time().map_err(place)?, problem, products);
            let cold = times.iter().find(|time| time.metric == &metrics::US_COLD);
            if let (Some(peers), Some(cold)) = (self.peers, cold) {
                measured.extend(peers.beside(cell.kernel().0, &case.name, cold.value));
            }
            measured.extend(times);
        }
        Ok(records(cell, case, measured))
    }

    /// Converts measured times to metrics: the times, the size of the data in MB, and the achieved bandwidth and arithmetic rate
    /// as fractions of the GPU's peak rates.
    fn figures(&self, times: &Times, problem: &Problem, products: Factor) -> Vec<Measured> {
        let rotated = times.rotated.map(|rotated| rotated.median);
        let share = |us: f64| {
            let copy = self.ceilings.map(|ceilings| ceilings.copy_gb_s * 1e3);
            copy.map(|copy| problem.bytes as f64 / us / copy)
        };
        let flops = |us: f64| {
            let rate = self.ceilings.and_then(|ceilings| products.rate(&ceilings));
            let rate = rate.filter(|_| problem.flops > 0);
            rate.map(|rate| problem.flops as f64 / us / (rate * 1e6))
        };
        let all: [(&Metric, Option<f64>); 11] = [
            (&metrics::US_COLD, Some(times.cold.median)),
            (&metrics::US_COLD_P10, Some(times.cold.p10)),
            (&metrics::US_COLD_P90, Some(times.cold.p90)),
            (&metrics::US_HOT, Some(times.hot.median)),
            (&metrics::US_GRAPH, times.graph.map(|graph| graph.median)),
            (&metrics::US_ROTATED, rotated),
            (&metrics::US_CACHED, times.cached.map(|cached| cached.median)),
            (&metrics::MEGABYTES, Some(problem.bytes as f64 / 1e6)),
            (&metrics::OF_COPY, share(times.cold.median)),
            (&metrics::OF_COPY_ROTATED, rotated.and_then(share)),
            (&metrics::OF_MATMUL, flops(times.cold.median)),
        ];
        let measured = all.into_iter();
        let measured = measured.filter_map(|(metric, value)| Some(time(metric, value?)));
        measured.collect()
    }
}

/// Returns the record of a cell that could not be run, with the reason. Its value is NaN, which passes no gate.
pub fn unknown(cell: &Cell, case: &Case, site: &str, why: &str) -> Record {
    let message = why.to_string();
    Record {
        site: site.into(),
        metric: metrics::VIOLATIONS.name.into(),
        failure: Some(Box::new(Failure {
            message,
            ..Failure::default()
        })),
        ..Record::blank(&cell.id, &cell.recipe, Phase::Local, &case.name)
    }
}

/// Returns a measurement of a time or of a number derived from it.
pub fn time(metric: &'static Metric, value: f64) -> Measured {
    Measured {
        output: TIME,
        metric,
        value,
        n: 1,
        worst: None,
        failure: None,
    }
}

/// Converts the measurements of a cell to records.
pub fn records(cell: &Cell, case: &Case, measured: Vec<Measured>) -> Vec<Record> {
    let blank = Record::blank(&cell.id, &cell.recipe, Phase::Local, &case.name);
    let record = |measured: Measured| Record {
        site: measured.output.into(),
        metric: measured.metric.name.into(),
        value: measured.value,
        n: measured.n,
        worst: measured.worst,
        failure: measured.failure,
        ..blank.clone()
    };
    measured.into_iter().map(record).collect()
}

/// Runs the model on a text, and returns the tensors at all sites that match the pattern.
pub fn sites(text: Text<'_>, pattern: &str) -> std::result::Result<Vec<Rows>, String> {
    let found = recorded(&[(pattern, pattern)], text).map_err(|error| error.to_string())?;
    refuse(
        found.is_empty(),
        format_args!("'{pattern}' matches no site of the model"),
    )?;
    Ok(found.into_iter().map(|sample| sample.rows).collect())
}
