//! Plan of a variant (a kernel implementation) for a case (the inputs of one test): the launches, with all sizes evaluated.
//! Planning needs no GPU.

use std::fmt;

use super::device::Shape;
use super::expr::eval;
use super::graph::Graph;
use super::header::{self, Factor, Launch, Number, Variant};
use super::matmul::Product;
use ulplab_core::error::refuse;
use ulplab_operations::ops::Case;
use ulplab_operations::ops::guards::GUARD;

/// Number of multiprocessors of an H100 and an H200, for plans that are made without a GPU.
pub const SMS: i64 = 132;

/// The kernel launches and matrix products of a variant for a case.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// Launches that run once after the inputs are written. They are not repeated in each run, and not timed.
    pub prepare: Launches,
    pub run: Launches,
    pub scratch: Vec<Scratch>,
    /// Type of the factors in the plan's matrix products.
    pub products: Factor,
}

/// Launches in order. A step is a kernel with its grid and its attributes; launches that differ only in their arguments share a
/// step.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Launches {
    /// The distinct steps.
    pub steps: Vec<Step>,
    pub turns: Vec<Turn<Vec<Named>>>,
}

/// One launch: a step and its arguments.
#[derive(Clone, Debug, PartialEq)]
pub struct Turn<A> {
    /// Index of the step in [`Launches::steps`].
    pub step: usize,
    /// Arguments of a kernel; or A, B and D of a matrix product, followed by the scales of A and of B, if any.
    pub arguments: A,
}

impl Launches {
    /// Appends a launch. Reuses an equal step of an earlier launch.
    pub(super) fn add(&mut self, step: Step, arguments: Vec<Named>) -> Result<(), String> {
        refuse(self.turns.len() == MOST, format_args!("more than {MOST} launches"))?;
        let known = self.steps.iter().position(|known| *known == step);
        let step = known.unwrap_or_else(|| {
            self.steps.push(step);
            self.steps.len() - 1
        });
        self.turns.push(Turn { step, arguments });
        Ok(())
    }

    /// Iterates over the launches; returns the step and the arguments of each launch.
    pub fn each(&self) -> impl Iterator<Item = (&Step, &[Named])> {
        let turns = self.turns.iter();
        turns.map(|turn| (&self.steps[turn.step], &turn.arguments[..]))
    }
}

/// Largest number of launches of a run. A larger number indicates a bug: a composition with a loop over the wrong size.
pub(super) const MOST: usize = 100_000;

/// Scratch: working memory of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scratch {
    pub name: String,
    /// Bytes of one part.
    pub bytes: usize,
    /// Number of parts. They lie one after the other in memory, with guard bands between them.
    pub parts: usize,
    /// True if the memory is cleared before each run.
    pub zero: bool,
}

impl Scratch {
    /// Bytes of all parts and of the guard bands between them.
    pub fn size(&self) -> usize {
        self.place(self.parts - 1) + self.bytes
    }

    /// Byte offset of a part. All parts have the same alignment as the first.
    pub fn place(&self, part: usize) -> usize {
        part * (self.bytes + GUARD).next_multiple_of(GUARD)
    }
}

/// A kernel launch or a matrix product, without its arguments.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    pub name: String,
    pub work: Work,
    /// Smallest number of bytes that the step has to read and write; `None` for a kernel whose header or composition states none.
    pub bytes: Option<u64>,
    /// Number of floating-point operations of the step's matrix products.
    pub flops: u64,
    /// True if the step only stores intermediate values for the correctness check.
    pub tap: bool,
    /// Indices of the arguments that only store intermediate values for the correctness check.
    pub taps: Vec<usize>,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Work {
    Kernel { entry: String, shape: Shape },
    Matmul(Product),
}

/// A launch argument, or the replacement of a name in an argument.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Named {
    /// A buffer, scratch, scalar or size, by name.
    Whole(String),
    /// One part of a buffer or scratch, by name and index: of a buffer, the slice at this index of its first dimension.
    Part(String, i64),
    /// A whole number.
    Number(i64),
}

impl Named {
    /// Returns the name of the buffer, scratch, scalar or size; `None` for a number.
    pub fn name(&self) -> Option<&str> {
        match self {
            Self::Whole(name) | Self::Part(name, _) => Some(name),
            Self::Number(_) => None,
        }
    }
}

impl From<&str> for Named {
    fn from(name: &str) -> Self {
        Self::Whole(name.into())
    }
}

impl From<i64> for Named {
    fn from(number: i64) -> Self {
        Self::Number(number)
    }
}

impl fmt::Display for Named {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Self::Whole(name) => f.write_str(name),
            Self::Part(name, index) => write!(f, "{name}[{index}]"),
            Self::Number(number) => write!(f, "{number}"),
        }
    }
}

/// Function that returns a size by its name.
pub(super) type Sizes<'a> = &'a dyn Fn(&str) -> Option<i64>;

impl Plan {
    /// Plans the launches of a variant; `None` if the variant does not support the case. `sms` is the number of multiprocessors.
    ///
    /// # Errors
    /// Returns an error if a launch cannot be planned.
    pub fn new(variant: &Variant, case: &Case, sms: i64) -> Result<Option<Self>, String> {
        Graph::new(variant, case, sms).plan()
    }

