//! Kernels on a device, from their file to their times: compiled, loaded, planned on a case, run, judged, timed.
//!
//! A [`Session`] loads a file of [`Kernels`], with a planted fault or none; on a case they are a [`Bench`], where a variant
//! is checked, or readied to be timed.

use std::cell::OnceCell;

use super::device::{Device, Module};
use super::header::{Mutant, Source, Variant};
use super::plan::Plan;
use super::repeat::Repeats;
use super::run::Running;
use super::time::Stopwatch;
use super::toolkit::Toolkit;
use ulplab_core::error::{Error, Result};
use ulplab_core::ops::guards::Checked;
use ulplab_core::ops::{Case, Problem};

/// A device, the compiler of what runs on it, and what times are taken with.
pub struct Session<'d> {
    pub device: &'d Device,
    toolkit: Toolkit,
    watch: Stopwatch<'d>,
    repeats: OnceCell<Repeats>,
}

impl<'d> Session<'d> {
    /// A session on a device, with the toolkit that is here.
    pub fn open(device: &'d Device) -> Result<Self> {
        Ok(Self {
            device,
            toolkit: Toolkit::open()?,
            watch: Stopwatch::new(device)?,
            repeats: OnceCell::new(),
        })
    }

    /// Compiles a file and puts it on the device.
    pub fn load<'s>(&'s self, source: &'s Source) -> Result<Kernels<'s>> {
        self.load_with(source, None)
    }

    /// The same, with a fault planted if one is given.
    pub fn load_with<'s>(&'s self, source: &'s Source, fault: Option<&Mutant>) -> Result<Kernels<'s>> {
        let cubin = self.toolkit.compile(source, &self.device.arch, fault)?;
        Ok(Kernels {
            session: self,
            source,
            fault: fault.map(|fault| format!(" with the fault '{}'", fault.name)),
            module: Module::load(&cubin.bytes)?,
        })
    }

    /// Compiles a file with each of these faults, before they are loaded one after the other.
    pub fn compile_faults<'f>(&self, source: &'f Source, faults: &[&'f Mutant]) {
        let work = |fault: &&'f Mutant| (source, self.device.arch.as_str(), Some(*fault));
        let works: Vec<_> = faults.iter().map(work).collect();
        self.toolkit.compile_ahead(&works);
    }

    /// Whether a variant is for this device.
    pub fn runs(&self, variant: &Variant) -> bool {
        variant.is_for(&self.device.arch)
    }

    /// What compares contents that repeat.
    pub fn repeats(&self) -> Result<&Repeats> {
        match self.repeats.get() {
            Some(repeats) => Ok(repeats),
            None => {
                let made = Repeats::new(&self.toolkit, self.device)?;
                Ok(self.repeats.get_or_init(|| made))
            }
        }
    }

    /// What times are taken with.
    pub fn watch(&self) -> &Stopwatch<'d> {
        &self.watch
    }
}

/// The kernels of a file on a device.
pub struct Kernels<'s> {
    session: &'s Session<'s>,
    source: &'s Source,
    /// In the words of messages, if one is planted.
    fault: Option<String>,
    module: Module,
}

impl Kernels<'_> {
    /// The kernels on a case of their operation.
    pub fn case<'a>(&'a self, case: &'a Case, problem: &'a Problem) -> Bench<'a> {
        Bench {
            kernels: self,
            case,
            problem,
        }
    }
}

/// A case and its problem, on which variants of a file are run.
pub struct Bench<'a> {
    kernels: &'a Kernels<'a>,
    case: &'a Case,
    problem: &'a Problem,
}

impl<'a> Bench<'a> {
    /// The launches of a variant; none if it is for another device, or does not take the case.
    pub fn plan(&self, variant: &Variant) -> Result<Option<Plan>> {
        let session = self.kernels.session;
        if !session.runs(variant) {
            return Ok(None);
        }
        Plan::new(variant, self.case, session.device.sms).map_err(Error::Usage)
    }

    /// A variant ready to be run, by its plan.
    pub fn ready(&self, variant: &'a Variant, plan: Plan) -> Result<Running<'a>> {
        let Kernels {
            session,
            source,
            fault,
            module,
        } = self.kernels;
        let (op, fault) = (&source.op, fault.as_deref().unwrap_or_default());
        let what = format!("{op}.{}{fault} on {}", variant.name, self.case.name);
        session.device.watchdog.expect(what);
        Running::new(session, module, (self.case, self.problem), (variant, plan))
    }

    /// Outputs of a variant, and the results of checks and judgements; none if it has no plan.
    pub fn check(&self, variant: &'a Variant) -> Result<Option<Checked>> {
        let running = self.plan(variant)?.map(|plan| self.ready(variant, plan)).transpose()?;
        running.map(|running| running.judged()).transpose()
    }

    /// A variant ready to be run: an error if it has no plan.
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

    /// A variant ready to be timed: an error if it cannot be run, or if it is wrong.
    pub fn right(&self, variant: &'a Variant) -> Result<Running<'a>> {
        let running = self.running(variant)?;
        running.right(&self.name(variant))?;
        Ok(running)
    }

    fn name(&self, variant: &Variant) -> String {
        format!("{}.{}", self.kernels.source.op, variant.name)
    }
}
