//! Where a failure comes from: faults are planted, and must be found.

use reference::{Numerics, Site, Tensor};
use serde_json::Value;
use ulplab::studies::Text;
use ulplab_core::tensorfile::{Metadata, Slot, write_safetensors};

use super::diff::{altered, swept};
use super::*;

pub const COSINE_OF_LAYERS: &str = r#"
[[gate]]
metric = "cosine"
at = "layers.*.output"
phase = "cumulative"
statistic = "min"
require = ">= 0.999"
recipes = ["v4_fp8", "planted*"]
why = "more than the record's own error"
"#;

/// The record that serving engines store, and in one layer a format that is too coarse.
pub fn planted(layer: usize, site: &str) -> String {
    format!(
        r#"
[[recipe]]
name = "planted"
doc = "a fault in one layer"
round = [
    {{ at = "layers.*.attention.kv.*", format = "v4_fp8" }},
    {{ at = "layers.{layer}.{site}", format = "int2/b32:f32" }},
]
"#
    )
}

/// An experiment on a short window: faults are found in it, too.
pub fn brief(folder: &Path, recipes: &str, gates: &str) -> PathBuf {
    on_tokens(40, folder, recipes, gates)
}

pub fn bisect(args: &[&str]) -> Output {
    run(&[&["bisect", "--no-progress"], args].concat())
}

#[track_caller]
pub fn answer(args: &[&str], exit: i32) -> Value {
    let output = bisect(&[args, &["--json"]].concat());
    assert_eq!(code(&output), exit, "{}{}", stderr(&output), stdout(&output));
    serde_json::from_str(&stdout(&output)).expect("one JSON object")
}

#[track_caller]
pub fn refused(args: &[&str], words: &str) {
    let output = bisect(args);
    assert_eq!(code(&output), 2, "{}", stdout(&output));
    assert!(stderr(&output).contains(words), "{}", stderr(&output));
}

/// The places of each culprit.
fn places(answer: &Value) -> Vec<Vec<&str>> {
    let culprits = answer["culprits"].as_array().unwrap().iter();
    culprits.map(named).collect()
}

fn named(culprit: &Value) -> Vec<&str> {
    let places = culprit["places"].as_array().unwrap().iter();
    places.map(|place| place["place"].as_str().unwrap()).collect()
}

/// One layer of 61, in at most 12 cells; its capsule and its recipe reproduce it.
#[test]
fn a_planted_fault_is_found_and_reproduced() {
    let folder = tempfile::tempdir().unwrap();
    let file = brief(
        folder.path(),
        &format!("{FP8}{}", planted(37, "attention.output")),
        COSINE_OF_LAYERS,
    );
    let (capsule, found) = (
        folder.path().join("culprit.safetensors"),
        folder.path().join("found.toml"),
    );
    let more = ["--capsule", path(&capsule), "-o", path(&found), "--cells", "12"];
    let said = answer(&[&[path(&file), "--recipe", "planted"], &more[..]].concat(), 100);
    assert_eq!(places(&said), [["layers.37.attention.output"]], "{said}");
    assert_eq!(said["culprits"][0]["places"][0]["formats"][0], "int2/b32:f32");
    assert_eq!(said["holds_without"], true);
    assert!(said["cells"].as_u64().unwrap() <= 12, "{said}");
    assert_eq!(said["failed"][0]["first_beyond"], "layers.37.output", "{said}");

    // The recipe fails the same gate by itself, and its rounding is that of one place.
    let output = run(&["sweep", path(&found), "--out", path(&folder.path().join("run"))]);
    assert_eq!(code(&output), 100, "{}{}", stderr(&output), stdout(&output));
    let text = std::fs::read_to_string(&found).unwrap();
    let round = r#"    { at = "layers.37.attention.output", format = "int2/b32:f32" },"#;
    assert!(text.contains(&format!("round = [\n{round}\n]")), "{text}");

    // The capsule needs no data.
    let elsewhere = tempfile::tempdir().unwrap();
    let replay = |file: &Path| {
        let mut command = ulplab(&["bisect", "--replay", path(file)]);
        command.current_dir(elsewhere.path()).output().unwrap()
    };
    let output = replay(&capsule);
    assert_eq!(code(&output), 100, "{}", stderr(&output));
    let text = stdout(&output);
    assert!(
        text.contains("layers.37.attention.output: relative error") && text.contains("STILL THERE"),
        "{text}"
    );
    // A capsule that was changed is none.
    let mut bytes = std::fs::read(&capsule).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 0x40;
    let changed = elsewhere.path().join("changed.safetensors");
    std::fs::write(&changed, bytes).unwrap();
    let output = replay(&changed);
    assert_eq!(code(&output), 2, "{}", stdout(&output));
    says(&stderr(&output), "changed.safetensors: damaged or edited");
    edited(&capsule, &replay);
    let bare = elsewhere.path().join("bare.safetensors");
    write_safetensors(&bare, Vec::new(), &Metadata::new(), |_| Ok(())).unwrap();
    let output = replay(&bare);
    assert_eq!(code(&output), 2);
    assert!(stderr(&output).contains("is not a capsule"), "{}", stderr(&output));
}

