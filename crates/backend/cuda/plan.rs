//! A variant on a case: its launches with all sizes worked out. Needs no GPU.

use std::cell::RefCell;

use super::device::Shape;
use super::expr::eval;
use super::header;
use super::header::{Factor, Launch, Number, Variant};
use super::matmul::Product;
use super::prepared;
use super::sequence::{Turn, unroll};
use ulplab_core::error::did_you_mean;
use ulplab_operations::ops::Case;
use ulplab_operations::ops::guards::GUARD;

/// Multiprocessors of an H100 and an H200, for which launches are planned without a GPU.
pub const SMS: i64 = 132;

/// The launches and products to put into the stream.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// Launches that are made when inputs are there, and not in a run.
    pub prepare: Vec<Step>,
    /// By their numbers in `prepare`.
    pub prepare_order: Vec<(usize, Turn)>,
    /// Each launch that is in the order, once.
    pub steps: Vec<Step>,
    /// By their numbers in `steps`.
    pub order: Vec<(usize, Turn)>,
    pub scratch: Vec<Scratch>,
    /// What its products multiply.
    pub products: Factor,
}

/// Working memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scratch {
    pub name: String,
    /// Bytes of one part.
    pub bytes: usize,
    /// How many there are, one behind the other with guard bands between them.
    pub parts: usize,
    /// Whether it is cleared before each run.
    pub zero: bool,
}

impl Scratch {
    /// Bytes of all parts, and of what lies between them.
    pub fn size(&self) -> usize {
        self.place(self.parts - 1) + self.bytes
    }

    /// Where a part begins. All parts are aligned as the first is.
    pub fn place(&self, part: usize) -> usize {
        part * (self.bytes + GUARD).next_multiple_of(GUARD)
    }
}

/// One launch.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    pub name: String,
    pub work: Work,
    /// Bytes that it must move, if known: for products, and if the header states them.
    pub bytes: Option<u64>,
    /// Operations of products of matrices.
    pub flops: u64,
    /// Whether it keeps values for the judgement only.
    pub tap: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Work {
    Kernel {
        entry: String,
        shape: Shape,
        arguments: Vec<String>,
        /// Those that keep values for the judgement only.
        taps: Vec<String>,
    },
    Matmul {
        product: Product,
        /// A, B, D.
        matrices: [String; 3],
        /// Scales of A and of B.
        scales: Option<[String; 2]>,
    },
}

