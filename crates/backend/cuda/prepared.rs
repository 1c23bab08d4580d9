//! Preparing launches that run once for each index of a counter, as weights of each layer are packed at load time: their `each`, and
//! the parts of scratch that they fill.

mod parts;

use serde::Deserialize;

use super::expr::tokens;
use super::header::{Launch, Number, Variant};
use super::plan::{Sizes, of_key, written};
use super::sequence::{self, MOST, Turn};
use ulplab_core::error::did_you_mean;

pub(super) use parts::parts;

/// For which indices of a counter preparing launches run: `{ of = "layers", count = "banks" }`.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct Each {
    /// The counter without its `@`.
    pub of: String,
    /// It runs from 0 to this, exclusively.
    pub count: Number,
}

impl Each {
    /// The index of the part that is prepared for an index of the counter.
    pub fn part(&self) -> String {
        format!("@{} % ({})", self.of, self.count())
    }

    /// The count as text.
    pub fn count(&self) -> String {
        match &self.count {
            Number::Plain(count) => count.to_string(),
            Number::Expression(text) => text.clone(),
        }
    }

    /// An error unless a repetition that the counter counts contains the launch, wherever it stands in a sequence.
    pub fn contains(&self, launch: &str, sequence: &str) -> Result<(), String> {
        let of = &self.of;
        if !of.chars().all(|c| c.is_alphanumeric() || c == '_') {
            return Err(format!("each: of is '{of}', expected the name of a counter"));
        }
        let turns = sequence::counted(sequence).map_err(|why| format!("sequence: {why}"))?;
        let here = || turns.iter().filter(|(name, _)| name == launch);
        let counts = match here().find(|(_, counts)| !counts.contains(of)) {
            None if here().next().is_some() => return Ok(()),
            None => &[][..],
            Some((_, counts)) => counts,
        };
        let near = did_you_mean(of, counts.iter().map(String::as_str));
        let found = match counts {
            [] => "none".into(),
            counts => counts
                .iter()
                .map(|count| format!("'{count}'"))
                .collect::<Vec<_>>()
                .join(", "),
        };
        Err(format!(
            "each: no repetition of '{of}' contains '{launch}' in the sequence, found {found}{near}"
        ))
    }
}

/// An error if an argument of a preparing launch has a counter that is not there when it runs.
pub(super) fn once(each: Option<&Each>, argument: &str) -> Result<(), String> {
    let counter = each.map(|each| format!("@{}", each.of));
    let mut words = tokens(argument)?.into_iter();
    let other = words.find(|word| word.starts_with('@') && counter.as_ref() != Some(word));
    let runs = match &counter {
        Some(counter) => format!("for each {counter}"),
        None => "once: expected each = { of = COUNTER, count = EXPRESSION } in the call".into(),
    };
    other.map_or(Ok(()), |other| {
        Err(format!("'{argument}' has {other}, and what prepares it runs {runs}"))
    })
}

/// What a header must not say.
pub(super) fn check(variant: &Variant) -> Result<(), String> {
    if let Some(launch) = variant.launches.iter().find(|launch| launch.each.is_some()) {
        let name = launch.name();
        return Err(format!(
            "launch '{name}': each is for preparing launches, and for calls of variants that have such"
        ));
    }
    let cleared = variant
        .scratch
        .iter()
        .find(|scratch| scratch.zero && scratch.parts.is_some());
    cleared.map_or(Ok(()), |scratch| {
        let name = &scratch.name;
        Err(format!(
            "scratch '{name}': parts are for what is prepared, and it is cleared before each run (zero)"
        ))
    })
}

/// How many parts or repetitions a header says.
pub(super) fn count(key: &str, given: &Number, sizes: Sizes) -> Result<usize, String> {
    let count = of_key(key, given, sizes)?;
    let known = usize::try_from(count).ok().filter(|count| (1..=MOST).contains(count));
    known.ok_or_else(|| format!("{key} is {count}{}, expected 1 to {MOST}", written(given)))
}

