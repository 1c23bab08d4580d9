//! Processes that share a run, begin and end at any moment, and are killed; and files that are copied or damaged between.

use std::fs;
use std::process::{Child, Stdio};
use std::time::Duration;

use super::*;

/// A run of 24 cells of a few milliseconds.
const MANY: &str = r#"
name = "many"
question = "Is every cell there, once?"
kind = "round_trip"
draws = 6
shape = [64, 512]

[[source]]
name = "gauss"
from = "gaussian"

[[recipe]]
name = "e4m3"
doc = "E4M3"
format = "e4m3"

[[recipe]]
name = "bf16"
doc = "bfloat16"
format = "bf16"

[[recipe]]
name = "mxfp8"
doc = "MXFP8"
format = "mxfp8"

[[recipe]]
name = "nvfp4"
doc = "NVFP4"
format = "nvfp4"

[[gate]]
metric = "sqnr"
at = "gauss"
phase = "local"
statistic = "min"
require = ">= 15"
recipes = ["*"]
why = "four bits keep so much"
"#;

fn sweep(file: &Path, out: &Path, more: &[&str]) -> Output {
    run(&[&["sweep", path(file), "--out", path(out)], more].concat())
}

/// Numbers that are spread evenly enough for moments to kill a process at.
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (self.0 >> 33) % n
    }
}

/// One process for a share of the run, with process id 1 of its own namespace if `alike`.
fn start(file: &Path, out: &Path, slice: &str, alike: bool) -> Child {
    let sweep = [
        "sweep",
        path(file),
        "--out",
        path(out),
        "--partition",
        slice,
        "--threads",
        "1",
    ];
    let mut command = ulplab(&sweep);
    if alike {
        command = Command::new("unshare");
        let program = env!("CARGO_BIN_EXE_ulplab");
        let options = ["--pid", "--fork", "--kill-child=KILL", program];
        command
            .current_dir(root())
            .env_remove("ULPLAB_DATASETS")
            .args(options)
            .args(sweep);
    }
    command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
}

/// `ULPLAB_ROUNDS` says how many rounds; in every other one all processes have the same id, where that can be arranged.
#[test]
fn partitions_survive_each_other_and_kills() {
    let rounds = std::env::var("ULPLAB_ROUNDS").map_or(3, |rounds| rounds.parse().unwrap());
    let unshare = Command::new("unshare")
        .args(["--pid", "--fork", "--kill-child=KILL", "true"])
        .output();
    let namespaces = unshare.is_ok_and(|output| output.status.success());
    if !namespaces {
        println!("no process namespaces here: ids are not made equal");
    }
    let folder = tempfile::tempdir().unwrap();
    let file = write(folder.path(), MANY);
    let alone = folder.path().join("alone");
    let output = sweep(&file, &alone, &[]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));

    let mut dice = Dice(1);
    let (mut started, mut killed) = (0, 0);
    for round in 0..rounds {
        let out = folder.path().join(format!("round-{round}"));
        let alike = namespaces && round % 2 == 1;
        let n = 3 + dice.below(2);
        let mut slices: Vec<String> = (1..=n).map(|m| format!("slice:{m}/{n}")).collect();
        // Whoever was killed comes again, twice at most under threat.
        for attempt in 0.. {
            let children: Vec<Child> = slices.iter().map(|slice| start(&file, &out, slice, alike)).collect();
            started += children.len();
            let mut again = Vec::new();
            for (mut child, slice) in children.into_iter().zip(slices) {
                let threatened = attempt < 2 && dice.below(2) == 0;
                if threatened {
                    std::thread::sleep(Duration::from_millis(dice.below(300)));
                    child.kill().unwrap();
                }
                let output = child.wait_with_output().unwrap();
                match output.status.code() {
                    Some(code) => assert_eq!(code, 0, "round {round}, {slice}: {}", stderr(&output)),
                    None => {
                        assert!(threatened, "round {round}, {slice}: {}", output.status);
                        killed += 1;
                        again.push(slice);
                    }
                }
            }
            slices = again;
            if slices.is_empty() {
                break;
            }
        }
        for name in ["records.parquet", "summary.parquet"] {
            let same = fs::read(out.join(name)).unwrap() == fs::read(alone.join(name)).unwrap();
            assert!(same, "round {round}: {name} differs");
        }
        assert!(records(&out) == records(&alone), "round {round}: records.jsonl differs");
        let gate = run(&["gate", path(&out)]);
        assert_eq!(code(&gate), 0, "round {round}: {}", stderr(&gate));
        fs::remove_dir_all(&out).unwrap();
    }
    println!("{rounds} rounds, {started} processes, {killed} killed");
}

