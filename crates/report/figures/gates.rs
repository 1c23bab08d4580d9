//! Draws the bounds of gates (pass/fail checks on metrics) as lines in charts.

use crate::chart::Bound;
use crate::index::Quantity;
use crate::{Summarized, number, verdicts};
use ulplab_core::metrics::{self, Better, COSINE, Metric, RELATIVE_L2};
use ulplab_run::experiment::Rule;
use ulplab_run::run::verdict::Verdict;

/// The line that shows the bound of a gate in a chart.
pub struct Line {
    pub bound: Bound,
    /// Description of the gate below the chart.
    pub caption: String,
}

/// Returns the line of the strictest gate on a quantity, among the gates that apply to any of the `drawn` recipes.
pub fn line(run: &Summarized, quantity: Quantity, drawn: &[&str]) -> Option<Line> {
    let better = Metric::find(quantity.metric).ok()?.better;
    let verdicts = run.run.verdicts.iter();
    let verdicts = verdicts.filter(|verdict| drawn.contains(&verdict.recipe.as_str()));
    let binding =
        verdicts.filter_map(|Verdict { rule, recipe, .. }| Some((on_axis(rule, quantity)?, rule, recipe.as_str())));
    let binding: Vec<(f64, &Rule, &str)> = binding.collect();
    let stricter = |a: f64, b: f64| a != b && metrics::Bound { better, value: b }.admits(a);
    let (value, rule, _) = *binding.iter().reduce(|a, b| if stricter(b.0, a.0) { b } else { a })?;
    let bound = binding.iter().filter(|(_, other, _)| *other == rule);
    let bound: Vec<&str> = bound.map(|(.., recipe)| *recipe).collect();
    let (metric, require, at, phase) = (&rule.metric, &rule.require, &rule.at, rule.phase);
    let gate = match metric == quantity.metric {
        true => format!("gate {require}"),
        false => format!("gate {metric} {require}"),
    };
    let whom = match &bound[..] {
        all if all.len() == drawn.len() => "all".into(),
        few @ ([_] | [_, _]) => few.join(", "),
        many => format!("{} recipes", many.len()),
    };
    let binds = match bound.len() == drawn.len() {
        true => "all recipes of this chart".into(),
        false => bound.join(", "),
    };
    let mut caption = format!("The dashed line is the gate {metric} {require} at {at}, {phase}; it binds {binds}.");
    if metric != quantity.metric {
        let least = number::error(value);
        caption += &format!(
            " No error below {least} breaks it, and a larger one may: √(1 − cosine²) is the least error that turns a vector so far."
        );
    }
    let label = format!("{gate} ({whom})");
    let bound = Bound { value, label };
    Some(Line { bound, caption })
}

/// Returns the position of a gate's bound on the axis of a quantity; `None` if `rule` is a control, or is about another quantity.
/// A cosine gate also has a position on the axis of relative L2 errors.
fn on_axis(rule: &Rule, quantity: Quantity) -> Option<f64> {
    let here = rule.phase == quantity.phase && verdicts::site(rule) == quantity.site && !rule.control;
    let bound: metrics::Bound = rule.require.parse().ok().filter(|_| here)?;
    if rule.metric == quantity.metric {
        let better = Metric::find(quantity.metric).ok()?.better;
        return (bound.better == better).then_some(bound.value);
    }
    // For any norm of `got`, ‖want − got‖ / ‖want‖ is at least the sine of the angle between the vectors. So a relative error
    // below √(1 − bound²) implies a cosine above the bound.
    let turned = (rule.metric.as_str(), quantity.metric) == (COSINE.name, RELATIVE_L2.name);
    let cosine = bound.value;
    (turned && bound.better == Better::Higher && 0.0 < cosine && cosine < 1.0).then(|| (1.0 - cosine * cosine).sqrt())
}
