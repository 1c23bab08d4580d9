//! Every key of every family's `config.json`: removed, changed and made absurd. What `transformers` 5.24 does is written down here.

use std::collections::{BTreeMap, BTreeSet};

use reference::paths;
use serde_json::{Map, Value, json};
use ulplab::dataset::Checkpoint;

use super::saved::{Keys, configs, folder, tensors};

/// Keys that `transformers` computes nothing by.
const INERT: &[&str] = &[
    "_name_or_path",
    "architectures",
    "attention_dropout",
    "bos_token_id",
    "chunk_size_feed_forward",
    "dtype",
    "embd_pdrop",
    "eos_token_id",
    "id2label",
    "initializer_range",
    "label2id",
    "mrope_interleaved",
    "mrope_section",
    "num_nextn_predict_layers",
    "output_attentions",
    "output_hidden_states",
    "output_router_logits",
    "pad_token_id",
    "pretraining_tp",
    "problem_type",
    "resid_pdrop",
    "return_dict",
    "router_aux_loss_coef",
    "router_jitter_noise",
    "transformers_version",
    "use_cache",
    "vision_config",
];

/// Keys that decide only how long a sequence may be, or what longer ones turn by.
const LENGTHS: &[&str] = &["max_position_embeddings", "model_max_length", "long_factor"];

/// Keys that another key makes inert in a configuration; others of the kind: whatever a flag switches off.
const IDLE: &[(&str, &str)] = &[
    // No bound of YaRN's ramp passes another channel of so few.
    ("gpt_oss", "rope_parameters.beta_fast"),
    ("next_plain", "rope_parameters.original_max_position_embeddings"),
    (
        "olmo3",
        "rope_parameters.full_attention.original_max_position_embeddings",
    ),
    ("qwen3", "rope_parameters.original_max_position_embeddings"),
    ("kimi", "head_dim"),
    ("kimi_plain", "head_dim"),
    ("llama_dynamic", "rope_parameters.factor"),
    ("qwen2", "max_window_layers"),
    ("qwen3", "max_window_layers"),
    ("qwen3_moe", "sliding_window"),
    ("qwen3_moe", "use_sliding_window"),
    ("qwen3_moe_plain", "sliding_window"),
    ("qwen35_moe", "intermediate_size"),
    ("qwen35_moe_nested", "text_config.intermediate_size"),
    ("qwen35_moe_nested", "text_config.tie_word_embeddings"),
    ("qwen35_nested", "text_config.tie_word_embeddings"),
    ("smollm3", "no_rope_layer_interval"),
];

