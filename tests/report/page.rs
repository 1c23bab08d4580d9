//! What the HTML page draws and says, beyond what all reports share.

use std::collections::{BTreeMap, BTreeSet};

use super::shown as report;
use ulplab::experiment::Rule;
use ulplab::record::{Phase, Record};
use ulplab::run::Run;
use ulplab::run::verdict::{Status, Verdict};

use super::synthetic::{self, HOSTILE};

/// A section of the page.
fn section(html: &str, id: &str) -> String {
    let start = html
        .find(&format!("<section id=\"{id}\">"))
        .unwrap_or_else(|| panic!("no section {id}"));
    let rest = &html[start..];
    rest[..rest.find("</section>").expect("its end")].to_string()
}

fn charts(section: &str) -> Vec<&str> {
    section.split("<svg").skip(1).collect()
}

/// Adds a gate on the error of the residual streams that runs free, with a verdict for each recipe.
fn gate(run: &mut Run, metric: &str, require: &str, recipes: &[&str]) {
    let first = run.verdicts[0].clone();
    let rule = Rule {
        metric: metric.into(),
        at: "layers.*.output".into(),
        phase: Phase::Cumulative,
        require: require.into(),
        recipes: recipes.iter().map(|name| name.to_string()).collect(),
        ..first.rule.clone()
    };
    run.verdicts.extend(recipes.iter().map(|recipe| Verdict {
        rule: rule.clone(),
        recipe: recipe.to_string(),
        ..first.clone()
    }));
    run.manifest.experiment.head.gates.push(rule);
}

#[test]
fn charts_draw_the_strictest_gate_that_binds_what_they_show() {
    let mut run = synthetic::small();
    run.verdicts.retain(|verdict| verdict.rule.metric == "kl");
    gate(&mut run, "relative_l2", "<= 1e-4", &["reference"]);
    let drawn = |run: &Run, id: &str, at: usize| {
        let section = section(&report::html(run), id);
        let figure = section.split("<figure").nth(1 + at).expect("a figure").to_string();
        assert!(
            !figure.contains("= 1e-4"),
            "the reference's gate binds nothing here: {figure}"
        );
        figure
    };
    assert!(!drawn(&run, "front", 0).contains("bound-label"));
    // 1 − 0.999² is 0.001999: its root is 0.0447.
    gate(&mut run, "cosine", ">= 0.999", &["bf16", "v4_fp8", "v4_mxfp4"]);
    for (id, at) in [("front", 0), ("layers", 1)] {
        let figure = drawn(&run, id, at);
        assert!(figure.contains("gate cosine &gt;= 0.999 (3 recipes)"), "{figure}");
        assert!(figure.contains("it binds bf16, v4_fp8, v4_mxfp4."), "{figure}");
        assert!(figure.contains("No error below 0.0447 breaks it"), "{figure}");
    }
    assert!(
        !drawn(&run, "layers", 0).contains("bound-label"),
        "no gate binds local errors"
    );
    // The strictest of several gates is drawn, whichever comes first.
    gate(&mut run, "relative_l2", "<= 0.03", &["v4_fp8"]);
    gate(&mut run, "relative_l2", "<= 0.2", &["v4_mxfp4"]);
    assert!(drawn(&run, "front", 0).contains("gate &lt;= 0.03 (v4_fp8)"));
    // What must be bad binds nothing.
    gate(&mut run, "relative_l2", ">= 0.01", &["v4_mxfp4"]);
    assert!(drawn(&run, "layers", 1).contains("gate &lt;= 0.03 (v4_fp8)"));
}

/// Names in a chart by the class of their colour.
fn colours(chart: &str) -> BTreeMap<String, BTreeSet<String>> {
    let mut names: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for label in chart.split("class=\"series ").skip(1) {
        let (class, rest) = label.split_once("\">").expect("a class");
        let slot = class.split(' ').next_back().expect("a colour").to_string();
        let name = rest.split('<').next().expect("a name");
        names.entry(slot).or_default().insert(name.to_string());
    }
    names
}

#[test]
fn no_chart_has_two_recipes_of_one_colour() {
    let html = report::html(&synthetic::crowded());
    for id in ["front", "layers", "stored", "selection"] {
        let section = section(&html, id);
        let (shown, folded) = section
            .split_once("<summary>Recipes that are grey above</summary>")
            .unwrap_or_else(|| panic!("{id} folds nothing"));
        for chart in charts(shown).into_iter().chain(charts(folded)) {
            let colours = colours(chart);
            assert!(!colours.contains_key("s8"), "a grey recipe is named");
            for (slot, names) in &colours {
                assert_eq!(names.len(), 1, "{id}: {slot} is the colour of {names:?}");
            }
            for slot in 0..8 {
                let lines = chart.matches(&format!("class=\"line s{slot}\"")).count();
                assert!(lines <= 1, "{id}: {lines} lines of colour {slot}");
            }
        }
        let all: BTreeSet<String> = charts(shown)
            .iter()
            .chain(&charts(folded))
            .flat_map(|chart| colours(chart).into_values().flatten())
            .collect();
        assert!(id == "front" || all.len() == 24, "{id} names {} recipes", all.len());
        for chart in charts(shown) {
            assert!(chart.contains("16 others in grey"), "{id}");
            assert_eq!(charts(folded).len(), 2 * charts(shown).len(), "{id}");
            let named: BTreeSet<String> = colours(chart).into_values().flatten().collect();
            for judged in ["format21", "format22", "format23"] {
                assert!(named.contains(judged) || id == "front", "{id}: {judged} is grey");
            }
        }
    }
    // All that is folded has a place, and a page with few recipes folds nothing.
    assert!(!report::html(&synthetic::small()).contains("in grey"));
}

