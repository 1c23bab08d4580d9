//! A recipe on the CPU: what is rounded, what is left alone, and what noise controls keep.

#[path = "rounding/noise.rs"]
mod noise;

use std::path::Path;

use reference::paths;
use reference::{Numerics, Role, Site, Tensor};
use ulplab::backend::rounding::Rounding;
use ulplab::experiment::Mistake;
use ulplab::formats::{codec, hadamard};
use ulplab::studies::model::Recipe;

const COLS: usize = 512;
const NOPE: usize = 448;

fn resolve(rounds: &str, noise: bool) -> Result<Rounding, Mistake> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("datasets/dsv4-mini/config.json");
    let config = paths::read(&std::fs::read_to_string(file).unwrap()).unwrap();
    let text = format!("name = \"test\"\ndoc = \"\"\nnoise = {noise}\nround = [{rounds}]");
    let recipe: Recipe = toml::from_str(&text).unwrap();
    recipe.resolve(&*config, 7)
}

fn rounding(rounds: &str) -> Rounding {
    resolve(rounds, false).unwrap()
}

fn site(layer: usize, role: Role, first_row: usize) -> Site {
    let site = Site::new(Some(layer), "attention.kv.window");
    site.read_as(role).from_row(first_row)
}

/// Rows of sizes that differ by row and channel.
fn vectors(rows: usize) -> Tensor<f32> {
    let value = |i: usize| ((i * 7919) % 2003) as f32 / 500.0 - 2.0 + (i / COLS) as f32;
    Tensor::new([rows, COLS], (0..rows * COLS).map(value).collect())
}

fn rounded(rounding: &Rounding, site: &Site) -> Tensor<f32> {
    let mut x = vectors(5);
    rounding.apply(site, &mut x);
    x
}

