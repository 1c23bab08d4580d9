//! The command line.

use std::ffi::OsString;
use std::panic::{AssertUnwindSafe, PanicHookInfo};

use clap::builder::Resettable;
use clap::error::ErrorKind;
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::commands::{
    audit, baseline, bisect, compare, dev, diff, external, inspect, inventory, judged, kernels, merge, mix, quantize,
    status, submit, sweep,
};
use crate::{itself, output, signal};
use ulplab_core::error::{Exit, Result};
use ulplab_core::text;

/// Is this kernel, or this cheaper number format, still right? ulplab measures it against an FP32 reference and answers
/// with numbers, a report and an exit code.
#[derive(Parser)]
#[command(name = "ulplab", version, after_help = EXIT_CODES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
    /// Worker threads, 1 to 1024 [default: one per core]. Results do not depend on it.
    #[arg(long, global = true, value_name = "N", env = "ULPLAB_THREADS", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
}

const EXIT_CODES: &str = "\
Any other NAME starts the program ulplab-NAME.

Exit codes:
    0  all gates hold
    1  a bug in ulplab
    2  wrong usage or bad input
    4  not everything was judged
   96  something is missing on this machine, such as a device or a writable folder
  100  a gate failed
  101  the reference failed
  103  the run is incomplete
  130  interrupted";

/// Groups of commands in the help, each with a heading.
const GROUPS: [(&str, &[&str]); 4] = [
    ("Run", &["sweep", "report", "gate", "diff", "bisect", "mix", "query"]),
    ("Files", &["compare", "quantize", "dequantize", "inspect"]),
    ("Kernels", &["kernels", "audit"]),
    (
        "More",
        &["submit", "status", "merge", "baseline", "list", "doctor", "dev", "help"],
    ),
];

#[derive(Subcommand)]
enum Command {
    Sweep(sweep::SweepArgs),
    Report(judged::ReportArgs),
    Gate(judged::GateArgs),
    Diff(diff::DiffArgs),
    Bisect(bisect::BisectArgs),
    Mix(mix::MixArgs),
    Query(external::QueryArgs),
    Compare(compare::CompareArgs),
    Quantize(quantize::QuantizeArgs),
    Dequantize(quantize::DequantizeArgs),
    Inspect(inspect::InspectArgs),
    #[command(subcommand)]
    Kernels(kernels::KernelsCommand),
    Audit(audit::AuditArgs),
    Submit(submit::SubmitArgs),
    Status(status::StatusArgs),
    Merge(merge::MergeArgs),
    Baseline(baseline::BaselineArgs),
    List(inventory::ListArgs),
    Doctor(inventory::DoctorArgs),
    #[command(subcommand)]
    Dev(dev::DevCommand),
    /// Name of another program (`NAME` of `ulplab-NAME`), and its arguments.
    #[command(external_subcommand)]
    External(Vec<OsString>),
}

