//! What must not matter: how the tokens are cut, how many threads there are, and, to rounding, the scalar.

use reference::Plain;
use reference::paths::deepseek_v4::{Model, State, StateParts};

use super::models::*;
use super::support::*;
use super::trained;

/// Logits of other cuts differ by rounding only: at most 1e-5 of the largest, as against the oracle (see `trained::STREAMS`).
const CUTS: f64 = 1e-5;

/// The last chunk is all that is left; the one with single tokens ends in it after `singles`.
fn cuts(what: &str, fixture: &Fixture, ids: &[u32], singles: usize) {
    let model = &fixture.f32;
    let logits = |chunks: Vec<usize>| run(model, &mut model.state(), ids, chunks, &mut Plain).data;
    let whole = logits(vec![]);
    for (cut, chunks) in [("uneven", vec![15, 1, 22, 7]), ("token by token", vec![1; singles])] {
        let error = farthest(&logits(chunks), &whole) / top(&whole);
        within(&format!("{what}, {cut}"), error, CUTS);
    }
}

#[test]
fn cuts_of_the_random_model() {
    cuts("dsv4-small", &SMALL, &small_ids(0), TOKENS);
    cuts("dsv4-small", &SMALL, &small_ids(1), TOKENS);
}

#[test]
fn cuts_of_the_trained_model() {
    // Past the window, the first HCA entry and the token from which the indexer has to choose; all 512 take long.
    cuts("dsv4-mini", &MINI, &MINI_IDS, 200);
}

/// Rounds everything that passes to 8 bits of significand: what differs by the rounding of f64 alone becomes equal again, but for
/// one number in about 10^12, and what differs by anything else stays different.
fn coarse<'a>() -> Watch<'a, f64> {
    let round = |x: f64| f64::from_bits((x.to_bits() + (1 << 44)) & !((1 << 45) - 1));
    Watch::new(|_| false).editing(move |_, tensor| tensor.data.iter_mut().for_each(|x| *x = round(*x)))
}

/// What a sequence leaves behind, without rows of the window that no later token sees.
fn left(model: &Model<f64>, state: &State<f64>) -> StateParts<f64> {
    let mut parts = state.to_parts();
    for layer in &mut parts.layers {
        let rows = layer.window.keys.rows();
        let first = rows - rows.min(model.config().sliding_window - 1);
        layer.window.keys = span(&layer.window.keys, first..rows);
    }
    parts
}

/// A cut changes the order of sums: matrices of few rows are multiplied by dot products, those of many by `gemm`, and the lanes of a
/// softmax begin where the window's cache does. It must change nothing else: one shot, chunks at the ends of windows and pools and one
/// token before and after, single tokens, a prefix that another sequence goes on from, and drafts that were taken back are the same bit
/// for bit, once rounding is taken out.
#[test]
fn cuts_change_nothing_but_the_order_of_sums() {
    let model = &SMALL.f64;
    let ids = small_ids(0);
    let fed = |state: &mut State<f64>, ids: &[u32], chunk: usize| {
        let chunks = vec![chunk; ids.len() / chunk];
        run(model, state, ids, chunks, &mut coarse()).data
    };
    let mut whole = model.state();
    let want = fed(&mut whole, &ids, ids.len());
    let want_left = left(model, &whole);
    let window = model.config().sliding_window;
    for chunk in [1, 2, 3, 4, 5, 7, 8, 9, window - 1, window, window + 1] {
        let mut state = model.state();
        assert!(fed(&mut state, &ids, chunk) == want, "logits of chunks of {chunk}");
        assert!(left(model, &state) == want_left, "caches after chunks of {chunk}");
    }
    let vocabulary = model.config().vocab_size;
    for cut in [1, 3, 4, 7, 8, 9, window, PREFILL] {
        let (before, after) = ids.split_at(cut);
        let mut prefix = model.state();
        fed(&mut prefix, before, cut);
        let parts = prefix.to_parts();
        // Drafts that another token follows.
        let drafts: Vec<u32> = after.iter().take(5).map(|id| (id + 1) % vocabulary as u32).collect();
        fed(&mut prefix, &drafts, 2);
        assert!(left(model, &prefix) != want_left, "drafts leave something");
        let mut state = State::from_parts(model.config(), parts).expect("the parts of a state");
        assert!(
            fed(&mut state, after, 6) == want[cut * vocabulary..],
            "logits after a prefix of {cut}"
        );
        assert!(left(model, &state) == want_left, "caches after a prefix of {cut}");
    }
}

/// The same would not hold if anything were amiss: a token that is fed twice, or a prefix that is a token short.
#[test]
fn cuts_in_the_wrong_place_are_noticed() {
    let model = &SMALL.f64;
    let ids = small_ids(0);
    let mut whole = model.state();
    let want = run(model, &mut whole, &ids, [], &mut coarse()).data;
    let last = model.config().vocab_size;
    for wrong in [[&ids[..9], &ids[8..]].concat(), [&ids[..8], &ids[9..]].concat()] {
        let mut state = model.state();
        let got = run(model, &mut state, &wrong, [9], &mut coarse()).data;
        assert!(got[got.len() - last..] != want[want.len() - last..]);
        assert!(left(model, &state) != left(model, &whole));
    }
}

#[test]
fn threads_change_no_bit() {
    fn bits(threads: usize, fixture: &Fixture, ids: &[u32]) -> Vec<u32> {
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(threads)
            .build()
            .expect("threads");
        pool.install(|| {
            let model = &fixture.f32;
            let logits = run(model, &mut model.state(), ids, [ids.len() - 2, 1], &mut Plain);
            logits.data.into_iter().map(f32::to_bits).collect()
        })
    }
    for (fixture, ids) in [(&*SMALL, &small_ids(0)), (&*MINI, &MINI_IDS[..200].to_vec())] {
        let one = bits(1, fixture, ids);
        assert!(one == bits(2, fixture, ids) && one == bits(3, fixture, ids));
    }
}

/// f32 against f64 of the same code: the rounding of f32 alone.
fn scalars(what: &str, fixture: &Fixture, ids: &[u32], bound: f64) {
    let (single, double) = (&fixture.f32, &fixture.f64);
    let mut watch32 = Watch::new(|site| site.name == "output");
    let mut watch64 = Watch::new(|site| site.name == "output");
    let logits32 = run(single, &mut single.state(), ids, [], &mut watch32);
    let logits64 = run(double, &mut double.state(), ids, [], &mut watch64);
    let error = |layer: usize| {
        let site = format!("layers.{layer}.output");
        relative(&watch32.tensor(&site).data, &watch64.tensor(&site).data)
    };
    let worst = (0..fixture.config.num_hidden_layers).map(error).fold(0.0, f64::max);
    within(&format!("{what} streams, f32 from f64"), worst, bound);
    within(
        &format!("{what} logits, f32 from f64"),
        relative(&logits32.data, &logits64.data),
        bound,
    );
}

/// One FP32 run, 2·6 blocks of half a local error (which is that between two FP32 orders): √12/2.
#[test]
fn scalars_of_the_random_model() {
    scalars("dsv4-small", &SMALL, &small_ids(0), 12f64.sqrt() / 2.0 * LOCAL);
}

#[test]
fn scalars_of_the_trained_model() {
    scalars("dsv4-mini", &MINI, &MINI_IDS, trained::STREAMS / 2.0);
}
