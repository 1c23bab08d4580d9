//! The interface of a study to reports, which know no kind of experiment.

use super::Summarized;
use super::figures::Section;
use super::index::Index;
use super::overview::Column;
use super::recipes::Group;
use ulplab_run::experiment::Reading;

/// The content of a study's reports.
pub trait Show {
    /// The model and the text that it reads; by default none.
    fn reading(&self) -> Reading<'_> {
        Reading::default()
    }

    /// Description of the figures; empty by default.
    fn drawn(&self) -> Option<String> {
        None
    }

    /// Columns of the overview; one that has no number in any row is not shown.
    fn columns(&self) -> Vec<Column>;

    /// Charts and tables under headings; empty ones are not shown.
    fn sections(&self, run: &Summarized) -> Vec<Section>;

    /// The sort order of the overview's rows, in words.
    fn order(&self, _index: &Index) -> &'static str {
        "in the experiment's order"
    }

    /// The sort key of a recipe, smallest first; `None` if unknown. By default its place in the experiment, `at`.
    fn sort_key(&self, _index: &Index, _recipe: &str, at: usize) -> Option<f64> {
        Some(at as f64)
    }

    /// The kind of a recipe, and the recipe that it is compared with; `sized` says whether a recipe has a size in
    /// a cache.
    fn group(&self, _recipe: &str, _sized: &dyn Fn(&str) -> bool) -> (Group, Option<&str>) {
        (Group::Plain, None)
    }

    /// The size of a recipe's weights in 10⁶ bytes, if it rounds any.
    fn weight_megabytes(&self, _index: &Index, _recipe: &str) -> Option<f64> {
        None
    }

    /// True if only formats wherever they would be used have colours, and the smallest of those that pass is an answer.
    fn ranks_sizes(&self) -> bool {
        false
    }

    /// True if each case is right or wrong by itself, and not a mean over windows.
    fn by_case(&self) -> bool {
        false
    }

    /// The noun for a recipe.
    fn noun(&self) -> &'static str {
        "recipe"
    }
}
