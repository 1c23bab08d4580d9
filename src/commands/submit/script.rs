//! The scripts of the jobs.

use std::ffi::OsString;
use std::path::Path;

use super::SubmitArgs;
use crate::run::folder::JOBS;
use crate::run::invocation::quoted;
use crate::run::runs::slug;
use ulplab_core::error::{Error, Result};

/// An array of jobs and the job that judges it.
pub struct Jobs<'a> {
    pub args: &'a SubmitArgs,
    /// Name of the experiment.
    pub name: &'a str,
    pub seed: u64,
    pub tasks: usize,
    pub gres: Option<String>,
    /// The words that start this program.
    pub program: &'a [OsString],
    /// The folder in which relative paths begin.
    pub here: &'a Path,
    /// The folder of the run.
    pub run: &'a Path,
}

impl Jobs<'_> {
    /// Each task runs its slice. Slurm runs it again if its node fails; what is finished is not run twice.
    pub fn array(&self) -> Result<String> {
        let Self { args, tasks, .. } = self;
        let parallel = args.parallel.map_or(String::new(), |parallel| format!("%{parallel}"));
        let mut options = vec![format!("--array=1-{tasks}{parallel}")];
        options.extend(self.common("%a.log"));
        options.push(format!("--cpus-per-task={}", args.cpus));
        options.extend(self.gres.iter().map(|gres| format!("--gres={gres}")));
        options.extend(["--requeue".into(), "--open-mode=append".into()]);
        // So that the cells at work are finished and nothing is lost; Slurm kills half a minute after its own signal.
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

    /// Script that runs when all tasks have ended, successfully or not.
    pub fn merge(&self) -> Result<String> {
        let run = quoted(&self.run.display().to_string());
        self.script(&self.common("merge.log"), &format!(" merge {run}"))
    }

    /// The options of both jobs.
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

    /// A script with these options that becomes `ulplab`, so that a signal to the script reaches it.
    fn script(&self, options: &[String], command: &str) -> Result<String> {
        let mut text = String::from("#!/bin/sh\n");
        for option in options {
            if option.chars().any(char::is_control) || option.contains('"') {
                let why = "a script for sbatch cannot hold this option";
                return Err(Error::Usage(format!("{option:?}: {why}")));
            }
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
