//! The cells of an experiment.

use crate::experiment::{Experiment, Kind};
use crate::studies::kernels::operations::names_of;
use ulplab_core::error::{Error, Result};
use ulplab_core::pattern;
use ulplab_core::pattern::selects;
use ulplab_core::record::Phase;

/// Name of the built-in recipe that measures the reference's own error: f32 against f64.
pub const REFERENCE: &str = "reference";

/// One unit of work: one recipe in one phase on one window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cell {
    pub recipe: String,
    pub phase: Phase,
    /// Index into the experiment's [`window_names`](Experiment::window_names).
    pub window: usize,
    /// `<recipe>/<phase>/<window>`.
    pub id: String,
}

impl Cell {
    fn new(recipe: &str, phase: Phase, window: usize, name: &str) -> Self {
        let id = format!("{recipe}/{phase}/{name}");
        Self {
            recipe: recipe.to_string(),
            phase,
            window,
            id,
        }
    }

    /// Of a kernel: its operation and its variant.
    pub fn kernel(&self) -> (&str, &str) {
        self.recipe.split_once('.').unwrap_or((&self.recipe, ""))
    }
}

/// All cells, window by window: of a model the reference's own error first, then every recipe in every phase.
pub fn plan(experiment: &Experiment) -> Vec<Cell> {
    let own = (experiment.kind == Kind::Model).then_some((REFERENCE, Phase::Cumulative));
    let phases = experiment.phases();
    let recipes = experiment
        .recipes
        .iter()
        .flat_map(|recipe| phases.iter().map(|&phase| (recipe.name.as_str(), phase)));
    let each: Vec<(&str, Phase)> = own.into_iter().chain(recipes).collect();
    // Of kernels, each has the cases of its operation only.
    let kernels = experiment.kind == Kind::Kernels;
    let each = each
        .into_iter()
        .map(|(recipe, phase)| (recipe, phase, kernels.then(|| names_of(experiment, recipe))));
    let each: Vec<_> = each.collect();
    let mut cells = Vec::new();
    for (window, name) in experiment.window_names().into_iter().enumerate() {
        for (recipe, phase, cases) in &each {
            if cases.as_ref().is_none_or(|cases| cases.contains(&name)) {
                cells.push(Cell::new(recipe, *phase, window, &name));
            }
        }
    }
    cells
}

/// Bytes of a cell's id: what is stored of it is called so, in names that end at 255 bytes and have an ending of their own.
const LONGEST: usize = 200;

/// Finds a cell that no file can be called by: the longer of its names, and what is wrong with it.
pub fn check_file_names(experiment: &Experiment, cells: &[Cell]) -> Result<(), (String, String)> {
    let names = experiment.window_names();
    let Some(cell) = cells.iter().find(|cell| cell.id.len() > LONGEST) else {
        return Ok(());
    };
    let (recipe, window) = (&cell.recipe, &names[cell.window]);
    let (what, name) = match (recipe.len() > window.len(), experiment.kind) {
        (true, _) => ("recipe", recipe),
        (false, Kind::Kernels) => ("case", window),
        (false, _) => ("window", window),
    };
    let message = format!(
        "{what} '{name}': the cell {recipe}/{}/{window} has {} bytes in its name, and files are called by at most {LONGEST}",
        cell.phase,
        cell.id.len()
    );
    Err((name.clone(), message))
}

/// Keeps the cells whose id matches one of `only` (all, if empty) and none of `skip`.
pub fn select(cells: Vec<Cell>, only: &[String], skip: &[String]) -> Result<Vec<Cell>> {
    let names: Vec<&str> = cells.iter().map(|cell| cell.id.as_str()).collect();
    pattern::check("cell", &[only, skip], &names)?;
    let kept: Vec<Cell> = cells.into_iter().filter(|cell| selects(only, skip, &cell.id)).collect();
    if kept.is_empty() {
        return Err(Error::NothingSelected("--only and --skip leave no cell".into()));
    }
    Ok(kept)
}

/// A share of the plan: every n-th cell, from the m-th on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Partition {
    /// 1-based.
    pub m: usize,
    pub n: usize,
}

impl std::str::FromStr for Partition {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parse = || {
            let (m, n) = text.strip_prefix("slice:")?.split_once('/')?;
            let (m, n) = (m.parse().ok()?, n.parse().ok()?);
            (1 <= m && m <= n).then_some(Self { m, n })
        };
        parse().ok_or_else(|| format!("'{text}' is not a partition: expected slice:M/N with 1 <= M <= N"))
    }
}

impl std::fmt::Display for Partition {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "slice:{}/{}", self.m, self.n)
    }
}

impl Partition {
    pub fn of(self, cells: &[Cell]) -> impl Iterator<Item = &Cell> {
        cells.iter().skip(self.m - 1).step_by(self.n)
    }
}
