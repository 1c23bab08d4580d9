//! Bad input is an error that says what is wrong, and changes nothing.

use reference::Tensor;
use reference::ops::linear_attention::{Chunked, Form, Kv, Recurrent, State, Vk};

use super::support::*;

/// Two sequences, 2 key heads, 4 value heads, K = 3, V = 5.
fn good() -> Case {
    Random {
        heads: 2,
        group: 2,
        ..Random::new(Op::Gdn, &[4, 2], (3, 5))
    }
    .case()
}

fn error(case: &Case, form: &impl Form<f32>, slots: Option<&[i64]>) -> String {
    let before = State::<f32, Kv>::new(case.state.cast()).expect("a state");
    let mut state = before.clone();
    let error = case.run_in(form, &mut state, slots).expect_err("an error");
    assert_eq!(state, before);
    error
}

#[test]
fn shapes() {
    let wrong = |edit: &dyn Fn(&mut Case), want: &str| {
        let mut case = good();
        edit(&mut case);
        let got = error(&case, &Recurrent::DEFINITION, None);
        assert!(got.starts_with(want), "{got}");
    };
    wrong(
        &|case| case.q.shape = vec![6, 6],
        "q has shape [6, 6], expected [tokens, H, K]; v has [6, 4, 5]",
    );
    wrong(
        &|case| case.v.shape = vec![6, 20],
        "q has shape [6, 2, 3], expected [tokens, H, K]; v has [6, 20]",
    );
    wrong(
        &|case| case.k.shape = vec![6, 3, 2],
        "k has shape [6, 3, 2], expected [6, 2, 3]",
    );
    wrong(
        &|case| case.v = Tensor::full([5, 4, 5], 0.0),
        "v has shape [5, 4, 5], expected [6, 4, 5]",
    );
    wrong(
        &|case| case.v = Tensor::full([6, 3, 5], 0.0),
        "3 value heads are no multiple of 2 key heads",
    );
    wrong(
        &|case| case.v = Tensor::full([6, 0, 5], 0.0),
        "q has shape [6, 2, 3], v [6, 0, 5]: no size but the first may be 0",
    );
    wrong(
        &|case| case.beta = Some(Tensor::full([6, 2], 0.0)),
        "beta has shape [6, 2], expected [6, 4]",
    );
    wrong(
        &|case| case.decay = Decays::Head(Tensor::full([6, 2], 0.0)),
        "the decay of heads has shape [6, 2], expected [6, 4]",
    );
    wrong(
        &|case| case.decay = Decays::Channel(Tensor::full([6, 4, 5], 0.0)),
        "the decay of channels has shape [6, 4, 5], expected [6, 4, 3]",
    );
    wrong(
        &|case| case.decay = Decays::Constant(vec![0.0; 2]),
        "2 constant decays for 4 value heads",
    );
    wrong(
        &|case| case.state = Tensor::full([2, 4, 5, 3], 0.0),
        "the state has [value heads, K, V] [4, 5, 3], the inputs have [4, 3, 5]",
    );
}

#[test]
fn decays_that_grow() {
    for (decay, shown) in [(0.5, "0.5"), (f64::NAN, "NaN"), (f64::INFINITY, "inf")] {
        let mut case = good();
        if let Decays::Head(g) = &mut case.decay {
            g.data[7] = decay;
        }
        let want = format!("log decay 7 is {shown}, expected at most 0");
        assert_eq!(error(&case, &Recurrent::DEFINITION, None), want);
        assert_eq!(error(&case, &Chunked::exact(64), None), want);
    }
    // Forgetting everything is no error.
    let mut case = good();
    case.decay = Decays::Constant(vec![f64::NEG_INFINITY; 4]);
    let (steps, chunks) = (case.recurrent::<f64>(), case.chunked::<f64>(64));
    assert!(steps.o.data.iter().all(|o| o.is_finite()));
    agrees("no memory", &chunks, &steps, 4.0 * U64);
}

#[test]
fn sequences() {
    for bounds in [vec![], vec![0, 5], vec![1, 4, 6], vec![0, 7, 6], vec![0, 4, 3, 6]] {
        let mut case = good();
        case.cu_seqlens.clone_from(&bounds);
        let want = format!("cu_seqlens {bounds:?} does not rise from 0 to 6 tokens");
        assert_eq!(error(&case, &Recurrent::DEFINITION, None), want);
    }
}

#[test]
fn slots() {
    let case = good();
    let wrong = |slots: &[i64], want: &str| assert_eq!(error(&case, &Recurrent::DEFINITION, Some(slots)), want);
    wrong(&[0], "1 slot indices for 2 sequences");
    wrong(&[0, 2], "sequence 1 has slot 2 of a pool of 2");
    wrong(&[1, 1], "sequences 0 and 1 have the same slot 1");
    let mut more = State::<f32, Vk>::zeros(3, 4, 3, 5);
    let got = case.run_in(&Recurrent::DEFINITION, &mut more, None);
    assert_eq!(got, Err("the state has 3 slots for 2 sequences, and no indices".into()));
    assert!(case.run_in(&Recurrent::DEFINITION, &mut more, Some(&[-1, 2])).is_ok());
}

/// With K ≠ V a tensor in the wrong layout is found out; with K = V only its type tells.
#[test]
fn layouts() {
    let case = good();
    let kv = State::<f32, Kv>::new(case.state.cast()).expect("a state");
    assert_eq!((kv.sizes(), &kv.tensor().shape[..]), ([2, 4, 3, 5], &[2, 4, 3, 5][..]));
    assert_eq!(
        (kv.turned().sizes(), &kv.turned().tensor().shape[..]),
        ([2, 4, 3, 5], &[2, 4, 5, 3][..])
    );
    let mut mistaken = State::<f32, Vk>::new(case.state.cast()).expect("a state");
    let got = case.run_in(&Recurrent::DEFINITION, &mut mistaken, None);
    assert_eq!(
        got,
        Err("the state has [value heads, K, V] [4, 5, 3], the inputs have [4, 3, 5]".into())
    );
    for shape in [vec![2, 4, 15], vec![2, 0, 3, 5], vec![2, 4, 0, 5]] {
        let got = State::<f32, Kv>::new(Tensor::full(shape.clone(), 0.0));
        assert_eq!(
            got.err(),
            Some(format!(
                "a state has shape {shape:?}, expected slots, value heads and a matrix"
            ))
        );
    }
}

#[test]
fn chunks_of_nothing() {
    assert_eq!(error(&good(), &Chunked::exact(0), None), "chunks of 0 tokens");
}
