//! A kind of question that somebody else adds: its keys, what is exact, what is measured, its column and its section, and no
//! line anywhere else but the one of the list.

#[path = "studies/calls.rs"]
mod calls;
#[path = "studies/compile.rs"]
mod compile;
#[path = "studies/device.rs"]
mod device;
#[path = "studies/draws.rs"]
mod draws;
#[path = "studies/files.rs"]
mod files;
#[path = "studies/inputs.rs"]
mod inputs;
#[path = "studies/limits.rs"]
mod limits;
#[path = "studies/lines.rs"]
mod lines;
#[path = "studies/mutant_files.rs"]
mod mutant_files;
#[path = "studies/null.rs"]
mod null;
#[path = "studies/recipe.rs"]
mod recipe;
#[path = "studies/selection.rs"]
mod selection;

use std::collections::HashMap;
use std::sync::Mutex;

use reference::paths::Config;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use ulplab::experiment::file::ExperimentFile;
use ulplab::experiment::{Experiment, Mistake};
use ulplab::metrics::Pair;
use ulplab::record::{Phase, Record};
use ulplab::report::figures::{Section, figure};
use ulplab::report::index::{Index, Quantity};
use ulplab::report::overview::Column;
use ulplab::report::table::{Row, Table};
use ulplab::report::{Show, Summarized};
use ulplab::run::RecipeInfo;
use ulplab::run::plan::{Cell, Plan};
use ulplab::studies::inputs::Inputs;
use ulplab::studies::limits::Parts;
use ulplab::studies::measure::records;
use ulplab::studies::{Kind, Lab, ReadyRecipes, Study, check_among};
use ulplab::{Error, Result};

/// How far sums of 1/i in f32 are off.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Harmonic {
    /// Terms of each sum, a window each.
    terms: Vec<u32>,
    /// Terms that an adder takes, which computes the sums.
    #[serde(default)]
    adder: Option<u32>,
    #[serde(rename = "recipe")]
    recipes: Vec<Order>,
}

/// An order of summation.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Order {
    name: String,
    /// From the smallest term on.
    rising: bool,
}

impl Show for Harmonic {
    fn columns(&self) -> Vec<Column> {
        vec![Column {
            title: ["relative".into(), "error".into()],
            doc: "Relative error of the sum.".into(),
            weight: 1,
            cell: Box::new(|index: &Index, candidate| {
                let error = index.whole(candidate.name, Quantity::new(Phase::Local, "sum", "relative_l2"))?;
                Some(format!("{:.1e}", error.mean))
            }),
        }]
    }

    fn sections(&self, run: &Summarized) -> Vec<Section> {
        let sums = Table {
            heads: vec!["orders of summation".into()],
            rows: vec![Row::new([run.candidates.len().to_string()])],
            numbers: true,
        };
        vec![Section {
            id: "sums",
            title: "Sums",
            intro: "In which order they were summed.",
            figures: vec![figure(sums, String::new())],
        }]
    }
}

impl Study for Harmonic {
    fn check(&self) -> std::result::Result<(), Mistake> {
        match self.terms.iter().position(|terms| *terms == 0) {
            Some(at) => Err(Mistake::new("a sum has at least one term").within("terms", at)),
            None => Ok(()),
        }
    }

    fn plan(&self) -> Plan {
        let windows = self.terms.iter().map(|terms| format!("n{terms}")).collect();
        Plan::whole(
            &[Phase::Local],
            windows,
            self.recipes.iter().map(|order| order.name.as_str()),
        )
    }

    fn recipes(&self) -> Vec<RecipeInfo> {
        self.recipes
            .iter()
            .map(|order| RecipeInfo {
                name: order.name.clone(),
                ..RecipeInfo::default()
            })
            .collect()
    }

    fn check_site(&self, at: &str) -> std::result::Result<(), String> {
        check_among(at, ["sum".to_string()].into_iter())
    }

    fn memory(&self, _parts: &mut Parts, _config: Option<&dyn Config>, _at_once: f64) {}

    fn ready<'a>(
        &'a self,
        _seed: u64,
        _config: Option<&dyn Config>,
    ) -> std::result::Result<Box<dyn ReadyRecipes + 'a>, Mistake> {
        Ok(match self.adder {
            Some(most) => Box::new(device::Adder::new(self, most)),
            None => Box::new(Sums(self)),
        })
    }
}

impl Harmonic {
    /// The records of a recipe's sum in a window.
    fn sum(&self, blank: Record) -> Result<Vec<Record>> {
        let terms = blank.window[1..].parse();
        let terms: u32 = terms.map_err(|_| Error::Usage(blank.window.clone()))?;
        let order = self.recipes.iter().find(|order| order.name == blank.recipe);
        let order = order.ok_or_else(|| Error::Usage(format!("no order '{}'", blank.recipe)))?;
        let want = [(1..=terms).rev().map(|i| 1.0 / f64::from(i)).sum::<f64>()];
        let term = |i: u32| 1.0 / i as f32;
        let got: [f32; 1] = match order.rising {
            true => [(1..=terms).rev().map(term).sum()],
            false => [(1..=terms).map(term).sum()],
        };
        let blank = Record {
            site: "sum".into(),
            ..blank
        };
        Ok(records(&blank, &Pair::new(&want, &got), &[1]).collect())
    }
}

