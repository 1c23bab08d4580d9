//! Operations of an experiment, both shipped and defined by the user, and the cases that each operation is tested on.

mod case;
mod draw;
mod files;
mod own;
mod problem;
mod read;
mod samples;

use std::collections::{BTreeSet, HashSet};
use std::sync::atomic::AtomicBool;

pub use case::{OwnCase, Setting};
pub use draw::Values;
pub use files::{files, matching, watched};
pub use own::{Bound, Input, Output, OwnOp, Size, expressions, timeout, type_of};
pub use read::{Definitions, given, read};
pub use samples::{OutputNames, Sample, outputs, samples, smallest};

use super::{Command, KernelStudy};
use crate::experiment::Mistake;
use crate::ops::{self, Case, Data, OPS, Op, Problem};
use crate::studies::parse::{is_name, no_name};
use ulplab_core::error::{Result, did_you_mean, refuse};
use ulplab_core::pattern::matches;
use ulplab_operations::ops::sums::ACCUMULATORS;

/// An operation of an experiment.
#[derive(Clone, Copy)]
pub struct Operation<'a> {
    study: &'a KernelStudy,
    op: &'a dyn Op,
    /// The user's definition of the operation; `None` for a shipped operation.
    pub own: Option<&'a OwnOp>,
}

impl<'a> Operation<'a> {
    /// Returns the operation with this name, or an error that suggests the most similar name.
    pub fn find(study: &'a KernelStudy, name: &str) -> Result<Self, String> {
        let own = study.ops.iter().find(|op| op.name == name);
        let op = own.map_or_else(|| ops::find(name).ok(), |own| Some(own as &dyn Op));
        op.map(|op| Self { study, op, own }).ok_or_else(|| {
            let own = study.ops.iter().map(|op| op.name.as_str());
            let hint = did_you_mean(name, ops::all().map(|op| op.name()).chain(own));
            format!("no operation '{name}'{hint}")
        })
    }

    pub fn name(&self) -> &'a str {
        self.op.name()
    }

    /// Returns all cases of the operation: the shipped cases, then the cases of the experiment.
    pub fn cases(&self) -> Result<Vec<Case>, Mistake> {
        let mut cases = self.op.cases();
        let own = self.study.own_cases.iter().enumerate();
        for (at, own) in own.filter(|(_, own)| own.op == self.name()) {
            let wrong = |why: String| {
                Mistake::at("name", format!("case '{}' of '{}': {why}", own.name, own.op)).within("case", at)
            };
            let case = own.resolve(self).map_err(wrong)?;
            let taken = cases.iter().any(|other| other.name == case.name);
            refuse(taken, "another case has that name").map_err(wrong)?;
            cases.push(case);
        }
        Ok(cases)
    }

    /// Makes the inputs and the expected outputs of a case. If a reference program fails, returns an outer error, which ends the
    /// run. If the inputs of a shipped operation cannot be made, returns an inner error, which fails only this case.
    pub fn problem(&self, case: &Case, data: &Data, stop: &AtomicBool) -> Result<Result<Problem, String>> {
        match self.own {
            None => Ok(ops::problem_with(self.op, case, data)),
            Some(op) => op.problem_until(case, data, stop).map(Ok),
        }
    }

    /// Returns the case with this name, or an error that suggests the most similar name. Other cases in the user's file are not
    /// checked.
    pub fn case(&self, name: &str) -> Result<Case, String> {
        let own = self.study.own_cases.iter();
        let own = own.filter(|own| own.op == self.name());
        if let Some(found) = own.clone().find(|own| own.name == name) {
            let wrong = |why| format!("case '{name}' of '{}': {why}", self.name());
            return found.resolve(self).map_err(wrong);
        }
        let shipped = self.op.cases();
        let found = shipped.iter().find(|case| case.name == name).cloned();
        found.ok_or_else(|| {
            let names = shipped.iter().map(|case| case.name.as_str());
            let hint = did_you_mean(name, names.chain(own.map(|own| own.name.as_str())));
            format!("{} has no case '{name}'{hint}", self.name())
        })
    }

    /// Returns the names that the operation's outputs have in records. For a shipped operation, makes a few small cases to find
    /// these names.
    pub fn outputs(&self) -> Result<OutputNames, String> {
        match self.own {
            Some(op) => Ok(OutputNames {
                names: op.outputs.iter().map(|output| output.name.clone()).collect(),
                all: true,
            }),
            None => outputs(self.op),
        }
    }

    /// True if inputs of the case are tensors at sites of a model.
    pub fn reads_site(&self, case: &Case) -> bool {
        match self.own {
            None => case.inputs.need_model(),
            Some(op) => op.inputs.iter().any(|input| matches!(input.values, Values::Site(_))),
        }
    }
}