/// Example command lines; the help of each command shows its own.
pub const EXAMPLES: &str = "\
ulplab sweep experiments/kv_cache.toml
ulplab sweep experiments/kv_cache.toml --set tokens=128 --out runs/short
ulplab sweep experiments/kv_cache.toml --resume
ulplab report runs/kv_cache/2026-01-31T120000Z
ulplab gate runs/kv_cache/2026-01-31T120000Z
ulplab gate runs/kv_cache/2026-01-31T120000Z --paired
ulplab gate --calibrate experiments/smoke.toml --draws 40 -o smoke.calibration.json
ulplab diff runs/main runs/mine
ulplab diff runs/main runs/mine --worsening 'layers.*.output:relative_l2<=5%' --worsening 'us_cold<=3%'
ulplab diff runs/main runs/mine --identical --markdown diff.md
ulplab bisect runs/kv_cache/2026-01-31T120000Z -o found.toml
ulplab bisect examples/planted.toml --recipe planted --to tokens --capsule culprit.safetensors
ulplab bisect runs/main runs/mine
ulplab bisect experiments/smoke.toml --dump engine.safetensors --gate 'layers.*.output:relative_l2<=1e-3'
ulplab bisect --replay culprit.safetensors
ulplab mix weights --at 'layers.**.weight' --formats nvfp4,fp8_token --bytes 0.35
ulplab mix weights --at 'layers.**.weight' --formats nvfp4,mxfp8,bf16 --kl 0.01 -o mixed.toml
ulplab query runs/kv_cache/2026-01-31T120000Z \"SELECT recipe, max(value) FROM records WHERE metric = 'kl' GROUP BY recipe\"
ulplab query runs/main runs/mine \"SELECT run, recipe, mean FROM summaries WHERE site = 'logits'\" -o means.csv
ulplab compare want.safetensors got.safetensors --gate 'cosine>=0.999'
ulplab compare weights.safetensors codes.safetensors --parity
ulplab quantize weights.safetensors --format nvfp4 --rule te -o codes.safetensors
ulplab dequantize codes.safetensors -o back.safetensors
ulplab inspect codes.safetensors --source weights.safetensors
ulplab inspect checkpoint --html report.html
ulplab kernels list rmsnorm
ulplab kernels list rope --cases
ulplab kernels list --all
ulplab kernels check
ulplab kernels check --only 'rope.*/**' --device compile
ulplab kernels check experiments/outside.toml --keep-failed failed
ulplab kernels time --only 'rope.*/**'
ulplab kernels time --peers peers.json
ulplab kernels trace swap_ffn --variant fused --html trace.html
ulplab kernels trace mhc_pre --variant simple --variant split
ulplab kernels describe rmsnorm
ulplab kernels dump rmsnorm bf16.random.7x333 rmsnorm-case
ulplab kernels compare state_transpose.registers/f32.b8 state_transpose.tile/f32.b8 --pairs 60
ulplab kernels bench --out bench
ulplab kernels probe --only 'e4m3.n64.*'
ulplab kernels mutants --only 'rope.*/**'
ulplab kernels mutants rope.cos_sin_swapped --only 'rope.*/**'
ulplab kernels power rmsnorm linear
ulplab kernels attest experiments/results
ulplab kernels attest --check
ulplab audit vllm
ulplab audit my_gates.toml --json
ulplab submit experiments/kv_cache.toml --slurm --tasks 8 --cpus 16 --time 01:00:00 --print
ulplab submit experiments/kv_cache.toml --slurm --tasks 8 --cpus 16 --partition-name long --wait
ulplab submit experiments/kernels.toml --slurm --tasks 16 --parallel 4 --gres gpu:1
ulplab status runs/kv_cache/array
ulplab status runs/kv_cache/array --json
ulplab merge runs/kv_cache/array
ulplab merge slices/1 slices/2 slices/3 --out runs/kv_cache/merged
ulplab baseline accept runs/main --why initial --by ada
ulplab baseline compare runs/mine --worsening 'kl<=5%'
ulplab baseline log kv_cache
ulplab list formats
ulplab list sites --model qwen3-mini
ulplab doctor
ulplab dev generate --prompt Shall --temperature 0.7 --recipe v4_fp8
ulplab dev bench --tokens 128
ulplab dev bench formats
ulplab dev bench layouts --layout blocked_128x4
ulplab dev verify
ulplab dev completions bash > ~/.local/share/bash-completion/completions/ulplab
ulplab dev man ~/.local/share/man/man1
ulplab dev schema > experiment.schema.json
";

/// Returns the definition of the command line, with commands in groups and with examples in the help of each command.
pub fn command() -> clap::Command {
    let command = Cli::command().mut_subcommands(|inner| with_examples(inner, "ulplab"));
    let about = |name: &&str| {
        let own = command.find_subcommand(name).and_then(clap::Command::get_about);
        let own = own.map_or("Print the help of a command".into(), ToString::to_string);
        format!("  {name:12}{own}\n")
    };
    let group =
        |(heading, names): &(&str, &[&str])| format!("\n{heading}:\n{}", names.iter().map(about).collect::<String>());
    let groups: String = GROUPS.iter().map(group).collect();
    command.help_template(format!(
        "{{about-with-newline}}\n{{usage-heading}} {{usage}}\n{groups}\nOptions:\n{{options}}{{after-help}}"
    ))
}

/// Adds examples to the help of a command and of its subcommands. `before` is the part of the command line before the command.
fn with_examples(command: clap::Command, before: &str) -> clap::Command {
    let path = format!("{before} {}", command.get_name());
    let below = format!("{path} ");
    let examples = || {
        let all = EXAMPLES.lines();
        all.filter(|line| *line == path || line.starts_with(&below))
    };
    let inner = |line: &&str| {
        let next = line[path.len()..].split_whitespace().next();
        next.is_some_and(|name| command.get_subcommands().any(|inner| inner.get_name() == name))
    };
    let mut lines: Vec<&str> = examples().filter(|line| !inner(line)).collect();
    if lines.is_empty() {
        // A command without examples of its own shows the first examples of its subcommands.
        lines = examples().take(3).collect();
    }
    let lines: String = lines.iter().map(|line| format!("\n  {line}")).collect();
    let command = command.mut_subcommands(|inner| with_examples(inner, &path));
    match lines.is_empty() {
        true => command,
        false => command.after_help(format!("Examples:{lines}")),
    }
}

