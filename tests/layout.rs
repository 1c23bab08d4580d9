//! Rules the repository keeps: everything is declared, nothing is too large, documents tell the truth.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use reference::paths::PATHS;
use ulplab::experiment::file::ExperimentFile;
use ulplab::studies;

pub const ROOT: &str = env!("CARGO_MANIFEST_DIR");

/// Files of the repository, relative to its root: what git tracks, or all there is where git or its data is missing.
static TRACKED: LazyLock<Vec<PathBuf>> = LazyLock::new(|| {
    let listed = Command::new("git").args(["-C", ROOT, "ls-files", "-z"]).output();
    let mut files: Vec<PathBuf> = match listed {
        Ok(output) if output.status.success() && !output.stdout.is_empty() => String::from_utf8_lossy(&output.stdout)
            .split_terminator('\0')
            .map(PathBuf::from)
            .collect(),
        _ => walk(Path::new(ROOT)),
    };
    files.retain(|file| Path::new(ROOT).join(file).is_file());
    files.sort();
    files
});

fn walk(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let (path, kind) = entry.map(|entry| (entry.path(), entry.file_type().unwrap())).unwrap();
        let built = ["target", "runs", ".venv", ".git", "shared"]
            .iter()
            .any(|name| path.ends_with(name));
        if kind.is_dir() && !built {
            files.extend(walk(&path));
        } else if kind.is_file() {
            files.push(path.strip_prefix(ROOT).unwrap().to_path_buf());
        }
    }
    files
}

pub fn read(file: &Path) -> String {
    std::fs::read_to_string(Path::new(ROOT).join(file)).unwrap_or_else(|error| panic!("{}: {error}", file.display()))
}

pub fn with_extension(extensions: &[&str]) -> Vec<PathBuf> {
    let listed = |file: &Path| {
        file.extension()
            .is_some_and(|found| extensions.iter().any(|e| found == *e))
    };
    TRACKED.iter().filter(|file| listed(file)).cloned().collect()
}

/// Fails with all findings at once.
#[track_caller]
pub fn none(rule: &str, findings: Vec<String>) {
    assert!(findings.is_empty(), "{rule}:\n  {}", findings.join("\n  "));
}

fn is_crate_root(file: &Path) -> bool {
    let parent = file.parent().unwrap();
    let name = file.file_name().unwrap();
    name == "build.rs" || name == "main.rs" || name == "lib.rs" || parent.ends_with("examples")
}

/// The tests that manifests list.
fn listed_tests() -> Vec<PathBuf> {
    let manifests: Vec<PathBuf> = with_extension(&["toml"]);
    let manifests = manifests.iter().filter(|file| file.ends_with("Cargo.toml"));
    let paths_of = |manifest: &Path| -> Vec<PathBuf> {
        let folder = Path::new(ROOT).join(manifest.parent().unwrap());
        let text = read(manifest);
        let paths = text.lines().filter_map(|line| line.strip_prefix("path = "));
        let files = paths.map(|path| folder.join(path.trim_matches('"')));
        files.map(|file| file.canonicalize().unwrap()).collect()
    };
    manifests.flat_map(|file| paths_of(file)).collect()
}

/// The files of `all` that may declare the module which `file` holds: those of its folder, or of the folder above for a `mod.rs`.
/// In a folder of tests every file may be a crate, and declare it.
fn declarers(file: &Path, all: &[PathBuf]) -> Vec<PathBuf> {
    let folder = match file.ends_with("mod.rs") {
        true => file.parent().unwrap().parent().unwrap(),
        false => file.parent().unwrap(),
    };
    let inside = ["mod.rs", "lib.rs", "main.rs"].map(|name| folder.join(name));
    let of_tests = if folder.ends_with("tests") { all } else { &[] };
    let crates = of_tests
        .iter()
        .filter(|other| other.parent() == Some(folder) && *other != file);
    let inside = inside.into_iter().chain([folder.with_extension("rs")]);
    inside.chain(crates.cloned()).collect()
}

