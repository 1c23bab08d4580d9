//! Recipes that stand for several.

use serde::Deserialize;
use ulplab::studies::model::Recipe;
use ulplab::studies::model::recipe::written_out;

#[derive(Debug, Deserialize)]
struct File {
    #[serde(deserialize_with = "written_out")]
    recipe: Vec<Recipe>,
}

fn read(more: &str, round: &str) -> Result<Vec<Recipe>, String> {
    let text = format!(
        "[[recipe]]\nname = \"plain\"\ndoc = \"d\"\n[[recipe]]\nname = \"w4\"\ndoc = \"four bits\"\n{more}\nround = [{round}]\n"
    );
    let file: Result<File, toml::de::Error> = toml::from_str(&text);
    file.map(|file| file.recipe).map_err(|error| error.message().into())
}

const ROUND: &str =
    "{ at = \"layers.**.weight\", format = \"nvfp4\" }, { at = \"layers.*.mlp.input\", format = \"nvfp4\" }";

/// Name, description, and the layers of each round, of the recipes that one stands for.
fn told(more: &str) -> Vec<(String, String, Vec<Option<String>>)> {
    let recipes = read(more, ROUND).unwrap().into_iter().skip(1);
    let layers = |recipe: &Recipe| recipe.rounds.iter().map(|round| round.layers.clone()).collect();
    recipes
        .map(|recipe| (recipe.name.clone(), recipe.doc.clone(), layers(&recipe)))
        .collect()
}

#[test]
fn a_recipe_stands_for_one_of_each_layer() {
    let both = |layers: &str| vec![Some(layers.to_string()); 2];
    let row = |name: &str, doc: &str, layers: &str| (name.to_string(), doc.to_string(), both(layers));
    assert_eq!(
        told("each = { only = \"0-1,7\" }"),
        [
            row("w4_l0", "four bits, layer 0 only", "0"),
            row("w4_l1", "four bits, layer 1 only", "1"),
            row("w4_l7", "four bits, layer 7 only", "7"),
        ]
    );
    assert_eq!(
        told("each = { but = \"0-2,7\" }"),
        [
            row("w4_but0", "four bits, without layer 0", "1-2,7"),
            row("w4_but1", "four bits, without layer 1", "0,2,7"),
            row("w4_but2", "four bits, without layer 2", "0-1,7"),
            row("w4_but7", "four bits, without layer 7", "0-2"),
        ]
    );
    assert_eq!(told("")[0].2, [None, None], "without the key it is one recipe");
}

#[test]
fn what_cannot_be_of_one_layer_is_refused() {
    let of_some = "{ at = \"layers.*.output\", format = \"bf16\", layers = \"0-3\" }";
    for (more, round, words) in [
        (
            "each = { only = \"0-3\" }",
            "",
            "recipe 'w4': each: there is no 'round'",
        ),
        (
            "each = { only = \"0-3\" }",
            of_some,
            "recipe 'w4': each: a 'round' of the recipe names 'layers' itself",
        ),
        (
            "each = { but = \"5\" }",
            ROUND,
            "recipe 'w4': each: but = \"5\" leaves no layer",
        ),
        (
            "each = { only = \"3-1\" }",
            ROUND,
            "recipe 'w4': each: layers '3-1' are not in order; the first of a range comes first",
        ),
        (
            "each = { only = \"0-1024\" }",
            ROUND,
            "there is no layer 1024; expected numbers from 0 to 1023",
        ),
        (
            "each = { only = \"all\" }",
            ROUND,
            "'all' is not a layer or a range of layers",
        ),
        ("each = { some = \"1\" }", ROUND, "unknown variant `some`"),
    ] {
        let error = read(more, round).unwrap_err();
        assert!(error.contains(words), "{more}: {error}");
    }
}