/// Edits of a label or of tensors: the replay of none of them is GONE. Also of this kind: other keys, and tensors that are added.
fn edited(capsule: &Path, replay: &dyn Fn(&Path) -> Output) {
    let file = tensors_in(capsule);
    let label = &file.metadata()["ulplab_capsule"];
    let key = |name: &str| {
        let label: Value = serde_json::from_str(label).unwrap();
        label[name].to_string()
    };
    let (right, wrong) = (key("right_rounds"), key("wrong_rounds"));
    let edit = |from: &str, to: &str| {
        assert!(label.contains(from), "{from} is not in {label}");
        label.replace(from, to)
    };
    let same = |part: &str, _: &[f32]| part == "none";
    let zero = |part: &str, _: &[f32]| part.starts_with("in.");
    type Zeroes<'a> = &'a dyn Fn(&str, &[f32]) -> bool;
    let labels: [(String, Zeroes); 9] = [
        (
            edit(
                &format!("\"wrong_rounds\":{wrong}"),
                &format!("\"wrong_rounds\":{right}"),
            ),
            &same,
        ),
        (
            edit(
                &format!("\"right_rounds\":{right}"),
                &format!("\"right_rounds\":{wrong}"),
            ),
            &same,
        ),
        (edit(&format!("\"wrong_rounds\":{wrong}"), "\"wrong_rounds\":[]"), &same),
        (edit("int2/b32:f32\"", "int2/b32:f32\",\"layers\":\"99\""), &same),
        (edit("int2/b32:f32\"", "int2/b32:f32\",\"tokens\":\"9999\""), &same),
        (edit("int2/b32:f32\"", "int2/b32:f32\",\"channels\":\"60\""), &same),
        (edit("int2/b32:f32", "f32"), &same),
        (edit("\"noise\":null", "\"noise\":{\"seed\":1,\"gain\":1.0}"), &same),
        (label.clone(), &zero),
    ];
    let folder = tempfile::tempdir().unwrap();
    let copy = folder.path().join("edited.safetensors");
    for (label, zeroes) in labels {
        let mut metadata = file.metadata().clone();
        metadata.insert("ulplab_capsule".into(), label.clone());
        let slots = file.tensors().map(|tensor| Slot {
            name: tensor.name.into(),
            dtype: tensor.dtype,
            shape: tensor.shape.to_vec(),
        });
        write_safetensors(&copy, slots.collect(), &metadata, |writer| {
            file.tensors().try_for_each(|tensor| {
                let numbers = tensor.to_f32().unwrap();
                let bytes = tensor
                    .bytes
                    .iter()
                    .map(|byte| if zeroes(tensor.name, &numbers) { 0 } else { *byte });
                writer.put(tensor.name, &bytes.collect::<Vec<u8>>())
            })
        })
        .unwrap();
        let output = replay(&copy);
        assert!([2, 4].contains(&code(&output)), "{label}: {}", stdout(&output));
        assert!(!stdout(&output).contains("GONE"), "{label}: {}", stdout(&output));
    }
}

