//! `ulplab inspect CHECKPOINT`: checks if a quantized checkpoint is complete and plausible.

mod html;
mod output;

use super::InspectArgs;
use crate::progress::Progress;
use crate::run::verdict::Outcome;
use ulplab_checkpoint::checkpoint::{Checkpoint, Report, Selection, Severity};
use ulplab_checkpoint::parity::output::write;
use ulplab_core::atomic::write_text;
use ulplab_core::error::{Exit, Result};

/// Judges a checkpoint.
pub fn run(args: &InspectArgs) -> Result<Exit> {
    let checkpoint = Checkpoint::open(&args.file)?;
    let source = args.source.as_ref().map(|path| Checkpoint::source(path)).transpose()?;
    let selection = Selection {
        only: &args.only,
        skip: &args.skip,
        source: source.as_ref(),
    };
    let progress = std::cell::RefCell::new(Progress::new(0, args.no_progress));
    let report = checkpoint.judge(
        &selection,
        |elements| *progress.borrow_mut() = Progress::new(elements, args.no_progress),
        |elements, name| progress.borrow_mut().advance(elements, name),
    )?;
    drop(progress);
    let verdict = outcome(&report);
    let top = if args.all { usize::MAX } else { args.top };
    let text = match args.json {
        true => output::records(&report, verdict),
        false => output::page(&args.file, &report, verdict, top),
    };
    write(&mut crate::output::stdout(), &text)?;
    if let Some(file) = &args.html {
        write_text(file, &html::page(&args.file, &report, verdict))?;
    }
    Ok(verdict.exit())
}

/// Returns the verdict on a checkpoint: "not judged" if no tensor is quantized, or if a tensor could not be judged.
fn outcome(report: &Report) -> Outcome {
    let open = report.count(Severity::NotJudged) > 0 || !report.unread.is_empty() || report.matrices.is_empty();
    match (report.count(Severity::Error), open) {
        (1.., _) => Outcome::Fail,
        (0, true) => Outcome::NotJudged,
        (0, false) => Outcome::Pass,
    }
}
