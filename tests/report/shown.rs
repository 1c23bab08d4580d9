//! Reports of made-up runs, by the studies of their experiments.

use std::path::{Path, PathBuf};

use ulplab::report;
use ulplab::report::Tally;
use ulplab::run::Run;
use ulplab::studies::{self, Study};

pub use ulplab::report::{Outcome, texts};

pub fn study(run: &Run) -> Box<dyn Study> {
    studies::read(&run.manifest.experiment).expect("a study")
}

fn text(run: &Run, name: &str) -> String {
    let mut reports = report::REPORTS.iter();
    let report = reports.find(|report| report.name == name).expect("a report");
    report.text(run, &*study(run))
}

pub fn html(run: &Run) -> String {
    text(run, "html")
}

pub fn markdown(run: &Run) -> String {
    text(run, "markdown")
}

pub fn junit(run: &Run) -> String {
    text(run, "junit")
}

pub fn terminal(run: &Run, width: usize, colour: bool) -> String {
    report::terminal(run, &*study(run), width, colour)
}

pub fn tally(run: &Run) -> Tally {
    report::tally(run, &*study(run))
}

pub fn write_all(run: &Run, folder: &Path) -> ulplab::Result<Vec<PathBuf>> {
    report::write_all(run, &*study(run), folder)
}