/// The preparing launches in the order in which they run, by their numbers. Neighbours with the same `each` take turns: all of them
/// for one index, then all for the next.
pub(super) fn order(launches: &[Launch], sizes: Sizes) -> Result<Vec<(usize, Turn)>, String> {
    let mut order = Vec::new();
    let mut first = 0;
    for neighbours in launches.chunk_by(|a, b| a.each == b.each) {
        let each = neighbours[0].each.as_ref();
        let wrong = |why| format!("launch '{}': each: {why}", neighbours[0].name());
        let times = each.map_or(Ok(1), |each| count("count", &each.count, sizes).map_err(wrong))?;
        for index in 0..times {
            let counters = each.map(|each| (each.of.clone(), index as i64));
            let turn = |launch: &Launch| Turn {
                launch: launch.name().into(),
                counters: counters.iter().cloned().collect(),
            };
            let turns = neighbours.iter().enumerate();
            order.extend(turns.map(|(at, launch)| (first + at, turn(launch))));
        }
        first += neighbours.len();
    }
    Ok(order)
}

#[cfg(test)]
mod tests {
    use super::super::Source;
    use super::super::plan::{Plan, SMS, Scratch, Step, Work};
    use super::*;
    use ulplab_operations::ops;

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
args = ["x", "codes", "sums", "parts", "B", "N", "K"]
taps = ["parts"]
[[variant.launch]]
entry = "add"
grid = ["B"]
block = [32]
args = ["parts", "y", "N"]

[[variant]]
name = "simple"
doc = "as it is"
[[variant.launch]]
entry = "simple"
grid = ["B"]
block = [128]
args = ["x", "w", "y"]
*/"#;

    const CALLER: &str = r#"/*
[[variant]]
name = "all"
doc = "two calls in each layer"
sequence = "begin layers(up [@layers > 0](down)) end"
scratch = [{ name = "h", bytes = "T * 8" }, { name = "own", bytes = "64" }]
with = { dtype = "f32", K = 4, B = "T", seed = 7 }
prepare = [{ entry = "own_pack", grid = [1], block = [32], args = ["x", "own"] }]
[[variant.launch]]
name = "begin"
entry = "begin"
grid = [1]
block = [32]
args = ["own", "h"]
[[variant.launch]]
name = "up"
call = "other.packed"
each = { of = "layers", count = "banks" }
programmatic = true
with = { w = "weights[@layers % banks]", x = "x", y = "h", N = "2 * F" }
[[variant.launch]]
name = "down"
call = "other.packed"
each = { of = "layers", count = "layers" }
with = { w = "weights[@layers]", x = "h", y = "x", N = "F", seed = "@layers" }
[[variant.launch]]
name = "end"
entry = "end"
grid = [1]
block = [32]
args = ["h", "y"]
*/"#;

