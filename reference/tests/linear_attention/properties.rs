//! What must not matter, and what must follow, for random cases.

use proptest::prelude::*;
use reference::ops::linear_attention::{Chunked, Form, Kv, Recurrent, State, Vk};
use reference::{Real, Tensor};

use super::support::*;

/// Sequences with none, one, and around 64 tokens among them.
fn lengths() -> impl Strategy<Value = Vec<usize>> {
    let length = prop_oneof![Just(0), Just(1), 2..20usize, 60..70usize, 120..140usize];
    prop::collection::vec(length, 1..4)
}

fn random() -> impl Strategy<Value = Random> {
    let dims = (1..24usize, 1..24usize);
    let gate = prop_oneof![Just(0.0), Just(-0.01), Just(-0.1), Just(-1.0), Just(-5.0)];
    (
        prop::sample::select(&OPS[..]),
        lengths(),
        1..3usize,
        1..4usize,
        dims,
        gate,
        any::<u64>(),
    )
        .prop_map(|(op, lengths, heads, group, dims, gate, seed)| Random {
            op,
            lengths,
            heads,
            group,
            dims,
            gate,
            seed,
        })
}

/// The largest state on the way scales every later rounding error. The two forms round differently at every token; what a
/// delta rule does to the state has no eigenvalue beyond 1, so their errors add up over at most all tokens.
fn bound(case: &Case, u: f64) -> f64 {
    let tokens = case.q.shape[0].max(1) as f64;
    4.0 * (2.0 * case.dims().0 as f64 + tokens).sqrt() * u
}

/// Farthest of o and of the states, relative to the largest of either of them or of the states before.
fn distance<T: Real, U: Real>(case: &Case, got: &Outcome<T>, want: &Outcome<U>) -> f64 {
    let size = top(&want.o.data).max(top(&want.state.data)).max(top(&case.state.data));
    farthest(&got.o.data, &want.o.data).max(farthest(&got.state.data, &want.state.data)) / size
}

/// The outcomes of parts of one batch, joined.
fn joined<T: Real>(parts: impl IntoIterator<Item = Outcome<T>>) -> Outcome<T> {
    let mut parts = parts.into_iter();
    let mut whole = parts.next().expect("at least one part");
    for part in parts {
        for (to, from) in [(&mut whole.o, part.o), (&mut whole.state, part.state)] {
            to.shape[0] += from.shape[0];
            to.data.extend(from.data);
        }
    }
    whole
}

/// Every sequence by itself.
fn one_by_one<T: Real>(case: &Case, form: &impl Form<T>) -> Outcome<T> {
    let sequences = 0..case.cu_seqlens.len() - 1;
    joined(sequences.map(|n| case.cut(n, 0..case.tokens(n)).run(form)))
}

/// A way to compute a case.
type Way<'a> = &'a dyn Fn(&Case) -> Outcome<f32>;

