//! Digest of the launches of a variant on a case: entry points, launch shapes, and arguments. Names of launches, and names and
//! order of scratch buffers, do not change the digest.

use ulplab_operations::ops::Case;

use super::Digest;
use crate::backend::cuda::Plan;
use crate::backend::cuda::plan::{self, Named, Work};

/// Returns the digest of the launches in a plan.
pub fn of(case: &Case, plan: &Plan) -> String {
    let mut launches = Launches {
        case,
        plan,
        digest: Digest::default(),
        seen: Vec::new(),
    };
    launches.add(&plan.prepare);
    launches.add(&plan.run);
    launches.digest.finish()
}

struct Launches<'a> {
    case: &'a Case,
    plan: &'a Plan,
    digest: Digest,
    /// Names of scratch buffers, in the order of their first use.
    seen: Vec<&'a str>,
}

impl<'a> Launches<'a> {
    fn add(&mut self, launches: &'a plan::Launches) {
        self.digest.count(launches.turns.len());
        for (step, arguments) in launches.each() {
            self.digest.count(usize::from(step.tap));
            match &step.work {
                Work::Kernel { entry, shape } => {
                    self.digest.text(entry).text(format!("{shape:?}"));
                    self.digest.count(arguments.len());
                }
                Work::Matmul(product) => drop(self.digest.text(format!("{product:?}"))),
            }
            for (at, argument) in arguments.iter().enumerate() {
                if let Work::Kernel { .. } = &step.work {
                    self.digest.count(usize::from(step.taps.contains(&at)));
                }
                self.argument(argument);
            }
        }
    }

    fn argument(&mut self, argument: &'a Named) {
        let (memory, part) = match argument {
            Named::Number(value) => {
                self.digest.text("number").text(value.to_string());
                return;
            }
            Named::Whole(name) => (name.as_str(), String::new()),
            Named::Part(name, index) => (name.as_str(), index.to_string()),
        };
        let size = self.case.dims.iter().find(|(dim, _)| *dim == memory);
        match (self.plan.scratch(memory), size) {
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
            (None, Some((_, value))) => drop(self.digest.text("number").text(value.to_string())),
            (None, None) => drop(self.digest.text("buffer").text(memory)),
        }
        self.digest.text(part);
    }
}
