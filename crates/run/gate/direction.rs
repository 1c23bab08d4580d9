//! The direction in which a gate may point.

use crate::experiment::{Rule, Statistic};
use ulplab_core::metrics::{Better, Bound, Metric, Show};
use ulplab_core::vacuous::vacuous;

/// Refuses a bound that nothing can break, as `cosine >= -1`, and one that bad values meet and good ones break, as
/// `cosine <= 0.9`. A metric whose values have either sign may be bounded from both sides.
pub fn check(metric: &Metric, bound: Bound) -> Result<(), String> {
    if metric.better == bound.better || is_signed(metric) {
        return vacuous(metric.name, bound).map_or(Ok(()), Err);
    }
    let (better, sign) = words(metric);
    Err(format!("of {}, {better} is better: demand {sign}", metric.name))
}

/// [`check`], and an error if the statistic is the best window, which says nothing about the others. A control points the other way: it
/// requires that a bad result is recognised as bad.
pub fn check_rule(metric: &Metric, bound: Bound, rule: &Rule) -> Result<(), String> {
    if rule.control {
        return check_control(metric, bound);
    }
    let hint = match metric.better == bound.better {
        true => "",
        false => ", or set control = true to demand that something bad is seen to be bad",
    };
    check(metric, bound).map_err(|why| why + hint)?;
    let best = match bound.better {
        Better::Higher => Statistic::Max,
        Better::Lower => Statistic::Min,
    };
    if rule.statistic == best {
        let (worst, name) = match best {
            Statistic::Max => ("min", "max"),
            _ => ("max", "min"),
        };
        let metric = metric.name;
        return Err(format!(
            "statistic = \"{name}\" with '{bound}' looks at the best window only: {metric} of the others may be anything; \
             expected \"{worst}\", \"mean\" or an end of the interval"
        ));
    }
    Ok(())
}

/// Refuses a control that good values meet, or that all values meet.
fn check_control(metric: &Metric, bound: Bound) -> Result<(), String> {
    if metric.better != bound.better || is_signed(metric) {
        return vacuous(metric.name, bound).map_or(Ok(()), Err);
    }
    let (better, sign) = words(metric);
    let other = if sign == ">=" { "<=" } else { ">=" };
    Err(format!(
        "of {}, {better} is better, and a control demands that something bad is seen to be bad: demand {other}, or leave out \
         control = true",
        metric.name
    ))
}

fn is_signed(metric: &Metric) -> bool {
    matches!(metric.show, Show::Signed | Show::DecibelsAbove)
}

fn words(metric: &Metric) -> (&'static str, &'static str) {
    match metric.better {
        Better::Higher => ("higher", ">="),
        Better::Lower => ("lower", "<="),
    }
}
