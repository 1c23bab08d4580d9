use std::collections::BTreeSet;
use std::sync::Arc;

use ulplab::backend::cuda::graph::{Graph, Put, call, kernel};
use ulplab::backend::cuda::header::Header;
use ulplab::backend::cuda::plan::{Launches, Named, SMS, Scratch, Step, Work};
use ulplab::backend::cuda::{Callable, Composed, Composition, Plan, Source};
use ulplab::ops;

const OTHER: &str = r#"/*
[[variant]]
name = "packed"
doc = "weights are packed and summed beforehand"
needs = ["K % 2 == 0"]
scratch = [{ name = "codes", bytes = "N * K" }, { name = "sums", bytes = "N * 4" }, { name = "parts", bytes = "B * N * 4" }]
prepare = [
    { entry = "pack_{dtype}", grid = ["N"], block = [32], args = ["w", "codes", "K"] },
    { entry = "sum", grid = ["N"], block = [32], args = ["codes", "sums", "seed", "K"] },
]
[[variant.launch]]
entry = "multiply_{dtype}"
grid = ["B"]
block = [128]
args = ["x", "codes", "sums", "parts", "B", "N", "2 * K"]
taps = ["parts"]
[[variant.launch]]
entry = "add"
grid = ["B"]
block = [32]
args = ["parts", "y", "N"]
*/"#;

const HEAD: &str = "/*\n[[variant]]\nname = \"all\"\ndoc = \"calls in each layer\"\nneeds = [\"T == 3\"]\n*/";

/// The plan of a composition, for three layers.
fn plan(composition: Composition) -> Result<Option<Plan>, String> {
    let mut header = Header::parse(HEAD).unwrap();
    let mut callable = Callable::default();
    callable.add("other", OTHER).unwrap();
    let callable = Arc::new(callable);
    header.variants[0].composed = Some(Composed { composition, callable });
    let mut case = ops::find("rmsnorm").unwrap().cases().remove(0);
    case.dims = vec![("T", 3), ("F", 10), ("layers", 3)];
    Plan::new(&header.variants[0], &case, SMS)
}

fn up(g: &Graph, layer: i64, banks: i64) -> Put {
    let up = call("up", "other.packed").names("w = weights, x = x, y = h, seed = 7");
    up.with("N", 2 * g.n("F")).part(layer % banks, banks)
}

/// Two banks of weights for three layers; the second launch only in layers after the first.
fn layers(g: &mut Graph) -> Result<(), String> {
    g.scratch("h own", g.n("T") * 8)?;
    for (name, meaning) in [("dtype", "f32"), ("B", "T"), ("seed", "nothing")] {
        g.with(name, meaning);
    }
    g.with("K", 4);
    g.prepare(kernel("own_pack", "own_pack").on([1], 32).args("x own"))?;
    g.programmatic(true);
    for layer in 0..g.n("layers") {
        g.at(layer % 2, "weights");
        g.put(up(g, layer, 2).skip(usize::from(layer == 0)))?;
        g.put(
            kernel("tap", "tap")
                .on([1], 32)
                .args("h clock layer")
                .with("layer", layer)
                .tap(),
        )?;
    }
    g.put(kernel("end", "end").on([1, 2], 32).args("h y T").taps("y"))
}

fn shown(launches: &Launches) -> Vec<String> {
    let shown = launches.each().map(|(step, arguments)| {
        let arguments: Vec<String> = arguments.iter().map(Named::to_string).collect();
        format!("{}: {}", step.name, arguments.join(" "))
    });
    shown.collect()
}

#[test]
fn layers_have_their_weights_prepared() {
    let plan = plan(layers).unwrap().unwrap();
    let want = [
        "own_pack: x own",
        "up_prepare_1: weights[0] up_codes[0] 4",
        "up_prepare_2: up_codes[0] up_sums[0] 7 4",
        "up_prepare_1: weights[1] up_codes[1] 4",
        "up_prepare_2: up_codes[1] up_sums[1] 7 4",
    ];
    assert_eq!(shown(&plan.prepare), want);
    let multiply = |part: i64| format!("up_1: x up_codes[{part}] up_sums[{part}] up_parts T 20 8");
    let tap = |layer: i64| format!("tap: h clock {layer}");
    let add = "up_2: up_parts h 20".to_string();
    let want = [
        add.clone(),
        tap(0),
        multiply(1),
        add.clone(),
        tap(1),
        multiply(0),
        add,
        tap(2),
        "end: h y T".into(),
    ];
    assert_eq!(shown(&plan.run), want);
    let names: Vec<&str> = plan.run.steps.iter().map(|step| step.name.as_str()).collect();
    assert_eq!(names, ["up_2", "tap", "up_1", "end"]);
    let sizes: Vec<_> = plan
        .scratch
        .iter()
        .map(|scratch| (scratch.name.as_str(), scratch.bytes, scratch.parts))
        .collect();
    let want = [
        ("h", 24, 1),
        ("own", 24, 1),
        ("up_codes", 80, 2),
        ("up_sums", 80, 2),
        ("up_parts", 240, 1),
    ];
    assert_eq!(sizes, want);
    assert!(plan.is_prepared("up_sums") && !plan.is_prepared("up_parts"));
    // What is kept for the judgement: all that a tap names, and `taps` of others.
    let taps: BTreeSet<&str> = plan.taps().collect();
    assert_eq!(taps, BTreeSet::from(["clock", "h", "up_parts", "y"]));
    let programmatic = |steps: &[Step], name: &str| {
        let step = steps.iter().find(|step| step.name == name).unwrap();
        matches!(&step.work, Work::Kernel { shape, .. } if shape.programmatic)
    };
    assert!(programmatic(&plan.run.steps, "up_1") && programmatic(&plan.run.steps, "end"));
    // Neither preparing launches nor taps start early.
    assert!(!programmatic(&plan.run.steps, "tap") && !programmatic(&plan.prepare.steps, "up_prepare_1"));
    assert_eq!(plan.entries().next(), Some("own_pack"));
    assert!(plan.entries().any(|entry| entry == "multiply_f32"));
}

