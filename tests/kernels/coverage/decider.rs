//! What a launch decides on some sizes.

use ulplab::backend::cuda::expr::{Choice, choices};
use ulplab::backend::cuda::header::{Launch, Number};
use ulplab::ops::Case;

use super::sizes;
use super::sources::Conditions;

/// The largest dimension of a grid but the first: grids are folded at it.
pub(super) const FOLD: i64 = 65_535;
/// Sizes that follow from others. An expression with one of them is not looked at.
pub(super) const FOLLOWING: [&str; 3] = ["slots", "chunks", "bytes"];

/// Outcomes of the decisions of a launch: those that are combined, and what is left by divisions.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Decided {
    Chosen(Vec<u8>),
    Left(Vec<u8>),
}

/// A launch of a variant, and the texts of all expressions by which it decides.
pub(super) struct Decider<'a> {
    entry: &'a str,
    pub texts: Vec<String>,
}

impl<'a> Decider<'a> {
    pub(super) fn new(launch: &'a Launch, conditions: &Conditions, case: &Case) -> Self {
        let lists = [&launch.grid, &launch.block].into_iter().chain(&launch.cluster);
        let numbers = lists.flatten().chain(&launch.shared).filter_map(|number| match number {
            Number::Expression(text) => Some(text.clone()),
            Number::Plain(_) => None,
        });
        let computed = |text: &&String| text.contains(|c: char| !c.is_alphanumeric() && c != '_');
        let arguments = launch.args.iter().filter(computed).cloned();
        let follows = |text: &String| FOLLOWING.iter().any(|name| text.contains(name));
        let is_size = |text: &str| choices(text, &sizes(case)).is_ok();
        Self {
            entry: launch.entry.as_deref().unwrap_or_default(),
            texts: numbers
                .chain(arguments)
                .chain(conditions.of(launch, &is_size))
                .filter(|text| !follows(text))
                .collect(),
        }
    }

    /// What it decides on these sizes; `None` if an expression has no value there.
    pub(super) fn decided(&self, case: &Case) -> Option<[Decided; 2]> {
        let (mut chosen, mut left) = (Vec::new(), Vec::new());
        for text in &self.texts {
            let found = choices(text, &sizes(case));
            let undefined = |why: &String| why.contains("has no value") || why.contains("ceil by");
            assert!(found.as_ref().err().is_none_or(undefined), "{}: {found:?}", self.entry);
            let mut divided = false;
            for Choice {
                operator,
                operands: [a, b],
            } in found.ok()?
            {
                let of_rest = std::mem::replace(&mut divided, operator == "%") && b == 0;
                match &operator[..] {
                    "==" | "!=" if of_rest => {}
                    "<" => chosen.push(u8::from(a < b)),
                    "<=" | "min" => chosen.push(u8::from(a <= b)),
                    ">" => chosen.push(u8::from(a > b)),
                    ">=" | "max" => chosen.push(u8::from(a >= b)),
                    "==" | "!=" => chosen.push(u8::from(a == b)),
                    "ceil" if b == FOLD => chosen.push((a + b - 1).div_euclid(b).min(3) as u8),
                    _ => left.push(u8::from(a % b == 0)),
                }
            }
        }
        Some([Decided::Chosen(chosen), Decided::Left(left)])
    }

    /// The entry point for the keys of a case.
    pub(super) fn entry(&self, case: &Case) -> String {
        let filled = |entry: String, (key, value): &(&str, String)| entry.replace(&format!("{{{key}}}"), value);
        case.keys.iter().fold(self.entry.to_string(), filled)
    }
}