/// What `transformers` takes for a missing key; none where it refuses, or where a reader would be surprised, so that it is to be an error.
fn default(kind: &str, keys: &Keys, path: &str) -> Option<Value> {
    let key = path.rsplit('.').next().unwrap();
    let hybrid = kind.starts_with("qwen3_next") || kind.starts_with("qwen3_5");
    let theta = match kind {
        "mixtral" => 1e6,
        "gpt_oss" => 1.5e5,
        "smollm3" => 2e6,
        "olmo3" => 5e5,
        _ => 1e4,
    };
    let count = keys.get("num_hidden_layers").and_then(Value::as_u64).unwrap_or(0);
    let types = |sliding: &dyn Fn(u64) -> bool, names: [&str; 2]| {
        let name = |at| if sliding(at) { names[0] } else { names[1] };
        json!((0..count).map(name).collect::<Vec<_>>())
    };
    let windows = ["sliding_attention", "full_attention"];
    Some(match (kind, key) {
        ("deepseek_v4", "rope_parameters") => json!({
            "main": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.25},
            "compress": {"rope_type": "default", "rope_theta": 1.6e5, "partial_rotary_factor": 0.25}
        }),
        ("deepseek_v4", "partial_rotary_factor") => json!(0.25),
        ("deepseek_v4", "qk_rope_head_dim") => json!(8),
        ("deepseek_v4", "compress_rates") => {
            json!({"compressed_sparse_attention": 4, "heavily_compressed_attention": 128})
        }
        ("deepseek_v4", "n_shared_experts" | "num_key_value_heads") => json!(1),
        ("deepseek_v4", "scoring_func") => json!("sqrtsoftplus"),
        ("deepseek_v4", "compress_rope_theta") => json!(1.6e5),
        ("deepseek_v4", "norm_topk_prob") => json!(true),
        ("deepseek_v4", "is_encoder_decoder") => json!(false),
        ("gpt_oss", "rope_parameters") => {
            json!({"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0,
            "truncate": false, "original_max_position_embeddings": 4096, "rope_theta": 1.5e5})
        }
        ("gpt_oss", "layer_types") => types(&|at| at % 2 == 0, windows),
        ("olmo3", "layer_types") => types(&|at| (at + 1) % 4 != 0, windows),
        ("olmo3", "rope_parameters") => {
            json!({"full_attention": {"rope_theta": 5e5}, "sliding_attention": {"rope_theta": 5e5}})
        }
        ("olmo3", "full_attention" | "sliding_attention") => json!({"rope_type": "default", "rope_theta": 5e5}),
        ("smollm3", "layer_types") => {
            let rope = keys["no_rope_layers"].as_array().unwrap();
            types(
                &|at| keys["use_sliding_window"] == true && rope[at as usize] == 0,
                windows,
            )
        }
        ("qwen2" | "qwen3", "layer_types") => {
            let first = keys.get("max_window_layers").and_then(Value::as_u64).unwrap_or(28);
            types(
                &|at| keys["use_sliding_window"] == true && !keys["sliding_window"].is_null() && at >= first,
                windows,
            )
        }
        _ if hybrid && key == "layer_types" => types(&|at| (at + 1) % 4 == 0, ["full_attention", "linear_attention"]),
        _ if hybrid && key == "rope_parameters" => json!({"rope_theta": 1e4, "partial_rotary_factor": 0.25}),
        _ if hybrid && key == "partial_rotary_factor" => json!(0.25),
        _ if hybrid && key == "head_dim" => json!(256),
        ("qwen3_next", "norm_topk_prob") => json!(true),
        ("qwen3_moe", "norm_topk_prob") => json!(false),
        ("qwen3", "head_dim") => json!(128),
        ("gpt_oss", "head_dim") => json!(64),
        ("gpt_oss", "attention_bias") => json!(true),
        ("gpt_oss", "swiglu_alpha") => json!(1.702),
        ("gpt_oss", "swiglu_limit") => json!(7.0),
        ("smollm3", "tie_word_embeddings") => json!(true),
        ("smollm3", "no_rope_layers") => types(&|_| true, ["", ""]).as_array().map(|all| {
            let turns = (1..=all.len()).map(|at| u8::from(at % 4 != 0));
            json!(turns.collect::<Vec<_>>())
        })?,
        ("smollm3", "no_rope_layer_interval") => json!(4),
        ("phi3", "original_max_position_embeddings") if !path.contains('.') => json!(4096),
        // That next to the RoPE has priority.
        ("phi3", "original_max_position_embeddings") => json!(64),
        ("phi3", "partial_rotary_factor") => json!(1.0),
        ("llama" | "granite" | "phi3" | "olmo2" | "olmo3" | "kimi_linear", "num_key_value_heads") => Value::Null,
        ("mixtral" | "phi3" | "smollm3", "sliding_window") => Value::Null,
        ("qwen2" | "qwen3" | "qwen3_moe", "sliding_window") if keys["use_sliding_window"] == false => json!(4096),
        ("qwen2" | "qwen3", "max_window_layers") => json!(28),
        ("granite", "attention_multiplier" | "embedding_multiplier" | "residual_multiplier" | "logits_scaling") => {
            json!(1.0)
        }
        ("kimi_linear", "routed_scaling_factor") => json!(2.446),
        ("kimi_linear", "num_expert_group" | "topk_group") => json!(1),
        ("kimi_linear", "moe_renormalize") => json!(true),
        ("kimi_linear", "first_k_dense_replace") if keys.contains_key("mlp_layer_types") => Value::Null,
        ("kimi_linear", "mlp_layer_types") => {
            let first = keys.get("first_k_dense_replace").and_then(Value::as_u64).unwrap_or(1);
            types(&|at| at < first, ["dense", "sparse"])
        }
        // Both the lists and these keys are there, and one of them is enough.
        ("kimi_linear", "layer_types" | "linear_attn_config" | "head_dim" | "num_heads" | "short_conv_kernel_size") => {
            Value::Null
        }
        (
            "kimi_linear",
            "linear_conv_kernel_dim" | "linear_head_dim" | "linear_num_heads" | "qk_head_dim" | "q_lora_rank",
        ) => Value::Null,
        (
            "llama" | "mistral" | "mixtral" | "qwen2" | "qwen3_moe" | "smollm3" | "granite" | "olmo2" | "olmo3",
            "head_dim",
        ) => Value::Null,
        (_, "rope_parameters") => json!({"rope_theta": theta}),
        (_, "rope_type") => json!("default"),
        // Of both RoPEs of DeepSeek-V4 that next to them, which is that of one only.
        ("deepseek_v4", "rope_theta") => json!(1e4),
        (_, "rope_theta") => json!(theta),
        (_, "mscale" | "mscale_all_dim") => Value::Null,
        (_, "original_max_position_embeddings") => keys["max_position_embeddings"].clone(),
        // An object of text has the type that its place gives.
        ("qwen3_5_text" | "qwen3_5_moe_text", "model_type") => keys["model_type"].clone(),
        (_, "beta_fast") => json!(32.0),
        (_, "beta_slow") => json!(1.0),
        (_, "truncate") => json!(true),
        (_, "attention_bias" | "mlp_bias" | "tie_word_embeddings" | "use_sliding_window") => json!(false),
        (_, "hidden_act") => json!("silu"),
        (_, "decoder_sparse_step") => json!(1),
        (_, "mlp_only_layers") => json!([]),
        _ => return None,
    })
}

