//! The local phase: every event from the reference's state, with the reference's decisions.

use reference::paths::swap_ffn::{Model, State};

use super::exact::Taught;
use super::method::Forced;
use super::sizes::Inputs;
use super::{Known, Method, Path, at, decided};
use crate::metrics::{Decided, Decisions, Pair};
use crate::record::Record;
use crate::sweep::probe::records;

/// At every checkpoint, over the token's events: what the candidate decides, what it would decide next on the x it made,
/// and that x.
pub(super) fn measure(
    blank: &Record,
    source: &str,
    inputs: &Inputs,
    method: &Method,
    want: &Path,
) -> Result<Vec<Record>, String> {
    let mut rounding = method;
    let model = inputs.model(method.config(inputs.config()), &mut rounding);
    let mut all = Vec::new();
    for (token, known) in want.tokens.iter().enumerate() {
        let Some(checkpoint) = &known.checkpoint else { continue };
        let found = walk(&model, method, &checkpoint.taught)?;
        let pair = Pair::new(&found.want, &found.got);
        let place = |what| at(blank, source, what, token + 1);
        all.extend(records(&place("decisions"), &found.decisions, &[]));
        all.extend(records(&place("next"), &found.next, &[]));
        all.extend(records(&place("x"), &pair, &[found.want.len()]));
    }
    Ok(all)
}

/// The events of a token.
struct Found {
    decisions: Decisions,
    next: Decisions,
    want: Vec<f64>,
    got: Vec<f32>,
}

fn walk(model: &Model<f32>, method: &Method, taught: &Taught) -> Result<Found, String> {
    let mut found = Found {
        decisions: Decisions::new(method.margin),
        next: Decisions::new(method.margin),
        want: Vec::new(),
        got: Vec::new(),
    };
    let mut state = taught.state.clone();
    for (event, known) in taught.events.iter().enumerate() {
        let (mut x, mut after) = (known.x.clone(), state.clone());
        let mut forced = Forced::new(Some(method), &known.decisions);
        (method.event)(model, &mut x, &mut after, event, &mut forced)?;
        compare(&mut found.decisions, known, &forced);
        found.want.extend(&known.after.data);
        found.got.extend(&x.data);
        if let Some(next) = taught.events.get(event + 1) {
            let mut forced = Forced::new(Some(method), &next.decisions);
            model.exchange(&mut x, &mut after, event + 1, &mut forced)?;
            compare(&mut found.next, next, &forced);
        }
        teach(model, &mut state, event, known)?;
    }
    Ok(found)
}

/// Takes the reference's state over the event.
fn teach(model: &Model<f32>, state: &mut State<f32>, event: usize, known: &Known) -> Result<(), String> {
    let mut exact = Forced::new(None, &known.decisions);
    model.exchange(&mut known.x.clone(), state, event, &mut exact).map(drop)
}

fn compare(decisions: &mut Decisions, known: &Known, forced: &Forced) {
    let [gates, banks] = &forced.own;
    for ((want, &gate), &bank) in decided(&known.decisions).zip(gates).zip(banks) {
        let got = Decided {
            open: gate == 1,
            bank: bank as u8,
            ..want
        };
        decisions.add(want, got);
    }
}
