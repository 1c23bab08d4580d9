//! A digest of the launches of a variant on a case: the entry point of each, its shape, and its arguments by role, so that names of
//! scratch and launches, and the order of scratch, have no part in it.

use ulplab_operations::ops::Case;

use super::Digest;
use crate::backend::cuda::Plan;
use crate::backend::cuda::expr::eval;
use crate::backend::cuda::plan::{Named, Step, Work};
use crate::backend::cuda::sequence::Turn;

/// Returns the digest of a plan.
///
/// # Errors
/// An argument whose expression has no value.
pub fn of(case: &Case, plan: &Plan) -> Result<String, String> {
    let mut launches = Launches {
        case,
        plan,
        digest: Digest::default(),
        seen: Vec::new(),
    };
    launches.add(&plan.prepare, &plan.prepare_order)?;
    launches.add(&plan.steps, &plan.order)?;
    Ok(launches.digest.finish())
}

struct Launches<'a> {
    case: &'a Case,
    plan: &'a Plan,
    digest: Digest,
    /// Names of scratch in the order in which launches use them.
    seen: Vec<&'a str>,
}

impl<'a> Launches<'a> {
    fn add(&mut self, steps: &'a [Step], order: &[(usize, Turn)]) -> Result<(), String> {
        self.digest.count(order.len());
        for (step, turn) in order {
            let step = &steps[*step];
            self.digest.count(usize::from(step.tap));
            match &step.work {
                Work::Kernel { entry, shape, taps, .. } => {
                    self.digest.text(entry).text(format!("{shape:?}"));
                    let names = step.arguments();
                    self.digest.count(names.len());
                    for name in names {
                        self.digest.count(usize::from(taps.iter().any(|tap| tap == name)));
                        self.argument(name, turn)?;
                    }
                }
                Work::Matmul { product, .. } => {
                    self.digest.text(format!("{product:?}"));
                    for name in step.arguments() {
                        self.argument(name, turn)?;
                    }
                }
            }
        }
        Ok(())
    }

    fn argument(&mut self, name: &'a str, turn: &Turn) -> Result<(), String> {
        let size = |name: &str| {
            self.case
                .dims
                .iter()
                .find(|(dim, _)| *dim == name)
                .map(|(_, size)| *size)
        };
        let number = |text: &str| eval(text, &|name| turn.counter(name).or_else(|| size(name)));
        let (memory, part) = match Named::new(name) {
            Named::Number(text) => {
                let value = number(text)?;
                self.digest.text("number").text(value.to_string());
                return Ok(());
            }
            Named::Whole(name) => (name, None),
            Named::Part(name, index) => (name, Some(number(index)?)),
        };
        match (self.plan.scratch(memory), size(memory)) {
            (Some(scratch), _) => {
                let known = self.seen.iter().position(|seen| *seen == memory);
                let at = known.unwrap_or_else(|| {
                    self.seen.push(memory);
                    let sizes = [scratch.bytes, scratch.parts, usize::from(scratch.zero)];
                    self.digest.text("new scratch").counts(&sizes);
                    self.seen.len() - 1
                });
                self.digest.text("scratch").count(at);
            }
            (None, Some(value)) => drop(self.digest.text("number").text(value.to_string())),
            (None, None) => drop(self.digest.text("buffer").text(memory)),
        }
        self.digest.text(part.map_or(String::new(), |part| part.to_string()));
        Ok(())
    }
}