#[test]
fn every_source_file_is_declared() {
    let tests = listed_tests();
    let is_test = |file: &Path| tests.contains(&Path::new(ROOT).join(file).canonicalize().unwrap());
    let files = with_extension(&["rs"]);
    let declared = |line: &str| {
        let line = line.trim_start_matches("pub ").trim_start_matches("pub(crate) ").trim();
        Some(line.strip_prefix("mod ")?.strip_suffix(';')?.to_string())
    };
    let modules = |file: &Path| read(file).lines().filter_map(declared).collect();
    let modules: BTreeMap<&Path, BTreeSet<String>> = files.iter().map(|file| (&**file, modules(file))).collect();
    let undeclared = |file: &&PathBuf| {
        let module = match file.ends_with("mod.rs") {
            true => file.parent().unwrap(),
            false => file,
        };
        let name = module.file_stem().unwrap().to_str().unwrap();
        let declares = |other: &PathBuf| modules.get(&**other).is_some_and(|declared| declared.contains(name));
        !is_crate_root(file) && !is_test(file) && !declarers(file, &files).iter().any(declares)
    };
    let findings = files.iter().filter(undeclared).map(|file| file.display().to_string());
    none(
        "not declared by the module above, so never compiled",
        findings.collect(),
    );
}

/// A library with tests in it is compiled twice.
#[test]
fn libraries_have_no_tests_in_them() {
    let mut findings = Vec::new();
    let manifests = with_extension(&["toml"])
        .into_iter()
        .filter(|file| file.ends_with("Cargo.toml"));
    for manifest in manifests {
        let text = read(&manifest);
        let Some((_, library)) = text.split_once("[lib]\n") else {
            continue;
        };
        let library = library.split("\n[").next().unwrap_or_default();
        if !library.lines().any(|line| line == "test = false") {
            findings.push(format!("{}: [lib] without `test = false`", manifest.display()));
        }
    }
    let places = ["src", "crates", "python", "reference", "showcases"];
    let libraries = with_extension(&["rs"])
        .into_iter()
        .filter(|file| places.iter().any(|place| file.starts_with(place)));
    // Examples in docs are run in three crates only: the others are not read once more for none.
    let examples = ["crates/checkpoint", "crates/core", "reference"];
    for file in libraries.filter(|file| !file.starts_with("reference/tests")) {
        let text = read(&file);
        if text.contains("#[cfg(test)]") {
            findings.push(format!("{}: #[cfg(test)]", file.display()));
        }
        let comments = text.lines().filter_map(|line| line.trim_start().strip_prefix("//"));
        let fences = comments.filter_map(|line| line.trim_start_matches(['/', '!', ' ']).strip_prefix("```"));
        if fences.step_by(2).any(|kind| kind != "text") && !examples.iter().any(|crate_| file.starts_with(crate_)) {
            findings.push(format!("{}: an example that is not run", file.display()));
        }
    }
    none("tests stand in tests/", findings);
}

/// The modules of a crate by floors: what a module imports is on a lower one. Crates themselves cannot be in a circle.
const FLOORS: [(&str, &[&[&str]]); 7] = [
    (
        "crates/core",
        &[
            &["list", "text"],
            &["accumulator", "close", "error", "record", "random"],
            &["atomic", "input", "pattern"],
            &["formats", "layouts", "metrics"],
            &["tensorfile", "vacuous"],
        ],
    ),
    ("crates/checkpoint", &[&["packed"], &["parity"], &["checkpoint"]]),
    ("crates/operations", &[&["expected"], &["ops"]]),
    (
        "crates/run",
        &[
            &["entries", "git", "json", "output", "progress", "signal", "statistics"],
            &["itself"],
            &["shipped"],
            &["dataset"],
            &["experiment"],
            &["run"],
            &["gate"],
        ],
    ),
    ("showcases/decode_step", &[&["composition", "operation"], &["step"]]),
    (
        "showcases/swap_ffn",
        &[&["varied"], &["composition", "expected", "operation"]],
    ),
    (
        "src",
        &[
            &["ops", "sources"],
            &["judgement", "provenance"],
            &["studies"],
            &["commands"],
            &["cli"],
        ],
    ),
];

