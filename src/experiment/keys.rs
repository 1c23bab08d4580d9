//! Which keys an experiment of a kind uses: a key that it would ignore is refused.

use super::{Experiment, Kind};
use Kind::{Kernels, Model, Recall, Recurrence, RoundTrip, SwapFfn};

/// A key of the file.
pub struct Key {
    pub name: &'static str,
    /// Kinds of experiments that use it.
    pub kinds: &'static [Kind],
    /// Whether an experiment has a value for it, other than the default.
    given: fn(&Experiment) -> bool,
}

const ALL: &[Kind] = &[Model, RoundTrip, Recall, Recurrence, SwapFfn, Kernels];
const TEXT: &[Kind] = &[Model, RoundTrip, Recall, Kernels];
const DRAWN: &[Kind] = &[RoundTrip, Recall, Recurrence, SwapFfn];

/// All keys.
pub const KEYS: &[Key] = &[
    key("name", ALL, |_| true),
    key("question", ALL, |_| true),
    key("kind", ALL, |_| true),
    key("seed", ALL, |_| true),
    key("gate", ALL, |_| true),
    key("model", TEXT, |experiment| experiment.model.is_some()),
    key("tokens", TEXT, |experiment| experiment.tokens > 0),
    key("window", TEXT, |experiment| !experiment.windows.is_empty()),
    key("phases", &[Model, SwapFfn], |experiment| !experiment.phases.is_empty()),
    key("draws", DRAWN, |experiment| experiment.draws > 0),
    key("shape", DRAWN, |experiment| experiment.shape != [0, 0]),
    key("source", DRAWN, |experiment| !experiment.sources.is_empty()),
    key(
        "recipe",
        &[Model, RoundTrip, Recall, Recurrence, SwapFfn],
        |experiment| !experiment.recipes.is_empty(),
    ),
    key("kernels", &[Kernels], |experiment| !experiment.kernels.is_empty()),
    key("command", &[Kernels], |experiment| !experiment.commands.is_empty()),
    key("op", &[Kernels], |experiment| !experiment.ops.is_empty()),
    key("case", &[Kernels], |experiment| !experiment.own_cases.is_empty()),
    key("cases", &[Kernels], |experiment| !experiment.cases.is_empty()),
    // Only `run.json` names the cases that are chosen.
    key("case_names", &[], |experiment| !experiment.case_names.is_empty()),
];

const fn key(name: &'static str, kinds: &'static [Kind], given: fn(&Experiment) -> bool) -> Key {
    Key { name, kinds, given }
}

impl Kind {
    /// As it is written in a file.
    pub fn name(self) -> &'static str {
        match self {
            Model => "model",
            RoundTrip => "round_trip",
            Recall => "recall",
            Recurrence => "recurrence",
            SwapFfn => "swap_ffn",
            Kernels => "kernels",
        }
    }
}

impl Experiment {
    /// Finds a key that the experiment, as it stands in its file, would ignore: `(key, message)`.
    pub fn check_keys(&self) -> Result<(), (String, String)> {
        let wrong = |key: &str, message: String| Err((key.to_string(), message));
        let kind = self.kind.name();
        let ignored = |key: &&Key| !key.kinds.contains(&self.kind) && (key.given)(self);
        if let Some(Key { name, kinds, .. }) = KEYS.iter().find(ignored) {
            let users: Vec<String> = kinds.iter().map(|kind| format!("\"{}\"", kind.name())).collect();
            let whose = match users.is_empty() {
                true => "no experiment file has it".into(),
                false => format!("it is for kind = {}", users.join(", ")),
            };
            return wrong(
                name,
                format!("an experiment of kind = \"{kind}\" has no use for '{name}'; {whose}"),
            );
        }
        if self.windows.is_empty() && self.tokens > 0 {
            let message = "tokens is the length of windows of text, and no [[window]] is given";
            return wrong("tokens", message.into());
        }
        if self.kind == Kernels && self.windows.len() > 1 {
            let message = format!("kernels are tried on one window, and {} are given", self.windows.len());
            return wrong("window", message);
        }
        Ok(())
    }
}
