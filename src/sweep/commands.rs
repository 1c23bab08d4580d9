//! Programs on the cases of an operation, on whatever they run on themselves.

use super::experiment::Command;
use super::kernels::{Cells, of_op, records, time, unknown};
use super::plan::Cell;
use crate::backend::cuda::guards::failures;
use crate::backend::program::Program;
use crate::error::{Error, Result};
use crate::kernels::{self, Case, Problem};
use crate::metrics::US_CLAIMED;
use crate::record::Record;

/// Whether a cell is of one of the programs.
pub fn is_of(commands: &[Command], cell: &Cell) -> bool {
    commands.iter().any(|command| command.recipe() == cell.recipe)
}

/// Runs the cells of programs.
pub fn run(all: &Cells, cells: &[&Cell]) -> Result<()> {
    for command in &all.experiment.commands {
        let recipe = command.recipe();
        let here: Vec<&Cell> = of_op(&command.op, cells)
            .into_iter()
            .filter(|cell| cell.recipe == recipe)
            .collect();
        let op = kernels::find(&command.op).map_err(Error::Usage)?;
        all.each(op, &here, |cell, case, problem| {
            cell_of(all, command, cell, case, problem)
        })?;
    }
    Ok(())
}

/// A program that fails fails its cell; the others are run all the same.
fn cell_of(all: &Cells, command: &Command, cell: &Cell, case: &Case, problem: &Problem) -> Result<Vec<Record>> {
    let program = Program {
        op: &command.op,
        run: &command.run,
    };
    let (checked, us) = match program.check(case, problem, command.nondeterministic.is_none()) {
        Ok(ran) => ran,
        // Ctrl-C ends the program too: that says nothing of it.
        Err(_) if all.stop.load(std::sync::atomic::Ordering::Relaxed) => return Err(Error::Interrupted),
        Err(why) => {
            eprintln!("{}: {why}", cell.id);
            return Ok(vec![unknown(cell, case, "program")]);
        }
    };
    let mut measured = checked.measured;
    measured.extend((problem.judge)(&checked.outputs));
    let right = failures(&measured).next().is_none();
    measured.extend(us.filter(|_| right).map(|us| time(&US_CLAIMED, us)));
    Ok(records(cell, case, measured))
}
