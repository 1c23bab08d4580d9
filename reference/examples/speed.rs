//! Measures the run time of the DeepSeek-V4 path with a trained model, and checks that a faster version gives the same bits.
//!
//! `cargo run --release -p ulplab-reference --example speed -- datasets/dsv4-mini [logits]`: times forward passes and decode
//! steps. The logits are saved to the file `logits` if it does not exist; otherwise they are compared with the file.

#![allow(clippy::print_stdout, reason = "it prints times")]

use std::error::Error;
use std::fs;
use std::path::Path;
use std::time::Instant;

use reference::paths::deepseek_v4::{Config, Model, Scalar, State};
use reference::weights::Safetensors;
use reference::{Choice, Numerics, Plain, Real, Site, Tensor};

const CONTEXT: usize = 512;
const STEPS: usize = 8;

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes
        .chunks_exact(4)
        .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
        .collect()
}

/// Keeps a copy of all tensors and choices.
#[derive(Default)]
struct Recorder<T> {
    tensors: Vec<Tensor<T>>,
    choices: Vec<Choice<T>>,
}

impl<T: Real> Numerics<T> for Recorder<T> {
    fn site(&mut self, _: &Site, tensor: &mut Tensor<T>) {
        self.tensors.push(tensor.clone());
    }
    fn choice(&mut self, _: &Site, choice: &mut Choice<T>) {
        self.choices.push(choice.clone());
    }
    fn wants(&self, _: &Site) -> bool {
        true
    }
}

/// Returns the CPU time of this thread in ms, which excludes the time of other processes.
fn thread_time() -> f64 {
    let stat = fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    stat.split(' ')
        .next()
        .and_then(|ns| ns.parse::<f64>().ok())
        .unwrap_or(f64::NAN)
        / 1e6
}

/// Returns the least wall time and the least thread time of `repeats` runs, in ms, and the last result. `start` is not timed.
fn time<S, R>(repeats: usize, start: impl Fn() -> S, run: impl Fn(S) -> R) -> (f64, f64, R) {
    let mut best: Option<(f64, f64, R)> = None;
    for _ in 0..repeats {
        let state = start();
        let (wall, thread) = (Instant::now(), thread_time());
        let result = run(state);
        let (wall, thread) = (wall.elapsed().as_secs_f64() * 1e3, thread_time() - thread);
        best = Some(match best {
            Some((w, t, _)) => (w.min(wall), t.min(thread), result),
            None => (wall, thread, result),
        });
    }
    best.expect("at least one run")
}

fn decode<T: Scalar>(model: &Model<T>, mut state: State<T>, ids: &[u32]) -> Vec<T> {
    let mut logits = Vec::new();
    for id in ids {
        logits.extend(model.run(&mut state, &[*id], &mut Plain).expect("valid ids").data);
    }
    logits
}

/// Prints times in a pool of `threads`. Returns the logits of the prompt and of the decode steps.
fn measure<T: Scalar>(model: &Model<T>, ids: &[u32], threads: usize, repeats: usize) -> Result<Vec<T>, Box<dyn Error>> {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build()?;
    let (prompt, steps) = ids.split_at(CONTEXT);
    let prefill = |mut state: State<T>| {
        let logits = model.run(&mut state, prompt, &mut Plain).expect("valid ids");
        (logits, state)
    };
    Ok(pool.install(|| {
        let name = format!("{} {threads} threads:", std::any::type_name::<T>());
        let (wall, thread, (logits, state)) = time(repeats, || model.state(), prefill);
        println!("{name} forward of {CONTEXT}      {wall:8.2} ms wall {thread:8.2} ms this thread");
        let (wall, thread, _) = time(
            repeats,
            || (model.state(), Recorder::default()),
            |(mut state, mut recorder)| {
                let logits = model.run(&mut state, prompt, &mut recorder).expect("valid ids");
                (logits, recorder)
            },
        );
        println!("{name} with all recorded   {wall:8.2} ms wall {thread:8.2} ms this thread");
        let (wall, thread, more) = time(repeats, || state.clone(), |state| decode(model, state, steps));
        let (wall, thread) = (wall / steps.len() as f64, thread / steps.len() as f64);
        println!("{name} decode step         {wall:8.2} ms wall {thread:8.2} ms this thread");
        [logits.data, more].concat()
    }))
}

/// Saves the logits if the file does not exist; otherwise compares them with the saved logits.
fn guard(path: &Path, logits: &[f32]) -> Result<(), Box<dyn Error>> {
    if !path.exists() {
        let bytes: Vec<u8> = logits.iter().flat_map(|x| x.to_le_bytes()).collect();
        return Ok(fs::write(path, bytes)?);
    }
    let saved = floats(&fs::read(path)?);
    let top = saved.iter().fold(0.0, |top: f32, x| top.max(x.abs()));
    let worst = saved
        .iter()
        .zip(logits)
        .fold(0.0, |worst: f32, (a, b)| worst.max((a - b).abs()));
    let changed = saved
        .iter()
        .zip(logits)
        .filter(|(a, b)| a.to_bits() != b.to_bits())
        .count();
    println!(
        "against {}: {changed} of {} differ, by at most {:.2e} of max |logit|",
        path.display(),
        saved.len(),
        worst / top
    );
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let folder = args.next().unwrap_or("datasets/dsv4-mini".into());
    let saved = args.next();
    let folder = Path::new(&folder);
    let config: Config = serde_json::from_str(&fs::read_to_string(folder.join("config.json"))?)?;
    let mut weights = Safetensors::open(folder)?;
    let text = fs::read(folder.join("train.py"))?;
    let ids: Vec<u32> = text[..CONTEXT + STEPS].iter().map(|&byte| u32::from(byte)).collect();

    let model = Model::<f32>::load(config.clone(), &mut weights)?;
    let one = measure(&model, &ids, 1, 9)?;
    let two = measure(&model, &ids, 2, 9)?;
    println!(
        "threads change the bits: {}",
        one.iter().zip(&two).any(|(a, b)| a.to_bits() != b.to_bits())
    );
    if let Some(saved) = saved {
        guard(Path::new(&saved), &one)?;
    }
    let exact = measure(&Model::<f64>::load(config, &mut weights)?, &ids, 1, 5)?;
    let worst = one
        .iter()
        .zip(&exact)
        .fold(0.0, |worst: f64, (a, b)| worst.max((f64::from(*a) - b).abs()));
    println!("f32 differs from f64 by at most {worst:.2e}");
    Ok(())
}