/// Returns each operation of the run once, the user's operations first. Callers search for an output name: the experiment file
/// states the names of the user's outputs; the outputs of a shipped operation are known only from its cases.
pub fn of_recipes(study: &KernelStudy) -> Vec<Operation<'_>> {
    let names: BTreeSet<&str> = study.variants.iter().map(|recipe| op_of(&recipe.name)).collect();
    let found = names.into_iter().filter_map(|name| Operation::find(study, name).ok());
    let mut found: Vec<Operation> = found.collect();
    found.sort_by_key(|operation| operation.own.is_none());
    found
}

/// Returns the cases that a recipe `op.variant` is run on: the cases that its program selects, or else the cases that the
/// experiment selects, or else all cases of the operation.
pub fn cases_of(study: &KernelStudy, recipe: &str) -> Result<Vec<Case>, Mistake> {
    let mut cases = known(study, recipe)?.cases()?;
    cases.retain(|case| asks(study, recipe, &case.name));
    Ok(cases)
}

/// Returns the names of the cases of [`cases_of`] without reading the cases, so that a stored run needs none of their files. The
/// set is empty if the recipe's operation is unknown.
pub fn names_of(study: &KernelStudy, recipe: &str) -> HashSet<String> {
    let Ok(operation) = Operation::find(study, op_of(recipe)) else {
        return HashSet::new();
    };
    let shipped = operation.op.cases().into_iter().map(|case| case.name);
    let own = study.own_cases.iter().filter(|own| own.op == operation.name());
    let names = shipped.chain(own.map(|own| own.name.clone()));
    names.filter(|name| asks(study, recipe, name)).collect()
}

/// Returns the name of a recipe's operation.
pub(super) fn op_of(recipe: &str) -> &str {
    recipe.split_once('.').map_or(recipe, |(op, _)| op)
}

/// Returns the operation of a recipe `op.variant`, or an error if the operation is unknown. For a program, the error points to
/// the program's key `op`.
fn known<'a>(study: &'a KernelStudy, recipe: &str) -> Result<Operation<'a>, Mistake> {
    Operation::find(study, op_of(recipe)).map_err(|why| {
        let why = format!("'{recipe}': {why}");
        match study.commands.iter().position(|command| command.recipe() == recipe) {
            Some(at) => Mistake::at("op", why).within("command", at),
            None => Mistake::at("kernels", why),
        }
    })
}

/// True if a recipe (a kernel or program) is run on the case with this name.
fn asks(study: &KernelStudy, recipe: &str, case: &str) -> bool {
    let command = study.commands.iter().find(|command| command.recipe() == recipe);
    let patterns = match command {
        Some(command) if !command.cases.is_empty() => &command.cases,
        _ => &study.cases,
    };
    patterns.is_empty() || patterns.iter().any(|pattern| matches(pattern, case))
}

/// Returns the cells, as `recipe/case`, whose operation and case satisfy `keep`.
pub fn cells(study: &KernelStudy, keep: impl Fn(&Operation, &Case) -> bool) -> Result<HashSet<String>, Mistake> {
    let mut kept = HashSet::new();
    for recipe in &study.variants {
        let name = &recipe.name;
        let operation = known(study, name)?;
        let cases = cases_of(study, name)?.into_iter().filter(|case| keep(&operation, case));
        kept.extend(cases.map(|case| format!("{name}/{}", case.name)));
    }
    Ok(kept)
}

