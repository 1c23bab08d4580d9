//! Builds the launches of a variant (a kernel implementation) for a case (the inputs of one test), one by one: from the list in
//! the variant's header, or by a composition in Rust.

mod put;

use std::cell::RefCell;
use std::collections::BTreeMap;

use super::expr::eval;
use super::header::{Launch, Variant};
use super::plan::{Launches, Named, Plan, Scratch, Step, Work};
use ulplab_core::error::{did_you_mean, refuse};
use ulplab_operations::ops::Case;

pub use put::{Put, call, ceil, kernel, product};

/// The launches of a variant for a case, while they are being built.
pub struct Graph<'a> {
    variant: &'a Variant,
    case: &'a Case,
    sms: i64,
    /// Names to replace in all called variants, each with the buffer, part of a buffer or number that replaces it.
    names: Vec<(String, Named)>,
    /// True if new launches of a run may start before the previous launch has ended (programmatic dependent launch).
    programmatic: bool,
    /// Buffers that later launches use in part only: the buffer's name, and the index of the part in the first dimension.
    parts: BTreeMap<String, i64>,
    /// Arguments of the preparing launches (which run once, before all runs) of each call so far. The key is the call's name and
    /// the index of the scratch part that the call uses.
    prepared: BTreeMap<(String, i64), Vec<Vec<Named>>>,
    plan: Plan,
    /// False if the case violates a condition (`needs`) of the variant, or of a called variant.
    takes: bool,
    /// Name of the last unknown size, for a hint in error messages.
    unknown: RefCell<Option<String>>,
    /// First name that a composition used as a size although the case has no size of this name.
    missing: RefCell<Option<String>>,
}

/// Names in a launch, each with the buffer, part of a buffer, or number that replaces it.
type Names<'n> = &'n [(String, Named)];

fn meaning<'n>(names: Names<'n>, name: &str) -> Option<&'n Named> {
    let found = names.iter().find(|(other, _)| other == name);
    found.map(|(_, meaning)| meaning)
}

impl<'a> Graph<'a> {
    pub(super) fn new(variant: &'a Variant, case: &'a Case, sms: i64) -> Self {
        Self {
            variant,
            case,
            sms,
            names: Vec::new(),
            programmatic: false,
            parts: BTreeMap::new(),
            prepared: BTreeMap::new(),
            plan: Plan {
                prepare: Launches::default(),
                run: Launches::default(),
                scratch: Vec::new(),
                products: variant.products,
            },
            takes: true,
            unknown: RefCell::default(),
            missing: RefCell::default(),
        }
    }

    /// Builds the plan; `None` if the variant does not support the case.
    pub(super) fn plan(mut self) -> Result<Option<Plan>, String> {
        let made = self.make();
        if !self.takes {
            return Ok(None);
        }
        let missing = self.missing.take();
        let made = missing.map_or(made, |name| Err(format!("no size '{name}'")));
        made.map_err(|why| {
            let known = || self.case.dims.iter().map(|(dim, _)| *dim).chain(["sms"]);
            let unknown = self.unknown.take();
            let near = unknown.map_or(String::new(), |name| did_you_mean(&name, known()));
            let (variant, case) = (&self.variant.name, &self.case.name);
            format!("variant '{variant}', case '{case}': {why}{near}")
        })?;
        Ok(Some(self.plan))
    }

    fn make(&mut self) -> Result<(), String> {
        let variant = self.variant;
        if !self.meets(&variant.needs, &[])? {
            return Ok(());
        }
        for scratch in &variant.scratch {
            let bytes = self.eval(&scratch.bytes, &[])?;
            self.add_scratch(&scratch.name, bytes, 1, scratch.zero)?;
        }
        for (launches, prepares) in [(&variant.prepare, true), (&variant.launches, false)] {
            for launch in launches {
                self.add(launch, None, &[], prepares)?;
            }
        }
        if let Some(composed) = &variant.composed {
            (composed.composition)(self)?;
        }
        self.parts_are_there()
    }

