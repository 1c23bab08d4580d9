//! `ulplab gate --paired`: tests of each recipe against what it is compared with, window by window; and the warning of a divergence that
//! tells nothing.

use comfy_table::{CellAlignment, Table, presets};

use crate::gate::{Paired, paired, silent_zone};
use crate::report::number;
use crate::run::Run;
use crate::statistics::{Evidence, LEAST_WINDOWS};
use ulplab_core::error::{Error, Result};
use ulplab_core::metrics::KL;
use ulplab_core::pattern::matches;
use ulplab_core::record::Phase;

/// Prints the tests of all recipes.
///
/// # Errors
/// The run has no predictions.
pub fn print(run: &Run) -> Result<()> {
    let tests = paired(&run.summaries);
    if tests.is_empty() {
        return Err(Error::Usage(
            "no paired tests: the run measured no predictions of a text".into(),
        ));
    }
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    let header = [
        "recipe",
        "phase",
        "windows",
        "KL",
        "lost",
        "gained",
        "McNemar p",
        "adjusted",
        "evidence of loss",
        "net lost",
        "95 % limits",
    ];
    table.set_header(header);
    for test in &tests {
        table.add_row(row(test));
    }
    for column in table.column_iter_mut().skip(2) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    for line in table.lines() {
        outln!("{}", line.trim_end());
    }
    outln!(
        "\nlost: right before, wrong now; McNemar: exact and two-sided, adjusted for the recipes of a phase (Holm). The evidence may be \
         looked at any time, {:.0} shows a loss. Limits: one-sided, of the mean over windows.",
        Evidence::ENOUGH
    );
    for phase in [Phase::Local, Phase::Cumulative] {
        let of_phase = || tests.iter().filter(|test| test.phase == phase);
        match silent_zone(&tests, phase) {
            Some(last) => outln!(
                "{phase}: KL is silent up to {} ({}): recipes below lose no accuracy that these windows show, and KL does not rank them.",
                number::error(last.kl),
                last.recipe
            ),
            None if of_phase().any(|test| test.limits.is_none()) => {
                outln!("{phase}: the silent zone of KL is not known: limits need {LEAST_WINDOWS} windows that differ.");
            }
            None => {}
        }
    }
    Ok(())
}

fn row(test: &Paired) -> Vec<String> {
    let p = |p: f64| {
        if p.is_nan() {
            "flips cluster".into()
        } else {
            number::error(p)
        }
    };
    vec![
        test.recipe.into(),
        test.phase.to_string(),
        test.windows.to_string(),
        number::error(test.kl),
        test.flips.lost.to_string(),
        test.flips.gained.to_string(),
        p(test.p),
        if test.adjusted.is_nan() {
            "—".into()
        } else {
            number::error(test.adjusted)
        },
        if test.p.is_nan() {
            "—".into()
        } else {
            number::error(test.flips.evidence_of_loss())
        },
        number::signed(test.net_lost),
        match test.limits {
            Some(limits) => format!("{} … {}", number::signed(limits.low), number::signed(limits.high)),
            None => "—".into(),
        },
    ]
}

/// Gates on the divergence of predictions that judge where it says nothing of their quality.
pub fn warnings(run: &Run) -> Vec<String> {
    let rules = run
        .manifest
        .experiment
        .gates
        .iter()
        .filter(|rule| rule.metric == KL.name && !rule.control);
    let tests: Vec<Paired> = match rules.clone().next() {
        Some(_) => paired(&run.summaries),
        None => return Vec::new(),
    };
    let of_rule = |rule: &crate::experiment::Rule| {
        let last = silent_zone(&tests, rule.phase)?;
        let bound = |test: &&Paired| {
            test.phase == rule.phase && rule.recipes.iter().any(|pattern| matches(pattern, test.recipe))
        };
        let inside = |test: &&Paired| test.kl <= last.kl && matches(&rule.at, test.site);
        let names: Vec<&str> = tests
            .iter()
            .filter(bound)
            .filter(inside)
            .map(|test| test.recipe)
            .collect();
        (!names.is_empty()).then(|| {
            format!(
                "warning: the gate on {} ({}, {}) judges {} inside the silent zone of KL, up to {} ({}): there it tells that a model is \
                 another one, not that it is worse; `ulplab gate --paired` has the tests",
                rule.metric,
                rule.phase,
                rule.require,
                names.join(", "),
                number::error(last.kl),
                last.recipe
            )
        })
    };
    rules.filter_map(of_rule).collect()
}
