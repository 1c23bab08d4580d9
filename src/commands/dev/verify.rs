//! `ulplab dev verify`: the program against its own definitions, on this machine.

use std::time::Instant;

use ulplab_core::error::{Exit, Result};
use ulplab_core::formats;

/// Check ulplab's own casts against their definitions, number by number.
#[derive(Debug, clap::Args)]
pub struct VerifyArgs {
    /// Check all 2^32 f32 values, not only the bf16 and f16 values and the values near a threshold. Takes minutes on two
    /// cores.
    #[arg(long)]
    pub exhaustive: bool,
}

pub fn run(args: &VerifyArgs) -> Result<Exit> {
    let started = Instant::now();
    let verified = formats::verify(args.exhaustive);
    let mut wrong = 0;
    outln!("{:22} {:>11} {:>7}", "cast", "numbers", "wrong");
    for cast in &verified {
        wrong += usize::from(cast.wrong + cast.wrong_values > 0);
        outln!("{:22} {:>11} {:>7}", cast.cast, cast.numbers, cast.wrong);
        if let Some((bits, found, expected)) = cast.first {
            let x = f32::from_bits(bits);
            outln!("  the first: {x:e} ({bits:#010x}) became {found:#x}, not {expected:#x}");
        }
        if cast.wrong_values > 0 {
            outln!("  {} codes have a wrong value", cast.wrong_values);
        }
    }
    let verdict = if wrong == 0 { "PASS" } else { "FAIL" };
    let (casts, seconds) = (verified.len(), started.elapsed().as_secs_f64());
    outln!("{verdict}: {casts} casts, {wrong} wrong; {seconds:.1} s");
    Ok(Exit::judged(wrong == 0))
}