    /// Returns the names of the entry points that the plan launches.
    pub fn entries(&self) -> impl Iterator<Item = &str> {
        let steps = self.prepare.steps.iter().chain(&self.run.steps);
        steps.filter_map(|step| match &step.work {
            Work::Kernel { entry, .. } => Some(entry.as_str()),
            Work::Matmul(_) => None,
        })
    }

    /// Returns the scratch with a name, if any.
    pub fn scratch(&self, name: &str) -> Option<&Scratch> {
        self.scratch.iter().find(|scratch| scratch.name == name)
    }

    /// True if a preparing launch takes this scratch, or a part of it, as an argument.
    pub fn is_prepared(&self, scratch: &str) -> bool {
        let mut given = self.prepare.turns.iter().flat_map(|turn| &turn.arguments);
        given.any(|argument| argument.name() == Some(scratch))
    }

    /// Returns the names of the buffers and scratch that only store intermediate values for the correctness check.
    pub fn taps(&self) -> impl Iterator<Item = &str> {
        let kept = self.run.each().flat_map(|(step, arguments)| {
            let arguments = arguments.iter().enumerate();
            arguments.filter(|(at, _)| step.tap || step.taps.contains(at))
        });
        kept.filter_map(|(_, argument)| argument.name())
    }
}

/// Evaluates the value of a header key: a plain number, or an expression over the sizes of the case.
fn of_key(key: &str, given: &Number, sizes: Sizes) -> Result<i64, String> {
    match given {
        Number::Plain(value) => Ok(*value),
        Number::Expression(text) => eval(text, sizes).map_err(|why| format!("{key}: {why}")),
    }
}

impl Step {
    /// Builds the step of a launch. `entry` is the kernel's name, in which each `{key}` is already replaced by the case's value.
    pub(super) fn new(launch: &Launch, name: String, entry: String, sizes: Sizes) -> Result<Self, String> {
        let count = |what: &str, given: &Option<Number>| {
            let value = given.as_ref().map(|given| of_key(what, given, sizes)).transpose()?;
            let count = value.map(|value| u64::try_from(value).map_err(|_| format!("{what} is {value}")));
            count.transpose()
        };
        let work = match &launch.matmul {
            Some(matmul) => Work::matmul(matmul, sizes)?,
            None => Work::kernel(launch, entry, sizes)?,
        };
        let (bytes, flops) = match &work {
            Work::Matmul(product) => (Some(product.bytes()), product.flops()),
            Work::Kernel { .. } => (
                count("bytes", &launch.bytes)?,
                count("flops", &launch.flops)?.unwrap_or(0),
            ),
        };
        let taps = launch.args.iter().enumerate();
        let taps = taps.filter(|(_, argument)| launch.taps.contains(argument));
        Ok(Self {
            name,
            bytes,
            flops,
            tap: launch.tap,
            taps: taps.map(|(at, _)| at).collect(),
            work,
        })
    }
}

impl Work {
    fn kernel(launch: &Launch, entry: String, sizes: Sizes) -> Result<Self, String> {
        let size = |key: &str, given: &Number, least: u32, expected: &str| {
            let value = of_key(key, given, sizes)?;
            let size = u32::try_from(value).ok().filter(|size| *size >= least);
            size.ok_or_else(|| {
                let by = match given {
                    Number::Plain(_) => String::new(),
                    Number::Expression(text) => format!(" by '{text}'"),
                };
                format!("{key} is {value}{by}, expected {expected} to {}", u32::MAX)
            })
        };
        let three = |key: &str, numbers: &[Number]| {
            let why = format_args!("{key} has {} numbers, expected one to three", numbers.len());
            refuse(numbers.is_empty() || numbers.len() > 3, why)?;
            let mut all = [1; 3];
            for (at, given) in numbers.iter().enumerate() {
                all[at] = size(key, given, 1, "1")?;
            }
            Ok::<_, String>(all)
        };
        let cluster = launch.cluster.as_ref().map(|cluster| three("cluster", cluster));
        let shared = launch.shared.as_ref();
        let shared = shared.map_or(Ok(0), |shared| size("shared", shared, 0, "bytes from 0"))?;
        Ok(Self::Kernel {
            entry,
            shape: Shape {
                grid: three("grid", &launch.grid)?,
                block: three("block", &launch.block)?,
                cluster: cluster.transpose()?,
                shared,
                cooperative: launch.cooperative,
                programmatic: launch.programmatic,
            },
        })
    }

    fn matmul(matmul: &header::Matmul, sizes: Sizes) -> Result<Self, String> {
        let size = |what: &str, given: &Number| {
            let value = of_key(what, given, sizes)?;
            let size = usize::try_from(value).ok().filter(|size| *size > 0);
            size.ok_or_else(|| format!("{what} of a matmul is {value}"))
        };
        Ok(Self::Matmul(Product {
            sizes: [size("m", &matmul.m)?, size("n", &matmul.n)?, size("k", &matmul.k)?],
            of: matmul.of,
            into: matmul.into,
        }))
    }
}