/// A right recipe of its own, channels and tokens, and a search that has to end early.
#[test]
fn a_search_goes_as_far_as_it_is_asked_to() {
    let folder = tempfile::tempdir().unwrap();
    let file = brief(
        folder.path(),
        &format!("{FP8}{}", planted(20, "attention.output")),
        COSINE_OF_LAYERS,
    );
    let of = [path(&file), "--recipe", "planted"];
    let said = answer(&[&of[..], &["--right", "v4_fp8"]].concat(), 100);
    assert_eq!(places(&said), [["layers.20.attention.output"]]);
    assert_eq!(said["suspects"], 1, "the recipes differ in one place: {said}");

    let said = answer(&[&of[..], &["--to", "tokens"]].concat(), 100);
    let part = |of: &str| said["culprits"][0][of]["count"].as_u64().unwrap();
    assert!(
        (1..=64).contains(&part("channels")) && (1..40).contains(&part("tokens")),
        "{said}"
    );
    let recipe = said["toml"].as_str().unwrap();
    assert!(
        recipe.contains("channels = ") && recipe.contains("tokens = "),
        "{recipe}"
    );

    let said = answer(&[&of[..], &["--to", "layers"]].concat(), 100);
    assert_eq!(
        places(&said),
        [[
            "layers.20.attention.kv.window",
            "layers.20.attention.kv.compressed",
            "layers.20.attention.output"
        ]]
    );

    let said = answer(&[&of[..], &["--cells", "2"]].concat(), 4);
    assert_eq!(said["holds_without"], Value::Null);
    let output = bisect(&[&of[..], &["--cells", "2"]].concat());
    assert!(stdout(&output).contains("FOUND IN PART"), "{}", stdout(&output));
}

/// Two faults that each fail alone are both named.
#[test]
fn two_faults_are_told_apart() {
    let folder = tempfile::tempdir().unwrap();
    let second = r#"
    { at = "layers.50.attention.output", format = "int2/b32:f32" },
]
"#;
    let recipe = planted(10, "attention.output").replace("\n]\n", second);
    let file = brief(
        folder.path(),
        &recipe,
        COSINE_OF_LAYERS.replace(r#""v4_fp8", "#, "").as_str(),
    );
    let said = answer(&[path(&file)], 100);
    let mut found = places(&said).concat();
    found.sort_unstable();
    assert_eq!(
        found,
        ["layers.10.attention.output", "layers.50.attention.output"],
        "{said}"
    );
    assert_eq!(said["holds_without"], true);
}

#[test]
fn what_cannot_be_searched_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let chunked = r#"
[[recipe]]
name = "planted_chunks"
doc = "token by token"
chunk = 1
"#;
    let file = brief(
        folder.path(),
        &format!("{FP8}{}{chunked}", planted(3, "attention.output")),
        COSINE_OF_LAYERS,
    );
    let of = path(&file);
    refused(
        &[of, "--recipe", "v4_fp8"],
        "recipe 'v4_fp8' fails no gate, so there is nothing to search: min of cosine",
    );
    refused(
        &[of, "--recipe", "planted", "--right", "planted"],
        "both the right recipe and the one that fails",
    );
    refused(
        &[of, "--recipe", "v4_fp8x"],
        "there is no recipe 'v4_fp8x'; did you mean 'v4_fp8'?",
    );
    refused(
        &[of],
        "--recipe is missing: gates of 'test' bind v4_fp8, planted, planted_chunks",
    );
    refused(&[of, "--recipe", "planted_chunks"], "'chunk' cannot be searched");
    refused(
        &["experiments/round_trip.toml"],
        "is of kind 'round_trip': bisect searches in models",
    );
    let none = COSINE_OF_LAYERS.replace("planted*", "v4_*");
    let other = tempfile::tempdir().unwrap();
    let file = brief(other.path(), &format!("{FP8}{}", planted(3, "attention.output")), &none);
    refused(&[path(&file), "--recipe", "planted"], "no gate binds recipe 'planted'");
}

/// The folder of a run names the recipe that fails; two runs are compared by their numbers.
#[test]
fn runs_are_searched_and_compared() {
    let folder = tempfile::tempdir().unwrap();
    let file = brief(
        folder.path(),
        &format!("{FP8}{}", planted(5, "attention.output")),
        COSINE_OF_LAYERS,
    );
    let text = std::fs::read_to_string(file).unwrap();
    let base = swept(folder.path(), "base", &text, &[]);
    let said = answer(&[path(&base)], 100);
    assert_eq!(places(&said), [["layers.5.attention.output"]]);

    let said = answer(&[path(&base), path(&altered(&base, "same", |_| {}))], 0);
    assert_eq!(said["equal"], said["both"]);
    let other = altered(&base, "other", |record| {
        let here = record.recipe == "v4_fp8" && record.layer >= Some(30) && record.phase.name() == "cumulative";
        if here && record.site == "output" {
            record.value += 1e-9;
        }
    });
    let said = answer(&[path(&base), path(&other)], 100);
    let cells = said["cells"].as_array().unwrap();
    assert_eq!(cells.len(), 1, "{said}");
    assert_eq!(cells[0]["first"]["place"], "layers.30.output");
    assert_eq!(cells[0]["layers"], "30-60");
    let output = bisect(&[path(&base), path(&other)]);
    assert_eq!(code(&output), 100);
    assert!(
        stdout(&output).contains("v4_fp8, cumulative: first at layers.30.output"),
        "{}",
        stdout(&output)
    );
}