fn is_module(file: &Path, package: &str, name: &str) -> bool {
    let module = Path::new(package).join(name);
    *file == module.with_extension("rs") || file.starts_with(module)
}

/// No circle between modules, and no import upwards.
#[test]
fn imports_lead_downwards() {
    let mut findings = Vec::new();
    let files = with_extension(&["rs"]);
    for (package, floors) in FLOORS {
        let floor = |name: &str| floors.iter().position(|floor| floor.contains(&name));
        for file in files.iter().filter(|file| file.starts_with(package)) {
            let path = file.strip_prefix(package).unwrap();
            let here = path.iter().next().unwrap().to_str().unwrap().trim_end_matches(".rs");
            if ["lib", "main"].contains(&here) {
                continue;
            }
            let Some(own) = floor(here) else {
                findings.push(format!("{}: '{here}' has no floor", file.display()));
                continue;
            };
            for (at, line) in read(file).lines().enumerate() {
                let code = line.split("//").next().unwrap();
                let names = code.split("crate::").skip(1).flat_map(|rest| {
                    let group = rest.strip_prefix('{').and_then(|rest| rest.split('}').next());
                    let names = group.map_or(vec![rest], |group| group.split(',').collect());
                    names.into_iter().map(|name| {
                        let name = name.trim();
                        let end = name.find(|c: char| !c.is_ascii_alphanumeric() && c != '_');
                        name[..end.unwrap_or(name.len())].to_string()
                    })
                });
                for name in names.filter(|name| name != here && name.starts_with(char::is_lowercase)) {
                    // The program lists modules of other crates as its own.
                    let lower = package == "src" && !files.iter().any(|file| is_module(file, package, &name));
                    if !lower && floor(&name).is_none_or(|floor| floor >= own) {
                        findings.push(format!("{}:{}: {here} imports {name}", file.display(), at + 1));
                    }
                }
            }
        }
    }
    none("imports that do not lead downwards", findings);
}

#[test]
fn every_experiment_parses() {
    let experiment =
        |file: &PathBuf| file.starts_with("experiments") && file.parent() == Some(Path::new("experiments"));
    let parse = |file: &PathBuf| {
        let file = ExperimentFile::read(&Path::new(ROOT).join(file), &[]);
        file.and_then(|file| studies::parse(&file)).err()
    };
    let files = with_extension(&["toml"]).into_iter().filter(experiment);
    none(
        "not an experiment",
        files
            .filter_map(|file| parse(&file).map(|error| error.to_string()))
            .collect(),
    );
}

#[test]
fn no_source_file_is_long() {
    let long = |file: PathBuf| {
        let lines = read(&file).lines().count();
        (lines > 500).then(|| format!("{}: {lines} lines", file.display()))
    };
    none(
        "longer than 500 lines",
        with_extension(&["rs", "cu", "cuh", "py"])
            .into_iter()
            .filter_map(long)
            .collect(),
    );
}

/// The files that the line `// reference:` of a kernel names, which follows its header.
fn references(kernel: &str) -> Vec<&str> {
    let code = kernel.split_once("*/").map_or(kernel, |(_, code)| code);
    let line = code.lines().find(|line| !line.is_empty());
    let named = line.and_then(|line| line.strip_prefix("// reference: "));
    named.map(|files| files.split(", ").collect()).unwrap_or_default()
}

