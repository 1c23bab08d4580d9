use ulplab::ops::{Buffer, Case, Problem};

use super::delta_decode::{self, decoded};
use super::delta_prefill::{self, prefill};
use super::{problems, violations};

/// The decode that follows, on states that prefill left.
fn next(case: &Case, problem: &Problem, states: Vec<u8>) -> (Case, Problem) {
    let n = case.dim("N") as i64;
    let decode = Case {
        keys: vec![
            ("kind", case.key("gate").into()),
            ("layout", "vk".into()),
            ("state", "f32".into()),
            (
                "form",
                if case.key("gate") == "kda" {
                    "bounded"
                } else {
                    "softplus"
                }
                .into(),
            ),
        ],
        dims: [("B", n), ("slots", n), ("G", 1), ("size", 4)]
            .into_iter()
            .chain(["H", "K", "V"].map(|dim| (dim, case.dim(dim) as i64)))
            .collect(),
        ..case.clone()
    };
    let named = |buffer: &Buffer| Buffer {
        name: match buffer.name {
            "q" | "k" | "v" | "beta" | "o" => "before",
            "next_q" => "q",
            "next_k" => "k",
            "next_v" => "v",
            "next_beta" => "beta",
            "next_o" => "o",
            other => other,
        },
        bytes: match buffer.name {
            "state" => states.clone(),
            _ => buffer.bytes.clone(),
        },
        ..buffer.clone()
    };
    let problem = Problem {
        buffers: problem.buffers.iter().map(named).collect(),
        scalars: problem.scalars.clone(),
        bytes: 0,
        flops: 0,
        judges: Vec::new(),
        batch: None,
        runs: 1,
        large: false,
    };
    (decode, problem)
}

/// Token by token in f32, or with a mistake in either part.
fn handed_over(
    case: &Case,
    problem: &Problem,
    before: delta_prefill::Mistake,
    after: delta_decode::Mistake,
) -> Vec<(&'static str, Vec<u8>)> {
    let [(_, o), (_, states)] = <[_; 2]>::try_from(prefill(case, problem, before)).unwrap();
    let (case, problem) = next(case, problem, states);
    let left = decoded(&case, &problem, after).into_iter();
    let left = left.map(|(name, bytes)| (if name == "o" { "next_o" } else { name }, bytes));
    left.chain([("o", o)]).collect()
}

#[test]
fn delta_handover_accepts_f32_and_no_mistake() {
    use delta_decode::Mistake as After;
    use delta_prefill::Mistake as Before;
    for (case, problem) in &problems("delta_handover") {
        let judged = |before, after| violations(problem, handed_over(case, problem, before, after));
        assert_eq!(judged(Before::None, After::None), 0.0, "{}", case.name);
        // The state of one sequence, which is only decayed: nothing is updated.
        let carried = case.name.ends_with("carried");
        let joined = (!carried).then_some(Before::SequencesJoined);
        for before in [Before::LayoutConfused, Before::BetaDropped].into_iter().chain(joined) {
            assert!(judged(before, After::None) > 0.0, "{}: {before:?}", case.name);
        }
        let updates = (!carried).then_some([After::DecayLate, After::UpdateUnread]);
        for after in [After::LayoutConfused, After::BetaDropped]
            .into_iter()
            .chain(updates.into_iter().flatten())
        {
            assert!(judged(Before::None, after) > 0.0, "{}: {after:?}", case.name);
        }
    }
}
