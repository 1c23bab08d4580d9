//! The plan of an experiment: its cells. A cell is a unit of work: one recipe in one phase on one window.

use serde::{Deserialize, Serialize};

use crate::experiment::Rule;
use ulplab_core::error::{Error, Result};
use ulplab_core::pattern::{self, selects};
use ulplab_core::record::Phase;

/// Name of the built-in recipe that measures the reference's own error: f32 against f64.
pub const REFERENCE: &str = "reference";

/// One unit of work: one recipe in one phase on one window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cell {
    pub recipe: String,
    pub phase: Phase,
    /// Index into [`Plan::windows`].
    pub window: usize,
    /// Name of the cell: `<recipe>/<phase>/<window>`.
    pub id: String,
    /// Estimated work, in units of the cheapest cell of the plan.
    pub cost: u64,
}

impl Cell {
    /// Returns the operation and the variant of a kernel's recipe.
    pub fn kernel(&self) -> (&str, &str) {
        self.recipe.split_once('.').unwrap_or((&self.recipe, ""))
    }
}

/// Plan of an experiment, made by the study (the kind of experiment).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// The phases in which recipes are measured.
    pub phases: Vec<Phase>,
    /// Names of all windows, in the order of work: random inputs, then texts. For kernels, the windows are the test cases.
    pub windows: Vec<String>,
    pub recipes: Vec<RecipePlan>,
}

/// The plan of a recipe.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecipePlan {
    pub name: String,
    pub phases: Vec<Phase>,
    /// Indices of the recipe's windows, in rising order; `None` for all windows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub windows: Option<Vec<usize>>,
    /// Estimated work of each cell of the recipe, in units of the cheapest recipe's cells.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub cost: u64,
}

fn one() -> u64 {
    1
}

fn is_one(cost: &u64) -> bool {
    *cost == 1
}

impl Plan {
    /// Returns the plan that runs every recipe in every phase on every window.
    pub fn whole<'a>(phases: &[Phase], windows: Vec<String>, recipes: impl Iterator<Item = &'a str>) -> Self {
        let recipes = recipes.map(|name| RecipePlan {
            name: name.into(),
            phases: phases.to_vec(),
            windows: None,
            cost: 1,
        });
        Self {
            recipes: recipes.collect(),
            phases: phases.to_vec(),
            windows,
        }
    }

    /// Returns all cells, window by window.
    pub fn cells(&self) -> Vec<Cell> {
        let mut cells = Vec::new();
        for (window, name) in self.windows.iter().enumerate() {
            for recipe in &self.recipes {
                let takes = |windows: &Vec<usize>| windows.binary_search(&window).is_ok();
                if recipe.windows.as_ref().is_none_or(takes) {
                    cells.extend(recipe.phases.iter().map(|&phase| Cell {
                        id: format!("{}/{phase}/{name}", recipe.name),
                        recipe: recipe.name.clone(),
                        phase,
                        window,
                        cost: recipe.cost,
                    }));
                }
            }
        }
        cells
    }

    /// True if recipes have their own windows; for kernels, these are the cases of the operation.
    pub fn by_case(&self) -> bool {
        self.recipes.iter().any(|recipe| recipe.windows.is_some())
    }

    /// Returns the names of the recipes to which a rule applies, among the recipes measured in the rule's phase.
    pub fn bound_by(&self, rule: &Rule) -> impl Iterator<Item = &str> {
        self.measured_in(rule.phase).filter(|recipe| rule.binds(recipe))
    }

    /// Returns the names of the recipes that are measured in a phase.
    pub fn measured_in(&self, phase: Phase) -> impl Iterator<Item = &str> {
        let measured = self.recipes.iter().filter(move |recipe| recipe.phases.contains(&phase));
        measured.map(|recipe| recipe.name.as_str())
    }
}

/// Largest length of a cell's id in bytes. A file name is the id with a suffix, and is limited to 255 bytes.
const LONGEST: usize = 200;

/// Returns the first cell whose id is too long for a file name, and a message about it.
pub fn unnameable(cells: &[Cell]) -> Option<(&Cell, String)> {
    let cell = cells.iter().find(|cell| cell.id.len() > LONGEST)?;
    let (id, bytes) = (&cell.id, cell.id.len());
    let message = format!("the cell {id} has {bytes} bytes in its name, and files are called by at most {LONGEST}");
    Some((cell, message))
}

/// Keeps the cells whose id matches one of `only` (all cells if `only` is empty) and none of `skip`.
pub fn select(cells: Vec<Cell>, only: &[String], skip: &[String]) -> Result<Vec<Cell>> {
    let names: Vec<&str> = cells.iter().map(|cell| cell.id.as_str()).collect();
    pattern::check("cell", &[only, skip], &names)?;
    let kept: Vec<Cell> = cells.into_iter().filter(|cell| selects(only, skip, &cell.id)).collect();
    if kept.is_empty() {
        return Err(Error::NothingSelected("--only and --skip leave no cell".into()));
    }
    Ok(kept)
}
