//! Delays at synchronisations: all primitives that synchronise stand in `kernels/lib/`, and each has its delay.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use ulplab::backend::cuda::delays::{self, Pattern};
use ulplab::backend::cuda::toolkit::Unit;
use ulplab::backend::cuda::{Source, Toolkit};

/// Instructions that synchronise, or that issue or await asynchronous work.
const INSTRUCTIONS: &[&str] = &[
    "bar.",
    "barrier.",
    "mbarrier.",
    "fence.",
    "wgmma.fence",
    "wgmma.commit",
    "wgmma.wait",
    "wgmma.mma",
    "cp.async",
    "st.async",
    "griddepcontrol.",
    "red.",
    "atom.",
    ".acquire",
    ".release",
    ".relaxed",
    "multimem.",
    "tcgen05.",
];
/// Intrinsics that do so.
const INTRINSICS: &[&str] = &[
    "__syncthreads",
    "__syncwarp",
    "__threadfence",
    "atomicAdd",
    "atomicSub",
    "atomicInc",
    "atomicDec",
    "atomicMax",
    "atomicMin",
    "atomicExch",
    "atomicCAS",
    "atomicAnd",
    "atomicOr",
    "atomicXor",
    "this_grid",
    "this_cluster",
    "cuda::barrier",
];
/// Primitives of `lib/` without a delay, with the reason.
const UNDELAYED: &[(&str, &str)] = &[
    (
        "shared_add",
        "counts in shared memory, which a barrier separates from those who read them",
    ),
    (
        "shared_or",
        "bits in shared memory, which a barrier separates from those who read them",
    ),
    ("tma_prefetch_l2", "it moves nothing that a thread reads"),
    (
        "wgmma_rs",
        "products run in order; the fence, the commit and the wait around them sleep",
    ),
    (
        "wgmma_ss",
        "products run in order; the fence, the commit and the wait around them sleep",
    ),
    (
        "wgmma_rs_overwrite",
        "products run in order; the fence, the commit and the wait around them sleep",
    ),
    (
        "wgmma_ss_overwrite",
        "products run in order; the fence, the commit and the wait around them sleep",
    ),
    ("shared", "a product, as wgmma_ss"),
    ("registers", "a product, as wgmma_rs"),
];

fn kernels() -> PathBuf {
    Path::new(crate::ROOT).join("kernels")
}

/// Files of a folder and of its folders, with their texts without comments.
fn files(folder: &Path) -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path));
        } else if path
            .extension()
            .is_some_and(|extension| extension == "cu" || extension == "cuh")
        {
            let text = std::fs::read_to_string(&path).unwrap();
            let code = text.lines().map(|line| line.split("//").next().unwrap_or_default());
            found.push((path.clone(), code.collect::<Vec<_>>().join("\n")));
        }
    }
    found
}

/// True if a line of code has one of the words: an instruction within a string, an intrinsic as a name.
fn synchronises(line: &str) -> bool {
    let begins = |place: &str, word: &str| {
        place.match_indices(word).any(|(at, _)| {
            let before = place[..at].chars().next_back();
            word.starts_with('.') || !before.is_some_and(|before| before.is_alphanumeric() || before == '_')
        })
    };
    let strings = line.split('"').skip(1).step_by(2);
    let instruction = strings
        .clone()
        .any(|string| INSTRUCTIONS.iter().any(|word| begins(string, word)));
    instruction || INTRINSICS.iter().any(|word| begins(line, word))
}

#[test]
fn synchronisation_stands_in_lib() {
    let lib = kernels().join("lib");
    let outside = files(&kernels())
        .into_iter()
        .filter(|(path, _)| !path.starts_with(&lib));
    let mut count = 0;
    for (path, code) in outside {
        count += 1;
        for (at, line) in code.lines().enumerate() {
            assert!(
                !synchronises(line),
                "{}:{}: {line}: a primitive of kernels/lib/ is missing",
                path.display(),
                at + 1
            );
        }
    }
    assert!(count > 50, "{count} files were read");
    assert!(synchronises("    asm volatile(\"bar.sync 1, 128;\");") && synchronises("__syncthreads();"));
    assert!(synchronises("asm(\"ld.acquire.gpu.global.u32 %0, [%1];\")") && !synchronises("asm(\"mov.b32 %0, %1;\")"));
}

