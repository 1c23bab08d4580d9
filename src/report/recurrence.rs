//! What reports show of recurrences: errors against steps, and how they grow.

use std::borrow::Cow;

use super::Summarized;
use super::chart::{Axis, escape};
use super::figures::{Curves, Figure, Section};
use super::index::Index;
use super::number;
use super::overview::Column;
use super::recipes::Candidate;
use super::sources::{by_source, summary};
use crate::experiment::Experiment;
use crate::studies::recurrence::checkpoints;

/// For every source the error of the output at the end, and its growth.
pub fn columns(experiment: &Experiment) -> Vec<Column> {
    let steps = experiment.shape[1];
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
    let names = experiment.sources.iter().map(|source| source.name.as_str());
    names.enumerate().flat_map(of_source).collect()
}

/// Charts of errors against steps, and a table of their growth.
pub fn sections(run: &Summarized) -> Vec<Section> {
    let sources = || {
        run.run
            .manifest
            .experiment
            .sources
            .iter()
            .map(|source| source.name.as_str())
    };
    let charts = |what: &'static str| {
        sources()
            .flat_map(move |source| against_steps(run, source, what))
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
            figures: growth(run).into_iter().collect(),
        },
    ]
}

fn against_steps(run: &Summarized, source: &str, what: &str) -> Vec<Figure> {
    let checkpoints: Vec<usize> = checkpoints(&run.run.manifest.experiment).collect();
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
fn growth(run: &Summarized) -> Option<Figure> {
    let rows = run.candidates.iter();
    let rows = rows.map(|candidate| (escape(candidate.name).to_string(), candidate.name));
    by_source(run, rows, |source| format!("{source}.state"), "growth")
}