#[test]
fn a_site_is_rounded_as_its_codec_rounds() {
    let got = rounded(
        &rounding(r#"{ at = "layers.*.attention.kv.*", format = "v4_nvfp4" }"#),
        &site(3, Role::Both, 0),
    );
    let mut want = vectors(5);
    codec("v4_nvfp4").unwrap().round(&mut want.data, COLS);
    assert_eq!(got, want);
}

#[test]
fn a_segment_leaves_the_other_channels_alone() {
    for (segment, format) in [
        ("nope", "mxfp4"),
        ("rope", "mxfp4"),
        ("nope", "v41_fp4"),
        ("rope", "v41_fp4"),
    ] {
        let recipe = format!(r#"{{ at = "layers.*.attention.kv.*", format = "{format}", segment = "{segment}" }}"#);
        let got = rounded(&rounding(&recipe), &site(0, Role::Both, 0));
        for (got, exact) in got.data.chunks(COLS).zip(vectors(5).data.chunks(COLS)) {
            assert_eq!(got[..NOPE] != exact[..NOPE], segment == "nope", "{recipe}");
            assert_eq!(got[NOPE..] != exact[NOPE..], segment == "rope", "{recipe}");
        }
    }
}

#[test]
fn a_role_is_rounded_alone() {
    let recipe = &rounding(r#"{ at = "layers.*.attention.kv.*", format = "v41_fp4", role = "value" }"#);
    assert!(recipe.splits(&site(3, Role::Both, 0)));
    assert_eq!(rounded(recipe, &site(3, Role::Key, 0)), vectors(5));
    assert_ne!(rounded(recipe, &site(3, Role::Value, 0)), vectors(5));
    let both = &rounding(r#"{ at = "layers.*.attention.kv.*", format = "v41_fp4" }"#);
    assert!(!both.splits(&site(3, Role::Both, 0)));
}

#[test]
fn layers_are_those_named() {
    let recipe = rounding(r#"{ at = "layers.*.attention.kv.*", format = "v41_fp4", layers = "2-4,60" }"#);
    let touched: Vec<usize> = (0..61)
        .filter(|&layer| recipe.touches(&site(layer, Role::Both, 0)))
        .collect();
    assert_eq!(touched, [2, 3, 4, 60]);
}

/// Records hold 128 channels, and what a recorder watches next to their sites has as many numbers as entries are selected.
#[test]
fn what_is_only_watched_is_not_rounded() {
    for format in ["bf16", "index_fp8", "index_mxfp4", "nvfp4_single"] {
        for noise in [false, true] {
            let round = format!(r#"{{ at = "layers.*.attention.indexer.*", format = "{format}" }}"#);
            let rounding = resolve(&round, noise).unwrap();
            let passed = |name, cols| {
                let mut x = Tensor::new([3, cols], vectors(1).data[..3 * cols].to_vec());
                rounding.apply(&Site::new(Some(4), name), &mut x);
                x.data != vectors(1).data[..3 * cols]
            };
            assert!(passed("attention.indexer.key", 128), "{format}");
            assert!(!passed("attention.indexer.mass", 32), "{format}");
        }
    }
}

#[test]
fn noise_has_the_energy_of_the_error_row_by_row_and_by_segment() {
    let recipe = r#"{ at = "layers.*.attention.kv.*", format = "v4_mxfp4" }"#;
    let error = rounded(&rounding(recipe), &site(3, Role::Both, 0));
    let noise = rounded(&resolve(recipe, true).unwrap(), &site(3, Role::Both, 0));
    assert_ne!(error, noise);
    let exact = vectors(5);
    let energy = |got: &[f32], exact: &[f32]| -> f64 {
        got.iter()
            .zip(exact)
            .map(|(&y, &x)| (f64::from(y) - f64::from(x)).powi(2))
            .sum()
    };
    for row in 0..5 {
        for range in [0..NOPE, NOPE..COLS] {
            let exact = &exact.row(row)[range.clone()];
            let (want, got) = (
                energy(&error.row(row)[range.clone()], exact),
                energy(&noise.row(row)[range], exact),
            );
            // Storing exact + noise in f32 moves each element by half an ulp of it, about 2⁻²³ of 4, beside errors of 10⁻³.
            assert!((got / want - 1.0).abs() < 1e-3, "row {row}: {got} for {want}");
        }
    }
}

#[test]
fn noise_does_not_depend_on_how_the_sequence_is_cut() {
    let noise = resolve(r#"{ at = "layers.*.attention.kv.*", format = "v4_fp8" }"#, true).unwrap();
    let whole = rounded(&noise, &site(9, Role::Both, 0));
    for first in 0..5 {
        let mut row = Tensor::new([1, COLS], vectors(5).row(first).to_vec());
        noise.apply(&site(9, Role::Both, first), &mut row);
        assert_eq!(row.data, whole.row(first));
    }
    assert_ne!(
        rounded(&noise, &site(8, Role::Both, 0)),
        whole,
        "another layer draws other noise"
    );
}

#[test]
fn noise_on_rotated_rows_is_as_large_as_the_error_of_rotated_rows() {
    const COLS: usize = 128;
    let both = r#"{ at = "layers.*.attention.indexer.*", format = "mxfp4", hadamard = true }"#;
    let site = Site::new(Some(3), "attention.indexer.key").read_as(Role::Both);
    let x = Tensor::new([20, COLS], vectors(5).data);
    let mut rotated = x.data.clone();
    hadamard(&mut rotated, COLS).unwrap();
    let errors = |noise: bool| -> Vec<f64> {
        let mut got = x.clone();
        resolve(both, noise).unwrap().apply(&site, &mut got);
        let squares = got.data.iter().zip(&rotated).map(|(a, b)| f64::from(a - b).powi(2));
        squares
            .collect::<Vec<_>>()
            .chunks(COLS)
            .map(|row| row.iter().sum())
            .collect()
    };
    // What f32 rounds of a sum is 1e-6 of an error of a tenth.
    for (row, (error, noise)) in errors(false).iter().zip(errors(true)).enumerate() {
        assert!(
            (noise / error - 1.0).abs() < 1e-5,
            "row {row}: {noise}, where rounding makes {error}"
        );
    }
}

#[test]
fn a_rotation_of_one_side_is_refused() {
    let both = r#"{ at = "layers.*.attention.indexer.*", format = "index_mxfp4", hadamard = true }"#;
    assert!(resolve(both, false).is_ok());
    let message = resolve(&both.replace("indexer.*", "indexer.query"), false)
        .err()
        .unwrap()
        .message;
    assert!(
        message.contains("both attention.indexer.query and attention.indexer.key"),
        "{message}"
    );
}

/// Some channels and some tokens have the bits of rounding all, and the others are left alone.
#[test]
fn channels_and_tokens_are_restricted_together() {
    let all = rounded(
        &rounding(r#"{ at = "layers.*.attention.kv.*", format = "v4_nvfp4" }"#),
        &site(3, Role::Both, 10),
    );
    let recipe =
        r#"{ at = "layers.*.attention.kv.*", format = "v4_nvfp4", channels = "0-3,300", tokens = "11,13-14" }"#;
    let some = rounded(&rounding(recipe), &site(3, Role::Both, 10));
    let exact = vectors(5);
    let mut changed = 0;
    for (at, got) in some.data.iter().enumerate() {
        let (token, channel) = (10 + at / COLS, at % COLS);
        let meant = [11, 13, 14].contains(&token) && (channel < 4 || channel == 300);
        let want = if meant { all.data[at] } else { exact.data[at] };
        assert_eq!(got.to_bits(), want.to_bits(), "token {token}, channel {channel}");
        changed += usize::from(want != exact.data[at]);
    }
    assert!(changed > 0, "the test can fail");
}

#[test]
fn channels_that_do_not_exist_are_refused() {
    let with = |more: &str| {
        let round = format!(r#"{{ at = "layers.*.attention.kv.*", format = "v4_nvfp4", {more} }}"#);
        resolve(&round, false)
            .err()
            .map(|mistake| mistake.message)
            .unwrap_or_default()
    };
    for (more, words) in [
        (r#"channels = "512""#, "there is no channel 512: its rows have 512"),
        (r#"channels = "9-3""#, "channels '9-3' are not in order"),
        (r#"tokens = "a""#, "'a' is not a token or a range of tokens like '0-9'"),
        (
            r#"layers = "61""#,
            "layers '61': there is no layer 61; expected numbers from 0 to 60",
        ),
    ] {
        assert!(with(more).ends_with(words), "{more}: {}", with(more));
    }
    let turned = r#"{ at = "layers.*.attention.kv.*", format = "nvfp4", hadamard = true, tokens = "0" }"#;
    let message = resolve(turned, false).err().unwrap().message;
    assert!(message.contains("it has no 'channels' and no 'tokens'"), "{message}");
}

/// A recipe for a model whose keys have three heads of 16 channels.
fn of_heads(rounds: &str) -> Result<Rounding, Mistake> {
    let config = r#"{"model_type": "llama", "vocab_size": 256, "hidden_size": 96, "intermediate_size": 128, "num_hidden_layers": 2,
        "num_attention_heads": 6, "num_key_value_heads": 3, "rms_norm_eps": 1e-6}"#;
    let text = format!("name = \"test\"\ndoc = \"\"\nround = [{rounds}]");
    let recipe: Recipe = toml::from_str(&text).unwrap();
    recipe.resolve(&*paths::read(config).unwrap(), 7)
}

#[test]
fn heads_are_rows_or_one_row_or_apart() {
    let (tokens, heads, cols) = (40, 3, 16);
    let value = |i: usize| ((i * 7919) % 2003) as f32 / 500.0 - 2.0 + (i / cols % heads * 5) as f32;
    let exact = Tensor::new([tokens, heads, cols], (0..tokens * heads * cols).map(value).collect());
    let got = |format: &str, key: &str| {
        let rounds = format!(r#"{{ at = "layers.*.attention.kv.key", format = "{format}"{key} }}"#);
        let mut x = exact.clone();
        of_heads(&rounds)
            .unwrap()
            .apply(&Site::new(Some(1), "attention.kv.key"), &mut x);
        x.data
    };
    let whole = |format: &str, cols: usize| {
        let mut data = exact.data.clone();
        codec(format).unwrap().round(&mut data, cols);
        data
    };
    for format in ["fp8_tensor", "fp8_column", "int8_token", "kivi4_key_g32"] {
        assert_eq!(got(format, ""), whole(format, cols), "{format}");
        assert_eq!(
            got(format, r#", heads = "joined""#),
            whole(format, heads * cols),
            "{format}"
        );
        let apart = got(format, r#", heads = "apart""#);
        for head in 0..heads {
            let of = |data: &[f32]| {
                let rows = data
                    .chunks(heads * cols)
                    .flat_map(|token| token[head * cols..(head + 1) * cols].to_vec());
                rows.collect::<Vec<f32>>()
            };
            let mut want = of(&exact.data);
            codec(format).unwrap().round(&mut want, cols);
            assert_eq!(of(&apart), want, "{format}, head {head}");
        }
    }
    // A scale per tensor and head is not one for all, and a channel of a head is not that of all heads.
    assert_ne!(got("fp8_tensor", ""), got("fp8_tensor", r#", heads = "apart""#));
    assert_ne!(got("fp8_column", ""), got("fp8_column", r#", heads = "joined""#));
    let wrong = |rounds: &str| of_heads(rounds).map(|_| ()).expect_err(rounds).message;
    let message = wrong(r#"{ at = "layers.*.output", format = "bf16", heads = "apart" }"#);
    assert!(message.contains("its tokens are of one row"), "{message}");
}

/// A recipe for a hybrid whose states are three matrices `[keys, 64]`.
fn of_states(keys: usize, rounds: &str) -> Result<Rounding, Mistake> {
    let config = format!(
        r#"{{"model_type": "qwen3_5_text", "vocab_size": 256, "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 4,
        "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32, "rms_norm_eps": 1e-6, "linear_conv_kernel_dim": 4,
        "linear_num_key_heads": 3, "linear_num_value_heads": 3, "linear_key_head_dim": {keys}, "linear_value_head_dim": 64}}"#
    );
    let text = format!("name = \"test\"\ndoc = \"\"\nround = [{rounds}]");
    let recipe: Recipe = toml::from_str(&text).unwrap();
    recipe.resolve(&*paths::read(&config).unwrap(), 7)
}

/// Where numbers share a scale, the layout decides which: those of a key channel, or those of a value channel.
#[test]
fn a_layout_says_which_numbers_of_a_state_share_a_scale() {
    let [heads, keys, values] = [3, 32, 64];
    // Far apart: in E4M3 with scales that are powers of two only what underflows depends on whom it shares a scale with.
    let size = |row: usize, col: usize| ((row % 5 * 5) as f32).exp2() * ((col % 7 * 4) as f32).exp2();
    let value = |i: usize| {
        let (row, col) = (i / values % keys, i % values);
        (((i * 7919) % 2003) as f32 / 1001.0 - 1.0) * size(row, col)
    };
    let exact = Tensor::new([heads, keys, values], (0..heads * keys * values).map(value).collect());
    let place = |head: usize, row: usize, col: usize| (head * keys + row) * values + col;
    let got = |format: &str, key: &str| {
        let rounds = format!(r#"{{ at = "layers.*.linear.state", format = "{format}"{key} }}"#);
        let mut x = exact.clone();
        of_states(keys, &rounds)
            .unwrap()
            .apply(&Site::new(Some(1), "linear.state"), &mut x);
        assert_eq!(x.shape, exact.shape);
        x.data
    };
    for format in ["mxfp8", "nvfp4", "int8_token", "fp8_column"] {
        let codec = codec(format).unwrap();
        let mut by_key = exact.data.clone();
        codec.round(&mut by_key, values);
        assert_eq!(got(format, ""), by_key, "{format}");
        assert_eq!(got(format, r#", layout = "kv""#), by_key, "{format}");
        let stored = (0..heads)
            .flat_map(|head| (0..values).flat_map(move |col| (0..keys).map(move |row| place(head, row, col))));
        let mut stored: Vec<f32> = stored.map(|at| exact.data[at]).collect();
        codec.round(&mut stored, keys);
        let by_value = got(format, r#", layout = "vk""#);
        for head in 0..heads {
            for row in 0..keys {
                for col in 0..values {
                    let want = stored[(head * values + col) * keys + row];
                    assert_eq!(
                        by_value[place(head, row, col)],
                        want,
                        "{format} at {head}, {row}, {col}"
                    );
                }
            }
        }
        assert!(by_value != by_key, "{format}");
    }
    // A type without scales has no layout that shows.
    assert_eq!(got("bf16", r#", layout = "vk""#), got("bf16", ""));
}

#[test]
fn a_layout_is_of_matrices_and_fits_its_format() {
    let wrong = |keys: usize, at: &str, format: &str, key: &str| {
        let rounds = format!(r#"{{ at = "layers.*.{at}", format = "{format}", layout = "vk"{key} }}"#);
        let mistake = of_states(keys, &rounds).map(|_| ()).expect_err(&rounds);
        mistake.message
    };
    for at in ["attention.kv.key", "linear.conv.state", "linear.query", "output"] {
        let message = wrong(32, at, "bf16", "");
        assert!(
            message.contains("'layout' is for the matrices of a recurrent state"),
            "{message}"
        );
    }
    for key in [
        "heads = \"apart\"",
        "channels = \"0-3\"",
        "tokens = \"0\"",
        "hadamard = true",
    ] {
        let message = wrong(32, "linear.state", "bf16", &format!(", {key}"));
        assert!(message.contains("'layout' goes without 'heads'"), "{message}");
    }
    // A record of 512 channels has room for a row of 512 keys, and not for one of 64 values.
    let state = |layout: &str| {
        let rounds = format!(r#"{{ at = "layers.*.linear.state", format = "v4_fp8", layout = "{layout}" }}"#);
        of_states(512, &rounds).map(|_| ())
    };
    assert!(state("vk").is_ok());
    let message = state("kv").expect_err("64 values").message;
    assert!(message.contains("64"), "{message}");
}

#[test]
fn weights_are_rounded_at_load() {
    let weights = |at: &str| {
        of_heads(&format!(r#"{{ at = "{at}", format = "bf16" }}"#))
            .unwrap()
            .rounds_weights
    };
    assert!(weights("layers.*.mlp.*.weight") && weights("head.weight"));
    assert!(!weights("layers.*.attention.kv.*") && !weights("layers.*.mlp.input"));
}