    /// The header with something replaced.
    fn read(change: [&str; 2]) -> Result<Source, String> {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("other.cu"), OTHER).unwrap();
        let file = folder.path().join("all.cu");
        assert!(CALLER.contains(change[0]));
        std::fs::write(&file, CALLER.replacen(change[0], change[1], 1)).unwrap();
        Source::read(&file).map_err(|error| error.to_string())
    }

    fn plan(change: [&str; 2], banks: i64) -> Result<Plan, String> {
        let mut case = ops::find("rmsnorm").unwrap().cases().remove(0);
        case.dims = vec![("T", 3), ("F", 10), ("layers", 3), ("banks", banks)];
        let plan = Plan::new(&read(change)?.header.variants[0], &case, SMS);
        plan.map(|plan| plan.expect("it takes the case"))
    }

    fn names(steps: &[Step], order: &[(usize, Turn)]) -> Vec<String> {
        let names = order.iter().map(|(step, turn)| {
            assert_eq!(turn.launch, steps[*step].name);
            let counters = turn.counters.iter().map(|(name, at)| format!(" {name} {at}"));
            turn.launch.clone() + &counters.collect::<String>()
        });
        names.collect()
    }

    #[test]
    fn weights_of_each_layer_are_prepared() {
        let plan = plan(["", ""], 2).unwrap();
        let want = [
            "own_pack",
            "up_prepare_1 layers 0",
            "up_prepare_2 layers 0",
            "up_prepare_1 layers 1",
            "up_prepare_2 layers 1",
            "down_prepare_1 layers 0",
            "down_prepare_2 layers 0",
            "down_prepare_1 layers 1",
            "down_prepare_2 layers 1",
            "down_prepare_1 layers 2",
            "down_prepare_2 layers 2",
        ];
        assert_eq!(names(&plan.prepare, &plan.prepare_order), want);
        let scratch = |name: &str, bytes, parts| Scratch {
            name: name.into(),
            bytes,
            parts,
            zero: false,
        };
        let want = [
            scratch("h", 24, 1),
            scratch("own", 64, 1),
            scratch("up_codes", 80, 2),
            scratch("up_sums", 80, 2),
            scratch("up_parts", 240, 1),
            scratch("down_codes", 40, 3),
            scratch("down_sums", 40, 3),
            scratch("down_parts", 120, 1),
        ];
        assert_eq!(plan.scratch, want);
        let step = |steps: &[Step], name: &str| steps.iter().find(|step| step.name == name).unwrap().clone();
        let arguments = |step: &Step| step.arguments().join(" , ");
        let pack = step(&plan.prepare, "up_prepare_1");
        assert_eq!(
            arguments(&pack),
            "weights[@layers % banks] , up_codes[@layers % (banks)] , 4"
        );
        let Work::Kernel { entry, shape, .. } = &pack.work else {
            unreachable!()
        };
        // Keys of the call are those of its launches alone.
        assert_eq!(
            (entry.as_str(), shape.grid, shape.programmatic),
            ("pack_f32", [20, 1, 1], false)
        );
        let sum = step(&plan.prepare, "down_prepare_2");
        let want = "down_codes[@layers % (layers)] , down_sums[@layers % (layers)] , @layers , 4";
        assert_eq!(arguments(&sum), want);
        let up = step(&plan.steps, "up_1");
        let want = "x , up_codes[@layers % (banks)] , up_sums[@layers % (banks)] , up_parts , T , 2 * F , 4";
        assert_eq!(arguments(&up), want);
        assert_eq!(up.taps(), ["up_parts"]);
        assert!(matches!(&up.work, Work::Kernel { shape, .. } if shape.programmatic));
        let turns = names(&plan.steps, &plan.order);
        let want = [
            "begin",
            "up_1 layers 0",
            "up_2 layers 0",
            "up_1 layers 1",
            "up_2 layers 1",
        ];
        assert_eq!(turns[..5], want);
        assert_eq!(turns.len(), 2 + 3 * 2 + 2 * 2);
        assert!(plan.is_prepared("up_sums") && plan.is_prepared("own"));
        assert!(!plan.is_prepared("up_parts") && !plan.is_prepared("h"));
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
    fn without_each_it_prepares_once() {
        let up = "each = { of = \"layers\", count = \"banks\" }\nprogrammatic = true\nwith = { w = \"weights[@layers % banks]\"";
        let plan = plan([up, "with = { w = \"weights[1]\""], 2).unwrap();
        let prepared = names(&plan.prepare, &plan.prepare_order);
        assert_eq!(prepared[..3], ["own_pack", "up_prepare_1", "up_prepare_2"]);
        assert_eq!(plan.scratch("up_codes").unwrap().parts, 1);
        let up = plan.steps.iter().find(|step| step.name == "up_1").unwrap();
        assert_eq!(up.arguments()[1], "up_codes");
    }

    #[test]
    fn says_what_is_wrong() {
        let (each, pack) = (
            "each = { of = \"layers\", count = \"banks\" }",
            "w = \"weights[@layers % banks]\"",
        );
        let call = "variant 'all', call \"other.packed\": ";
        for (change, why) in [
            (
                [each, "each = { of = \"layer\", count = 2 }"],
                format!("{call}each: no repetition of 'layer' contains 'up' in the sequence, found 'layers'"),
            ),
            (
                ["layers(up [", "up layers(up ["],
                format!("{call}each: no repetition of 'layers' contains 'up' in the sequence, found none"),
            ),
            (
                [each, "each = { of = \"layers + 1\", count = 2 }"],
                format!("{call}each: of is 'layers + 1', expected the name of a counter"),
            ),
            (
                [each, "each = { of = \"layers\" }"],
                format!("{call}each: missing field `count`, expected {{ of = COUNTER, count = EXPRESSION }}"),
            ),
            (
                [each, ""],
                format!("{call}'weights[@layers % banks]' has @layers, and what prepares it runs once: expected each"),
            ),
            (
                [pack, "w = \"weights[@E]\""],
                format!("{call}'weights[@E]' has @E, and what prepares it runs for each @layers"),
            ),
            (
                [pack, "v = \"weights[@layers]\""],
                format!("{call}that variant of other.cu has nothing called 'v'"),
            ),
            (
                ["name = \"own\"", "name = \"up_sums\""],
                format!("{call}there is scratch 'up_sums' already"),
            ),
            (
                [
                    "prepare = [{ entry = \"own_pack\"",
                    "prepare = [{ name = \"down_prepare_2\", entry = \"own_pack\"",
                ],
                format!("{call}there is a preparing launch 'down_prepare_2' already"),
            ),
            (
                [
                    "entry = \"end\"",
                    "entry = \"end\"\neach = { of = \"layers\", count = 2 }",
                ],
                "variant 'all', launch 'end': each is for preparing launches".into(),
            ),
            (
                ["\"64\" }", "\"64\", parts = 2, zero = true }"],
                "variant 'all', scratch 'own': parts are for what is prepared".into(),
            ),
        ] {
            let error = read(change).unwrap_err();
            assert!(error.contains(&why) && error.contains("all.cu"), "{why}\n{error}");
        }
        let simple = ["call = \"other.packed\"", "call = \"other.simple\""];
        let error = read(simple).unwrap_err();
        let why =
            "call \"other.simple\": each is for variants with preparing launches (prepare), and other.simple has none";
        assert!(error.contains(why), "{error}");
    }

    #[test]
    fn sizes_are_checked_when_it_is_planned() {
        let each = "count = \"banks\" }";
        let part = "args = [\"own\", \"h\"]";
        for (change, banks, why) in [
            (
                ["", ""],
                0,
                "launch 'up_prepare_1': each: count is 0 by 'banks', expected 1 to 100000",
            ),
            (
                [each, "count = -1 }"],
                2,
                "each: count is -1 by '-1', expected 1 to 100000",
            ),
            (
                [each, "count = \"bank\" }"],
                2,
                "each: count: expression 'bank': no size 'bank'",
            ),
            // The third layer has other weights than those that are there.
            (
                ["% banks]\"", "% layers]\""],
                2,
                "launch 'up_1': at 2 of layers it is given 'up_codes[0]', which 'up_prepare_1' prepares at 0, where \
                 '@layers % layers' is 0, expected 2",
            ),
            (
                [part, "args = [\"up_sums\", \"h\"]"],
                2,
                "'up_sums': it has 2 parts, expected 'up_sums[INDEX]'",
            ),
            (
                [part, "args = [\"up_sums[2]\", \"h\"]"],
                2,
                "the index is 2, expected less than 2 parts",
            ),
            (
                [part, "args = [\"up_sums[@layers]\", \"h\"]"],
                2,
                "expression '@layers': no size '@layers'",
            ),
        ] {
            let error = plan(change, banks).unwrap_err();
            assert!(error.starts_with("variant 'all', case '"), "{error}");
            assert!(error.contains(why), "{why}\n{error}");
        }
        assert!(plan([part, "args = [\"up_sums[1]\", \"h\"]"], 2).is_ok());
        // One bank is one part, whatever the layer.
        assert_eq!(plan(["", ""], 1).unwrap().scratch("up_sums").unwrap().parts, 1);
    }
}
