//! The cells of an experiment.

use crate::error::{Error, Result};
use crate::pattern::matches;
use crate::record::Phase;
use crate::sweep::experiment::{Experiment, Window};

/// Name of the built-in recipe that measures the reference's own error: f32 against f64.
pub const REFERENCE: &str = "reference";

/// One unit of work: one recipe in one phase on one window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cell {
    pub recipe: String,
    pub phase: Phase,
    /// Index into the experiment's windows.
    pub window: usize,
    /// `<recipe>/<phase>/<window>`.
    pub id: String,
}

impl Cell {
    fn new(recipe: &str, phase: Phase, window: usize, windows: &[Window]) -> Self {
        let id = format!("{recipe}/{phase}/{}", windows[window].name());
        Self {
            recipe: recipe.to_string(),
            phase,
            window,
            id,
        }
    }
}

/// All cells, window by window: the reference's own error first, then every recipe in every phase.
pub fn plan(experiment: &Experiment) -> Vec<Cell> {
    let windows = &experiment.windows;
    (0..windows.len())
        .flat_map(|window| {
            let own = Cell::new(REFERENCE, Phase::Cumulative, window, windows);
            let recipes = experiment.recipes.iter().flat_map(move |recipe| {
                experiment
                    .phases
                    .iter()
                    .map(move |&phase| Cell::new(&recipe.name, phase, window, windows))
            });
            std::iter::once(own).chain(recipes)
        })
        .collect()
}

/// Keeps the cells whose id matches one of `only` (all, if empty) and none of `skip`.
pub fn select(cells: Vec<Cell>, only: &[String], skip: &[String]) -> Result<Vec<Cell>> {
    for pattern in only.iter().chain(skip) {
        if !cells.iter().any(|cell| matches(pattern, &cell.id)) {
            let example = cells.first().map(|cell| cell.id.as_str()).unwrap_or_default();
            return Err(Error::NothingSelected(format!(
                "'{pattern}' matches no cell; cells are named like '{example}'"
            )));
        }
    }
    let wanted = |cell: &Cell| only.is_empty() || only.iter().any(|pattern| matches(pattern, &cell.id));
    let unwanted = |cell: &Cell| skip.iter().any(|pattern| matches(pattern, &cell.id));
    let kept: Vec<Cell> = cells
        .into_iter()
        .filter(|cell| wanted(cell) && !unwanted(cell))
        .collect();
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

impl Partition {
    pub fn of(self, cells: &[Cell]) -> impl Iterator<Item = &Cell> {
        cells.iter().skip(self.m - 1).step_by(self.n)
    }
}
