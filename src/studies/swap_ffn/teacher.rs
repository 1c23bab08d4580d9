//! The local phase: every event (router, bank exchange and FFN) starts from the reference's state, and obeys the reference's
//! decisions.

use super::candidate::{Candidate, GateAndBank};
use super::exact::{Checkpoint, Token};
use super::sizes::Inputs;
use super::{Compared, ExactEvent, Method, decided};
use crate::studies::measure::{at, records};
use ulplab_core::metrics::{Decided, Decisions};
use ulplab_core::record::Record;
use ulplab_swap_ffn::Part;

/// Measures the events of each token at a checkpoint: the candidate's decisions, the vectors x after the event, and the
/// decisions that the next event makes on these vectors. Kernels cannot obey the reference's decisions, so their x is compared
/// only in rows where the kernel's decision equals the reference's.
pub fn measure(blank: &Record, inputs: &Inputs, method: &Method, want: &[Token]) -> Result<Vec<Record>, String> {
    let mut candidate = Candidate::new(inputs, method)?;
    let mut all = Vec::new();
    for (token, known) in want.iter().enumerate() {
        let Some(checkpoint) = &known.checkpoint else { continue };
        let (found, next) = walk(&mut candidate, method.margin, checkpoint)?;
        let place = |what| at(blank, None, format!("{}.{what}.{}", inputs.source(), token + 1));
        all.extend(records(&place("decisions"), &found.decisions, &[]));
        all.extend(records(&place("next"), &next, &[]));
        all.extend(found.numbers(&place("x")));
    }
    Ok(all)
}

/// Runs each event of a token from the reference's state. The first result compares the decisions and x of all events, and the
/// second result compares the decisions that the next events would make on this x.
fn walk(candidate: &mut Candidate, margin: f64, checkpoint: &Checkpoint) -> Result<(Compared, Decisions), String> {
    let (mut found, mut following) = (Compared::new(margin), Decisions::new(margin));
    for (event, known) in checkpoint.events.iter().enumerate() {
        let (mut x, mut after) = (known.x.clone(), known.state.clone());
        let own = candidate.event(Part::Event, (&mut x, &mut after), event, &known.decisions)?;
        let agree = compare(&mut found.decisions, known, &own, None);
        let followed: Vec<bool> = agree.into_iter().map(|agrees| agrees || candidate.follows()).collect();
        for row in (0..x.rows()).filter(|row| followed[*row]) {
            found.want.extend(known.after.row(row));
            found.got.extend(x.row(row));
        }
        if let Some(next) = checkpoint.events.get(event + 1) {
            let own = candidate.event(Part::Exchange, (&mut x, &mut after), event + 1, &next.decisions)?;
            compare(&mut following, next, &own, Some(&followed));
        }
    }
    Ok((found, following))
}

/// Compares the candidate's decisions, `own`, with the reference's, row by row, and returns true for each row in which they
/// agree. Adds the compared pairs to `decisions`; if `rows` is given, only the rows in which it is true.
fn compare(decisions: &mut Decisions, known: &ExactEvent, own: &[GateAndBank], rows: Option<&[bool]>) -> Vec<bool> {
    let pairs = decided(&known.decisions).zip(own).enumerate();
    let pairs = pairs.map(|(row, (want, &(open, bank)))| {
        let got = Decided { open, bank, ..want };
        if rows.is_none_or(|rows| rows[row]) {
            decisions.add(want, got);
        }
        want.agrees(got)
    });
    pairs.collect()
}