#[test]
fn every_kernel_names_its_reference() {
    let wrong = |file: PathBuf| {
        let text = read(&file);
        let files = references(&text);
        let missing = files.iter().find(|name| !Path::new(ROOT).join(name).is_file());
        match missing {
            Some(missing) => Some(format!("{}: no {missing}", file.display())),
            None => files
                .is_empty()
                .then(|| format!("{}: no `// reference: FILE` after its header", file.display())),
        }
    };
    let kernels = with_extension(&["cu"])
        .into_iter()
        .filter(|file| file.starts_with("kernels"));
    none("has no reference", kernels.filter_map(wrong).collect());
}

#[test]
fn no_file_is_large() {
    let large = |file: &PathBuf| {
        let bytes = std::fs::metadata(Path::new(ROOT).join(file)).unwrap().len();
        (bytes > 30_000_000).then(|| format!("{}: {bytes} bytes", file.display()))
    };
    none("larger than 30 MB", TRACKED.iter().filter_map(large).collect());
}

/// What a notebook shows belongs to one run, and would be stale with the next.
#[test]
fn notebooks_are_stored_without_outputs() {
    let run = |file: &PathBuf| {
        let notebook: serde_json::Value = serde_json::from_str(&read(file)).expect("a notebook is JSON");
        let cells = notebook["cells"].as_array().expect("a notebook has cells");
        let code = |cell: &&serde_json::Value| cell["cell_type"] == "code";
        !cells
            .iter()
            .filter(code)
            .all(|cell| cell["outputs"].as_array().is_some_and(Vec::is_empty) && cell["execution_count"].is_null())
    };
    let findings = with_extension(&["ipynb"]).into_iter().filter(run);
    none("has outputs", findings.map(|file| file.display().to_string()).collect());
}

/// Nobody else has the folders the project was written in.
#[test]
fn nothing_points_outside_the_repository() {
    let outside = [concat!("..", "/shared"), concat!("/wo", "rk/")];
    let findings = TRACKED
        .iter()
        .filter(|file| !file.starts_with("datasets/text"))
        .filter_map(|file| {
            let bytes = std::fs::read(Path::new(ROOT).join(file)).unwrap();
            let text = std::str::from_utf8(&bytes).ok()?;
            let found = outside.iter().find(|path| text.contains(*path))?;
            Some(format!("{}: {found}", file.display()))
        });
    none("points outside the repository", findings.collect());
}

/// A pipe in the place of a file would keep the program waiting, and text that is not UTF-8 is bad input.
#[test]
fn files_are_read_in_one_place() {
    // What the system and the cache of kernels hold is not named by a user.
    let kept = [
        "crates/core/input.rs",
        "crates/core/atomic.rs",
        "src/judgement.rs",
        "crates/backend/cuda/cache.rs",
        "src/sources.rs",
        "src/studies/limits.rs",
        "src/commands/dev/bench/formats.rs",
    ];
    let readers = ["read_to_string(", "fs::read(", "File::open("].map(|reader| (reader, format!("Tensor{reader}")));
    let findings = with_extension(&["rs"])
        .into_iter()
        .filter(|file| {
            ["src", "crates", "showcases"]
                .iter()
                .any(|folder| file.starts_with(folder))
                && !kept.iter().any(|kept| file == Path::new(kept))
        })
        .flat_map(|file| {
            let text = read(&file);
            let reads = |line: &str| {
                let mut readers = readers.iter();
                readers.any(|(reader, other)| line.replace(other, "").contains(reader))
            };
            let lines = text.lines().enumerate().filter(|(_, line)| reads(line));
            lines
                .map(|(at, _)| format!("{}:{}", file.display(), at + 1))
                .collect::<Vec<_>>()
        });
    none(
        "files that users name are read by input::{open, bytes, text}",
        findings.collect(),
    );
}

/// What stands between quotes in a line of a source file that is no comment. A quote in a quote is left out of account.
fn quoted(line: &str) -> impl Iterator<Item = &str> {
    let code = if line.trim_start().starts_with("//") { "" } else { line };
    code.split('"').skip(1).step_by(2)
}

