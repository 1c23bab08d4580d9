//! What reports show of recurrences: errors against steps, and how they grow.

use std::borrow::Cow;

use super::RecurrenceStudy;
use crate::report::chart::{Axis, escape};
use crate::report::figures::{Curves, Figure, Section};
use crate::report::index::Index;
use crate::report::number;
use crate::report::overview::Column;
use crate::report::recipes::Candidate;
use crate::report::{Show, Summarized};
use crate::studies::show::{by_source, summary};
use crate::studies::sources;

impl Show for RecurrenceStudy {
    fn drawn(&self) -> Option<String> {
        let [heads, steps] = self.shape;
        let each = match heads {
            1 => format!("{steps} steps"),
            _ => format!("{heads} heads × {steps} steps"),
        };
        sources::drawn(self.draws, &each)
    }

    fn columns(&self) -> Vec<Column> {
        columns(self)
    }

    fn sections(&self, run: &Summarized) -> Vec<Section> {
        sections(self, run)
    }
}

/// For every source the error of the output at the end, and its growth.
fn columns(study: &RecurrenceStudy) -> Vec<Column> {
    let steps = study.shape[1];
    let of_source = |(at, name): (usize, &str)| {
        let weight = |less: usize| 100usize.saturating_sub(2 * at + less) as u8;
        let column = |title: [&str; 2], doc: String, weight, site: String, metric: &'static str| Column {
            title: title.map(|line| Cow::Owned(line.to_string())),
            doc: Cow::Owned(doc),
            weight,
            cell: Box::new(move |index: &Index, candidate: &Candidate| {
                let mean = summary(index, candidate.name, &site, metric)?.mean;
                Some(number::of_metric(metric, mean))
            }),
        };
        let error = format!("Relative L2 error of the output of the last of {steps} steps, mean over draws.");
        let growth = "Exponent b of error = a · steps^b: 0 where errors are forgotten, ½ where they add up at random, 1 where \
                      they are biased.";
        [
            column(
                [name, "error"],
                error,
                weight(0),
                format!("{name}.output.{steps}"),
                "relative_l2",
            ),
            column(
                ["", "growth"],
                growth.into(),
                weight(1),
                format!("{name}.output"),
                "growth",
            ),
        ]
    };
    let names = study.sources.iter().map(|source| source.name.as_str());
    names.enumerate().flat_map(of_source).collect()
}

/// Charts of errors against steps, and a table of their growth.
fn sections(study: &RecurrenceStudy, run: &Summarized) -> Vec<Section> {
    let sources = || study.sources.iter().map(|source| source.name.as_str());
    let charts = |what: &'static str| {
        sources()
            .flat_map(move |source| against_steps(study, run, source, what))
            .collect()
    };
    vec![
        Section {
            id: "output",
            title: "Error of the output against steps",
            intro: "Relative L2 error of the output of the steps before each checkpoint, mean over draws, both axes \
                    logarithmic: a flat line is a state that forgets its errors, one of slope ½ errors that add up at \
                    random, one of slope 1 errors of one direction. Rest the pointer on a checkpoint to read its values.",
            figures: charts("output"),
        },
        Section {
            id: "state",
            title: "Error of the state against steps",
            intro: "The same of the state as it is carried on.",
            figures: charts("state"),
        },
        Section {
            id: "growth",
            title: "Growth",
            intro: "The exponent b of error = a · steps^b of the state, with a 95 % bootstrap interval of the mean over draws.",
            figures: growth(study, run).into_iter().collect(),
        },
    ]
}

fn against_steps(study: &RecurrenceStudy, run: &Summarized, source: &str, what: &str) -> Vec<Figure> {
    let checkpoints: Vec<usize> = study.checkpoints().collect();
    let curves = Curves {
        title: format!("{source}, {what}"),
        unit: "relative L2 error",
        metric: "relative_l2",
        axis: Axis::Steps,
        log: true,
        range: Vec::new(),
    };
    curves.figures(run, |candidate| {
        let points = checkpoints.iter().filter_map(|steps| {
            let site = format!("{source}.{what}.{steps}");
            let error = summary(run.index, candidate.name, &site, "relative_l2")?.mean;
            Some((*steps as u32, error))
        });
        points.collect()
    })
}

/// How errors of the state grow.
fn growth(study: &RecurrenceStudy, run: &Summarized) -> Option<Figure> {
    let rows = run.candidates.iter();
    let rows = rows.map(|candidate| (escape(candidate.name).to_string(), candidate.name));
    let sources: Vec<&str> = study.sources.iter().map(|source| source.name.as_str()).collect();
    by_source(run, &sources, rows, |source| format!("{source}.state"), "growth")
}
