//! Tables of a given width.

use ulplab::report::columns::fitted;

const HEADS: [&str; 3] = ["recipe", "metric", "worse by"];

#[test]
fn columns_go_before_rows_fold_and_words_stay_whole() {
    let rows = [vec!["nvfp4", "relative_l2", "+1.750e-5"]];
    assert_eq!(
        fitted(&HEADS, &rows, &[1], 80),
        ["recipe  metric       worse by", "nvfp4   relative_l2  +1.750e-5"]
    );
    assert_eq!(
        fitted(&HEADS, &rows, &[1], 20),
        ["recipe  worse by", "nvfp4   +1.750e-5"]
    );
    assert_eq!(
        fitted(&HEADS, &rows, &[1], 15),
        [
            "recipe: nvfp4",
            "  metric:",
            "  relative_l2",
            "  worse by:",
            "  +1.750e-5"
        ]
    );
}
