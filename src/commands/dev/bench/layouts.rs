//! `ulplab dev bench layouts`: conversions of scale layouts against a copy of the matrix, on one core.

use std::hint::black_box;
use std::time::Instant;

use super::{Timing, timing};
use ulplab_core::error::{Error, Exit, Result};
use ulplab_core::layouts::{Groups, LAYOUTS, Layout};

/// Time scale layouts on one core, in both directions, and a plain copy of the matrix for comparison.
#[derive(Debug, clap::Args)]
pub struct LayoutsArgs {
    /// Rows of the matrix.
    #[arg(long, default_value_t = 8192)]
    pub rows: usize,
    /// Bytes of a row.
    #[arg(long, default_value_t = 4096)]
    pub bytes: usize,
    /// Number of groups, of different sizes, for layouts with groups.
    #[arg(long, default_value_t = 8)]
    pub groups: usize,
    /// Number of repetitions.
    #[arg(long, default_value_t = 25)]
    pub repeats: usize,
    /// Time only this layout; repeatable.
    #[arg(long = "layout", value_name = "NAME")]
    pub layouts: Vec<String>,
}

pub(super) fn run(args: &LayoutsArgs) -> Result<Exit> {
    if [args.rows, args.bytes, args.groups, args.repeats].contains(&0) {
        let message = "--rows, --bytes, --groups and --repeats must be 1 or more";
        return Err(Error::Usage(message.into()));
    }
    let named = args.layouts.iter().map(|name| Layout::find(name));
    let mut layouts = named.collect::<Result<Vec<_>, String>>().map_err(Error::Usage)?;
    if layouts.is_empty() {
        layouts = LAYOUTS.iter().collect();
    }
    let repeats = args.repeats;
    outln!("GB/s read and written; median of {repeats} (slowest to fastest), and of memcpy");
    for layout in layouts {
        measure(layout, args).map_err(Error::Usage)?;
    }
    Ok(Exit::Pass)
}

fn measure(layout: &Layout, args: &LayoutsArgs) -> Result<(), String> {
    let (rows, cols) = (args.rows, args.bytes / layout.scale);
    let ends = match layout.groups {
        Groups::None => Vec::new(),
        Groups::Rows => ends(rows, args.groups),
        Groups::Cols => ends(cols, args.groups),
    };
    let placement = layout.place(&[rows, cols], &ends)?;
    let matrix: Vec<u8> = (0..placement.matrix_len()).map(|i| ((i * 31) >> 3) as u8).collect();
    // Every page of both is there before the first run.
    let (mut buffer, mut back) = (vec![1; placement.len()], vec![1; matrix.len()]);
    let [mut copy, mut forward, mut inverse] = [const { Vec::new() }; 3];
    for _ in 0..args.repeats {
        let started = Instant::now();
        back.copy_from_slice(black_box(&matrix));
        copy.push(started.elapsed().as_secs_f64());
        black_box(&mut back);

        let started = Instant::now();
        placement.forward_into(black_box(&matrix), &mut buffer)?;
        forward.push(started.elapsed().as_secs_f64());
        black_box(&mut buffer);

        let started = Instant::now();
        placement.inverse_into(black_box(&buffer), &mut back)?;
        inverse.push(started.elapsed().as_secs_f64());
        black_box(&mut back);
    }
    if back != matrix {
        return Err(format!("{}: the inverse does not give the matrix back", layout.name));
    }
    let moved = (placement.matrix_len() + placement.len()) as f64 / 1e9;
    let copied = 2.0 * placement.matrix_len() as f64 / 1e9;
    let rates = |bytes: f64, time: Timing| {
        let [median, slowest, fastest] = [time.median, time.max, time.min].map(|seconds| bytes / seconds);
        (median, format!("({slowest:.2} to {fastest:.2})"))
    };
    let (memcpy, memcpy_range) = rates(copied, timing(copy));
    let (name, shape) = (layout.name, format!("({rows}, {cols})"));
    for (direction, times) in [("forward", forward), ("inverse", inverse)] {
        let (rate, range) = rates(moved, timing(times));
        let ratio = rate / memcpy;
        outln!(
            "{name:24} {shape:14} {direction}  {rate:6.2}  {range}  memcpy {memcpy:6.2} {memcpy_range}  ratio {ratio:.2}"
        );
    }
    Ok(())
}

/// Ends of groups that grow in size, ragged.
fn ends(length: usize, groups: usize) -> Vec<usize> {
    let share = |g: usize| (g as f64 / groups as f64).powf(1.7);
    (1..=groups).map(|g| (length as f64 * share(g)) as usize).collect()
}
