//! Every command that README.md, the pages in docs/ and the help texts show: it parses, and is run where a machine without a GPU can do so
//! in little time. A command without a row in [`ROWS`] fails the test. `ULPLAB_SLOW=1` also runs those that take minutes, and
//! `ULPLAB_GPU=1` those that need a GPU.

#[path = "written/rows.rs"]
mod rows;

use std::collections::BTreeMap;

use super::*;
use rows::How::{As, Ends, Gpu, Needs, Slow};
use rows::ROWS;

/// Words of a command line as a shell splits them, up to a pipe, a redirection or a second command.
fn words(line: &str) -> Vec<String> {
    let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None);
    for c in line.chars() {
        match (quote, c) {
            (Some(open), c) if c == open => quote = None,
            (None, '\'' | '"') => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (None, '|' | '>' | ';' | '&') => break,
            (None, ' ') => words.extend(word.take()),
            (_, c) => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    words
}

/// A line of a block without its prompt and its comment, which spaces precede.
fn typed(line: &str) -> String {
    let line = line.trim().trim_start_matches("$ ");
    let line = line
        .split("  #")
        .next()
        .unwrap_or_default()
        .split(" # ")
        .next()
        .unwrap_or_default();
    let line = line.split_whitespace().collect::<Vec<_>>().join(" ");
    line.replace("cargo run --release -- ", "ulplab ")
}

/// Commands of a page: the lines of its shell blocks, and code in its text that begins with `ulplab` and has arguments.
fn of_page(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut prose = String::new();
    for (at, part) in text.split("```").enumerate() {
        if at % 2 == 0 {
            prose += part;
            continue;
        }
        let (language, block) = part.split_once('\n').unwrap_or_default();
        if language == "sh" || block.lines().any(|line| line.trim().starts_with("ulplab ")) {
            let block = block.replace("\\\n", " ");
            let lines = block
                .lines()
                .map(typed)
                .filter(|line| !line.is_empty() && !line.starts_with('#'));
            found.extend(lines);
        }
    }
    let inline = prose.split('`').skip(1).step_by(2);
    found.extend(inline.map(typed).filter(|code| code.starts_with("ulplab ")));
    found
}

/// Pages with commands that users read.
fn pages(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(pages(&path));
        } else if path.extension().is_some_and(|extension| extension == "md") {
            found.push(path);
        }
    }
    found
}

/// Every help text: of the program, and of all its commands.
fn helps(command: &clap::Command, found: &mut Vec<String>) {
    found.push(command.clone().term_width(0).render_long_help().to_string());
    command.get_subcommands().for_each(|inner| helps(inner, found));
}

/// Every command that is shown, with the place where it is; the words of an example in a help text may go over two lines.
fn shown() -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let mut files = pages(&root().join("docs"));
    files.retain(|file| !path(file).ends_with(".template.md"));
    files.push(root().join("README.md"));
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap();
        let commands = of_page(&text).into_iter();
        found.extend(commands.map(|command| (command, path(&file).to_string())));
    }
    let mut texts = Vec::new();
    helps(&ulplab::cli::command(), &mut texts);
    for text in texts {
        let text = text.replace("\\\n", " ");
        let lines = text.lines().map(str::trim).filter(|line| line.starts_with("ulplab "));
        let usage = |line: &&str| line.contains(" <") || line.contains(" [");
        let commands = lines.filter(|line| !usage(line)).map(typed);
        let inline = text.split('`').skip(1).step_by(2).map(typed);
        let inline = inline.filter(|code| code.starts_with("ulplab "));
        found.extend(
            commands
                .chain(inline)
                .map(|command| (command, "a help text".to_string())),
        );
    }
    found
}

/// Says if a command stands for many: some of its words are capitals, as FILE is, or it is cut short.
fn is_pattern(words: &[String]) -> bool {
    let capitals = |word: &String| {
        let name = word.trim_matches(|c: char| !c.is_ascii_uppercase());
        name.len() > 1 && word.chars().all(|c| c.is_ascii_uppercase() || "[]./:".contains(c)) || word == "V"
    };
    words
        .iter()
        .any(|word| capitals(word) || word.contains("FILE.toml") || word.contains("FILE..."))
}

/// The command that the words name, by its subcommands.
fn verbs(words: &[String]) -> usize {
    let (mut inner, mut count) = (ulplab::cli::command(), 1);
    for word in &words[1..] {
        let Some(found) = inner.find_subcommand(word).cloned() else {
            break;
        };
        (inner, count) = (found, count + 1);
    }
    count
}

