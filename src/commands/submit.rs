//! `ulplab submit`: runs a sweep as an array of Slurm jobs, and a last job that merges and judges the results.

use std::ffi::OsString;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use super::sweep::{self, SweepArgs};
use crate::itself;
use crate::run::folder::JOBS;
use crate::run::invocation::quoted;
use crate::run::runs::slug;
use crate::run::{now, runs};
use crate::studies::limits::Bytes;
use ulplab_core::atomic::write_text;
use ulplab_core::error::{Error, Exit, Result};
use ulplab_core::input;

/// Run an experiment as an array of Slurm jobs, each on a slice of its cells, and judge it by a last job, `ulplab merge`.
///
/// The experiment is checked first, and the scripts are shown; they and the logs are kept in DIR/jobs.
#[derive(Debug, clap::Args)]
#[command(
    mut_arg("partition", |arg| arg.hide(true)),
    mut_arg("resume", |arg| arg.hide(true)),
    mut_arg("until_decided", |arg| arg.hide(true)),
    mut_arg("dry_run", |arg| arg.hide(true)),
    mut_arg("json", |arg| arg.hide(true)),
    mut_arg("no_progress", |arg| arg.hide(true))
)]
pub struct SubmitArgs {
    #[command(flatten)]
    sweep: SweepArgs,
    /// Submit to Slurm, the one scheduler that is known.
    #[arg(long, required = true)]
    slurm: bool,
    /// Number of tasks in the array; each task runs a slice of the cells.
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    tasks: u32,
    /// Number of tasks that run at a time [default: as many as Slurm starts].
    #[arg(long, value_name = "P", value_parser = clap::value_parser!(u32).range(1..))]
    parallel: Option<u32>,
    /// Generic resources of a task, or `none` [default: gpu:1 if kernels run, else none].
    #[arg(long, value_name = "GRES")]
    gres: Option<String>,
    /// Number of cores of a task, which is also its number of threads.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    cpus: u16,
    /// Time limit of a job, as sbatch reads it, e.g. 01:00:00.
    #[arg(long, value_name = "TIME")]
    time: Option<String>,
    /// Slurm's partition of the jobs.
    #[arg(long, value_name = "NAME")]
    partition_name: Option<String>,
    /// The account to charge.
    #[arg(long, value_name = "NAME")]
    account: Option<String>,
    /// Another option of sbatch for all jobs, e.g. --sbatch=--mem=32G.
    #[arg(long, value_name = "OPTION", allow_hyphen_values = true)]
    sbatch: Vec<String>,
    /// Show the scripts, and submit nothing.
    #[arg(long)]
    print: bool,
    /// Wait for the last job, show what it prints, and end with its exit code. If this command is interrupted, the jobs go on.
    #[arg(long)]
    wait: bool,
}

pub fn run(args: &SubmitArgs) -> Result<Exit> {
    let sweep = &args.sweep;
    refuse(sweep)?;
    // Checks the experiment now: otherwise its mistakes appear only in the logs of the array. The memory of this machine does not
    // matter for jobs on other machines.
    let elsewhere = SweepArgs {
        max_memory: sweep.max_memory.or(Some(Bytes(f64::INFINITY))),
        ..sweep.clone()
    };
    let question = sweep::read(&elsewhere)?;
    let prepared = sweep::prepare(&elsewhere, &question)?;
    let study = &question.parsed.study;
    let head = &question.parsed.experiment.head;
    let run = sweep.out.clone().unwrap_or_else(|| runs::fresh(&head.name, &now()));
    let absolute = |path: &Path| std::path::absolute(path).map_err(Error::io(path, "find"));
    let run = absolute(&run)?;
    let gpus = study.uses_gpu();
    let gres = args.gres.clone().or(gpus.then(|| "gpu:1".into()));
    let here = absolute(Path::new("."))?;
    let jobs = Jobs {
        args,
        name: &head.name,
        seed: head.seed,
        tasks: (args.tasks as usize).min(prepared.cells.len()),
        gres: gres.filter(|gres| gres != "none"),
        program: itself::program()?,
        here: &here,
        run: &run,
    };
    let (array, merge) = (jobs.array()?, jobs.merge()?);
    let folder = run.join(JOBS);
    let [array_file, merge_file] = ["array.sh", "merge.sh"].map(|name| folder.join(name));
    for (file, text) in [(&array_file, &array), (&merge_file, &merge)] {
        outln!("# {}\n{text}", file.display());
    }
    if args.print {
        outln!("# sbatch --parsable {}", array_file.display());
        outln!("# sbatch --dependency=afterany:ID {}", merge_file.display());
        return Ok(Exit::Pass);
    }
    std::fs::create_dir_all(&folder).map_err(Error::io(&folder, "create"))?;
    write_text(&array_file, &array)?;
    write_text(&merge_file, &merge)?;
    submit(args, &[array_file, merge_file], &run)
}

