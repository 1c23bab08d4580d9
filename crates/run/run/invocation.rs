//! The options of a command line that determine the measurements and verdicts of a run.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// Options of `ulplab sweep` or `ulplab kernels`, as the user gave them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Invocation {
    /// The experiment file.
    pub experiment: PathBuf,
    /// True for an experiment of kernels.
    pub kernels: bool,
    pub set: Vec<String>,
    pub rules: Option<PathBuf>,
    pub only: Vec<String>,
    pub skip: Vec<String>,
    /// True if the run ends as soon as every gate is decided.
    pub until_decided: bool,
    /// True if the verdict is "not judged" when the losses of the run cannot tell formats apart (`--strict`).
    pub strict: bool,
    pub timed: bool,
    pub fast_only: bool,
    pub mutant: Option<String>,
    pub peers: Option<PathBuf>,
    pub datasets: Option<PathBuf>,
}

impl Invocation {
    /// Returns the command line that repeats the run with the given seed.
    pub fn command(&self, seed: u64) -> String {
        let path = |path: &PathBuf| path.display().to_string();
        let mut words: Vec<String> = ["ulplab"].into_iter().chain(self.verb()).map(String::from).collect();
        words.push(path(&self.experiment));
        let mut option = |name: &str, value: String| words.extend([name.to_string(), value]);
        self.set.iter().for_each(|item| option("--set", item.clone()));
        self.rules.iter().for_each(|file| option("--rules", path(file)));
        for (name, value) in self.patterns() {
            option(name, value.clone());
        }
        self.peers.iter().for_each(|file| option("--peers", path(file)));
        self.datasets
            .iter()
            .for_each(|folder| option("--datasets", path(folder)));
        option("--seed", seed.to_string());
        words.extend(self.until_decided.then(|| "--until-decided".into()));
        words.extend(self.strict.then(|| "--strict".into()));
        words.extend(self.fast_only.then(|| "--fast-only".into()));
        words.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" ")
    }

    /// Returns the subcommand, with the planted fault if there is one.
    fn verb(&self) -> Vec<&str> {
        // Older runs of kernels do not set `kernels`: recognise them by `peers`.
        match &self.mutant {
            Some(mutant) => vec!["kernels", "mutants", mutant],
            None if self.timed => vec!["kernels", "time"],
            None if self.kernels || self.peers.is_some() => vec!["kernels", "check"],
            None => vec!["sweep"],
        }
    }

    /// Formats the options that select cells as part of a sentence; an empty text if all cells are selected.
    pub fn selection(&self) -> String {
        let patterns = self.patterns().map(|(name, pattern)| format!("{name} {pattern}"));
        let timed = self.timed.then(|| "`kernels time`".to_string());
        let fast_only = self.fast_only.then(|| "--fast-only".to_string());
        patterns.chain(timed).chain(fast_only).collect::<Vec<_>>().join(" ")
    }

    /// Formats the options that change the experiment (`--set` and `--rules`) as part of a sentence; an empty text if the
    /// experiment is run as its file states it.
    pub fn changes(&self) -> String {
        let set = self.set.iter().map(|item| format!("--set {}", quoted(item)));
        let rules = self.rules.iter().map(|file| format!("--rules {}", file.display()));
        set.chain(rules).collect::<Vec<_>>().join(" ")
    }

    fn patterns(&self) -> impl Iterator<Item = (&'static str, &String)> {
        let only = self.only.iter().map(|pattern| ("--only", pattern));
        only.chain(self.skip.iter().map(|pattern| ("--skip", pattern)))
    }
}

/// Quotes a word for a shell, if the word needs quotes.
pub fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "._-/@".contains(c);
    match !word.is_empty() && word.chars().all(plain) {
        true => word.into(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}
