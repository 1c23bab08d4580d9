//! `ulplab merge`: one verdict on a run that several processes (such as tasks of a job scheduler) measured.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use rayon::prelude::*;

use super::diff::timed;
use super::judged;
use crate::run::folder::Folder;
use crate::run::{Manifest, Run, lines};
use crate::{gate, studies};
use ulplab_core::error::{Error, Exit, Result};
use ulplab_core::record::Record;
use ulplab_core::text::shown;

/// Bring the cells of one run together, judge its gates once on all of them, and write its reports.
///
/// If cells are missing, their ids are printed and the exit code is 103; else the exit code is that of `ulplab gate`.
#[derive(Debug, clap::Args)]
pub struct MergeArgs {
    /// The folder that the tasks shared; or several folders, whose cells are copied into --out.
    #[arg(required = true, value_name = "FOLDER")]
    pub folders: Vec<PathBuf>,
    /// Folder of the merged run, needed if there are several folders. The folder may hold some cells of the run already.
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Print verdicts, or the missing cells, as JSON Lines on stdout.
    #[arg(long)]
    pub json: bool,
}

pub fn run(args: &MergeArgs) -> Result<Exit> {
    let (folder, manifest) = match (&args.folders[..], &args.out) {
        ([one], None) => Folder::open(one)?,
        (_, Some(out)) => gathered(&args.folders, out)?,
        (_, None) => {
            let message = "several folders are merged into another one: give it, --out DIR";
            return Err(Error::Usage(message.into()));
        }
    };
    folder.check_cells(&manifest)?;
    let records = match gate::records(&folder, &manifest) {
        Err(why @ Error::Incomplete(_)) => {
            for id in folder.missing(&manifest)? {
                match args.json {
                    true => outln!("{}", serde_json::json!({ "missing": id })),
                    false => outln!("{}", shown(id)),
                }
            }
            errln!("`ulplab status {}` says which tasks failed", folder.path.display());
            return Err(why);
        }
        records => records?,
    };
    let study = studies::read(&manifest.experiment)?;
    let run = Run::judge(&folder, manifest, records)?;
    judged::finish(&folder, &run, &*study, args.json)?;
    Ok(run.outcome().exit())
}

/// Gathers the cells of all folders in the folder of the merged run, and returns that folder.
fn gathered(folders: &[PathBuf], out: &Path) -> Result<(Folder, Manifest)> {
    let sources = folders.iter().map(|path| Folder::open(path));
    let sources = sources.collect::<Result<Vec<(Folder, Manifest)>>>()?;
    let (first, manifest) = &sources[0];
    for (folder, other) in &sources {
        if other.fingerprint != manifest.fingerprint {
            let (here, there) = (folder.path.display(), first.path.display());
            let differences = manifest.differences(other).join(", ");
            let message = format!("{here}: its cells are not part of the run in {there}: {differences}");
            return Err(Error::Usage(message));
        }
        folder.check_cells(other)?;
    }
    let (target, manifest) = Folder::enter(out, manifest, true)?;
    // Cells that the target folder already has are merged like the cells of the other folders.
    let folders = std::iter::once(&target).chain(sources.iter().map(|(folder, _)| folder));
    let holders = folders.map(|folder| {
        let missing: HashSet<&str> = folder.missing(&manifest)?.into_iter().collect();
        Ok((folder, missing))
    });
    let holders = holders.collect::<Result<Vec<_>>>()?;
    manifest.cells.par_iter().try_for_each(|id| {
        let here = holders.iter().filter(|(_, missing)| !missing.contains(id.as_str()));
        gather(id, &target, here.map(|(folder, _)| *folder))
    })?;
    for (folder, _) in &sources {
        target.take_sessions(folder)?;
    }
    // Reads the manifest again: its seconds of work now include those of all merged folders.
    Folder::open(&target.path)
}

/// Copies a cell (the measurements of one recipe in one window) to `target`, from the first folder in which its file is
/// undamaged. Several folders have the cell if a task ran twice; it is an error if the numbers of two copies differ.
fn gather<'a>(id: &str, target: &Folder, holders: impl Iterator<Item = &'a Folder>) -> Result<()> {
    let mut whole: Option<(&Folder, Vec<Record>)> = None;
    let mut damaged = None;
    for folder in holders {
        match (folder.read_cell(id), &whole) {
            (Err(why @ Error::Data { .. }), _) => damaged = damaged.or(Some(why)),
            (Err(why), _) => return Err(why),
            (Ok(records), None) => whole = Some((folder, records)),
            (Ok(records), Some((first, others))) if numbers(&records) != numbers(others) => {
                let (here, there) = (folder.path.display(), first.path.display());
                return Err(Error::Usage(format!(
                    "{here}: the cell '{id}' has other numbers than in {there}, so that it depends on where it was measured: which of \
                     the two counts is yours to decide; remove the other"
                )));
            }
            (Ok(_), Some(_)) => {}
        }
    }
    let Some((from, _)) = whole else {
        return damaged.map_or(Ok(()), Err);
    };
    if let Some(why) = damaged {
        errln!("{why}; the cell is taken from {}", from.path.display());
    }
    match std::ptr::eq(from, target) {
        true => Ok(()),
        false => target.take(id, from),
    }
}

/// Returns the records of a cell as bytes, to compare two measurements of the cell. Leaves out times, which differ from run to
/// run.
fn numbers(records: &[Record]) -> Vec<u8> {
    let (mut lasting, mut text) = (records.to_vec(), Vec::new());
    lasting.retain(|record| !timed(&record.metric));
    lines::write(&lasting, &mut text).expect("writing to memory does not fail");
    text
}
