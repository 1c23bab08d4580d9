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
    let mut reports = texts(run, &*study(run)).into_iter();
    reports.find(|(report, _)| report.name == name).expect("a report").1
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