/// A program with a fault in one layer, which dumps what passes at its sites.
struct Faulty {
    layer: usize,
    tensors: Vec<(String, Tensor<f32>)>,
}

impl Numerics<f32> for Faulty {
    fn site(&mut self, site: &Site, tensor: &mut Tensor<f32>) {
        if site.to_string() == format!("layers.{}.attention.output", self.layer) {
            // The last row is that of the token before.
            let (cols, end) = (tensor.cols(), tensor.data.len());
            tensor.data.copy_within(end - 2 * cols..end - cols, end - cols);
        }
        if ["attention.output", "output", "logits"].contains(&site.name) {
            self.tensors.push((site.to_string(), tensor.clone()));
        }
    }
}

#[test]
fn a_dump_is_judged_site_by_site() {
    let folder = tempfile::tempdir().unwrap();
    let file = brief(folder.path(), FP8, PASSING);
    let text = std::fs::read(root().join("datasets/text/alice.txt")).unwrap();
    let ids: Vec<u32> = text[20000..20040].iter().map(|byte| u32::from(*byte)).collect();
    let model = ulplab::dataset::Checkpoint::open(&root().join("datasets/dsv4-mini"))
        .unwrap()
        .load::<f32>()
        .unwrap();
    let text = Text {
        model: &*model,
        ids: &ids,
    };
    let dumped = |name: &str, layer: usize| {
        let mut faulty = Faulty {
            layer,
            tensors: Vec::new(),
        };
        let mut state = text.model.state(Vec::new()).unwrap();
        text.model
            .run(&mut *state, reference::paths::Input::Ids(text.ids), &mut faulty)
            .unwrap();
        let slots = faulty.tensors.iter().map(|(name, tensor)| Slot {
            name: name.clone(),
            dtype: safetensors::Dtype::F32,
            shape: tensor.shape.clone(),
        });
        let path = folder.path().join(name);
        let bytes = |tensor: &Tensor<f32>| tensor.data.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<_>>();
        write_safetensors(&path, slots.collect(), &Metadata::new(), |writer| {
            faulty
                .tensors
                .iter()
                .try_for_each(|(name, tensor)| writer.put(name, &bytes(tensor)))
        })
        .unwrap();
        path
    };
    let bad = dumped("bad.safetensors", 37);
    let of = [path(&file), "--dump", path(&bad)];
    let gate = ["--gate", "layers.**:relative_l2<=1e-6"];
    let said = answer(&[&of[..], &gate].concat(), 100);
    assert_eq!(said["first"], "layers.37.attention.output", "{said}");
    let sites = said["sites"].as_array().unwrap();
    assert_eq!(sites.len(), 2 * 61 + 1);
    let failing: Vec<&Value> = sites
        .iter()
        .filter(|site| !site["failures"].as_array().unwrap().is_empty())
        .collect();
    assert_eq!(failing.len(), 1, "what follows a fault is explained by it: {failing:?}");
    assert_eq!(failing[0]["after"], "layers.36.output");
    assert_eq!(failing[0]["worst"]["index"][0], 39);
    assert!(
        sites.last().unwrap()["total"].as_f64().unwrap() > 1e-4,
        "the fault stays in what follows"
    );
    let output = bisect(&[&of[..], &gate].concat());
    let words = "layers.37.attention.output is the first site";
    assert!(stdout(&output).contains(words), "{}", stdout(&output));

    let good = dumped("good.safetensors", 61);
    let said = answer(&[&[path(&file), "--dump", path(&good)], &gate[..]].concat(), 0);
    assert_eq!(said["verdict"], "PASS");
    answer(&[path(&file), "--dump", path(&good)], 4);
    let output = bisect(&[&of[..], &["--gate", "logits:relative_l2<=1e-6"]].concat());
    let words = "PASS: 0 of 1 judged site fail by their own error; no gate judges 122 other sites\n";
    assert!(stdout(&output).ends_with(words), "{}", stdout(&output));
    refused(
        &[&of[..], &["--gate", "layer.*:cosine>=0.9"]].concat(),
        "'layer.*' matches no site of the dump",
    );
    refused(
        &[&of[..], &["--set", "tokens=24"]].concat(),
        "elements, expected those of [24, 64]",
    );
    refused(
        &[&of[..], &["--window", "bob"]].concat(),
        "--window bob: the experiment has alice@20000",
    );
}
