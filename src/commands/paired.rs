//! `ulplab gate --paired`: compares the predictions of each recipe, window by window, with the predictions of its counterpart
//! (the recipe it is compared with). Also warns of gates that judge KL divergences so small that they say nothing about quality.

use crate::experiment::Rule;
use crate::gate::{Paired, paired, silent_zone};
use crate::report::columns::aligned;
use crate::report::number;
use crate::run::Run;
use crate::statistics::{Evidence, LEAST_WINDOWS};
use ulplab_core::error::{Error, Result, refuse};
use ulplab_core::metrics::KL;
use ulplab_core::pattern::matches;
use ulplab_core::record::Phase;

/// Prints the paired tests of all recipes.
///
/// # Errors
/// Returns an error if the run has no predictions.
pub fn print(run: &Run) -> Result<()> {
    let tests = paired(&run.summaries);
    let message = "no paired tests: the run measured no predictions of a text";
    refuse(tests.is_empty(), message).map_err(Error::NothingSelected)?;
    let heads = "recipe,phase,windows,KL,lost,gained,McNemar p,adjusted,evidence of loss,net lost,95 % limits";
    let heads: Vec<&str> = heads.split(',').collect();
    for line in aligned(&heads, tests.iter().map(row), 2) {
        outln!("{line}");
    }
    let enough = Evidence::ENOUGH;
    outln!(
        "\nlost: right before, wrong now; McNemar: exact and two-sided, adjusted for the recipes of a phase (Holm). The evidence may be \
         looked at any time, {enough:.0} shows a loss. Limits: one-sided, of the mean over windows."
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
    let known = |number: f64, unknown: &str| match number.is_nan() {
        true => unknown.into(),
        false => number::error(number),
    };
    let evidence = match test.p.is_nan() {
        true => f64::NAN,
        false => test.flips.evidence_of_loss(),
    };
    let limits = test.limits.map(|limits| [limits.low, limits.high]);
    let limits = limits.map(|limits| limits.map(number::signed).join(" … "));
    vec![
        test.recipe.into(),
        test.phase.to_string(),
        test.windows.to_string(),
        number::error(test.kl),
        test.flips.lost.to_string(),
        test.flips.gained.to_string(),
        known(test.p, "flips cluster"),
        known(test.adjusted, "—"),
        known(evidence, "—"),
        number::signed(test.net_lost),
        limits.unwrap_or("—".into()),
    ]
}

/// Returns warnings on gates that bound the KL divergence in a range where it says nothing about the quality of predictions.
pub fn warnings(run: &Run) -> Vec<String> {
    let gates = run.manifest.experiment.gates.iter();
    let rules: Vec<&Rule> = gates.filter(|rule| rule.metric == KL.name && !rule.control).collect();
    if rules.is_empty() {
        return Vec::new();
    }
    let tests = paired(&run.summaries);
    let of_rule = |rule: &Rule| {
        let last = silent_zone(&tests, rule.phase)?;
        let bound = |test: &&Paired| {
            rule.binds(test.recipe) && test.phase == rule.phase && test.kl <= last.kl && matches(&rule.at, test.site)
        };
        let names: Vec<&str> = tests.iter().filter(bound).map(|test| test.recipe).collect();
        let (metric, phase, require) = (&rule.metric, rule.phase, &rule.require);
        let (kl, recipe, judged) = (number::error(last.kl), last.recipe, names.join(", "));
        (!names.is_empty()).then(|| {
            format!(
                "warning: the gate on {metric} ({phase}, {require}) judges {judged} inside the silent zone of KL, up to {kl} \
                 ({recipe}): there it tells that a model is another one, not that it is worse; `ulplab gate --paired` has the tests"
            )
        })
    };
    rules.into_iter().filter_map(of_rule).collect()
}