#[test]
fn heat_maps_hold_every_recipe_in_every_layer() {
    let run = synthetic::small();
    let html = report::html(&run);
    let section = section(&html, "heat");
    let charts = charts(&section);
    assert_eq!(charts.len(), 2, "local and cumulative");
    let recipes = run.manifest.recipes.len();
    for chart in &charts {
        let cells = chart.matches("<title>").count();
        assert_eq!(cells, recipes * synthetic::LAYERS as usize);
        let legend = chart.matches("\"heat h").count() + chart.matches("\"heat broken").count() - cells;
        assert_eq!(legend, 10 + 1, "every colour and NaN");
    }
    let broken = charts[1].split("class=\"heat broken\"><title>").nth(1).expect("a NaN");
    assert!(
        broken.starts_with("&lt;b&gt;") && broken.contains("layer 17: NaN"),
        "{broken}"
    );
    assert!(!charts[0].contains("broken\"><title>"));
    // The colour grows with the error: the least and the greatest have those of the scale's ends.
    let level = |recipe: &str| {
        let cell = charts[1]
            .split(&format!("<title>{recipe}, layer 60: "))
            .next()
            .expect("before");
        let class = cell.rsplit("heat h").next().expect("a class");
        class[..1].parse::<usize>().expect("a level")
    };
    let levels = ["bf16", "v4_fp8", "v4_mxfp4"].map(level);
    assert!(levels.is_sorted() && levels[0] < levels[2], "{levels:?}");
    assert!(html.contains("svg .h9 {"), "the style sheet has all colours");
}

#[test]
fn every_recipe_leads_to_its_worst_element() {
    let run = synthetic::small();
    let html = report::html(&run);
    for link in html.split("href=\"#").skip(1) {
        let anchor = link.split('"').next().expect("an anchor");
        assert!(html.contains(&format!("id=\"{anchor}\"")), "#{anchor} leads nowhere");
    }
    let overview = section(&html, "overview");
    let worst = section(&html, "worst");
    let off = |record: &&Record| {
        let worst = record.worst.as_ref().expect("an element");
        (worst.got - worst.want).abs()
    };
    for recipe in ["bf16", "v4_fp8_", "v4_mxfp4_noise", "v4_mxfp4_key"].map(|name| name.trim_end_matches('_')) {
        let link = overview
            .split(&format!("\">{recipe}</a>"))
            .next()
            .and_then(|before| before.rsplit("href=\"#").next())
            .expect("a link");
        let row = worst.split(&format!("<tr id=\"{link}\">")).nth(1).expect("a row");
        let row = row.split("</tr>").next().expect("its end");
        let records = run
            .records
            .iter()
            .filter(|record| record.recipe == recipe && record.worst.is_some());
        let record = records.max_by(|a, b| off(a).total_cmp(&off(b))).expect("a record");
        let element = record.worst.as_ref().expect("an element");
        let index: Vec<String> = element.index.iter().map(u64::to_string).collect();
        let shown = [
            format!(">{recipe}<"),
            format!(">{}<", record.phase),
            format!(">{}<", record.layer.expect("a layer")),
            format!(">{}<", record.site),
            format!(">{}<", record.window),
            format!(">[{}]<", index.join(", ")),
            format!(">{:?}<", element.want as f32),
            format!(">{:?}<", element.got),
        ];
        for text in shown {
            assert!(row.contains(&text), "{recipe}: no {text} in {row}");
        }
    }
    assert!(
        HOSTILE.starts_with("<b>") && worst.contains(">NaN<"),
        "a NaN is worst of all"
    );
    // What is right everywhere has no worst element.
    let mut run = run;
    run.records.iter_mut().for_each(|record| record.worst = None);
    assert!(!report::html(&run).contains("#worst"));
}

#[test]
fn a_reason_stands_once_above_all_recipes_of_its_rule() {
    let mut run = synthetic::small();
    let rules = run.manifest.experiment.gates.clone();
    run.verdicts
        .iter_mut()
        .for_each(|verdict| verdict.status = Status::Pass);
    let gates = section(&report::html(&run), "gates");
    for rule in &rules {
        let why = rule.why.replace('\'', "&#39;");
        assert_eq!(gates.matches(&why).count(), 1, "{why}");
    }
    assert_eq!(gates.matches("✓ PASS").count(), run.verdicts.len());
    assert!(gates.contains("cosine at layers.*.output, cumulative"), "{gates}");

    let why = "holds on 1 of 4 cells, and the others were not selected";
    run.verdicts.iter_mut().for_each(|verdict| {
        verdict.status = Status::NotJudged;
        verdict.message = why.into();
    });
    let gates = section(&report::html(&run), "gates");
    assert_eq!(gates.matches(why).count(), rules.len(), "{gates}");
    assert_eq!(gates.matches("tag open").count(), run.verdicts.len());
}

#[test]
fn the_overview_says_what_it_is_sorted_by() {
    let mut run = synthetic::small();
    let overview = |run: &Run| section(&report::html(run), "overview");
    assert!(overview(&run).contains("Rows are sorted by final error, least first, in each group."));
    run.summaries.retain(|summary| summary.phase == Phase::Local);
    assert!(overview(&run).contains("Rows are sorted by local error, least first"));
}
