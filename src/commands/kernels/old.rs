//! Old spellings of commands of kernels: each is answered with the new one.

use crate::run::invocation::quoted;

/// Options that `ulplab sweep` had for kernels, and whether a value followed.
const OPTIONS: [(&str, bool); 7] = [
    ("--device", true),
    ("--timed", false),
    ("--mutant", true),
    ("--mutants", false),
    ("--attest", true),
    ("--peers", true),
    ("--keep-failed", true),
];

/// The answer to a refused command line (without the program's name); none if it never was a command of kernels.
pub fn answer(words: &[String]) -> Option<String> {
    let words = after_threads(words);
    let (command, rest) = words.split_first()?;
    let now = |old: &str, verb: &str, rest: &[String]| {
        let rest: String = rest.iter().map(|word| format!(" {}", quoted(word))).collect();
        format!("`{old}` is now `ulplab kernels {verb}{rest}`")
    };
    match (command.as_str(), rest.first().map(String::as_str)) {
        ("trace", _) => Some(now("ulplab trace", "trace", rest)),
        ("bench", Some("pair")) => Some(now("ulplab bench pair", "compare", &rest[1..])),
        ("sweep", _) => {
            let sweep = Sweep::parse(rest);
            let first = sweep.first?;
            let (verb, words) = sweep.now();
            Some(now(first, verb, &words))
        }
        _ => None,
    }
}

/// The words from the command on.
fn after_threads(words: &[String]) -> &[String] {
    match words {
        [option, _, rest @ ..] if option == "--threads" => rest,
        [option, rest @ ..] if option.starts_with("--threads=") => rest,
        _ => words,
    }
}

/// A sweep of kernels, taken apart.
#[derive(Default)]
struct Sweep<'a> {
    /// The first option that it had for kernels.
    first: Option<&'static str>,
    timed: bool,
    mutants: bool,
    mutant: Option<&'a str>,
    attest: Option<&'a str>,
    /// All that is spelled as before.
    rest: Vec<String>,
}

impl<'a> Sweep<'a> {
    fn parse(words: &'a [String]) -> Self {
        let mut sweep = Self::default();
        let mut words = words.iter();
        while let Some(word) = words.next() {
            let (name, joined) = match word.split_once('=') {
                Some((name, value)) => (name, Some(value)),
                None => (word.as_str(), None),
            };
            let Some((option, valued)) = OPTIONS.iter().find(|(option, _)| *option == name) else {
                sweep.rest.push(word.clone());
                continue;
            };
            sweep.first = sweep.first.or(Some(option));
            let value = match valued {
                true => joined.or_else(|| words.next().map(String::as_str)),
                false => None,
            };
            match *option {
                "--timed" => sweep.timed = true,
                "--mutants" => sweep.mutants = true,
                "--mutant" => sweep.mutant = Some(value.unwrap_or("OP.MUTANT")),
                "--attest" => sweep.attest = Some(value.unwrap_or("DIR")),
                _ => sweep.rest.extend([name, value.unwrap_or("VALUE")].map(String::from)),
            }
        }
        sweep
    }

    /// The subcommand that does this now, and what follows it.
    fn now(self) -> (&'static str, Vec<String>) {
        let (verb, before) = match (self.attest, self.mutant) {
            (Some(folder), _) => ("attest", Some(folder)),
            (_, Some(mutant)) => ("mutants", Some(mutant)),
            _ if self.mutants => ("mutants", None),
            _ if self.timed => ("time", None),
            _ => ("check", None),
        };
        let before = before.map(String::from).into_iter();
        (verb, before.chain(self.rest).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_old_spelling_is_answered_with_the_new_one() {
        for (old, new) in [
            (
                "bench pair a.b/c d.e/f",
                "`ulplab bench pair` is now `ulplab kernels compare a.b/c d.e/f`",
            ),
            (
                "trace swap_ffn --variant fused",
                "`ulplab trace` is now `ulplab kernels trace swap_ffn --variant fused`",
            ),
            (
                "sweep k.toml --device compile",
                "`--device` is now `ulplab kernels check k.toml --device compile`",
            ),
            (
                "--threads 4 sweep k.toml --timed",
                "`--timed` is now `ulplab kernels time k.toml`",
            ),
            (
                "sweep k.toml --mutant rope.x",
                "`--mutant` is now `ulplab kernels mutants rope.x k.toml`",
            ),
            (
                "sweep --mutants k.toml --seed 3",
                "`--mutants` is now `ulplab kernels mutants k.toml --seed 3`",
            ),
            (
                "sweep k.toml --peers p.json --mutants --attest=out",
                "`--peers` is now `ulplab kernels attest out k.toml --peers p.json`",
            ),
            (
                "sweep k.toml --keep-failed=d",
                "`--keep-failed` is now `ulplab kernels check k.toml --keep-failed d`",
            ),
            (
                "sweep k.toml --attest",
                "`--attest` is now `ulplab kernels attest DIR k.toml`",
            ),
        ] {
            let words: Vec<String> = old.split_whitespace().map(String::from).collect();
            assert_eq!(answer(&words).as_deref(), Some(new), "{old}");
        }
        for other in [
            "sweep k.toml --onyl x",
            "bench --tokns 3",
            "gate --mutants",
            "--threads",
        ] {
            let words: Vec<String> = other.split_whitespace().map(String::from).collect();
            assert_eq!(answer(&words), None, "{other}");
        }
    }
}
