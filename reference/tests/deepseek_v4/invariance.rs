//! What must not matter: how the tokens are cut, how many threads there are, and, to rounding, the scalar.

use reference::Plain;

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