struct Sums<'a>(&'a Harmonic);

impl ReadyRecipes for Sums<'_> {
    fn run(&self, lab: &Lab, cells: &[&Cell]) -> Result<()> {
        let orders = self.0.recipes.iter().map(|order| (order.name.as_str(), order));
        let orders: HashMap<&str, &Order> = orders.collect();
        lab.each_window(cells, |bench, cells| {
            bench.each(cells, &orders, |_, blank| self.0.sum(blank))
        })
    }
}

const KIND: Kind = Kind::new::<Harmonic>("harmonic");

const FILE: &str = "name = 'sums'
question = 'Which order?'
kind = 'harmonic'
terms = [10, 1000000]
[[recipe]]
name = 'falling'
rising = false
[[recipe]]
name = 'rising'
rising = true
";

/// The records of cells.
fn measured(ready: &dyn ReadyRecipes, plan: &Plan, cells: &[Cell]) -> Vec<Record> {
    let measured = Mutex::new(Vec::new());
    let done = |_: &Cell, records: Vec<Record>| {
        measured.lock().unwrap().extend(records);
        Ok(())
    };
    let (inputs, stop) = (Inputs::default(), false.into());
    let cells: Vec<&Cell> = cells.iter().collect();
    ready.run(&Lab::new(plan, &inputs, &stop, &done), &cells).unwrap();
    measured.into_inner().unwrap()
}

#[test]
fn a_study_is_a_type_and_a_line() {
    let file = ExperimentFile::new("sums.toml".into(), FILE.into(), &[]).unwrap();
    let study = (KIND.parse)(&file).unwrap();
    study.check().unwrap();
    let plan = study.plan();
    let ids: Vec<String> = plan.cells().into_iter().map(|cell| cell.id).collect();
    assert_eq!(
        ids,
        [
            "falling/local/n10",
            "rising/local/n10",
            "falling/local/n1000000",
            "rising/local/n1000000"
        ]
    );
    let measured = measured(&*study.ready(0, None).unwrap(), &plan, &plan.cells());
    let error = |cell: &str| {
        let found = measured
            .iter()
            .find(|record| record.cell == cell && record.metric == "relative_l2");
        found.unwrap_or_else(|| panic!("{cell}")).value
    };
    assert!(10.0 * error("rising/local/n1000000") < error("falling/local/n1000000"));

    // A stored run has its keys, and is read by them.
    let experiment = Experiment {
        head: file.head().unwrap(),
        body: study.body(),
    };
    let stored = serde_json::to_string(&experiment).unwrap();
    let read: Experiment = serde_json::from_str(&stored).unwrap();
    assert_eq!((KIND.read)(&read.body).unwrap().plan(), plan);
}

/// Serde refuses what is not the study's, and a mistake leads to its line.
#[test]
fn its_mistakes_have_lines() {
    for (from, to, words) in [
        (
            "rising = true",
            "rising = true\nformat = 'bf16'",
            ["line 11", "recipe 'rising': unknown field `format`"],
        ),
        ("rising = true", "rising = 'yes'", ["line 10", "recipe 'rising': "]),
        ("terms =", "term =", ["line 4", "did you mean 'terms'?"]),
    ] {
        let file = ExperimentFile::new("sums.toml".into(), FILE.replace(from, to), &[]).unwrap();
        let error = (KIND.parse)(&file).err().unwrap().to_string();
        assert!(words.iter().all(|word| error.contains(word)), "{error}");
    }
    let file = ExperimentFile::new("sums.toml".into(), FILE.replace("1000000", "0"), &[]).unwrap();
    let mistake = (KIND.parse)(&file).unwrap().check().unwrap_err();
    assert_eq!(
        file.error(&mistake).to_string(),
        "sums.toml: line 4: a sum has at least one term"
    );
}

/// The eighth recipe's mistake is told at the eighth recipe, though the same text stands in the first.
#[test]
fn the_eighth_recipe_is_named_for_its_mistake() {
    let mut text = String::from(
        "name = 'x'\nquestion = 'x'\nkind = 'round_trip'\ndraws = 1\nshape = [4, 48]\n[[source]]\nname = 's'\nfrom = 'gaussian'\n",
    );
    for recipe in 1..=8 {
        // A note in the first names the format of the eighth.
        let format = if recipe == 8 { "e4m4" } else { "e4m3" };
        text += &format!("[[recipe]]\nname = 'r{recipe}'\ndoc = \"e4m4\"\nformat = \"{format}\"\n");
    }
    let file = ExperimentFile::new("x.toml".into(), text, &[]).unwrap();
    let parsed = ulplab::studies::parse(&file).unwrap();
    let mistake = parsed.study.ready(0, None).err().unwrap();
    let error = file.error(&mistake).to_string();
    assert!(error.starts_with("x.toml: line 40: recipe 'r8': "), "{error}");
}