#[test]
fn needs_of_a_call_are_needs_of_the_caller() {
    let odd = |g: &mut Graph| {
        g.put(call("up", "other.packed").with("K", 3))?;
        Err("this is not reached by a case that is not taken".into())
    };
    assert_eq!(plan(odd), Ok(None));
}

#[test]
fn parts_lie_apart() {
    let scratch = Scratch {
        name: "codes".into(),
        bytes: 5000,
        parts: 3,
        zero: false,
    };
    // A guard band, and what is left of another, after each part.
    assert_eq!([0, 1, 2].map(|part| scratch.place(part)), [0, 12288, 24576]);
    assert_eq!(scratch.size(), 24576 + 5000);
    let one = Scratch { parts: 1, ..scratch };
    assert_eq!(one.size(), 5000);
}

#[test]
fn mistakes_name_the_launch() {
    let mistakes: [(Composition, &str); 12] = [
        (
            |g| g.put(call("up", "other.pack")),
            "launch 'up': no variant 'other.pack' of the operations that are called; did you mean 'other.packed'?",
        ),
        (
            |g| g.put(call("up", "other.packed").names("v = x, K = 2")),
            "launch 'up': call of other.packed: that variant has nothing called 'v'",
        ),
        (
            |g| g.put(call("up", "other.packed").names("K = 2").skip(2)),
            "launch 'up': call of other.packed: the variant lists 2 launches, expected more than 2",
        ),
        (
            |g| g.put(call("up", "other.packed").names("K")),
            "launch 'up': names has 'K'; expected 'name = meaning'",
        ),
        (
            |g| {
                g.with("K", 4);
                g.with("B", 1);
                for layer in 0..3 {
                    g.at(layer, "weights");
                    g.put(up(g, layer, 2).names("dtype = f32"))?;
                }
                Ok(())
            },
            "launch 'up': part 0 of its scratch is prepared from 'weights[0]', and 'weights[2]' is given here",
        ),
        (
            |g| g.scratch("h", 1).and_then(|()| g.scratch("h", 2)),
            "scratch 'h' is there already, with another size",
        ),
        (
            |g| {
                layers(g)?;
                g.put(kernel("late", "late").on([1], 32).args("up_sums"))
            },
            "launch 'late', argument 'up_sums': there are 2 parts",
        ),
        (
            |g| {
                g.with("K", 4);
                g.with("B", 1);
                g.put(up(g, 0, 2).names("dtype = f32").part(2, 2))
            },
            "argument 'up_codes[2]': there are 2 parts",
        ),
        (|g| g.scratch("h", -1), "scratch 'h' of -1 bytes"),
        (|g| g.scratch("h", g.n("Tt")), "no size 'Tt'"),
        (
            |g| g.put(kernel("end", "end").on([0], 32)),
            "launch 'end': grid is 0, expected 1 to",
        ),
        (
            |g| g.put(kernel("end", "end_{dtyp}").on([1], 32)),
            "launch 'end': entry 'end_{dtyp}' has a key the case does not",
        ),
    ];
    for (composition, why) in mistakes {
        let error = plan(composition).unwrap_err();
        assert!(
            error.starts_with("variant 'all', case '") && error.contains(why),
            "{why}\n{error}"
        );
    }
}

#[test]
fn heads_and_compositions_belong_together() {
    let folder = tempfile::tempdir().unwrap();
    let with = |text: &str| {
        let file = folder.path().join("delta_handover.cu");
        std::fs::write(&file, text).unwrap();
        Source::read(&file, &ulplab::ops::COMPOSITIONS)
            .map(drop)
            .map_err(|error| error.to_string())
    };
    let heads = "/*\n[[variant]]\nname = \"pointer\"\ndoc = \"x\"\n[[variant]]\nname = \"turned\"\ndoc = \"x\"\n";
    assert_eq!(with(&format!("{heads}*/")), Ok(()));
    let launch = "[[variant.launch]]\nentry = \"f\"\ngrid = [1]\nblock = [1]\n";
    let other = "[[variant]]\nname = \"other\"\ndoc = \"x\"\n";
    for (text, why) in [
        (
            format!("{heads}{launch}*/"),
            "variant 'turned' has launches, and a composition",
        ),
        (
            format!("{heads}{other}*/"),
            "variant 'other' has no launches; expected [[variant.launch]]",
        ),
        (
            format!("{}*/", heads.replace("turned", "other")),
            "no variant 'turned'; expected the head of its composition",
        ),
    ] {
        let error = with(&text).unwrap_err();
        assert!(error.contains(why) && error.contains("delta_handover.cu"), "{error}");
    }
}