/// Runs the program with its command-line arguments, and returns the exit code.
pub fn main() -> Exit {
    guarded(|| {
        let words = itself::start().words.iter().cloned();
        let matches = command().try_get_matches_from(std::iter::once("ulplab".into()).chain(words));
        match matches.and_then(|matches| Cli::from_arg_matches(&matches)) {
            Ok(cli) => run(cli),
            Err(said) if said.use_stderr() => Ok(refused(said.kind())),
            Err(said) => {
                // Ignores an error while printing, for example at a closed pipe: the exit code stays 0.
                drop(said.print());
                Ok(Exit::Pass)
            }
        }
    })
}

/// Prints the error message for arguments that are not a valid command, and returns the exit code.
fn refused(kind: ErrorKind) -> Exit {
    // Parses the arguments again without hidden characters. This gives the same error, with a text that is safe to print.
    let words = itself::start().words.iter();
    let clean = words.map(|word| text::shown(&word.to_string_lossy()));
    let known = command().external_subcommand_value_parser(Resettable::Reset);
    let known = known.allow_external_subcommands(false);
    let again = known.try_get_matches_from(std::iter::once("ulplab".into()).chain(clean));
    let said = again
        .err()
        .unwrap_or_else(|| command().error(kind, "a word of the command line"));
    errln!("{}", said.render().to_string().trim_end());
    Exit::Usage
}

/// Runs a command and returns its exit code. An error is printed; a panic is printed as a bug to report.
pub fn guarded(command: impl FnOnce() -> Result<Exit>) -> Exit {
    std::panic::set_hook(Box::new(|panic| errln!("{}", bug(panic))));
    let ended = std::panic::catch_unwind(AssertUnwindSafe(command));
    let printed = output::finish();
    let Ok(ended) = ended else { return Exit::Bug };
    ended.and_then(|exit| printed.map(|()| exit)).unwrap_or_else(|error| {
        output::error(&error.to_string());
        error.exit()
    })
}

fn bug(panic: &PanicHookInfo) -> String {
    let message = panic.payload_as_str().unwrap_or("no message");
    let place = panic.location().map(|place| format!(" ({place})")).unwrap_or_default();
    let version = env!("CARGO_PKG_VERSION");
    format!(
        "this is a bug in ulplab {version}: {message}{place}\n\
         Please report it with this text, the command line, and the files that it takes as far as you may share them."
    )
}

fn run(cli: Cli) -> Result<Exit> {
    signal::handle()?;
    if let Some(threads) = cli.threads {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads.into());
        let refused = |error| crate::Error::Setup(format!("cannot start {threads} threads: {error}"));
        pool.build_global().map_err(refused)?;
    }
    match cli.command {
        Command::Sweep(args) => sweep::run(&args),
        Command::Report(args) => judged::report(&args),
        Command::Gate(args) => judged::gate(&args),
        Command::Diff(args) => diff::run(&args),
        Command::Bisect(args) => bisect::run(&args),
        Command::Mix(args) => mix::run(&args),
        Command::Query(args) => external::query(&args),
        Command::Compare(args) => compare::run(&args),
        Command::Quantize(args) => quantize::quantize(&args),
        Command::Dequantize(args) => quantize::dequantize(&args),
        Command::Inspect(args) => inspect::run(&args),
        Command::Kernels(command) => kernels::run(&command),
        Command::Audit(args) => audit::run(&args),
        Command::Submit(args) => submit::run(&args),
        Command::Status(args) => status::run(&args),
        Command::Merge(args) => merge::run(&args),
        Command::Baseline(args) => baseline::run(&args),
        Command::List(args) => inventory::list(&args),
        Command::Doctor(args) => inventory::doctor(&args),
        Command::Dev(inner) => dev::run(&inner, command()),
        Command::External(words) => {
            external::start(&words[0].to_string_lossy(), &words[1..])?;
            Ok(refused(ErrorKind::InvalidSubcommand))
        }
    }
}
