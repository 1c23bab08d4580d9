//! Checks that a gate's bound has the right direction (`>=` or `<=`) for its metric.

use crate::experiment::{Rule, Statistic};
use ulplab_core::error::refuse;
use ulplab_core::metrics::{Better, Bound, Metric, Show};
use ulplab_core::vacuous::vacuous;

/// Rejects a bound that no value can break, such as `cosine >= -1`. Rejects a bound that bad values meet and good values break,
/// such as `cosine <= 0.9`. A metric whose values have either sign may be bounded from both sides.
///
/// A control (a gate on a recipe that is known to be bad) must have the opposite bound: one that good values meet is rejected.
pub fn check(metric: &Metric, bound: Bound, control: bool) -> Result<(), String> {
    let signed = matches!(metric.show, Show::Signed | Show::DecibelsAbove);
    if signed || (metric.better == bound.better) != control {
        return vacuous(metric.name, bound).map_or(Ok(()), Err);
    }
    let (better, sign, other) = match metric.better {
        Better::Higher => ("higher", ">=", "<="),
        Better::Lower => ("lower", "<=", ">="),
    };
    let why = format!("of {}, {better} is better", metric.name);
    Err(match control {
        false => format!("{why}: demand {sign}"),
        true => format!(
            "{why}, and a control demands that something bad is seen to be bad: demand {other}, or leave out control = true"
        ),
    })
}

/// Same as [`check`], for the bound of `rule`. Also rejects a bound on the best window only, such as the minimum of an error:
/// the other windows could have any value. For a control, only the direction is checked: a control requires that a bad result
/// is recognised as bad, so its bound has the opposite direction.
pub fn check_rule(metric: &Metric, bound: Bound, rule: &Rule) -> Result<(), String> {
    if rule.control {
        return check(metric, bound, true);
    }
    let hint = match metric.better == bound.better {
        true => "",
        false => ", or set control = true to demand that something bad is seen to be bad",
    };
    check(metric, bound, false).map_err(|why| why + hint)?;
    let (best, name, worst) = match bound.better {
        Better::Higher => (Statistic::Max, "max", "min"),
        Better::Lower => (Statistic::Min, "min", "max"),
    };
    let metric = metric.name;
    let why = format_args!(
        "statistic = \"{name}\" with '{bound}' looks at the best window only: {metric} of the others may be anything; expected \
         \"{worst}\", \"mean\" or an end of the interval"
    );
    refuse(rule.statistic == best, why)
}
