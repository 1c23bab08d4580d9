//! A study from outside whose cells run on a device: it is opened before the run, says which cells it takes, and runs them in its own
//! order.

use ulplab::experiment::file::ExperimentFile;
use ulplab::record::Record;
use ulplab::run::plan::Cell;
use ulplab::studies::{Lab, Planned, ReadyRecipes};
use ulplab::{Error, Exit, Result};

use super::{FILE, Harmonic, KIND, measured};
use crate::report::folder;

/// A device that sums up to so many terms.
pub struct Adder<'a> {
    study: &'a Harmonic,
    most: u32,
    open: bool,
}

impl<'a> Adder<'a> {
    pub fn new(study: &'a Harmonic, most: u32) -> Self {
        Self {
            study,
            most,
            open: false,
        }
    }
}

impl ReadyRecipes for Adder<'_> {
    fn open(&mut self, planned: Planned) -> Result<Option<Exit>> {
        planned.cells.retain(|cell| self.study.terms[cell.window] <= self.most);
        planned.manifest.keep(planned.cells);
        planned.manifest.device = format!("an adder of {} terms", self.most);
        self.open = true;
        Ok(planned.cells.is_empty().then_some(Exit::NotJudged))
    }

    /// Runs recipe by recipe.
    fn run(&self, lab: &Lab, cells: &[&Cell]) -> Result<()> {
        if !self.open {
            return Err(Error::Setup("the adder is not open".into()));
        }
        let mut cells = cells.to_vec();
        cells.sort_by(|a, b| a.recipe.cmp(&b.recipe));
        cells.into_iter().try_for_each(|cell| {
            let window = &lab.plan.windows[cell.window];
            (lab.done)(
                cell,
                self.study
                    .sum(Record::blank(&cell.id, &cell.recipe, cell.phase, window))?,
            )
        })
    }
}

#[test]
fn a_device_of_a_study_opens_first_and_leaves_cells_out() {
    let open = |adder: &str| {
        let text = FILE.replace("terms =", &format!("adder = {adder}\nterms ="));
        let file = ExperimentFile::new("sums.toml".into(), text, &[]).unwrap();
        let study = (KIND.parse)(&file).unwrap();
        let (plan, mut ready) = (study.plan(), study.ready(0, None).unwrap());
        let (mut cells, mut manifest) = (plan.cells(), folder::manifest(1));
        manifest.plan = plan.clone();
        ready.prepare(&file, &cells, &mut manifest).unwrap();
        let planned = Planned {
            manifest: &mut manifest,
            cells: &mut cells,
            shared: None,
            json: false,
        };
        let exit = ready.open(planned).unwrap();
        (exit, manifest, measured(&*ready, &plan, &cells))
    };
    let (exit, manifest, records) = open("1000");
    assert_eq!((exit, manifest.device.as_str()), (None, "an adder of 1000 terms"));
    assert_eq!(manifest.cells, ["falling/local/n10", "rising/local/n10"]);
    assert_eq!(manifest.left_out, ["falling/local/n1000000", "rising/local/n1000000"]);
    let mut measured: Vec<&str> = records.iter().map(|record| record.cell.as_str()).collect();
    measured.dedup();
    assert_eq!(measured, manifest.cells);

    let (exit, manifest, records) = open("1");
    assert_eq!(
        (exit, manifest.cells.len(), records.len()),
        (Some(Exit::NotJudged), 0, 0)
    );
}