/// Names of the functions of a text whose bodies synchronise.
fn primitives(code: &str) -> BTreeSet<String> {
    let mut name = String::new();
    let mut found = BTreeSet::new();
    for line in code
        .lines()
        .filter(|line| !line.trim_start().starts_with('#') || line.contains("__device__"))
    {
        if let Some((head, _)) = line.split_once('(').filter(|(head, _)| head.contains("__device__")) {
            name = head.rsplit([' ', '*', '&']).next().unwrap_or_default().into();
        }
        if synchronises(line) {
            found.insert(name.clone());
        }
    }
    found
}

#[test]
fn every_primitive_has_its_delay() {
    let (mut without, mut all) = (Vec::new(), 0);
    for (path, code) in files(&kernels().join("lib")) {
        if path.ends_with("delays.cuh") {
            continue;
        }
        let lines = code.lines().filter_map(|line| line.strip_prefix("#define "));
        let delayed: BTreeSet<&str> = lines.filter_map(|line| line.split(['(', ' ']).next()).collect();
        for name in primitives(&code) {
            all += 1;
            let excused = UNDELAYED.iter().any(|(excused, _)| *excused == name);
            assert!(
                !(excused && delayed.contains(&*name)),
                "{name} has a delay, and a reason for none"
            );
            if !excused && !delayed.contains(&*name) {
                without.push(format!("{}: {name}", path.display()));
            }
        }
    }
    assert!(all > 40, "{all} primitives were found");
    assert!(without.is_empty(), "without a delay: {without:#?}");
}

/// A kernel with one barrier, on line 4 of its file.
const BARRIER: &str = "#include \"lib/common.cuh\"
KERNEL(turn, )(float *x) {
    __shared__ float all[64]; const int thread = threadIdx.x; all[thread] = x[thread];
    block_sync();
    x[thread] = all[63 - thread];
}
";

#[test]
fn sites_have_the_numbers_that_the_compiler_gives_them() {
    // Tests run without a compiler, too; CI has one.
    let Ok(toolkit) = Toolkit::open() else { return };
    let folder = tempfile::tempdir().unwrap();
    let copied = std::process::Command::new("cp")
        .args(["-r", "lib"])
        .arg(folder.path())
        .current_dir(kernels())
        .status();
    assert!(copied.unwrap().success());
    let path = folder.path().join("rope.cu");
    let header = "/*\n[[variant]]\nname = \"a\"\ndoc = \"b\"\n[[variant.launch]]\nentry = \"turn\"\ngrid = [1]\nblock = [64]\nargs = [\"x\"]\n*/\n";
    std::fs::write(&path, format!("{header}// reference: none\n{BARRIER}")).unwrap();
    let source = Source::read(&path, &[]).unwrap();
    let code = |delays: bool| {
        let unit = Unit {
            source: &source,
            arch: "sm_90a",
            fault: None,
            entry: "turn",
            delays,
        };
        toolkit.compile(unit).unwrap().bytes
    };
    let names = delays::names(&source);
    let has = |bytes: &[u8], site: u32| bytes.windows(4).any(|word| word == site.to_le_bytes());
    let line = format!("{}:{}", path.display(), header.lines().count() + 1 + 4);
    let (site, _) = names.iter().find(|(_, name)| **name == line).unwrap();
    assert!(
        has(&code(true), *site),
        "the delayed build has no number {site:#x} of {line}"
    );
    assert!(!has(&code(false), *site), "the build without delays has one");
}

#[test]
fn patterns_differ_by_seed_and_none_delays_nothing() {
    assert_eq!(Pattern::of(0), Pattern::default());
    let all: BTreeSet<Vec<u8>> = (0..100).map(|seed| Pattern::of(seed).bytes()).collect();
    assert_eq!(all.len(), 100);
    assert!(all.iter().all(|bytes| bytes.len() == 40), "the size of DelayPattern");
    assert_ne!(Pattern::at(7, 0).bytes(), Pattern::at(8, 0).bytes());
}