/// Rejects options of `ulplab sweep` that cannot apply to a job array, such as `--partition`.
fn refuse(sweep: &SweepArgs) -> Result<()> {
    let given = [
        ("--partition", sweep.partition.is_some()),
        ("--resume", sweep.resume),
        ("--until-decided", sweep.until_decided),
        ("--dry-run", sweep.dry_run),
        ("--json", sweep.json),
        ("--no-progress", sweep.no_progress),
    ];
    let Some((name, _)) = given.iter().find(|(_, given)| *given) else {
        return Ok(());
    };
    let hint = match *name {
        "--partition" => "; --tasks N makes N slices, and --partition-name is Slurm's partition",
        "--resume" => "; give the folder of the run, --out DIR, and what is there is not run again",
        "--dry-run" => "; --print shows the scripts",
        _ => "",
    };
    Err(Error::Usage(format!(
        "{name} is not an option of `ulplab submit`{hint}"
    )))
}

/// Submits two jobs: the array, and the job that merges and judges the results of the array.
fn submit(args: &SubmitArgs, [array, merge]: &[PathBuf; 2], run: &Path) -> Result<Exit> {
    let (mut child, id) = sbatch(&[], array)?;
    ended(&mut child, array)?;
    outln!("array: job {id}; `ulplab status {}` says how far it is", run.display());
    let dependency = format!("--dependency=afterany:{id}");
    let options = [Some(dependency.as_str()), args.wait.then_some("--wait")];
    let options: Vec<&str> = options.into_iter().flatten().collect();
    let judged = sbatch(&options, merge).inspect_err(|_| {
        errln!("the array, job {id}, goes on without a job that judges it: `scancel {id}` ends it, or run `ulplab merge` at its end");
    });
    let (mut child, last) = judged?;
    outln!("merge: job {last}");
    if !args.wait {
        ended(&mut child, merge)?;
        return Ok(Exit::Pass);
    }
    let status = child.wait().map_err(|why| Error::Setup(format!("sbatch: {why}")))?;
    if let Ok(log) = input::text(&run.join(JOBS).join("merge.log")) {
        out!("{log}");
    }
    let known = status.code().and_then(Exit::from_code);
    known.ok_or_else(|| Error::Setup(format!("the merge job {last} was ended by Slurm: sbatch: {status}")))
}

/// Starts `sbatch`, and waits for the id of the job.
fn sbatch(options: &[&str], script: &Path) -> Result<(Child, String)> {
    let mut command = Command::new("sbatch");
    command.arg("--parsable").args(options).arg(script);
    let started = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
    let hint = "jobs are submitted from a machine with Slurm's commands; --print shows the scripts";
    let mut child = started.map_err(|why| Error::Setup(format!("sbatch cannot be started ({why}): {hint}")))?;
    let mut line = String::new();
    let said = child.stdout.take().map(BufReader::new);
    let read = said.map_or(Ok(0), |mut said| said.read_line(&mut line));
    read.map_err(|why| Error::Setup(format!("sbatch: {why}")))?;
    // `sbatch` prints the id of the job, such as `17`. With several clusters, it prints `17;cluster`.
    let id = line.trim().split(';').next().unwrap_or_default().to_string();
    if id.is_empty() || !id.bytes().all(|digit| digit.is_ascii_digit()) {
        ended(&mut child, script)?;
        let (script, line) = (script.display(), line.trim());
        let message = format!("sbatch {script}: it printed '{line}', expected the id of a job");
        return Err(Error::Setup(message));
    }
    Ok((child, id))
}