/// Checks the user's operations and programs. Must be called before cases of the operations are used.
pub fn check_definitions(study: &KernelStudy) -> Result<(), Mistake> {
    for (at, op) in study.ops.iter().enumerate() {
        let wrong = |why: String| Mistake::at("name", format!("operation '{}': {why}", op.name)).within("op", at);
        op.check_definition().map_err(wrong)?;
        let mut others = study.ops[..at].iter().map(|other| other.name.as_str());
        let taken = others.any(|other| other == op.name) || OPS.iter().any(|known| known.name() == op.name);
        refuse(taken, "another operation has that name").map_err(wrong)?;
        if !study.commands.iter().any(|command| command.op == op.name) {
            // If a program names an unknown operation, report that mistake: the program probably misspells this operation's name.
            for command in &study.commands {
                known(study, &command.recipe())?;
            }
            return Err(wrong("no [[command]] computes it".into()));
        }
        let tried = study.own_cases.iter().any(|case| case.op == op.name);
        refuse(!tried, "no [[case]] says how large its sizes are").map_err(wrong)?;
    }
    let checked = |command: &Command| {
        check_command(command).map_err(|mistake| mistake.of(format!("command '{}'", command.recipe())))
    };
    Mistake::each("command", &study.commands, checked).map(drop)
}

/// Checks the user's cases, and the patterns that select cases.
pub fn check_cases(study: &KernelStudy) -> Result<(), Mistake> {
    let run: BTreeSet<&str> = study.variants.iter().map(|recipe| op_of(&recipe.name)).collect();
    for (at, case) in study.own_cases.iter().enumerate() {
        let wrong = |why: String| Mistake::at("op", format!("case '{}': {why}", case.name)).within("case", at);
        Operation::find(study, &case.op).map_err(wrong)?;
        let why = format_args!("no kernel or program of the experiment computes '{}'", case.op);
        refuse(!run.contains(&*case.op), why).map_err(wrong)?;
    }
    check_patterns(study, &run)
}

fn check_command(command: &Command) -> Result<(), Mistake> {
    Mistake::refuse(!is_name(&command.name, "_-"), "name", no_name(&command.name))?;
    Mistake::refuse(command.run.is_empty(), "run", "run is empty, expected a program")?;
    if let Some(stated) = &command.accumulator {
        let names = || ACCUMULATORS.iter().map(|(name, ..)| *name);
        let (all, near) = (names().collect::<Vec<_>>().join(", "), did_you_mean(stated, names()));
        let why = format_args!("'{stated}': expected one of {all}{near}");
        Mistake::refuse(!names().any(|name| name == stated), "accumulator", why)?;
        let defining = OPS.iter().filter(|op| op.defines_sums()).map(|op| op.name());
        let (op, all) = (&command.op, defining.collect::<Vec<_>>().join(", "));
        let why = format_args!("{op} does not define its sums to the bit; expected it for {all} only");
        Mistake::refuse(command.sums().is_none(), "accumulator", why)?;
    }
    own::check_timeout(command.timeout).map_err(|why| Mistake::at("timeout", why))
}

/// Checks that every pattern matches a case, and that every recipe has a case.
fn check_patterns(study: &KernelStudy, run: &BTreeSet<&str>) -> Result<(), Mistake> {
    let unmatched = |patterns: &[String], ops: &BTreeSet<&str>| -> Result<(), Mistake> {
        let mut names = Vec::new();
        for op in ops {
            let operation = Operation::find(study, op).map_err(|why| Mistake::at("op", why))?;
            names.extend(operation.cases()?.into_iter().map(|case| case.name));
        }
        let unknown = |pattern: &String| !names.iter().any(|name| matches(pattern, name));
        let Some(at) = patterns.iter().position(unknown) else {
            return Ok(());
        };
        let pattern = &patterns[at];
        let example = names.first().map(String::as_str).unwrap_or_default();
        let hint = did_you_mean(pattern, names.iter().map(String::as_str));
        let why = format!("cases: '{pattern}' matches no case; cases are named like '{example}'{hint}");
        Err(Mistake::new(why).within("cases", at))
    };
    unmatched(&study.cases, run)?;
    let of_command = |command: &Command| unmatched(&command.cases, &BTreeSet::from([&*command.op]));
    Mistake::each("command", &study.commands, of_command)?;
    study.variants.iter().try_for_each(|variant| {
        let why = format_args!("'{}': cases leave none that it is tried on", variant.name);
        Mistake::refuse(cases_of(study, &variant.name)?.is_empty(), "cases", why)
    })
}