    /// Checks all launch arguments that are scratch buffers. Returns an error if an argument selects a part that does not exist,
    /// or selects no part of a scratch buffer with several parts.
    fn parts_are_there(&self) -> Result<(), String> {
        for (step, arguments) in self.plan.prepare.each().chain(self.plan.run.each()) {
            for argument in arguments {
                let scratch = argument.name().and_then(|name| self.plan.scratch(name));
                let parts = scratch.map_or(1, |scratch| scratch.parts as i64);
                let there = match argument {
                    Named::Part(_, index) => scratch.is_none() || (0..parts).contains(index),
                    _ => parts == 1,
                };
                let why = format_args!("launch '{}', argument '{argument}': there are {parts} parts", step.name);
                refuse(!there, why)?;
            }
        }
        Ok(())
    }

    /// Returns sizes of the case by name. For an unknown name, returns 1; [`plan`](Self::plan) then returns an error.
    pub fn sizes<const N: usize>(&self, names: [&str; N]) -> [i64; N] {
        names.map(|name| {
            let size = self.size(name, &[]);
            if size.is_none() {
                self.missing.borrow_mut().get_or_insert(name.into());
            }
            size.unwrap_or(1)
        })
    }

    /// Returns one size of the case; same as [`sizes`](Self::sizes).
    pub fn n(&self, name: &str) -> i64 {
        let [size] = self.sizes([name]);
        size
    }

    /// Adds one scratch buffer of `bytes` bytes for each name. `names` are separated by spaces.
    ///
    /// # Errors
    /// Returns an error if the size is negative, or if one of the names already belongs to scratch with other properties.
    pub fn scratch(&mut self, names: &str, bytes: i64) -> Result<(), String> {
        let mut names = names.split_whitespace();
        names.try_for_each(|name| self.add_scratch(name, bytes, 1, false))
    }

    /// Replaces `name` by a buffer, a part of a buffer or a number in all later calls, unless the call itself replaces this name.
    pub fn with(&mut self, name: &str, meaning: impl Into<Named>) {
        self.names.push((name.into(), meaning.into()));
    }

    /// Allows or forbids later launches of a run to start before the previous launch has ended.
    pub fn programmatic(&mut self, programmatic: bool) {
        self.programmatic = programmatic;
    }

    /// Selects one part of each named buffer for later launches: the part at `index` of the buffer's first dimension. `names` are
    /// separated by spaces.
    pub fn at(&mut self, index: i64, names: &str) {
        let parts = names.split_whitespace().map(|name| (name.into(), index));
        self.parts.extend(parts);
    }

    /// Adds a launch, or all launches of a called variant.
    ///
    /// # Errors
    /// Returns an error if a number of the launch is out of range, or if a call uses an unknown name.
    pub fn put(&mut self, put: Put) -> Result<(), String> {
        self.put_in(&put, false)
    }

    /// Adds a preparing launch, which runs once after the inputs are written.
    ///
    /// # Errors
    /// Returns an error if a number of the launch is out of range, or if `put` is a call: a call adds its own preparing launches.
    pub fn prepare(&mut self, put: Put) -> Result<(), String> {
        self.put_in(&put, true)
    }

    fn put_in(&mut self, put: &Put, prepares: bool) -> Result<(), String> {
        let wrong = |why: String| format!("launch '{}': {why}", put.name);
        match (&put.call, &put.wrong) {
            _ if !self.takes => Ok(()),
            (_, Some(why)) => Err(wrong(why.clone())),
            (Some(_), _) if prepares => Err(wrong("is a call, expected a kernel that prepares".into())),
            (Some(call), _) => self.call(put, call).map_err(wrong),
            (None, _) => self.add(&put.launch, Some(&put.name), &put.names, prepares),
        }
    }