/// What an argument of a launch names.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Named<'a> {
    /// A buffer, scratch, a scalar or a size.
    Whole(&'a str),
    /// The part of a buffer at an index of its first dimension, or of scratch, an expression: `w[@layers]`.
    Part(&'a str, &'a str),
    /// A whole number: an expression over sizes and indices of repetitions, such as `2 * I` or `@J`.
    Number(&'a str),
}

impl<'a> Named<'a> {
    pub fn new(argument: &'a str) -> Self {
        if let Some((buffer, index)) = argument.strip_suffix(']').and_then(|start| start.split_once('[')) {
            return Self::Part(buffer.trim(), index);
        }
        let word = argument.starts_with(|c: char| c.is_alphabetic() || c == '_')
            && argument.chars().all(|c| c.is_alphanumeric() || c == '_');
        if word {
            Self::Whole(argument)
        } else {
            Self::Number(argument)
        }
    }
}

/// Sizes by name.
pub(super) type Sizes<'a> = &'a dyn Fn(&str) -> Option<i64>;

impl Plan {
    /// The launches, or none if the variant does not accept the case.
    pub fn new(variant: &Variant, case: &Case, sms: i64) -> Result<Option<Self>, String> {
        let unknown = RefCell::new(None);
        let sizes = |name: &str| {
            let dim = case.dims.iter().find(|(dim, _)| *dim == name).map(|(_, size)| *size);
            let size = if name == "sms" { Some(sms) } else { dim };
            if size.is_none() {
                *unknown.borrow_mut() = Some(name.to_string());
            }
            size
        };
        let wrong = |why: String| {
            let known = || case.dims.iter().map(|(dim, _)| *dim).chain(["sms"]);
            let near = unknown
                .take()
                .map_or(String::new(), |name| did_you_mean(&name, known()));
            format!("variant '{}', case '{}': {why}{near}", variant.name, case.name)
        };
        for need in &variant.needs {
            if eval(need, &sizes).map_err(wrong)? == 0 {
                return Ok(None);
            }
        }
        let turns = match &variant.sequence {
            Some(sequence) => unroll(sequence, &sizes).map_err(wrong)?,
            None => {
                let once = |launch: &Launch| Turn {
                    launch: launch.name().into(),
                    counters: Vec::new(),
                };
                variant.launches.iter().map(once).collect()
            }
        };
        let mut plan = Self {
            prepare: Vec::new(),
            prepare_order: prepared::order(&variant.prepare, &sizes).map_err(wrong)?,
            steps: Vec::new(),
            order: Vec::new(),
            scratch: Vec::new(),
            products: variant.products,
        };
        let steps = |launches: &[&Launch]| {
            let steps = launches.iter().map(|launch| {
                let wrong = |why| format!("launch '{}': {why}", launch.name());
                Step::new(launch, case, &sizes).map_err(wrong)
            });
            steps.collect::<Result<Vec<_>, _>>().map_err(wrong)
        };
        plan.prepare = steps(&variant.prepare.iter().collect::<Vec<_>>())?;
        // Without a sequence, launches may share a name.
        let mut used = Vec::new();
        for (at, turn) in turns.into_iter().enumerate() {
            let named = |launch: &Launch| launch.name() == turn.launch;
            let launch = match &variant.sequence {
                None => Some(at),
                Some(_) => variant.launches.iter().position(named),
            };
            let launch = launch.expect("the header was checked when it was read");
            let step = used.iter().position(|other| *other == launch).unwrap_or_else(|| {
                used.push(launch);
                used.len() - 1
            });
            plan.order.push((step, turn));
        }
        plan.steps = steps(&used.iter().map(|at| &variant.launches[*at]).collect::<Vec<_>>())?;
        let scratch = variant.scratch.iter().map(|scratch| {
            let bytes = eval(&scratch.bytes, &sizes)?;
            let bytes = usize::try_from(bytes).map_err(|_| format!("scratch '{}' of {bytes} bytes", scratch.name))?;
            let parts = scratch
                .parts
                .as_ref()
                .map(|parts| prepared::count("parts", parts, &sizes));
            let parts = parts
                .transpose()
                .map_err(|why| format!("scratch '{}': {why}", scratch.name))?;
            Ok(Scratch {
                name: scratch.name.clone(),
                bytes,
                parts: parts.unwrap_or(1),
                zero: scratch.zero,
            })
        });
        plan.scratch = scratch.collect::<Result<_, String>>().map_err(wrong)?;
        prepared::parts(&plan, case).map_err(wrong)?;
        Ok(Some(plan))
    }

    /// Names of the entry points that it launches.
    pub fn entries(&self) -> impl Iterator<Item = &str> {
        let steps = self.prepare.iter().chain(&self.steps);
        steps.filter_map(|step| match &step.work {
            Work::Kernel { entry, .. } => Some(entry.as_str()),
            Work::Matmul { .. } => None,
        })
    }

    /// Scratch of that name.
    pub fn scratch(&self, name: &str) -> Option<&Scratch> {
        self.scratch.iter().find(|scratch| scratch.name == name)
    }

    /// Whether a preparing launch is given that scratch, or a part of it.
    pub fn is_prepared(&self, scratch: &str) -> bool {
        let mut given = self.prepare.iter().flat_map(Step::arguments).map(Named::new);
        given.any(|named| matches!(named, Named::Whole(name) | Named::Part(name, _) if name == scratch))
    }
}

/// The number that a key of a header has, with the sizes put in.
pub(super) fn of_key(key: &str, given: &Number, sizes: Sizes) -> Result<i64, String> {
    number(given, sizes).map_err(|why| format!("{key}: {why}"))
}

/// The expression of a number, as the end of an error message.
pub(super) fn written(given: &Number) -> String {
    match given {
        Number::Plain(_) => String::new(),
        Number::Expression(text) => format!(" by '{text}'"),
    }
}

/// A number of a header with the sizes put in.
fn number(number: &Number, sizes: Sizes) -> Result<i64, String> {
    match number {
        Number::Plain(value) => Ok(*value),
        Number::Expression(text) => eval(text, sizes),
    }
}

impl Step {
    fn new(launch: &Launch, case: &Case, sizes: Sizes) -> Result<Self, String> {
        let count = |what: &str, given: &Option<Number>| {
            let value = given.as_ref().map(|given| of_key(what, given, sizes)).transpose()?;
            let count = value.map(|value| u64::try_from(value).map_err(|_| format!("{what} is {value}")));
            count.transpose()
        };
        let work = match &launch.matmul {
            Some(matmul) => Work::matmul(matmul, sizes)?,
            None => Work::kernel(launch, case, sizes)?,
        };
        let (bytes, flops) = match &work {
            Work::Matmul { product, .. } => (Some(product.bytes()), product.flops()),
            Work::Kernel { .. } => (
                count("bytes", &launch.bytes)?,
                count("flops", &launch.flops)?.unwrap_or(0),
            ),
        };
        let name = match (&launch.name, &work) {
            (None, Work::Kernel { entry, .. }) => entry.clone(),
            _ => launch.name().into(),
        };
        Ok(Self {
            name,
            bytes,
            flops,
            tap: launch.tap,
            work,
        })
    }

    /// What it writes for the judgement only.
    pub fn taps(&self) -> Vec<&str> {
        match &self.work {
            _ if self.tap => self.arguments(),
            Work::Kernel { taps, .. } => taps.iter().map(String::as_str).collect(),
            Work::Matmul { .. } => Vec::new(),
        }
    }

    /// What it is given, as [`Named`] reads it.
    pub fn arguments(&self) -> Vec<&str> {
        let names: Vec<&String> = match &self.work {
            Work::Kernel { arguments, .. } => arguments.iter().collect(),
            Work::Matmul { matrices, scales, .. } => matrices.iter().chain(scales.iter().flatten()).collect(),
        };
        names.into_iter().map(String::as_str).collect()
    }
}

impl Work {
    fn kernel(launch: &Launch, case: &Case, sizes: Sizes) -> Result<Self, String> {
        let three = |what: &str, numbers: &[Number]| {
            if numbers.is_empty() || numbers.len() > 3 {
                return Err(format!("{what} has {} numbers, expected one to three", numbers.len()));
            }
            let mut all = [1; 3];
            for (at, text) in numbers.iter().enumerate() {
                let value = of_key(what, text, sizes)?;
                let size = u32::try_from(value).ok().filter(|size| *size > 0);
                let wrong = || format!("{what} is {value}{}, expected 1 to {}", written(text), u32::MAX);
                all[at] = size.ok_or_else(wrong)?;
            }
            Ok(all)
        };
        let shared = launch
            .shared
            .as_ref()
            .map(|shared| {
                let value = of_key("shared", shared, sizes)?;
                let wrong = |_| {
                    let by = written(shared);
                    format!("shared is {value}{by}, expected bytes from 0 to {}", u32::MAX)
                };
                u32::try_from(value).map_err(wrong)
            })
            .transpose()?
            .unwrap_or(0);
        let mut entry = launch.entry.clone().unwrap_or_default();
        for (key, value) in &case.keys {
            entry = entry.replace(&format!("{{{key}}}"), value);
        }
        if entry.contains('{') {
            return Err(format!("entry '{entry}' has a key the case does not"));
        }
        Ok(Self::Kernel {
            entry,
            shape: Shape {
                grid: three("grid", &launch.grid)?,
                block: three("block", &launch.block)?,
                cluster: launch
                    .cluster
                    .as_ref()
                    .map(|cluster| three("cluster", cluster))
                    .transpose()?,
                shared,
                cooperative: launch.cooperative,
                programmatic: launch.programmatic,
            },
            arguments: launch.args.clone(),
            taps: launch.taps.clone(),
        })
    }

    fn matmul(matmul: &header::Matmul, sizes: Sizes) -> Result<Self, String> {
        let size = |what: &str, given: &Number| {
            let value = of_key(what, given, sizes)?;
            let size = usize::try_from(value).ok().filter(|size| *size > 0);
            size.ok_or_else(|| format!("{what} of a matmul is {value}"))
        };
        Ok(Self::Matmul {
            product: Product {
                sizes: [size("m", &matmul.m)?, size("n", &matmul.n)?, size("k", &matmul.k)?],
                of: matmul.of,
                into: matmul.into,
            },
            matrices: [&matmul.a, &matmul.b, &matmul.d].map(Clone::clone),
            scales: matmul.scales.clone(),
        })
    }
}
