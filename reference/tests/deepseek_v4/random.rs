//! dsv4-small from ids to logits and caches: both sequences, in one piece, as prefill and decode, and in chunks.

use reference::paths::deepseek_v4::{CompressedParts, State};
use reference::{Plain, Tensor};

use super::models::*;
use super::support::*;

/// Largest logit error allowed: six layers leave the last streams √(2·6) local errors apart, and a logit is a sum of 48
/// products of normed streams with weights: max |logit| ≈ 5, so 5·√12·32 u ≈ 3.3e-5.
const LOGITS: f64 = 3.3e-5;
/// Relative error of what a layer caches: at most √(2·6) local errors.
const CACHE: f64 = 3.47 * LOCAL;

fn of_sequence(tensor: &Tensor<f32>, sequence: usize) -> Tensor<f32> {
    let row = span(tensor, sequence..sequence + 1);
    Tensor::new(&row.shape[1..], row.data)
}

#[test]
fn logits() {
    let model = &SMALL.f32;
    for sequence in 0..2 {
        let ids = small_ids(sequence);
        let check = |what: &str, got: &[f32], name: &str| {
            let want = of_sequence(IO.get(name), sequence);
            assert!(top(&want.data) > 3.0);
            within(
                &format!("sequence {sequence} {what}"),
                farthest(got, &want.data),
                LOGITS,
            );
        };
        let whole = run(model, &mut model.state(), &ids, [], &mut Plain);
        check("whole", &whole.data, "logits_full");

        let mut state = model.state();
        let prefill = run(model, &mut state, &ids[..PREFILL], [], &mut Plain);
        check("prefill", &prefill.data, "logits_prefill");
        let decoded = run(
            model,
            &mut state,
            &ids[PREFILL..],
            vec![1; TOKENS - PREFILL],
            &mut Plain,
        );
        check("decode", &decoded.data, "logits_decode");

        let chunked = run(model, &mut model.state(), &ids, [7, 1, 10, 27], &mut Plain);
        check("chunked", &chunked.data, "logits_chunked");
    }
}

/// Two sequences fed in turns give, bit for bit, what each gives alone: nothing is shared.
#[test]
fn sequences_do_not_meet() {
    let model = &SMALL.f32;
    let ids = [small_ids(0), small_ids(1)];
    let chunks = [15, 1, 22, 7];
    let alone = [0, 1].map(|i| run(model, &mut model.state(), &ids[i], chunks, &mut Plain).data);
    let mut states = [model.state(), model.state()];
    let mut together = [Vec::new(), Vec::new()];
    let mut start = 0;
    for tokens in chunks {
        for i in 0..2 {
            let part = &ids[i][start..start + tokens];
            together[i].extend(run(model, &mut states[i], part, [], &mut Plain).data);
        }
        start += tokens;
    }
    assert!(alone == together);
}

#[test]
fn caches() {
    let model = &SMALL.f32;
    for sequence in 0..2 {
        let ids = small_ids(sequence);
        let mut state = model.state();
        run(model, &mut state, &ids[..PREFILL], [], &mut Plain);
        assert_eq!(state.tokens(), PREFILL);
        let file = File::fixture("dsv4-small/cache_after_prefill.safetensors");
        compare(&state, &file, sequence);

        run(
            model,
            &mut state,
            &ids[PREFILL..],
            vec![1; TOKENS - PREFILL],
            &mut Plain,
        );
        assert_eq!(state.tokens(), TOKENS);
        let file = File::fixture("dsv4-small/cache_end.safetensors");
        compare(&state, &file, sequence);
    }
}

fn compare(state: &State<f32>, file: &File, sequence: usize) {
    let of = |layer: usize, name: &str| of_sequence(file.get(&format!("L{layer}.{name}")), sequence);
    for layer in 0..6 {
        let cache = state.layer(layer);
        // The oracle keeps the 7 rows that the next token's window of 8 still reaches.
        let window = &cache.window.keys.data;
        assert!(cache.window.keys.rows() <= state.tokens());
        let want = of(layer, "keys").data;
        let error = relative(&window[window.len() - want.len()..], &want);
        within(&format!("layer {layer} window"), error, CACHE);
        let parts = [("compressor", &cache.compressed), ("indexer", &cache.index)];
        for (name, compressed) in parts {
            let Some(compressed) = compressed else {
                assert!(file.find(&format!("L{layer}.compressed_kv.{name}")).is_none());
                continue;
            };
            let entries = of(layer, &format!("compressed_kv.{name}"));
            let error = relative(&compressed.entries.keys.data, &entries.data);
            within(&format!("layer {layer} {name} entries"), error, CACHE);
            assert_eq!(compressed.entries.keys.rows(), entries.rows());
            assert_eq!(
                compressed.entries.keys.rows(),
                file.numbers(&format!("L{layer}.entry_count.{name}"))[0]
            );
            let prefix = if name == "indexer" {
                "self_attn.compressor.indexer"
            } else {
                "self_attn.compressor"
            };
            let bias: Tensor<f32> = SMALL.weight(layer, &format!("{prefix}.position_bias"));
            pending(&format!("layer {layer} {name}"), compressed, &bias, |what| {
                file.find(&format!("L{layer}.{what}.{name}"))
                    .map(|x| of_sequence(x, sequence))
            });
        }
    }
}

/// Compares the rows a pool still needs: those of the open window, and with overlap the first halves of the window before.
/// The oracle adds the position bias only when it pools.
fn pending(
    what: &str,
    compressed: &CompressedParts<f32>,
    bias: &Tensor<f32>,
    of: impl Fn(&str) -> Option<Tensor<f32>>,
) {
    let (values, mut logits) = (&compressed.pending_values, compressed.pending_logits.clone());
    let width = bias.cols();
    let open = of("buffer_kv").expect("a buffer of values");
    let before = values.rows() - open.rows();
    let check = |part: &str, got: &[f32], want: &[f32]| {
        within(&format!("{what} {part}"), relative(got, want), CACHE);
    };
    if let (Some(overlap), Some(overlap_logits)) = (of("overlap_kv"), of("overlap_gate")) {
        assert_eq!(before, bias.rows(), "the window before");
        let halves =
            |x: &Tensor<f32>| -> Vec<f32> { (0..before).flat_map(|row| x.row(row)[..width / 2].to_vec()).collect() };
        check("overlapping values", &halves(values), &overlap.data);
        check("overlapping logits", &halves(&logits), &overlap_logits.data);
    } else {
        assert_eq!(before, 0);
    }
    check("pending values", &values.data[before * width..], &open.data);
    for row in before..logits.rows() {
        let bias = bias.row(row - before);
        logits
            .row_mut(row)
            .iter_mut()
            .zip(bias)
            .for_each(|(g, &bias)| *g -= bias);
    }
    let want = of("buffer_gate").expect("a buffer of logits");
    check("pending logits", &logits.data[before * width..], &want.data);
}