/// The program asks the tables of paths. Names without a dot (`output`, `x`) are words of other things too.
#[test]
fn the_program_names_no_path_and_no_site() {
    let names = PATHS.iter().flat_map(|path| path.sites).map(|site| site.name);
    let names: BTreeSet<&str> = names.filter(|name| name.contains('.')).collect();
    // Of `attention.kv.window` also `attention.kv.`, which names several; `attention.` is enough to mean all.
    let stems: BTreeSet<&str> = names.iter().map(|name| &name[..=name.rfind('.').unwrap()]).collect();
    let sites: Vec<&str> = names.into_iter().chain(stems).collect();
    let paths: Vec<String> = PATHS.iter().map(|path| format!("paths::{}", path.name)).collect();
    let typed = Path::new("src/studies/swap_ffn");
    let named = |file: &Path, line: &str| {
        let site = quoted(line).any(|text| {
            sites
                .iter()
                .any(|site| text.starts_with(*site) || text.contains(&format!(".{site}")))
        });
        let comment = line.trim_start().starts_with("//");
        let path = !comment && !file.starts_with(typed) && paths.iter().any(|path| line.contains(path));
        site || path || !comment && line.contains("deepseek_v4")
    };
    let findings = with_extension(&["rs"]).into_iter().filter(|file| {
        ["src", "crates/run", "crates/backend", "crates/report"]
            .iter()
            .any(|folder| file.starts_with(folder))
    });
    let findings = findings.flat_map(|file| {
        let text = read(&file);
        let lines = text.lines().enumerate().filter(|(_, line)| named(&file, line));
        let lines = lines.map(|(at, line)| format!("{}:{}: {}", file.display(), at + 1, line.trim()));
        lines.collect::<Vec<_>>()
    });
    none("names a path or a site of one", findings.collect());
}

/// Targets of `[…](target)` that are files, without `#anchor`.
fn links(document: &str) -> impl Iterator<Item = &str> {
    let targets = document
        .split("](")
        .skip(1)
        .filter_map(|rest| rest.split([')', ' ', '\n']).next());
    targets
        .map(|target| target.split('#').next().unwrap_or_default())
        .filter(|target| !target.is_empty() && !target.contains(':'))
}

/// A page begins with what it lists. Who writes it, and how it is written again, is for those who change it, and stands in a comment.
#[test]
fn pages_begin_with_what_a_reader_wants() {
    let mut findings = Vec::new();
    for file in with_extension(&["md"]).iter().filter(|file| file.starts_with("docs")) {
        let text = read(file);
        let mut shown = String::new();
        for (at, part) in text.split("<!--").enumerate() {
            shown += if at == 0 {
                part
            } else {
                part.split_once("-->").map_or("", |(_, rest)| rest)
            };
        }
        let name = file.display();
        for word in [
            "ULPLAB_BLESS",
            "markdown()",
            "writes this page",
            "Written from the ",
            "Generated by ",
        ] {
            if shown.contains(word) {
                findings.push(format!("{name}: '{word}' outside of a comment"));
            }
        }
        // A comment names files that are there.
        let comments = text.split("<!--").skip(1).filter_map(|part| part.split("-->").next());
        let words = comments.flat_map(str::split_whitespace);
        let paths = words
            .map(|word| word.trim_matches(|c: char| !c.is_alphanumeric()))
            .filter(|word| word.contains('/'));
        findings.extend(
            paths
                .filter(|path| !Path::new(ROOT).join(path).exists())
                .map(|path| format!("{name}: there is no {path}")),
        );
    }
    none(
        "a page begins with what it lists, and comments name what is there",
        findings,
    );
}

#[test]
fn links_of_documents_lead_somewhere() {
    let mut findings = Vec::new();
    for file in with_extension(&["md"]) {
        let text = read(&file);
        let folder = Path::new(ROOT).join(&file).parent().unwrap().to_path_buf();
        let dead = links(&text).filter(|target| !folder.join(target).exists());
        findings.extend(dead.map(|target| format!("{}: {target}", file.display())));
    }
    none("dead links", findings);
}
