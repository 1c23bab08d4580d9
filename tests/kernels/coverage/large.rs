//! Cases whose rows are repeated, as the runner repeats them.

use ulplab::backend::cuda::plan::SMS;
use ulplab::backend::cuda::{Plan, Variant};
use ulplab::ops::{Buffer, Case, MOST_WITH_SCRATCH, Problem};

use super::{takes, with};

/// A case whose rows are repeated: how often at most, which of its sizes grow with them, and the bytes of each buffer, once and twice.
pub(super) struct Large {
    pub case: Case,
    times: usize,
    growing: Vec<&'static str>,
    bytes: Vec<[usize; 2]>,
}

impl Large {
    pub(super) fn new(case: Case, problem: &Problem) -> Option<Self> {
        let times = problem.times_to_large()?;
        let (twice, of_twice) = problem.repeated(&case, 2)?;
        let both = case.dims.iter().zip(&twice.dims);
        let growing = both
            .filter(|(once, twice)| once != twice)
            .map(|((name, _), _)| *name)
            .collect();
        let bytes = problem.buffers.iter().zip(&of_twice.buffers);
        let bytes = bytes.map(|(once, twice)| [once, twice].map(Buffer::size)).collect();
        Some(Self {
            case,
            times,
            growing,
            bytes,
        })
    }

    /// The case with repeated rows, as often as the runner repeats them for a variant.
    pub(super) fn repeated(&self, variant: &Variant) -> Option<Case> {
        let with_times = |times: usize| {
            let grown = self
                .growing
                .iter()
                .map(|name| (*name, self.case.dim(name) as i64 * times as i64));
            let case = with(&self.case, &grown.collect::<Vec<_>>());
            Some(case).filter(|case| times > 0 && takes(variant, case))
        };
        let bytes = |times: usize| {
            self.bytes
                .iter()
                .map(move |[once, twice]| once + (twice - once) * (times - 1))
        };
        let (mut taken, mut refused, mut next) = (0, self.times + 1, self.times);
        while taken + 1 < refused {
            match with_times(next) {
                Some(_) => taken = next,
                None => refused = next,
            }
            next = taken.midpoint(refused);
        }
        let fewer = taken < self.times;
        loop {
            let case = with_times(taken).filter(|_| !fewer || bytes(taken).any(|bytes| bytes > 1 << 32))?;
            let plan = Plan::new(variant, &case, SMS).ok()??;
            let scratch: usize = plan.scratch.iter().map(|scratch| scratch.size()).sum();
            if bytes(taken).sum::<usize>() + scratch <= MOST_WITH_SCRATCH || taken <= 1 {
                return Some(case);
            }
            taken /= 2;
        }
    }
}