#[test]
fn shares_that_were_copied_together_are_a_whole_run() {
    let folder = tempfile::tempdir().unwrap();
    let file = write(folder.path(), MANY);
    let [one, two] = ["one", "two"].map(|name| folder.path().join(name));
    for (out, slice) in [(&one, "slice:1/2"), (&two, "slice:2/2")] {
        let output = sweep(&file, out, &["--partition", slice]);
        assert_eq!(code(&output), 0, "{}", stderr(&output));
        assert!(
            stderr(&output).contains("12 of 24 cells are missing"),
            "{}",
            stderr(&output)
        );
        for command in ["gate", "report"] {
            assert_eq!(code(&run(&[command, path(out)])), 103, "{command} of half a run");
        }
    }
    for entry in fs::read_dir(two.join("cells")).unwrap() {
        let file = entry.unwrap();
        fs::copy(file.path(), one.join("cells").join(file.file_name())).unwrap();
    }
    for command in ["gate", "report"] {
        let output = run(&[command, path(&one)]);
        assert_eq!(code(&output), 0, "{}", stderr(&output));
        let text = stdout(&output);
        assert!(
            text.contains("PASS: 4 checks pass") && !text.contains("INCOMPLETE"),
            "{text}"
        );
    }
    // Nothing is left to do but to judge.
    let output = sweep(&file, &one, &["--partition", "slice:1/2"]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    assert!(stdout(&output).contains("PASS: 4 checks pass"), "{}", stdout(&output));
}

#[test]
fn a_damaged_cell_is_refused_and_run_again() {
    let folder = tempfile::tempdir().unwrap();
    let file = write(folder.path(), MANY);
    let out = folder.path().join("run");
    assert_eq!(code(&sweep(&file, &out, &[])), 0);
    let cell = out.join("cells/bf16__local__draw-3.jsonl");
    let whole = fs::read_to_string(&cell).unwrap();
    let first = whole.lines().next().unwrap();
    let damages = [
        String::new(),
        format!("{first}\n"),
        whole.repeat(2),
        whole.replacen("draw-3", "draw-2", 1),
    ];
    for damaged in damages {
        fs::write(&cell, &damaged).unwrap();
        for command in ["gate", "report"] {
            let output = run(&[command, path(&out)]);
            assert_eq!(code(&output), 2, "{command}: {}", stdout(&output));
            assert!(
                stderr(&output).contains("bf16__local__draw-3.jsonl: not a finished cell"),
                "{}",
                stderr(&output)
            );
        }
        let resumed = sweep(&file, &out, &["--resume"]);
        assert_eq!(code(&resumed), 0, "{}", stderr(&resumed));
        assert!(
            stderr(&resumed).contains("the cell is run again"),
            "{}",
            stderr(&resumed)
        );
        assert_eq!(fs::read_to_string(&cell).unwrap(), whole);
    }
    // A damaged cell of another slice is that slice's to mend: this one's work is done, and nothing is judged.
    fs::write(&cell, "").unwrap();
    let other = sweep(&file, &out, &["--partition", "slice:2/4"]);
    assert_eq!((code(&other), stdout(&other)), (0, String::new()), "{}", stderr(&other));
    let said = stderr(&other);
    assert!(
        said.starts_with("slice:2/4 is done, and nothing is judged yet: ") && said.contains("it is empty"),
        "{said}"
    );
    let own = sweep(&file, &out, &["--partition", "slice:1/4"]);
    assert_eq!(code(&own), 0, "{}", stderr(&own));
    assert!(stderr(&own).contains("the cell is run again"), "{}", stderr(&own));
    assert!(stdout(&own).contains("PASS: 4 checks pass"), "{}", stdout(&own));

    let manifest = out.join("run.json");
    let text = fs::read_to_string(&manifest).unwrap();
    fs::write(&manifest, text.replace(">= 15", ">= 11")).unwrap();
    for arguments in [
        &["gate", path(&out)][..],
        &["sweep", path(&file), "--out", path(&out), "--resume"],
    ] {
        let output = run(arguments);
        assert_eq!(code(&output), 2, "{}", stdout(&output));
        assert!(
            stderr(&output).contains("run.json: damaged or edited: its content does not match the blake3"),
            "{}",
            stderr(&output)
        );
    }
}

#[test]
fn a_folder_of_a_process_that_was_killed_at_once_can_be_used() {
    let folder = tempfile::tempdir().unwrap();
    let file = write(folder.path(), MANY);
    for (name, more) in [
        ("new", &[][..]),
        ("resumed", &["--resume"]),
        ("shared", &["--partition", "slice:1/1"]),
    ] {
        let out = folder.path().join(name);
        fs::create_dir_all(out.join("cells")).unwrap();
        fs::write(out.join(".run.json.4f2a.tmp"), "{").unwrap();
        let output = sweep(&file, &out, more);
        assert_eq!(code(&output), 0, "{name}: {}", stderr(&output));
        // A second whole run needs a folder of its own.
        let output = sweep(&file, &out, &[]);
        assert_eq!(code(&output), 2);
        assert!(
            stderr(&output).contains("not empty; give another --out"),
            "{}",
            stderr(&output)
        );
    }
    let output = sweep(&file, &folder.path().join("none"), &["--resume"]);
    assert_eq!(code(&output), 2);
    assert!(
        stderr(&output).contains("none: no run to resume"),
        "{}",
        stderr(&output)
    );
}
