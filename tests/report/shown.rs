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

pub fn html(run: &Run) -> String {
    report::html(run, &*study(run))
}

pub fn markdown(run: &Run) -> String {
    report::markdown(run, &*study(run))
}

pub fn junit(run: &Run) -> String {
    report::junit(run, &*study(run))
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
