//! Cumulative phase: each token starts from the state that the candidate computed, not from the reference's state.

use reference::paths::swap_ffn::{State, decode};

use super::candidate::Candidate;
use super::exact::{Checkpoint, Token};
use super::sizes::Inputs;
use super::{Compared, FIRST, Method};
use crate::studies::measure::{at, records};
use ulplab_core::metrics::{Decided, Decisions, History, Pair};
use ulplab_core::record::Record;

/// Measures a candidate whose tokens start from the state that the candidate computed. At every checkpoint, compares the
/// decisions and token outputs (deltas) since the previous checkpoint; the decisions since the first token; the map of each
/// core (its order of memory banks); and the contents of the banks. For the first token, compares the decisions of each event
/// (router, bank exchange and FFN).
pub fn measure(blank: &Record, inputs: &Inputs, method: &Method, want: &[Token]) -> Result<Vec<Record>, String> {
    let source = inputs.source();
    let mut candidate = Candidate::new(inputs, method)?;
    let mut state = inputs.state()?;
    let mut same = vec![true; state.map.len()];
    let mut since = Compared::new(method.margin);
    let mut all = Vec::new();
    for (token, known) in want.iter().enumerate() {
        let (delta, decisions) = candidate.token(&inputs.token(token), &mut state, known.decisions.len())?;
        for (event, (known, own)) in known.decisions.iter().zip(&decisions).enumerate() {
            let mut here = Decisions::new(method.margin);
            for ((&want, &(open, bank)), same) in known.iter().zip(own).zip(&mut same) {
                let got = Decided { open, bank, ..want };
                *same &= want.agrees(got);
                since.decisions.add(want, got);
                here.add(want, got);
            }
            if token == 0 {
                let place = at(blank, Some(event as u32), format!("{source}.{FIRST}"));
                all.extend(records(&place, &here, &[]));
            }
        }
        since.got.extend(delta);
        since.want.extend(&known.delta);
        if let Some(checkpoint) = &known.checkpoint {
            let since = std::mem::replace(&mut since, Compared::new(method.margin));
            let place = |what| at(blank, None, format!("{source}.{what}.{}", token + 1));
            all.extend(records(&place("decisions"), &since.decisions, &[]));
            all.extend(records(&place("lanes"), &history(checkpoint, &state, &same), &[]));
            let ram = Pair::new(&checkpoint.ram, &state.ram.data);
            all.extend(records(&place("ram"), &ram, &state.ram.shape));
            all.extend(since.numbers(&place("delta")));
        }
    }
    Ok(all)
}

fn history(want: &Checkpoint, got: &State<f32>, same: &[bool]) -> History {
    let lanes = want.map.iter().zip(&got.map).map(|(&want, &got)| {
        let lanes = decode(want).into_iter().zip(decode(got));
        lanes.filter(|(want, got)| want != got).count() as u64
    });
    History {
        cores: same.len() as u64,
        same: same.iter().filter(|same| **same).count() as u64,
        lanes: lanes.sum(),
    }
}
