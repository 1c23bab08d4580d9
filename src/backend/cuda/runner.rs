//! Kernels run on the GPU for whoever asks, from any thread.

use std::sync::Mutex;
use std::sync::mpsc::{Receiver, Sender, channel};

use super::device::{Device, Module};
use super::header::{Source, Variant};
use super::plan::Plan;
use super::run::Running;
use super::toolkit::Toolkit;
use ulplab_core::error::{Error, Result};
use ulplab_core::ops::Outputs;
use ulplab_core::ops::call::{Call, Runner};

/// A thread that has the device for itself, and works on calls in the order in which they come.
pub struct Worker {
    ops: Vec<String>,
    calls: Mutex<Sender<Asked>>,
}

/// A call, and where its answer goes.
struct Asked(Call, Sender<std::result::Result<Outputs, String>>);

/// A file of kernels, and which of its variants are tried on a call, first to last.
pub struct Chosen {
    pub source: Source,
    pub variants: Vec<Variant>,
}

impl Worker {
    /// The device is opened, and the files are compiled, at the first call.
    pub fn start(chosen: Vec<Chosen>) -> Self {
        let ops = chosen.iter().map(|chosen| chosen.source.op.clone()).collect();
        let (calls, asked) = channel();
        std::thread::spawn(move || serve(&chosen, &asked));
        Self {
            ops,
            calls: Mutex::new(calls),
        }
    }
}

impl Runner for Worker {
    fn ops(&self) -> &[String] {
        &self.ops
    }

    fn run(&self, call: Call) -> std::result::Result<Outputs, String> {
        let (answer, answered) = channel();
        let calls = self.calls.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let ended = "the thread that runs kernels has ended".to_string();
        calls.send(Asked(call, answer)).map_err(|_| ended.clone())?;
        drop(calls);
        answered.recv().map_err(|_| ended)?
    }
}

/// Answers calls until nobody can ask any more.
fn serve(chosen: &[Chosen], asked: &Receiver<Asked>) {
    let mut ready = None;
    for Asked(call, answer) in asked {
        // The class of the error is said by whoever reports it.
        let message = |error| match error {
            Error::Setup(message) | Error::Usage(message) => message,
            other => other.to_string(),
        };
        let ready = ready.get_or_insert_with(|| Ready::new(chosen).map_err(message));
        let outputs = match ready {
            Ok(ready) => ready.run(&call).map_err(message),
            Err(why) => Err(why.clone()),
        };
        // Who asked may have gone.
        let _ = answer.send(outputs);
    }
}

/// The device with the files on it. Modules go before the device does.
struct Ready<'a> {
    modules: Vec<(&'a Chosen, Module)>,
    device: Device,
}

impl<'a> Ready<'a> {
    fn new(chosen: &'a [Chosen]) -> Result<Self> {
        let device = Device::open()?;
        let toolkit = Toolkit::open()?;
        let module = |chosen: &'a Chosen| {
            let cubin = toolkit.compile(&chosen.source, &device.arch, &[])?;
            Ok((chosen, Module::load(&cubin.bytes)?))
        };
        let modules = chosen.iter().map(module).collect::<Result<_>>()?;
        Ok(Self { modules, device })
    }

    fn run(&self, call: &Call) -> Result<Outputs> {
        let found = self.modules.iter().find(|(chosen, _)| chosen.source.op == call.op);
        let (chosen, module) = found.ok_or_else(|| Error::Usage(format!("no kernel of {}", call.op)))?;
        for variant in &chosen.variants {
            if let Some(plan) = Plan::new(variant, &call.case, self.device.sms).map_err(Error::Usage)? {
                return Running::new(&self.device, module, &call.case, &call.problem, &plan)?.outputs();
            }
        }
        let names: Vec<&str> = chosen.variants.iter().map(|variant| variant.name.as_str()).collect();
        let sizes: Vec<String> = call
            .case
            .dims
            .iter()
            .map(|(dim, size)| format!("{dim} = {size}"))
            .collect();
        Err(Error::Usage(format!(
            "{} does not take {}",
            names.join(", "),
            sizes.join(", ")
        )))
    }
}