/// The paths of all keys, those within objects after a dot.
fn paths_of(map: &Keys, prefix: &str) -> Vec<String> {
    let mut all = Vec::new();
    for (key, value) in map {
        all.push(format!("{prefix}{key}"));
        if let Some(inner) = value.as_object().filter(|_| !INERT.contains(&key.as_str())) {
            all.extend(paths_of(inner, &format!("{prefix}{key}.")));
        }
    }
    all
}

fn object<'a>(keys: &'a mut Keys, path: &str) -> (&'a mut Keys, String) {
    match path.split_once('.') {
        None => (keys, path.into()),
        Some((key, rest)) => object(keys[key].as_object_mut().unwrap(), rest),
    }
}

fn with(keys: &Keys, path: &str, value: Option<Value>) -> Keys {
    let mut keys = keys.clone();
    let (inner, key) = object(&mut keys, path);
    match value {
        Some(value) => _ = inner.insert(key, value),
        None => _ = inner.remove(&key),
    }
    keys
}

fn get(keys: &Keys, path: &str) -> Value {
    let mut keys = keys.clone();
    let (inner, key) = object(&mut keys, path);
    inner[&key].clone()
}

/// What a configuration is read to, in words, without how long sequences may be.
fn read(keys: &Keys) -> Result<String, String> {
    paths::read(&Value::Object(keys.clone()).to_string()).map(|config| {
        let text = format!("{config:?}");
        let length = |text: &str| text.starts_with("max_position_embeddings: ");
        text.split(", ")
            .filter(|part| !length(part))
            .collect::<Vec<_>>()
            .join(", ")
    })
}

