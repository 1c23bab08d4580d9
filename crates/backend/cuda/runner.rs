//! A thread that runs kernels on the GPU for calls from any thread.

use std::sync::Mutex;
use std::sync::mpsc::{Receiver, Sender, channel};

use super::device::Device;
use super::header::{Source, Variant};
use super::session::{Kernels, Session};
use ulplab_core::error::{Error, Result};
use ulplab_operations::ops::Outputs;
use ulplab_operations::ops::call::{Call, Runner};

/// A thread that owns the device, and handles calls in the order of their arrival.
pub struct Worker {
    ops: Vec<String>,
    calls: Mutex<Sender<Request>>,
}

/// A call, and the channel to which its outputs are sent.
struct Request(Call, Sender<Answer>);

type Answer = std::result::Result<Outputs, String>;

/// A kernel file, and the variants to try for a call, in this order.
pub struct ChosenVariants {
    pub source: Source,
    pub variants: Vec<Variant>,
}

impl Worker {
    /// Starts the thread. It opens the device and compiles the files at the first call.
    pub fn start(chosen: Vec<ChosenVariants>) -> Self {
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

    fn run(&self, call: Call) -> Answer {
        let (answer, answered) = channel();
        let calls = self.calls.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let ended = "the thread that runs kernels has ended".to_string();
        calls.send(Request(call, answer)).map_err(|_| ended.clone())?;
        drop(calls);
        answered.recv().map_err(|_| ended)?
    }
}

/// Runs kernels for each call, and sends their outputs back, until all senders are dropped.
fn serve(chosen: &[ChosenVariants], asked: &Receiver<Request>) {
    // Wait for the first call before opening the device.
    let Ok(first) = asked.recv() else { return };
    let mut calls = std::iter::once(first).chain(asked);
    if let Err(why) = answer(chosen, &mut calls) {
        let why = message(why);
        // Ignore failed sends: the caller may no longer wait for the answer.
        calls.for_each(|Request(_, answer)| drop(answer.send(Err(why.clone()))));
    }
}

/// Opens the device and the compiler, and sends outputs or an error for each call. Returns an error only if the device or the
/// compiler cannot be opened.
fn answer(chosen: &[ChosenVariants], calls: &mut impl Iterator<Item = Request>) -> Result<()> {
    let device = Device::open()?;
    let session = Session::open(&device)?;
    let loaded: Vec<Kernels> = chosen.iter().map(|chosen| session.load(&chosen.source, None)).collect();
    for Request(call, answer) in calls {
        let mut both = chosen.iter().zip(&loaded);
        let outputs = match both.find(|(chosen, _)| chosen.source.op == call.op) {
            Some((chosen, kernels)) => run(chosen, kernels, &call),
            None => Err(Error::Usage(format!("no kernel of {}", call.op))),
        };
        drop(answer.send(outputs.map_err(message)));
    }
    Ok(())
}

/// Returns the error's message without the prefix of its class: the caller adds the prefix when the error is reported.
fn message(error: Error) -> String {
    match error {
        Error::Setup(message) | Error::Usage(message) => message,
        other => other.to_string(),
    }
}

/// Returns the outputs of the first variant that supports the call.
fn run(chosen: &ChosenVariants, kernels: &Kernels, call: &Call) -> Result<Outputs> {
    let bench = kernels.case(&call.case, &call.problem);
    for variant in &chosen.variants {
        if let Some(plan) = bench.plan(variant)? {
            return bench.ready(variant, plan)?.outputs();
        }
    }
    let names: Vec<&str> = chosen.variants.iter().map(|variant| variant.name.as_str()).collect();
    let sizes = call.case.dims.iter().map(|(dim, size)| format!("{dim} = {size}"));
    let (names, sizes) = (names.join(", "), sizes.collect::<Vec<_>>().join(", "));
    Err(Error::Usage(format!("{names} does not take {sizes}")))
}
