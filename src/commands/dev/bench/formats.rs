//! `ulplab dev bench formats`: speed of encoding tensors to stored bytes, and of decoding them, on one core.

use std::hint::black_box;
use std::path::PathBuf;
use std::time::Instant;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use rand_distr::{Distribution, StandardNormal};
use serde::{Deserialize, Serialize};

use super::{Timing, read, timing};
use crate::json;
use ulplab_core::error::{Error, Exit, Result};
use ulplab_core::formats::codec;

/// Time quantization and dequantization on one core, in GB/s of f32.
#[derive(Debug, clap::Args)]
pub struct FormatsArgs {
    /// Formats, or records of a KV cache, to time.
    #[arg(default_values = ["nvfp4", "mxfp8", "mxfp4", "fp8_b128", "fp8_b128_f32", "e4m3", "e5m2", "bf16"])]
    pub formats: Vec<String>,
    /// Rows of the tensor.
    #[arg(long, default_value_t = 1024)]
    pub rows: usize,
    /// Columns of the tensor.
    #[arg(long, default_value_t = 4096)]
    pub cols: usize,
    /// Number of repetitions.
    #[arg(long, default_value_t = 21)]
    pub repeats: usize,
    /// File with the times of peers (other libraries), written by experiments/peers/quantize.py.
    #[arg(long, value_name = "FILE")]
    pub peer: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// The time of one conversion. The script that times other libraries prints a list of these records.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Figure {
    /// Name of the program.
    pub name: String,
    /// The format, as a format string of ulplab.
    pub format: String,
    /// `quantize` or `dequantize`.
    pub what: String,
    pub rows: usize,
    pub cols: usize,
    /// Time of one conversion, in seconds.
    pub time: Timing,
}

impl Figure {
    /// Returns GB of f32 data per second, if one conversion takes `seconds`.
    fn rate(&self, seconds: f64) -> f64 {
        (4 * self.rows * self.cols) as f64 / seconds / 1e9
    }
}

pub fn run(args: &FormatsArgs) -> Result<Exit> {
    let (rows, cols) = (args.rows, args.cols);
    let none = [rows, cols, args.repeats].contains(&0);
    Error::refuse(none, "--rows, --cols and --repeats must be 1 or more")?;
    let peers: Option<Vec<Figure>> = args.peer.as_deref().map(read).transpose()?;
    let peers = peers.unwrap_or_default();
    let load = load_average();
    let mut random = ChaCha8Rng::seed_from_u64(1);
    let x: Vec<f32> = (0..rows * cols).map(|_| StandardNormal.sample(&mut random)).collect();
    let mut figures = Vec::new();
    for name in &args.formats {
        let codec = codec(name).map_err(Error::Usage)?;
        codec.check(cols).map_err(Error::Usage)?;
        let encoded = codec.encode(&x, cols);
        let mut out = vec![0.0; x.len()];
        let mut time = |what: &str, work: &mut dyn FnMut()| {
            let seconds = (0..args.repeats).map(|_| {
                let started = Instant::now();
                work();
                started.elapsed().as_secs_f64()
            });
            figures.push(Figure {
                name: "ulplab".into(),
                format: name.clone(),
                what: what.into(),
                rows,
                cols,
                time: timing(seconds.collect()),
            });
        };
        time("quantize", &mut || drop(black_box(codec.encode(black_box(&x), cols))));
        time("dequantize", &mut || codec.decode(black_box(&encoded), &mut out));
        black_box(&out);
    }
    if let Some(note) = busy(&figures, load) {
        errln!("{note}");
    }
    if args.json {
        json::print(&figures)?;
        return Ok(Exit::Pass);
    }
    outln!(
        "{:14} {:11} {:>20}   one core, [{rows}, {cols}] f32",
        "format",
        "",
        "GB/s of f32"
    );
    for figure in &figures {
        let Timing { median, min, max } = figure.time;
        let same = |peer: &&Figure| (&peer.format, &peer.what) == (&figure.format, &figure.what);
        let ratios = peers.iter().filter(same).map(|peer| {
            let rate = peer.rate(peer.time.median);
            let ratio = figure.rate(median) / rate;
            format!("{ratio:.1} × {} ({rate:.3})", peer.name)
        });
        let ratios = ratios.collect::<Vec<_>>().join("   ");
        let (format, what) = (&figure.format, &figure.what);
        let [rate, slowest, fastest] = [median, max, min].map(|seconds| figure.rate(seconds));
        outln!("{format:14} {what:11} {rate:6.2} ({slowest:.2} to {fastest:.2})   {ratios}");
    }
    Ok(Exit::Pass)
}

/// Times are reported as unreliable if the longest repeat takes more than this many times as long as the shortest.
const SPREAD: f64 = 3.0;

/// Returns a warning about repeats whose times differ too much. `load` is the load average before the first repeat.
pub fn busy(figures: &[Figure], load: Option<f64>) -> Option<String> {
    let spread = |figure: &Figure| figure.time.max / figure.time.min;
    let worst = figures.iter().max_by(|a, b| spread(a).total_cmp(&spread(b)))?;
    let load = load.map(|load| format!(", with a load average of {load:.1} before the start"));
    let (load, format, what, times) = (load.unwrap_or_default(), &worst.format, &worst.what, spread(worst));
    (times > SPREAD).then(|| {
        format!(
            "note: the machine is busy{load}: the longest repeat of {format} {what} took {times:.1} times as long as the shortest, \
             so the figures say little"
        )
    })
}

/// Returns the mean number of runnable processes over the last minute; `None` except on Linux.
fn load_average() -> Option<f64> {
    let text = std::fs::read_to_string("/proc/loadavg").ok()?;
    text.split_whitespace().next()?.parse().ok()
}