#[test]
fn every_command_that_is_shown_parses_and_has_a_row() {
    let mut findings = Vec::new();
    let shown = shown();
    assert!(shown.len() > 100, "only {} commands are found", shown.len());
    for (command, place) in &shown {
        let all = words(command);
        let start = all.iter().position(|word| word == "ulplab");
        if let Some(start) = start {
            let words = &all[start..];
            let parsed = ulplab::cli::command().try_get_matches_from(words);
            let missing = |error: &clap::Error| {
                use clap::error::ErrorKind::{
                    DisplayHelpOnMissingArgumentOrSubcommand, InvalidValue, MissingRequiredArgument,
                };
                let kinds = [MissingRequiredArgument, DisplayHelpOnMissingArgumentOrSubcommand];
                let named = error.kind() == InvalidValue && !has_operand(words);
                kinds.contains(&error.kind()) || named || is_pattern(words)
            };
            if let Some(error) = parsed.err().filter(|error| !missing(error)) {
                findings.push(format!("{place}: `{command}` does not parse: {error}"));
            }
            if verbs(words) == words.len() || is_pattern(words) || !has_operand(words) {
                continue;
            }
        }
        if !ROWS.iter().any(|(row, _)| row == command) {
            findings.push(format!("{place}: `{command}` has no row in tests/cli/written/rows.rs"));
        }
    }
    for (row, _) in ROWS {
        if !shown.contains_key(*row) {
            findings.push(format!("tests/cli/written/rows.rs: `{row}` is shown nowhere"));
        }
    }
    assert!(findings.is_empty(), "{}", findings.join("\n"));
}

/// Says if a command has more than subcommands and options without values: what is only named in a sentence, as `sweep --resume` is, has
/// not.
fn has_operand(words: &[String]) -> bool {
    let verbs = verbs(words);
    words[verbs..].iter().any(|word| !word.starts_with('-'))
}

/// A folder with what the commands find in a checkout, and two runs.
fn scratch() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for name in ["experiments", "examples", "datasets", "kernels"] {
        std::os::unix::fs::symlink(root().join(name), folder.path().join(name)).unwrap();
    }
    let weights = root().join("tests/fixtures/tokens/model.safetensors");
    for name in ["weights.safetensors", "want.safetensors", "got.safetensors"] {
        std::fs::copy(&weights, folder.path().join(name)).unwrap();
    }
    for name in ["runs/main", "runs/mine"] {
        let output = in_folder(folder.path(), &["sweep", "smoke", "--set", "tokens=8", "--out", name]);
        assert_eq!(code(&output), 0, "{}", stderr(&output));
    }
    folder
}

fn in_folder(folder: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ulplab"));
    command.current_dir(folder).env_remove("ULPLAB_DATASETS").args(args);
    command.output().expect("ulplab starts")
}

#[test]
fn commands_that_are_shown_end_as_they_should() {
    let wants = |name: &str| std::env::var_os(name).is_some();
    let (slow, gpu) = (wants("ULPLAB_SLOW"), wants("ULPLAB_GPU"));
    let folder = scratch();
    let mut findings = Vec::new();
    for (row, how) in ROWS {
        let (line, wanted) = match *how {
            Ends(code) => (*row, code),
            As(other, code) => (other, code),
            Slow(code) if slow => (*row, code),
            Gpu(code) if gpu => (*row, code),
            Slow(_) | Gpu(_) => continue,
            Needs(what) => {
                println!("`{row}` is not run: it needs {what}");
                continue;
            }
        };
        let (given, shown) = (words(line), words(row));
        let options = |words: &[String]| -> Vec<String> {
            let options = words.iter().filter(|word| word.starts_with('-'));
            options.cloned().collect()
        };
        let kept = options(&shown).iter().all(|option| options(&given).contains(option));
        let same = given[..verbs(&given)] == shown[..verbs(&shown)];
        assert!(kept && same, "`{line}` is no stand-in of `{row}`");
        let args: Vec<&str> = given[1..].iter().map(String::as_str).collect();
        let output = in_folder(folder.path(), &args);
        if code(&output) != wanted {
            let end = stdout(&output) + &stderr(&output);
            findings.push(format!("`{line}` ends with {}, not {wanted}: {end}", code(&output)));
        }
    }
    assert!(findings.is_empty(), "{}", findings.join("\n"));
}