    fn call(&mut self, put: &Put, call: &str) -> Result<(), String> {
        let wrong = |why: String| format!("call of {call}: {why}");
        let composed = self.variant.composed.as_ref();
        let callable = &composed.ok_or("only compositions have calls")?.callable.0;
        let Some((variant, known)) = callable.get(call) else {
            let near = did_you_mean(call, callable.keys().map(String::as_str));
            return Err(format!("no variant '{call}' of the operations that are called{near}"));
        };
        if let Some((stray, _)) = put.names.iter().find(|(name, _)| !known.contains(name)) {
            let near = did_you_mean(stray, known.iter().map(String::as_str));
            return Err(wrong(format!("that variant has nothing called '{stray}'{near}")));
        }
        let (launches, skipped) = (variant.launches.len(), put.skipped);
        let why = format_args!("the variant lists {launches} launches, expected more than {skipped}");
        refuse(launches == 0 || skipped >= launches, why).map_err(wrong)?;
        if variant.arch.is_some() && variant.arch != self.variant.arch || variant.products != self.variant.products {
            return Err(wrong("arch or products of the calling variant are others".into()));
        }
        let mut names = put.names.clone();
        let of_all = self.names.iter().filter(|(name, _)| known.contains(name));
        names.extend(of_all.cloned());
        if !self.meets(&variant.needs, &names)? {
            return Ok(());
        }
        let is_prepared = |name: &String| variant.prepare.iter().any(|launch| launch.args.contains(name));
        let mut scratch = Vec::new();
        for own in &variant.scratch {
            let (name, bytes) = (format!("{}_{}", put.name, own.name), self.eval(&own.bytes, &names)?);
            let part = put.part.filter(|_| is_prepared(&own.name));
            self.add_scratch(&name, bytes, part.map_or(1, |[_, of]| of), own.zero)?;
            let meaning = part.map_or(Named::Whole(name.clone()), |[part, _]| Named::Part(name, part));
            scratch.push((own.name.clone(), meaning));
        }
        names.extend(scratch);
        let numbered = |name: String, number: usize, of: usize| match of {
            1 => name,
            _ => format!("{name}_{}", number + 1),
        };
        if !variant.prepare.is_empty() {
            self.prepare_once(put, variant, &names, &|number| {
                numbered(format!("{}_prepare", put.name), number, variant.prepare.len())
            })?;
        }
        for (number, launch) in variant.launches.iter().enumerate().skip(put.skipped) {
            let name = numbered(put.name.clone(), number, variant.launches.len());
            let programmatic = launch.programmatic || put.launch.programmatic;
            let launch = Launch {
                programmatic,
                ..launch.clone()
            };
            self.add(&launch, Some(&name), &names, false)?;
        }
        Ok(())
    }

    /// Adds the preparing launches of a call. If an earlier call already prepares the same part of scratch, adds nothing, but
    /// checks that both calls have equal arguments.
    fn prepare_once(
        &mut self,
        put: &Put,
        variant: &Variant,
        names: Names,
        name: &dyn Fn(usize) -> String,
    ) -> Result<(), String> {
        let arguments = |launch: &Launch| self.arguments(launch, names);
        let given = variant.prepare.iter().map(arguments).collect::<Result<Vec<_>, _>>()?;
        let part = put.part.map_or(0, |[part, _]| part);
        if let Some(before) = self.prepared.get(&(put.name.clone(), part)) {
            let mut both = before.iter().flatten().zip(given.iter().flatten());
            let Some((before, now)) = both.find(|(before, now)| before != now) else {
                return Ok(());
            };
            let prepared = format!("part {part} of its scratch is prepared from '{before}'");
            return Err(format!("{prepared}, and '{now}' is given here"));
        }
        self.prepared.insert((put.name.clone(), part), given);
        let mut launches = variant.prepare.iter().enumerate();
        launches.try_for_each(|(number, launch)| self.add(launch, Some(&name(number)), names, true))
    }

    /// Adds a launch. `names` gives the buffers, parts or numbers that replace names in its arguments.
    fn add(&mut self, launch: &Launch, name: Option<&str>, names: Names, prepares: bool) -> Result<(), String> {
        let name = name.or(launch.name.as_deref());
        let wrong = |why| format!("launch '{}': {why}", name.unwrap_or(launch.name()));
        let (mut step, arguments) = self.launch(launch, name, names).map_err(wrong)?;
        if let Work::Kernel { shape, .. } = &mut step.work {
            shape.programmatic |= self.programmatic && !prepares && !launch.tap;
        }
        let launches = match prepares {
            true => &mut self.plan.prepare,
            false => &mut self.plan.run,
        };
        launches.add(step, arguments).map_err(wrong)
    }

