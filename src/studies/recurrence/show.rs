//! Reports on recurrences: errors against steps, and the growth of errors.

use super::RecurrenceStudy;
use crate::report::chart::{Axis, Lines};
use crate::report::figures::{Figure, HALF, Section, recipe_lines};
use crate::report::overview::Column;
use crate::report::{Show, Summarized};
use crate::studies::show::{by_source, cell, summary};
use crate::studies::sources;
use ulplab_core::metrics::{GROWTH, RELATIVE_L2};

impl Show for RecurrenceStudy {
    fn drawn(&self) -> Option<String> {
        sources::drawn_of(self.draws, self.shape, ["heads", "steps"])
    }

    /// Columns for every source: the error of the output at the end, and the growth of errors.
    fn columns(&self) -> Vec<Column> {
        let steps = self.shape[1];
        let of_source = |(at, name): (usize, &str)| {
            let weight = |less: usize| 100usize.saturating_sub(2 * at + less) as u8;
            let error = format!("Relative L2 error of the output of the last of {steps} steps, mean over draws.");
            let growth = "Exponent b of error = a · steps^b: 0 where errors are forgotten, ½ where they add up at random, 1 where \
                          they are biased.";
            let of_error = cell(&format!("{name}.output.{steps}"), &RELATIVE_L2, false);
            let of_growth = cell(&format!("{name}.output"), &GROWTH, false);
            [
                Column::new([name, "error"], error, weight(0), of_error),
                Column::new(["", "growth"], growth, weight(1), of_growth),
            ]
        };
        let names = self.sources.iter().map(|source| source.name.as_str());
        names.enumerate().flat_map(of_source).collect()
    }

    /// Charts of errors against steps, and a table of their growth.
    fn sections(&self, run: &Summarized) -> Vec<Section> {
        let sources = || self.sources.iter().map(|source| source.name.as_str());
        let charts = |what: &'static str| {
            let charts = sources().flat_map(|source| against_steps(self, run, source, what));
            charts.collect()
        };
        let intro = "Relative L2 error of the output of the steps before each checkpoint, mean over draws, both axes \
                     logarithmic: a flat line is a state that forgets its errors, one of slope ½ errors that add up at \
                     random, one of slope 1 errors of one direction. Rest the pointer on a checkpoint to read its values.";
        let output = Section::new("output", "Error of the output against steps", intro, charts("output"));
        let intro = "The same of the state as it is carried on.";
        let state = Section::new("state", "Error of the state against steps", intro, charts("state"));
        let intro = "The exponent b of error = a · steps^b of the state, with a 95 % bootstrap interval of the mean over draws.";
        let growth = Section::new("growth", "Growth", intro, vec![growth(self, run)]);
        vec![output, state, growth]
    }
}

fn against_steps(study: &RecurrenceStudy, run: &Summarized, source: &str, what: &str) -> Vec<Figure> {
    let checkpoints: Vec<usize> = study.checkpoints().collect();
    let lines = Lines {
        title: format!("{source}, {what}"),
        unit: "relative L2 error".into(),
        metric: RELATIVE_L2.name.into(),
        axis: Axis::Steps,
        log: true,
        size: HALF,
        ..Lines::default()
    };
    recipe_lines(run, &lines, |candidate| {
        let points = checkpoints.iter().filter_map(|steps| {
            let site = format!("{source}.{what}.{steps}");
            let error = summary(run.index, candidate.name, &site, &RELATIVE_L2)?.mean;
            Some((*steps as u32, error))
        });
        points.collect()
    })
}

/// Table of the growth of the state's error, by recipe and source.
fn growth(study: &RecurrenceStudy, run: &Summarized) -> Figure {
    let rows = run.candidates.iter().map(|candidate| (candidate.name, String::new()));
    by_source(run, &study.sources, rows, |source| format!("{source}.state"), &GROWTH)
}
