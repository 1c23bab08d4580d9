//! Lines of keys in the files of kernels.

use ulplab::backend::cuda::plan::SMS;
use ulplab::backend::cuda::{Plan, Source};
use ulplab::ops;
use ulplab::studies::kernels::line_of;

const TEXT: &str = r#"/*
[[variant]]
name = "a"
doc = "x"
[[variant.launch]]
entry = "first_{dtype}"
grid = ["T"]
block = [128]

[[variant.launch]]
entry = "second"
shared = 16
grid = ["T", 1]
block = [256]
*/
"#;

/// The mistake of the variant on a case of rmsnorm, and the line in the message.
fn wrong(change: [&str; 2]) -> (usize, String) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("rmsnorm.cu");
    std::fs::write(&file, TEXT.replacen(change[0], change[1], 1)).unwrap();
    let source = Source::read(&file, &ulplab::ops::COMPOSITIONS).unwrap();
    let variant = &source.header.variants[0];
    let case = ops::find("rmsnorm").unwrap().cases().remove(0);
    let what = Plan::new(variant, &case, SMS).unwrap_err();
    (line_of(&source, variant, &what), what)
}

#[test]
fn a_mistake_is_told_with_the_line_of_its_key() {
    for (change, line, words) in [
        (
            ["[128]", "[\"T +\"]"],
            8,
            "launch 'first_{dtype}': block: expression 'T +': it ends too early",
        ),
        (["[128]", "[0]"], 8, "block is 0, expected 1 to"),
        (
            ["[\"T\", 1]", "[\"5 / 0\"]"],
            13,
            "launch 'second': grid: expression '5 / 0': 5 / 0 has no value",
        ),
        (["[\"T\", 1]", "[\"1\", \"T - T\"]"], 13, "grid is 0 by 'T - T'"),
        (
            ["= 16", "= 5000000000000"],
            12,
            "shared is 5000000000000, expected bytes from 0 to 4294967295",
        ),
        (["= 16", "= \"K\""], 12, "shared: expression 'K': no size 'K'"),
        (
            ["second", "second_{dtyp}"],
            11,
            "entry 'second_{dtyp}' has a key the case does not",
        ),
    ] {
        let (at, what) = wrong(change);
        assert!(what.contains(words), "'{words}' is not in: {what}");
        assert_eq!(at, line, "{what}");
    }
}
