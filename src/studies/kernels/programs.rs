//! Runs external programs on the cases of an operation. Each program chooses its own device.

use std::collections::{BTreeSet, HashMap};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::atomic::Ordering;

use super::draws::Draw;
use super::operations::OwnOp;
use super::relations::relate;
use super::{Cells, of_op, records, time, unknown};
use super::{Command, KernelStudy};
use crate::backend::program::{Program, ProgramFailure};
use crate::experiment::Mistake;
use crate::run::plan::Cell;
use ulplab_core::error::{Error, Result};
use ulplab_core::list::distinct;
use ulplab_core::metrics::US_CLAIMED;
use ulplab_core::record::Record;
use ulplab_operations::ops::checks::failures;

/// True if a cell belongs to one of the programs.
pub fn is_of(commands: &[Command], cell: &Cell) -> bool {
    commands.iter().any(|command| command.recipe() == cell.recipe)
}

/// Checks that all programs that the cells need exist: the programs of the cells, and the reference programs of the operations
/// that the cells test.
pub fn check_programs(study: &KernelStudy, cells: &[Cell]) -> Result<(), Mistake> {
    let is_run = |command: &Command| cells.iter().any(|cell| cell.recipe == command.recipe());
    let is_asked = |op: &OwnOp| cells.iter().any(|cell| cell.kernel().0 == op.name);
    for (at, command) in study.commands.iter().enumerate().filter(|(_, command)| is_run(command)) {
        let wrong = |why| Mistake::at("run", why).of(format!("command '{}'", command.recipe()));
        check_program(&command.run).map_err(|why| wrong(why).within("command", at))?;
    }
    for (at, op) in study.ops.iter().enumerate().filter(|(_, op)| is_asked(op)) {
        let wrong = |why| Mistake::at("reference", why).of(format!("operation '{}': reference", op.name));
        check_program(&op.reference).map_err(|why| wrong(why).within("op", at))?;
    }
    Ok(())
}

fn check_program(run: &[String]) -> Result<(), String> {
    let Some(program) = run.first().filter(|program| !is_there(program)) else {
        return Ok(());
    };
    let place = match program.contains('/') {
        true => "there is no file that can be run",
        false => "no folder of $PATH has it",
    };
    Err(format!("cannot start '{program}': {place}"))
}

/// True if a program can be started: it is an executable file at its path, or in a folder of $PATH if it is only a name.
fn is_there(program: &str) -> bool {
    let runs = |file: &Path| {
        let found = file.metadata();
        found.is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
    };
    if program.contains('/') {
        return runs(program.as_ref());
    }
    // Without $PATH, the system searches in folders that are unknown here: assume that the program exists.
    let Some(folders) = std::env::var_os("PATH") else {
        return true;
    };
    std::env::split_paths(&folders).any(|folder| runs(&folder.join(program)))
}

/// Runs the cells of programs, operation by operation. The programs of an operation are run on a case one after the other. A
/// program in mode `serve` is started once for all cases of its operation.
pub fn run(all: &Cells, cells: &[&Cell]) -> Result<()> {
    for op in distinct(all.study.commands.iter().map(|command| command.op.as_str())) {
        let commands = all.study.commands.iter().filter(|command| command.op == op);
        let started = commands.map(|command| {
            let program = Program::new(op, &command.run, command.mode, command.timeout, all.stop);
            (command.recipe(), (command, program))
        });
        let programs: HashMap<String, (&Command, Program)> = started.collect();
        // Group the programs by the accumulator that they declare, because the expected outputs depend on the accumulator.
        let stated: BTreeSet<Option<&str>> = programs.values().map(|(command, _)| command.sums()).collect();
        for stated in stated {
            let here = of_op(op, cells).into_iter();
            let here: Vec<&Cell> = here.filter(|cell| programs[&cell.recipe].0.sums() == stated).collect();
            all.each(op, &here, stated, |cell, draw| {
                cell_of(all, &programs[&cell.recipe], cell, draw)
            })?;
        }
    }
    Ok(())
}

/// Runs a program on a case. If the program fails, only its cell fails, and the other cells are still run.
fn cell_of(all: &Cells, (command, program): &(&Command, Program), cell: &Cell, draw: Draw) -> Result<Vec<Record>> {
    let Draw { case, problem, .. } = draw;
    let (mut checked, us) = match program.check(case, problem, command.nondeterministic.is_none()) {
        Ok(ran) => ran,
        // Ctrl-C also ends the program: this is not a failure of the program.
        Err(_) if all.stop.load(Ordering::Relaxed) => return Err(Error::Interrupted),
        Err(ProgramFailure { why, left }) => {
            errln!("{}: {why}", cell.id);
            all.keep_unjudged(cell, draw, &why, left.as_deref())?;
            return Ok(vec![unknown(cell, case, "program", &why)]);
        }
    };
    checked.measured.extend(problem.judge(&checked.outputs));
    relate(problem, &checked.outputs, &mut checked.measured);
    all.keep_failed(cell, draw, &checked)?;
    let mut measured = checked.measured;
    let right = failures(&measured).next().is_none();
    measured.extend(us.filter(|_| right).map(|us| time(&US_CLAIMED, us)));
    Ok(records(cell, case, measured))
}
