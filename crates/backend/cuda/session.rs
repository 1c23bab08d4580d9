//! Compiles kernels, loads them on a device, plans their launches for a case (the inputs of one test), runs and checks them, and
//! times them.
//!
//! A [`Session`] loads [`Kernels`] from a file, with or without a planted fault (a deliberate bug). For a case, the kernels form
//! a [`Bench`], which checks a variant (a kernel implementation) or makes it ready to be timed.

use std::cell::{OnceCell, RefCell};
use std::collections::BTreeMap;

use super::copies::Reused;
use super::device::{Device, Function, Module};
use super::header::{Mutant, Source, Variant};
use super::plan::Plan;
use super::repeat::Repeats;
use super::run::Running;
use super::time::Stopwatch;
use super::toolkit::{Toolkit, Unit};
use ulplab_core::error::{Error, Result};
use ulplab_operations::ops::guards::Checked;
use ulplab_operations::ops::{Case, Problem};

/// A device, the compiler for its kernels, and a stopwatch.
pub struct Session<'d> {
    pub device: &'d Device,
    toolkit: Toolkit,
    pub watch: Stopwatch<'d>,
    repeats: OnceCell<Repeats>,
}

impl<'d> Session<'d> {
    /// Opens a session on a device, with the installed CUDA toolkit.
    pub fn open(device: &'d Device) -> Result<Self> {
        Ok(Self {
            device,
            toolkit: Toolkit::open()?,
            watch: Stopwatch::new(device)?,
            repeats: OnceCell::new(),
        })
    }

    /// Returns the kernels of a file, with a planted fault if one is given. They are compiled when they are first used.
    pub fn load<'s>(&'s self, source: &'s Source, fault: Option<&'s Mutant>) -> Kernels<'s> {
        Kernels {
            session: self,
            source,
            fault,
            modules: RefCell::default(),
        }
    }

    /// Compiles the listed variants of a file in parallel on all cores, each for a case and with a planted fault or none. Skips
    /// variants that do not support their case. Ignores errors: they are returned later, when the variant is made ready to run.
    pub fn compile_ahead(&self, source: &Source, works: &[(Option<&Mutant>, &Variant, &Case)]) {
        let planned = works.iter().filter_map(|(fault, variant, case)| {
            let plan = self.runs(variant).then(|| Plan::new(variant, case, self.device.sms));
            Some((*fault, plan?.ok()??))
        });
        let planned: Vec<_> = planned.collect();
        let mut units = BTreeMap::new();
        for (fault, plan) in &planned {
            let name = fault.map(|fault| &fault.name);
            for entry in source.units(plan.entries()) {
                units.insert((name, entry), self.unit(source, *fault, entry));
            }
        }
        self.toolkit.compile_ahead(&units.into_values().collect::<Vec<_>>());
    }

    fn unit<'a>(&'a self, source: &'a Source, fault: Option<&'a Mutant>, entry: &'a str) -> Unit<'a> {
        let arch = &self.device.arch;
        Unit {
            source,
            arch,
            fault,
            entry,
        }
    }

    /// True if a variant supports this device's architecture.
    pub fn runs(&self, variant: &Variant) -> bool {
        variant.is_for(&self.device.arch)
    }

    /// Returns the kernel that checks if the contents of a buffer repeat with a period. Compiles this kernel on first use.
    pub fn repeats(&self) -> Result<&Repeats> {
        match self.repeats.get() {
            Some(repeats) => Ok(repeats),
            None => {
                let made = Repeats::new(&self.toolkit, self.device)?;
                Ok(self.repeats.get_or_init(|| made))
            }
        }
    }
}

/// The kernels of a file on a device.
pub struct Kernels<'s> {
    pub(super) session: &'s Session<'s>,
    source: &'s Source,
    /// The planted fault, if any.
    fault: Option<&'s Mutant>,
    /// Loaded modules by unit: a unit is one entry point that is compiled separately, or `""` for the whole file.
    modules: RefCell<BTreeMap<String, Module>>,
}

impl Kernels<'_> {
    /// Returns the function of an entry point. Compiles and loads it on first use.
    pub(super) fn function(&self, entry: &str) -> Result<Function> {
        let unit = self.source.units([entry]).pop_first().unwrap_or_default();
        let mut modules = self.modules.borrow_mut();
        if !modules.contains_key(unit) {
            let whole = self.session.unit(self.source, self.fault, unit);
            let cubin = self.session.toolkit.compile(whole)?;
            modules.insert(unit.into(), Module::load(&cubin.bytes)?);
        }
        modules[unit].function(entry)
    }

    /// Combines the kernels with a case of their operation.
    pub fn case<'a>(&'a self, case: &'a Case, problem: &'a Problem) -> Bench<'a> {
        Bench {
            kernels: self,
            case,
            problem,
        }
    }
}

/// A test case, its problem (input and output buffers), and the kernels to run on this problem.
#[derive(Clone, Copy)]
pub struct Bench<'a> {
    pub(super) kernels: &'a Kernels<'a>,
    pub(super) case: &'a Case,
    pub(super) problem: &'a Problem,
}

impl<'a> Bench<'a> {
    /// Plans the launches of a variant; `None` if the variant is for another architecture, or does not support the case.
    pub fn plan(&self, variant: &Variant) -> Result<Option<Plan>> {
        let session = self.kernels.session;
        if !session.runs(variant) {
            return Ok(None);
        }
        Plan::new(variant, self.case, session.device.sms).map_err(Error::Usage)
    }

    /// Loads a variant with its plan, ready to be run.
    pub fn ready(&self, variant: &'a Variant, plan: Plan) -> Result<Running<'a>> {
        let Kernels {
            session, source, fault, ..
        } = self.kernels;
        session.compile_ahead(source, &[(*fault, variant, self.case)]);
        let fault = fault.map_or(String::new(), |fault| format!(" with the fault '{}'", fault.name));
        let what = format!("{}{fault} on {}", self.name(variant), self.case.name);
        session.device.watchdog.expect(what);
        Running::new(*self, variant, plan, &Reused::default())
    }

    /// Runs a variant, and returns its outputs and the results of all checks; `None` if the variant does not support the case or
    /// the device.
    pub fn check(&self, variant: &'a Variant) -> Result<Option<Checked>> {
        let running = self.plan(variant)?.map(|plan| self.ready(variant, plan)).transpose()?;
        running.map(|running| running.judged()).transpose()
    }

    /// Loads a variant, ready to be run. Returns an error if the variant does not support the case or the device.
    pub fn running(&self, variant: &'a Variant) -> Result<Running<'a>> {
        let plan = self.plan(variant)?.ok_or_else(|| {
            let device = self.kernels.session.device;
            let name = self.name(variant);
            Error::Usage(match &variant.arch {
                Some(arch) if *arch != device.arch => {
                    format!("{name} is for {arch}, and this device is {}", device.arch)
                }
                _ => format!("{name} does not take case '{}'", self.case.name),
            })
        })?;
        self.ready(variant, plan)
    }

    /// Loads a variant, ready to be timed. Returns an error if it cannot run or if its outputs are wrong.
    pub fn right(&self, variant: &'a Variant) -> Result<Running<'a>> {
        let running = self.running(variant)?;
        running.right(&self.name(variant))?;
        Ok(running)
    }

    fn name(&self, variant: &Variant) -> String {
        self.kernels.source.full_name(&variant.name)
    }
}