    fn launch(&self, launch: &Launch, name: Option<&str>, names: Names) -> Result<(Step, Vec<Named>), String> {
        launch.check()?;
        let mut entry = launch.entry.clone().unwrap_or_default();
        for (key, meaning) in names {
            if let Named::Whole(value) = meaning {
                entry = entry.replace(&format!("{{{key}}}"), value);
            }
        }
        for (key, value) in &self.case.keys {
            entry = entry.replace(&format!("{{{key}}}"), value);
        }
        let why = format_args!("entry '{entry}' has a key the case does not");
        refuse(entry.contains('{'), why)?;
        let name = match (name, &launch.entry) {
            (Some(name), _) => name.to_string(),
            (None, Some(_)) => entry.clone(),
            (None, None) => launch.name().into(),
        };
        let step = Step::new(launch, name, entry, &|name| self.size(name, names))?;
        Ok((step, self.arguments(launch, names)?))
    }

    fn arguments(&self, launch: &Launch, names: Names) -> Result<Vec<Named>, String> {
        let matrices = launch.matmul.iter().flat_map(|matmul| {
            let scales = matmul.scales.iter().flatten();
            [&matmul.a, &matmul.b, &matmul.d].into_iter().chain(scales)
        });
        let given = launch.args.iter().chain(matrices);
        given.map(|name| self.argument(name, names)).collect()
    }

    /// Resolves an argument, which is a name or an expression, to a name, a part of a buffer or a number.
    fn argument(&self, text: &str, names: Names) -> Result<Named, String> {
        let name = match meaning(names, text) {
            Some(Named::Whole(name)) => name,
            Some(meaning) => return Ok(meaning.clone()),
            None => text,
        };
        let word = name.starts_with(|c: char| c.is_alphabetic() || c == '_')
            && name.chars().all(|c| c.is_alphanumeric() || c == '_');
        if !word {
            let number = self.eval(name, names).map(Named::Number);
            return number.map_err(|why| format!("argument '{text}': {why}"));
        }
        Ok(match self.parts.get(name) {
            Some(part) => Named::Part(name.into(), *part),
            None => Named::Whole(name.into()),
        })
    }

    fn add_scratch(&mut self, name: &str, bytes: i64, parts: i64, zero: bool) -> Result<(), String> {
        let wrong = |why: String| format!("scratch '{name}' {why}");
        let size = |number: i64, least: i64| usize::try_from(number).ok().filter(|_| number >= least);
        let scratch = Scratch {
            name: name.into(),
            bytes: size(bytes, 0).ok_or_else(|| wrong(format!("of {bytes} bytes")))?,
            parts: size(parts, 1).ok_or_else(|| wrong(format!("has {parts} parts, expected at least 1")))?,
            zero,
        };
        match self.plan.scratch(name) {
            None if parts > 1 && zero => Err(wrong("has parts, and is cleared before each run (zero)".into())),
            None => {
                self.plan.scratch.push(scratch);
                Ok(())
            }
            Some(other) if *other == scratch => Ok(()),
            Some(_) => Err(wrong("is there already, with another size".into())),
        }
    }

    /// Evaluates the conditions `needs` of a variant or of a called variant. False means that the case violates one of these or
    /// of earlier conditions: the graph's variant then does not support the case.
    fn meets(&mut self, needs: &[String], names: Names) -> Result<bool, String> {
        for need in needs {
            self.takes &= self.eval(need, names)? != 0;
        }
        Ok(self.takes)
    }

    fn eval(&self, text: &str, names: Names) -> Result<i64, String> {
        eval(text, &|name| self.size(name, names))
    }

    /// Returns a size of the case. If `names` replaces `name`, returns the number or the other size that replaces it.
    fn size(&self, name: &str, names: Names) -> Option<i64> {
        let name = match meaning(names, name) {
            Some(Named::Number(number)) => return Some(*number),
            Some(Named::Whole(name)) => name,
            Some(Named::Part(..)) | None => name,
        };
        let dim = self.case.dims.iter().find(|(dim, _)| *dim == name);
        let size = dim.map(|(_, size)| *size).or((name == "sms").then_some(self.sms));
        if size.is_none() {
            *self.unknown.borrow_mut() = Some(name.to_string());
        }
        size
    }
}