/// A sequence cut in two at `at`, the second part going on from the state of the first.
fn in_two(case: &Case, at: usize, ways: [Way<'_>; 2]) -> Outcome<f32> {
    let first = ways[0](&case.cut(0, 0..at));
    let mut rest = case.cut(0, at..case.tokens(0));
    rest.state = Tensor::new(
        first.state.shape.clone(),
        first.state.data.iter().map(|&x| x.into()).collect(),
    );
    let second = ways[1](&rest);
    Outcome {
        o: joined([first, second.clone()]).o,
        state: second.state,
    }
}

/// Whether output and states are the same bit for bit.
fn layouts_agree(case: &Case, form: &impl Form<f32>) -> bool {
    let mut kv = State::<f32, Kv>::new(case.state.cast()).expect("a state");
    let mut vk: State<f32, Vk> = kv.turned();
    let of_kv = case.run_in(form, &mut kv, None);
    let of_vk = case.run_in(form, &mut vk, None);
    of_kv == of_vk && of_kv.is_ok() && kv.turned() == vk
}

/// Each value head with a copy of its key head.
fn repeated(case: &Case) -> Case {
    let group = case.v.shape[1] / case.q.shape[1];
    let repeat = |x: &Tensor<f64>| {
        let rows = x.data.chunks_exact(x.cols());
        let data = rows.flat_map(|row| std::iter::repeat_n(row, group)).flatten().copied();
        Tensor::new([x.shape[0], x.shape[1] * group, x.cols()], data.collect())
    };
    Case {
        q: repeat(&case.q),
        k: repeat(&case.k),
        ..case.clone()
    }
}

/// Decays of heads given to each channel, or constant ones to each token.
fn spread(case: &Case) -> Case {
    let (tokens, value_heads, keys) = (case.v.shape[0], case.v.shape[1], case.q.cols());
    let decay = match &case.decay {
        Decays::Head(g) => Decays::Channel(Tensor::new(
            [tokens, value_heads, keys],
            g.data.iter().flat_map(|&g| std::iter::repeat_n(g, keys)).collect(),
        )),
        Decays::Constant(g) => Decays::Head(Tensor::new([tokens, value_heads], g.repeat(tokens))),
        Decays::Channel(_) => case.decay.clone(),
    };
    Case { decay, ..case.clone() }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn chunks_are_the_recurrence(random in random(), chunk in prop::sample::select(&[1usize, 16, 17, 32, 64][..])) {
        let case = random.case();
        let want = case.recurrent::<f64>();
        prop_assert!(distance(&case, &case.chunked::<f64>(chunk), &want) <= bound(&case, U64));
        prop_assert!(distance(&case, &case.chunked::<f32>(chunk), &want) <= bound(&case, U32));
    }

    #[test]
    fn f32_is_f64_rounded_at_every_token(random in random()) {
        let case = random.case();
        let want = case.recurrent::<f64>();
        prop_assert!(distance(&case, &case.recurrent::<f32>(), &want) <= bound(&case, U32));
        prop_assert!(distance(&case, &case.run::<f32>(&Recurrent::ONE_PASS), &want) <= bound(&case, U32));
        prop_assert!(distance(&case, &case.run::<f64>(&Recurrent::ONE_PASS), &want) <= bound(&case, U64));
    }

    #[test]
    fn sequences_do_not_meet(random in random()) {
        let case = random.case();
        prop_assert_eq!(bits(&case.recurrent::<f32>()), bits(&one_by_one::<f32>(&case, &Recurrent::DEFINITION)));
        prop_assert_eq!(bits(&case.chunked::<f32>(16)), bits(&one_by_one::<f32>(&case, &Chunked::exact(16))));
    }

    #[test]
    fn empty_sequences_keep_their_state(random in random()) {
        let case = Random { lengths: vec![0; random.lengths.len()], ..random }.case();
        for got in [case.recurrent::<f64>(), case.chunked(64)] {
            prop_assert_eq!(&got.state, &case.state);
            prop_assert!(got.o.data.is_empty());
        }
    }

    #[test]
    fn sequences_go_on_from_their_state(random in random(), length in 2..150usize, cut in 0.0..1.0f64) {
        let case = Random { lengths: vec![length], ..random }.case();
        let at = (length as f64 * cut) as usize;
        let steps: Way<'_> = &|case| case.recurrent();
        let chunks: Way<'_> = &|case| case.chunked(16);
        prop_assert_eq!(bits(&in_two(&case, at, [steps, steps])), bits(&case.recurrent::<f32>()));
        // Chunks start where the sequence does: bit for bit only where it is cut between two of them.
        let whole = case.chunked::<f32>(16);
        prop_assert_eq!(bits(&in_two(&case, at / 16 * 16, [chunks, chunks])), bits(&whole));
        prop_assert!(distance(&case, &in_two(&case, at, [chunks, chunks]), &whole) <= bound(&case, U32));
        prop_assert!(distance(&case, &in_two(&case, at, [chunks, steps]), &whole) <= bound(&case, U32));
    }

    /// No row depends on a later one, whatever is in it.
    #[test]
    fn the_future_does_not_matter(random in random(), length in 1..100usize, kept in 0.0..1.0f64) {
        let case = Random { lengths: vec![length], ..random }.case();
        let kept = (length as f64 * kept) as usize;
        // Rounding does depend on how many rows a product has.
        let whole = case.chunked::<f32>(32).o;
        let size = top(&whole.data).max(top(&case.state.data));
        let mut spoilt = case.clone();
        for x in [&mut spoilt.q, &mut spoilt.k, &mut spoilt.v] {
            let row = x.shape[1] * x.cols();
            x.data[kept * row..].fill(f64::NAN);
        }
        let got = spoilt.chunked::<f32>(32).o;
        let rows = |o: &Tensor<f32>| span(o, 0..kept).data;
        prop_assert!(farthest(&rows(&got), &rows(&whole)) <= bound(&case, U32) * size);
        prop_assert!(span(&got, kept..length).data.iter().all(|o| o.is_nan()));
    }

    #[test]
    fn layouts_differ_by_a_transposition(random in random()) {
        let case = random.case();
        prop_assert!(layouts_agree(&case, &Recurrent::DEFINITION) && layouts_agree(&case, &Recurrent::ONE_PASS));
        prop_assert!(layouts_agree(&case, &Chunked::exact(16)));
    }

    #[test]
    fn value_heads_share_key_heads_in_a_row(random in random()) {
        let case = random.case();
        prop_assert_eq!(bits(&case.recurrent::<f32>()), bits(&repeated(&case).recurrent::<f32>()));
        prop_assert_eq!(bits(&case.chunked::<f32>(16)), bits(&repeated(&case).chunked::<f32>(16)));
    }

    #[test]
    fn one_decay_is_that_of_all_channels(random in random()) {
        let (case, spread) = (random.case(), spread(&random.case()));
        prop_assert_eq!(bits(&case.recurrent::<f32>()), bits(&spread.recurrent::<f32>()));
        let want = case.chunked::<f64>(32);
        prop_assert!(distance(&case, &spread.chunked::<f64>(32), &want) <= bound(&case, U64));
    }

    #[test]
    fn nothing_to_do_changes_nothing(random in random()) {
        let mut case = Random { gate: 0.0, op: Op::Kda, ..random }.case();
        case.beta.as_mut().expect("the delta rule").data.fill(0.0);
        for got in [case.recurrent::<f32>(), case.run(&Recurrent::ONE_PASS), case.chunked(16)] {
            prop_assert_eq!(got.state, case.state.cast());
        }
    }

    /// Which slots the sequences have does not matter, and other slots are left alone.
    #[test]
    fn slots_are_interchangeable(random in random(), shift in 1..5usize, skipped in 0..4usize) {
        let case = random.case();
        let sequences = case.cu_seqlens.len() - 1;
        let pool = sequences + 2;
        let skips = |n: usize| n == skipped;
        let slots: Vec<i64> =
            (0..sequences).map(|n| if skips(n) { -1 } else { ((n + shift) % pool) as i64 }).collect();
        let size = case.state.data.len() / sequences;
        let mut before = Tensor::full([&[pool], &case.state.shape[1..]].concat(), 7.0);
        for (n, slot) in slots.iter().enumerate().filter(|(n, _)| !skips(*n)) {
            let at = *slot as usize * size;
            before.data[at..at + size].copy_from_slice(&case.state.data[n * size..][..size]);
        }
        let mut state = State::<f64, Kv>::new(before.clone()).expect("a state");
        let o = case.run_in(&Recurrent::DEFINITION, &mut state, Some(&slots)).expect("a good case");
        let want = case.recurrent::<f64>();
        for (n, &slot) in slots.iter().enumerate() {
            let o = span(&o, case.cu_seqlens[n]..case.cu_seqlens[n + 1]);
            if let Ok(slot) = usize::try_from(slot) {
                prop_assert_eq!(o, span(&want.o, case.cu_seqlens[n]..case.cu_seqlens[n + 1]));
                prop_assert_eq!(span(state.tensor(), slot..slot + 1), span(&want.state, n..n + 1));
            } else {
                prop_assert!(o.data.iter().all(|&o| o == 0.0));
            }
        }
        for slot in (0..pool).filter(|&slot| !slots.contains(&(slot as i64))) {
            prop_assert!(span(state.tensor(), slot..slot + 1).data.iter().all(|&x| x == 7.0));
        }
    }

    /// o and the states are linear in v and in the states before, and a power of two changes no rounding.
    #[test]
    fn powers_of_two_go_through(random in random(), power in -20..=20i32, mild in 0..3usize) {
        // Strong decays leave subnormal numbers.
        let case = Random { gate: [0.0, -0.01, -0.1][mild], ..random }.case();
        let times = |x: &Tensor<f64>| Tensor::new(x.shape.clone(), x.data.iter().map(|x| x * 2f64.powi(power)).collect());
        let scaled = Case { v: times(&case.v), state: times(&case.state), ..case.clone() };
        for (got, once) in [
            (scaled.recurrent::<f32>(), case.recurrent::<f32>()),
            (scaled.run(&Recurrent::ONE_PASS), case.run(&Recurrent::ONE_PASS)),
            (scaled.chunked(16), case.chunked(16)),
        ] {
            let times = |x: &[f32]| x.iter().map(|x| x * 2f32.powi(power)).collect::<Vec<f32>>();
            prop_assert_eq!(&got.o.data, &times(&once.o.data));
            prop_assert_eq!(&got.state.data, &times(&once.state.data));
        }
    }

    /// Heads do not meet: in another order they give the same in that order.
    #[test]
    fn heads_are_interchangeable(random in random(), turn in 1..4usize) {
        let case = repeated(&spread(&random.case()));
        let heads = case.v.shape[1];
        // Rows of a head, which follow each other within a token or a sequence.
        let turned = |x: &Tensor<f64>| {
            let each = x.data.len() / x.shape[..2].iter().product::<usize>().max(1);
            let groups = x.data.chunks((heads * each).max(1));
            let rows = groups.flat_map(|group| (0..heads).flat_map(move |head| &group[(head + turn) % heads * each..][..each]));
            Tensor::new(x.shape.clone(), rows.copied().collect())
        };
        let narrow = |x: &Tensor<f32>| turned(&x.cast());
        let decay = match &case.decay {
            Decays::Head(g) => Decays::Head(turned(g)),
            Decays::Channel(g) => Decays::Channel(turned(g)),
            Decays::Constant(_) => unreachable!("they were given to each token"),
        };
        let other = Case {
            q: turned(&case.q),
            k: turned(&case.k),
            v: turned(&case.v),
            beta: case.beta.as_ref().map(turned),
            state: turned(&case.state),
            decay,
            ..case.clone()
        };
        for (got, want) in [(other.recurrent::<f32>(), case.recurrent::<f32>()), (other.chunked(16), case.chunked(16))] {
            prop_assert_eq!(got.o.cast::<f64>(), narrow(&want.o));
            prop_assert_eq!(got.state.cast::<f64>(), narrow(&want.state));
        }
    }
}
