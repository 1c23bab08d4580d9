//! Experiments with lines lost, moved, and of other experiments.

use proptest::prelude::*;
use ulplab::experiment::file::ExperimentFile;
use ulplab::studies;

use super::{cases, edited, edits};

const GIVEN: [&str; 5] = [
    include_str!("../../experiments/smoke.toml"),
    include_str!("../../experiments/recall.toml"),
    include_str!("../../experiments/round_trip.toml"),
    include_str!("../../experiments/state_precision.toml"),
    include_str!("../../experiments/ssm.toml"),
];

const LINES: [&str; 31] = [
    "[[window]]",
    "[[source]]",
    "[[recipe]]",
    "[[recipe.round]]",
    "[[gate]]",
    "[recipe]",
    "= 1",
    "name = \"a/b\"",
    "name = \"reference\"",
    "kind = \"model\"",
    "kind = \"recall\"",
    "seed = -1",
    "draws = 0",
    "draws = 9223372036854775807",
    "shape = [0, 0]",
    "shape = [9223372036854775807, 9223372036854775807]",
    "tokens = 1.5",
    "score_noise = nan",
    "score_noise = -inf",
    "format = \"e4m3/b0:f32\"",
    "from = { student_t = nan }",
    "from = { vectors = { channels = 0, top = 0 } }",
    "against = \"nobody\"",
    "kind = \"recurrence\"",
    "form = \"folded\"",
    "form = { chunked = 0 }",
    "form = { prefill = \"nobody\" }",
    "round = [{ at = \"*\", format = \"mxfp4\", direction = \"stochastic\" }]",
    "from = { linear_attention = { op = \"kda\", gate = { mean = nan }, state = [0, 1] } }",
    "from = { diagonal_ssm = { poles = { below_one = [0.5, nan] }, states = 9 } }",
    "require = \">= nan\"",
];

proptest! {
    #![proptest_config(cases(200))]

    /// It is told apart whether a file is an experiment, and if not, what line or name is wrong.
    #[test]
    fn lines_of_experiments(given in prop::sample::select(&GIVEN[..]), edits in edits(prop::sample::select(&LINES[..]))) {
        let text = edited(given.lines(), &edits).join("\n");
        let checked = ExperimentFile::new("x.toml".into(), text, &[]).and_then(|file| {
            let asked = studies::parse(&file)?;
            let study = &asked.study;
            let ready = study.check().and_then(|()| study.ready(asked.experiment.seed, None).map(|_| study.plan()));
            ready.map_err(|mistake| file.error(&mistake))
        });
        if let Err(error) = checked {
            let error = error.to_string();
            let message = error.strip_prefix("x.toml: ");
            prop_assert!(message.is_some_and(|message| message.len() > 10), "{error}");
        }
    }
}