/// Returns an error if `sbatch` refused the script; `sbatch` prints the reason itself.
fn ended(child: &mut Child, script: &Path) -> Result<()> {
    let status = child.wait().map_err(|why| Error::Setup(format!("sbatch: {why}")))?;
    match status.success() {
        true => Ok(()),
        false => Err(Error::Setup(format!("sbatch refused {}: {status}", script.display()))),
    }
}

/// The array of jobs, and the job that merges and judges its results.
struct Jobs<'a> {
    args: &'a SubmitArgs,
    /// Name of the experiment.
    name: &'a str,
    seed: u64,
    tasks: usize,
    gres: Option<String>,
    /// Command that starts this program.
    program: &'a [OsString],
    /// Folder that relative paths refer to.
    here: &'a Path,
    /// The folder of the run.
    run: &'a Path,
}

impl Jobs<'_> {
    /// Returns the sbatch script of the Slurm job array. Each task of the array measures its share of the cells. If a node fails, Slurm
    /// starts the task again, which skips the cells that are already measured.
    fn array(&self) -> Result<String> {
        let Self { args, tasks, .. } = self;
        let parallel = args.parallel.map_or(String::new(), |parallel| format!("%{parallel}"));
        let mut options = vec![format!("--array=1-{tasks}{parallel}")];
        options.extend(self.common("%a.log"));
        options.push(format!("--cpus-per-task={}", args.cpus));
        options.extend(self.gres.iter().map(|gres| format!("--gres={gres}")));
        options.extend(["--requeue".into(), "--open-mode=append".into()]);
        // Asks for SIGTERM 60 s before the end, so that running cells can finish: Slurm's own SIGTERM leaves only 30 s.
        options.extend(args.time.iter().map(|_| "--signal=B:TERM@60".into()));
        let sweep = args.sweep.invocation().command(self.seed);
        let mut words = sweep.strip_prefix("ulplab").unwrap_or(&sweep).to_string();
        if let Some(memory) = args.sweep.max_memory {
            words += &format!(" --max-memory {}", memory.0);
        }
        let cpus = args.cpus;
        let share = format!("--partition \"slice:$SLURM_ARRAY_TASK_ID/{tasks}\" --threads {cpus}");
        let run = quoted(&self.run.display().to_string());
        self.script(&options, &format!("{words} --out {run} {share}"))
    }

    /// Returns the script of the job that runs after all tasks have ended, successfully or not.
    fn merge(&self) -> Result<String> {
        let run = quoted(&self.run.display().to_string());
        self.script(&self.common("merge.log"), &format!(" merge {run}"))
    }

    /// Returns the sbatch options of both jobs, the array and the merge.
    fn common(&self, log: &str) -> Vec<String> {
        let args = self.args;
        let folder = self.run.join(JOBS).display().to_string().replace('%', "%%");
        let mut options = vec![
            format!("--job-name={}", slug(self.name)),
            format!("--chdir={}", self.here.display()),
            format!("--output={folder}/{log}"),
        ];
        let named = [
            ("time", &args.time),
            ("partition", &args.partition_name),
            ("account", &args.account),
        ];
        let given = named.iter().filter_map(|(name, value)| Some((name, value.as_ref()?)));
        options.extend(given.map(|(name, value)| format!("--{name}={value}")));
        options.extend(args.sbatch.iter().cloned());
        options
    }

    /// Returns a script with these options. The shell replaces itself by `ulplab` (`exec`), so that signals reach `ulplab`.
    fn script(&self, options: &[String], command: &str) -> Result<String> {
        let mut text = String::from("#!/bin/sh\n");
        for option in options {
            let unfit = option.chars().any(char::is_control) || option.contains('"');
            let why = format_args!("{option:?}: a script for sbatch cannot hold this option");
            Error::refuse(unfit, why)?;
            let option = match option.split_once('=') {
                Some((name, value)) if value.contains(' ') => format!("{name}=\"{value}\""),
                _ => option.clone(),
            };
            text += &format!("#SBATCH {option}\n");
        }
        let program = self.program.iter().map(|word| quoted(&word.display().to_string()));
        Ok(text + &format!("exec {}{command}\n", program.collect::<Vec<_>>().join(" ")))
    }
}