/// Other values of a key.
fn others(value: &Value) -> Vec<Value> {
    match value {
        Value::Bool(flag) => vec![json!(!flag), json!("x")],
        Value::Number(number) if number.is_u64() => {
            let n = number.as_u64().unwrap();
            vec![
                json!(n + 1),
                json!(2 * n + 2),
                json!(0),
                json!(-1),
                json!(n as f64 + 0.5),
                json!("x"),
                json!(1u64 << 40),
            ]
        }
        Value::Number(number) => {
            let x = number.as_f64().unwrap();
            vec![json!(2.0 * x + 1.0), json!(x * 0.75), json!(-1.0), json!("x")]
        }
        Value::String(_) => vec![json!("other"), json!(1)],
        Value::Array(all) => {
            let fewer = &all[..all.len().saturating_sub(1)];
            let mut other = vec![json!("x"), json!([{}])];
            other.extend((!all.is_empty()).then(|| json!(fewer)));
            other
        }
        Value::Object(_) => vec![json!(1), json!([])],
        Value::Null => vec![json!("x"), json!(true), json!(3)],
    }
}

#[test]
fn every_key_is_obeyed_refused_or_known_to_be_inert() {
    let (mut changes, mut wrong) = (0, Vec::new());
    for (name, keys) in configs() {
        let base = read(&keys).unwrap_or_else(|why| panic!("{name}: {why}"));
        let outer = keys["model_type"].as_str().unwrap();
        for path in paths_of(&keys, "") {
            let key = path.rsplit('.').next().unwrap();
            let text = path
                .strip_prefix("text_config.")
                .filter(|_| outer.starts_with("qwen3_5"));
            let own = text.map_or(&keys, |_| keys["text_config"].as_object().unwrap());
            let inert = INERT.contains(&key) || LENGTHS.contains(&key) || IDLE.contains(&(&name, &path));
            let mut tell = |what: String| wrong.push(format!("{name}: {path} {what}"));
            changes += 1;
            if let Ok(found) = read(&with(&keys, &path, None)) {
                match default(own["model_type"].as_str().unwrap(), own, text.unwrap_or(&path)) {
                    _ if inert && found == base => {}
                    None => tell("is missing and not refused".into()),
                    Some(value) => match read(&with(&keys, &path, Some(value.clone()))) {
                        Ok(want) if want == found => {}
                        Ok(want) => tell(format!("is missing, and is not as if it were {value}: {found} {want}")),
                        Err(why) => tell(format!("is missing and read, but as {value} refused: {why}")),
                    },
                }
            }
            for value in others(&get(&keys, &path)) {
                changes += 1;
                if read(&with(&keys, &path, Some(value.clone()))).is_ok_and(|found| found == base) && !inert {
                    tell(format!("= {value} changes nothing and is not refused"));
                }
            }
        }
        // A key that nobody knows, in every object.
        let mut places: BTreeSet<String> = [String::new()].into();
        places.extend(
            paths_of(&keys, "")
                .into_iter()
                .filter(|path| get(&keys, path).is_object())
                .map(|path| path + "."),
        );
        for place in places
            .iter()
            .filter(|place| !INERT.iter().any(|key| place.trim_end_matches('.').ends_with(key)))
        {
            changes += 1;
            let path = format!("{place}attn_logit_softcapping");
            let error = read(&with(&keys, &path, Some(json!(30.0)))).expect_err(&path);
            assert!(error.contains("attn_logit_softcapping"), "{name}: {path}: {error}");
        }
    }
    println!("{changes} changes");
    assert!(changes >= 600, "{changes} changes");
    assert!(
        wrong.is_empty(),
        "{} of {changes} are wrong:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}

/// A caller's word for a key that changes nothing, by its whole name.
#[test]
fn a_key_may_be_declared_inert() {
    for (name, keys) in configs() {
        let config = paths::read(&Value::Object(keys.clone()).to_string()).unwrap();
        let made = |keys: &Keys, inert: &[&str]| {
            let folder = folder(keys, &tensors(&*config));
            let inert: Vec<String> = inert.iter().map(ToString::to_string).collect();
            Checkpoint::open_without(folder.path(), &inert)
                .map(|checkpoint| checkpoint.notes)
                .map_err(|why| why.to_string())
        };
        let mut more = keys.clone();
        more.insert("a_switch".into(), json!(1));
        let error = made(&more, &[]).expect_err("unknown");
        assert!(
            error.contains("a_switch = 1") && error.contains("inert = [\"KEY\"]"),
            "{name}: {error}"
        );
        assert!(made(&more, &["a_swit*"]).is_err(), "{name}: names are no patterns");
        let notes = made(&more, &["a_switch"]).unwrap_or_else(|why| panic!("{name}: {why}"));
        assert!(notes.len() == 1 && notes[0].contains("'a_switch'"), "{name}: {notes:?}");
        let read = if keys.contains_key("text_config") {
            "text_config.hidden_size"
        } else {
            "hidden_size"
        };
        let error = made(&keys, &[read]).expect_err("it is read");
        assert!(error.contains(&format!("{read} is read")), "{name}: {error}");
    }
}

/// Values that no model has, for one to three keys at a time; others of the kind: the same in other objects, and files of other sizes.
#[test]
fn absurd_configurations_are_errors() {
    let absurd = [
        json!(0),
        json!(-1),
        json!(1u64 << 31),
        json!(1u64 << 40),
        json!(i64::MAX),
        json!(u64::MAX),
        json!(1.5),
        json!(1e300),
        json!(-1e300),
        json!(1e-300),
        json!("x"),
        json!(true),
        Value::Null,
        json!([]),
        json!({}),
        json!([1u64 << 40]),
        json!(65_536),
        json!(1_000_003),
    ];
    let all: Vec<(String, Keys)> = configs().into_iter().collect();
    let made: BTreeMap<&str, tempfile::TempDir> = all
        .iter()
        .map(|(name, keys)| {
            let config = paths::read(&Value::Object(keys.clone()).to_string()).unwrap();
            (name.as_str(), folder(keys, &tensors(&*config)))
        })
        .collect();
    let mut word = 0x9e37_79b9_7f4a_7c15u64;
    let mut draw = |below: usize| {
        word ^= word << 13;
        word ^= word >> 7;
        word ^= word << 17;
        (word >> 20) as usize % below
    };
    let mut refused = 0;
    let mut open = |name: &str, keys: &Keys| {
        let file = made[name].path().join("config.json");
        std::fs::write(&file, Value::Object(keys.clone()).to_string()).unwrap();
        let error = Checkpoint::open(made[name].path()).err().map(|why| why.to_string());
        refused += usize::from(error.is_some());
        if let Some(error) = &error {
            assert!(error.contains(made[name].path().to_str().unwrap()), "{error}");
        }
        error
    };
    let mut count = 0;
    for (name, keys) in &all {
        for (turn, path) in paths_of(keys, "").into_iter().enumerate() {
            let whole = get(keys, &path).is_u64();
            // All numbers, and others by turns.
            for (at, value) in absurd
                .iter()
                .enumerate()
                .filter(|(at, _)| *at < 7 || at % 11 == turn % 11)
            {
                count += 1;
                let error = open(name, &with(keys, &path, Some(value.clone())));
                // Sizes beyond all files, negative ones and fractions name their key.
                if let Some(error) = error.filter(|_| whole && (1..7).contains(&at)) {
                    let key = path.rsplit('.').next().unwrap();
                    assert!(error.contains(key), "{name}: {path} = {value}: {error}");
                }
            }
        }
    }
    for _ in 0..1000 {
        count += 1;
        let (name, keys) = &all[draw(all.len())];
        let mut keys: Map<String, Value> = keys.clone();
        for _ in 0..2 + draw(2) {
            let paths = paths_of(&keys, "");
            let path = &paths[draw(paths.len())];
            keys = with(&keys, path, Some(absurd[draw(absurd.len())].clone()));
        }
        open(name, &keys);
    }
    println!("{count} configurations, {refused} refused");
    assert!(count >= 5000, "{count} configurations");
    assert!(2 * refused > count, "{refused} of {count} refused");
}
