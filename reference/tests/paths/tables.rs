//! The tables of sites agree with configurations and with themselves, and models are found by what checkpoints say.

use std::any::Any;
use std::collections::BTreeSet;

use reference::paths::{PATHS, deepseek_v4, find, named, read};
use reference::sites::{Decision, Flow, Growth, Held, When};
use reference::{Site, SiteKind};

use super::fixtures::*;

/// Sites and shapes as they are printed, in order.
const DEEPSEEK_V4: &[(&str, &str)] = &[
    ("input", "[T, hc_mult, hidden_size]"),
    ("attention.input", "[T, hidden_size]"),
    ("attention.query", "[T, num_attention_heads, head_dim]"),
    ("attention.kv.window", "[T, head_dim]"),
    ("attention.kv.compressed", "[n, head_dim]"),
    ("attention.indexer.query", "[T, index_n_heads, index_head_dim]"),
    ("attention.indexer.key", "[n, index_head_dim]"),
    ("attention.indexer.topk", "[T, index_topk]"),
    ("attention.indexer.mass", "[T, index_topk]"),
    ("attention.heads", "[T, num_attention_heads, head_dim]"),
    ("attention.output", "[T, hidden_size]"),
    ("moe.input", "[T, hidden_size]"),
    ("moe.router", "[T, num_experts_per_tok]"),
    ("moe.gate_up", "[T, 2 · moe_intermediate_size]"),
    ("moe.output", "[T, hidden_size]"),
    ("output", "[T, hc_mult, hidden_size]"),
    ("logits", "[T, vocab_size]"),
];

/// The same of transformers with grouped-query attention.
const GQA: &[(&str, &str)] = &[
    ("embedding.weight", "[vocab_size, hidden_size]"),
    ("attention.query.weight", "[query channels, hidden_size]"),
    ("attention.key.weight", "[key channels, hidden_size]"),
    ("attention.value.weight", "[value channels, hidden_size]"),
    (
        "attention.heads.weight",
        "[hidden_size, num_attention_heads · head_dim]",
    ),
    ("mlp.gate.weight", "[intermediate_size, hidden_size]"),
    ("mlp.up.weight", "[intermediate_size, hidden_size]"),
    ("mlp.down.weight", "[hidden_size, intermediate_size]"),
    ("experts.router.weight", "[num_experts, hidden_size]"),
    ("experts.gate.weight", "[moe_intermediate_size, hidden_size]"),
    ("experts.up.weight", "[moe_intermediate_size, hidden_size]"),
    ("experts.down.weight", "[hidden_size, moe_intermediate_size]"),
    ("head.weight", "[vocab_size, hidden_size]"),
    ("input", "[T, hidden_size]"),
    ("attention.normed", "[T, hidden_size]"),
    ("attention.input", "[T, hidden_size]"),
    ("attention.query.before_rope", "[T, num_attention_heads, head_dim]"),
    ("attention.key.before_rope", "[T, num_key_value_heads, head_dim]"),
    ("attention.query", "[T, num_attention_heads, head_dim]"),
    ("attention.kv.key", "[T, num_key_value_heads, head_dim]"),
    ("attention.kv.value", "[T, num_key_value_heads, head_dim]"),
    ("attention.heads", "[T, num_attention_heads · head_dim]"),
    ("attention.output", "[T, hidden_size]"),
    ("mlp.normed", "[T, hidden_size]"),
    ("mlp.input", "[T, hidden_size]"),
    ("experts.router", "[T, num_experts_per_tok]"),
    ("mlp.hidden", "[T, intermediate_size]"),
    ("experts.hidden", "[T, num_experts_per_tok, moe_intermediate_size]"),
    ("mlp.output", "[T, hidden_size]"),
    ("output", "[T, hidden_size]"),
    ("head.input", "[T, hidden_size]"),
    ("logits", "[T, vocab_size]"),
];

/// The same of hybrids.
const HYBRID: &[(&str, &str)] = &[
    ("embedding.weight", "[vocab_size, hidden_size]"),
    ("attention.query.weight", "[query channels, hidden_size]"),
    ("attention.gate.weight", "[query channels, hidden_size]"),
    ("attention.key.weight", "[key channels, hidden_size]"),
    ("attention.value.weight", "[value channels, hidden_size]"),
    (
        "attention.latent.down.weight",
        "[channels of a latent and of a shared key, hidden_size]",
    ),
    (
        "attention.latent.up.weight",
        "[key and value channels of all heads, kv_lora_rank]",
    ),
    (
        "attention.heads.weight",
        "[hidden_size, num_attention_heads · v_head_dim]",
    ),
    ("linear.qkv.weight", "[linear_conv_channels, hidden_size]"),
    ("linear.gate.weight", "[value channels, hidden_size]"),
    ("linear.gate.down.weight", "[linear_low_rank, hidden_size]"),
    ("linear.gate.up.weight", "[value channels, linear_low_rank]"),
    ("linear.beta.weight", "[linear_num_value_heads, hidden_size]"),
    ("linear.decay.weight", "[linear_num_value_heads, hidden_size]"),
    ("linear.decay.down.weight", "[linear_low_rank, hidden_size]"),
    ("linear.decay.up.weight", "[key channels, linear_low_rank]"),
    ("linear.conv.weight", "[linear_conv_channels, linear_conv_kernel_dim]"),
    (
        "linear.heads.weight",
        "[hidden_size, linear_num_value_heads · linear_value_head_dim]",
    ),
    ("mlp.gate.weight", "[intermediate_size, hidden_size]"),
    ("mlp.up.weight", "[intermediate_size, hidden_size]"),
    ("mlp.down.weight", "[hidden_size, intermediate_size]"),
    ("experts.router.weight", "[num_experts, hidden_size]"),
    ("experts.gate.weight", "[moe_intermediate_size, hidden_size]"),
    ("experts.up.weight", "[moe_intermediate_size, hidden_size]"),
    ("experts.down.weight", "[hidden_size, moe_intermediate_size]"),
    ("shared.gate.weight", "[shared_expert_intermediate_size, hidden_size]"),
    ("shared.up.weight", "[shared_expert_intermediate_size, hidden_size]"),
    ("shared.down.weight", "[hidden_size, shared_expert_intermediate_size]"),
    ("shared.scale.weight", "[1, hidden_size]"),
    ("head.weight", "[vocab_size, hidden_size]"),
    ("input", "[T, hidden_size]"),
    ("attention.input", "[T, hidden_size]"),
    ("attention.query.before_rope", "[T, num_attention_heads, head_dim]"),
    ("attention.key.before_rope", "[T, num_key_value_heads, head_dim]"),
    ("attention.query", "[T, num_attention_heads, head_dim]"),
    ("attention.kv.latent", "[T, kv_lora_rank]"),
    ("attention.kv.shared_key", "[T, qk_rope_head_dim]"),
    ("attention.latent.key", "[T, num_attention_heads, qk_nope_head_dim]"),
    ("attention.latent.value", "[T, num_attention_heads, v_head_dim]"),
    ("attention.kv.key", "[T, num_key_value_heads, head_dim]"),
    ("attention.kv.value", "[T, num_key_value_heads, head_dim]"),
    ("attention.gate", "[T, num_attention_heads · head_dim]"),
    ("attention.heads", "[T, num_attention_heads · v_head_dim]"),
    ("linear.qkv", "[T, linear_conv_channels]"),
    ("linear.conv.state", "[tokens before, linear_conv_channels]"),
    ("linear.query", "[T, linear_num_key_heads, linear_key_head_dim]"),
    ("linear.key", "[T, linear_num_key_heads, linear_key_head_dim]"),
    ("linear.value", "[T, linear_num_value_heads, linear_value_head_dim]"),
    ("linear.beta", "[T, linear_num_value_heads]"),
    ("linear.decay", "[T, linear_num_value_heads]"),
    ("linear.decay.low", "[T, linear_low_rank]"),
    (
        "linear.decay.channel",
        "[T, linear_num_value_heads, linear_key_head_dim]",
    ),
    (
        "linear.state",
        "[linear_num_value_heads, linear_key_head_dim, linear_value_head_dim]",
    ),
    ("linear.output", "[T, linear_num_value_heads, linear_value_head_dim]"),
    ("linear.normed", "[T, linear_num_value_heads, linear_value_head_dim]"),
    ("linear.gate.low", "[T, linear_low_rank]"),
    ("linear.gate", "[T, linear_num_value_heads · linear_value_head_dim]"),
    ("linear.heads", "[T, linear_num_value_heads · linear_value_head_dim]"),
    ("attention.output", "[T, hidden_size]"),
    ("mlp.input", "[T, hidden_size]"),
    ("experts.router", "[T, num_experts_per_tok]"),
    ("mlp.hidden", "[T, intermediate_size]"),
    ("experts.hidden", "[T, num_experts_per_tok, moe_intermediate_size]"),
    ("shared.hidden", "[T, shared_expert_intermediate_size]"),
    ("shared.scale", "[T, 1]"),
    ("mlp.output", "[T, hidden_size]"),
    ("output", "[T, hidden_size]"),
    ("head.input", "[T, hidden_size]"),
    ("logits", "[T, vocab_size]"),
];

/// The same of Swap-FFN.
const SWAP_FFN: &[(&str, &str)] = &[
    ("weights.core_embed", "[core_count, d_embed]"),
    ("weights.film_scale", "[d_model, d_embed]"),
    ("weights.film_scale_bias", "[d_model]"),
    ("weights.film_shift", "[d_model, d_embed]"),
    ("weights.film_shift_bias", "[d_model]"),
    ("weights.film_alpha", "[collapse_k, d_embed]"),
    ("weights.film_alpha_bias", "[collapse_k]"),
    ("weights.router_norm", "[d_model]"),
    ("weights.router_w", "[d_router, d_model]"),
    ("weights.router_swap_w", "[d_router]"),
    ("weights.router_swap_b", "[1]"),
    ("weights.bank_w", "[d_router, 4]"),
    ("weights.bank_b", "[4]"),
    ("weights.norm", "[d_model]"),
    ("weights.w1", "[d_ff, d_model]"),
    ("weights.w3", "[d_ff, d_model]"),
    ("weights.w2", "[d_model, d_ff]"),
    ("weights.collapse_basis", "[collapse_k, collapse_r, d_model]"),
    ("weights.collapse_decoder", "[d_model, collapse_r]"),
    ("film.scale", "[core_count, d_model]"),
    ("film.shift", "[core_count, d_model]"),
    ("film.alpha", "[core_count, collapse_k]"),
    ("input", "[B, d_model]"),
    ("film.x", "[B · core_count, d_model]"),
    ("router.input", "[B · core_count, d_model]"),
    ("router.n", "[B · core_count, d_model]"),
    ("router.z", "[B · core_count, d_router]"),
    ("router.logits", "[B · core_count, 5]"),
    ("router.probabilities", "[B · core_count, 5]"),
    ("router.gate", "[B · core_count, 1]"),
    ("router.bank", "[B · core_count, 1]"),
    ("ram", "[rows that are exchanged, d_model]"),
    ("ffn.n", "[B · core_count, d_model]"),
    ("ffn.gate", "[B · core_count, d_ff]"),
    ("ffn.up", "[B · core_count, d_ff]"),
    ("ffn.silu", "[B · core_count, d_ff]"),
    ("ffn.h", "[B · core_count, d_ff]"),
    ("ffn.down", "[B · core_count, d_model]"),
    ("x", "[B · core_count, d_model]"),
    ("collapse.pooled", "[B, collapse_k · d_model]"),
    ("collapse.z", "[B, collapse_r]"),
    ("delta", "[B, d_model]"),
];

#[test]
fn shapes_are_printed_in_words_of_the_configuration() {
    for (path, want) in PATHS.iter().zip([DEEPSEEK_V4, GQA, HYBRID, SWAP_FFN]) {
        let printed: Vec<_> = path.sites.iter().map(|site| (site.name, site.shape())).collect();
        let printed: Vec<_> = printed.iter().map(|(name, shape)| (*name, shape.as_str())).collect();
        assert_eq!(printed, want);
    }
}

#[test]
fn every_table_agrees_with_itself() {
    let unique = |names: Vec<&str>| assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len(), "{names:?}");
    unique(PATHS.iter().map(|path| path.name).collect());
    unique(PATHS.iter().flat_map(|path| (path.model_types)()).collect());
    for path in PATHS {
        let sites = path.sites;
        unique(sites.iter().map(|site| site.name).collect());
        let of = |flow| sites.iter().filter(|site| site.flow == flow).count();
        assert_eq!(
            (of(Flow::Output), of(Flow::Leaves).max(1), of(Flow::Enters).max(1)),
            (1, 1, 1)
        );
        assert_eq!(path.output().flow, Flow::Output);
        for site in sites {
            let tensor = site.kind == SiteKind::Tensor;
            assert!(
                tensor || site.flow == Flow::Inside && !site.compared && site.cache.is_none(),
                "{}",
                site.name
            );
            assert!(site.flow == Flow::Inside || site.when == When::Run);
            let state = site.cache.map(|cache| cache.growth == Growth::State);
            assert_eq!(
                state,
                site.cache.map(|cache| cache.held == Held::State),
                "{}",
                site.name
            );
            let Some(Decision::TopK { query, key, mass }) = site.decision() else {
                continue;
            };
            let named = |name| path.site(name).expect("a site of the path");
            assert_eq!(named(query).layers, site.layers);
            assert_eq!(named(key).cache.map(|cache| cache.held), Some(Held::Index));
            assert!(mass.is_none_or(|mass| named(mass).kind == SiteKind::Watch));
        }
    }
}

/// Whatever can be asked of a site has an answer.
#[test]
fn every_configuration_knows_the_words_of_its_sites() {
    for fixture in all() {
        let config = fixture.config();
        for (site, layer) in config.places() {
            let (cols, token) = (config.cols(site), config.cols_of_token(site));
            assert!(
                cols > 0 && token.is_multiple_of(cols) && config.turned(site) <= cols,
                "{}",
                site.name
            );
            assert!(config.passes(site, layer) && layer.is_some() == site.in_layers());
            let grows = site
                .cache
                .is_some_and(|cache| matches!(cache.growth, Growth::Token | Growth::Entry));
            let forgets = layer.is_some_and(|layer| config.layer_types(layer).contains(&"sliding_attention"));
            let rows = layer.and_then(|layer| config.tokens_per_row(site, layer));
            assert_eq!(rows.is_some(), grows && !forgets, "{}", site.name);
        }
        assert!(!config.passes(config.path().output(), Some(0)));
        let all = config.places().len();
        assert_eq!(config.clone().places().len(), all);
    }
}

#[test]
fn what_deepseek_v4_says_of_its_sites() {
    let config = all()[0].config();
    let path = config.path();
    let names = |keep: &dyn Fn(&reference::SiteInfo) -> bool| {
        let kept = path.sites.iter().filter(|site| keep(site));
        kept.map(|site| site.name).collect::<Vec<_>>()
    };
    assert_eq!(
        names(&|site| site.compared),
        [
            "attention.kv.window",
            "attention.kv.compressed",
            "attention.output",
            "output"
        ]
    );
    let cached = [
        "attention.kv.window",
        "attention.kv.compressed",
        "attention.indexer.key",
    ];
    assert_eq!(names(&|site| site.cache.is_some()), cached);
    let rows = |layer| cached.map(|name| config.tokens_per_row(path.site(name).expect("a site"), layer));
    assert_eq!(
        [0, 1, 2].map(rows),
        [[None; 3], [None, Some(8), Some(8)], [None, Some(4), Some(4)]]
    );
    assert_eq!(path.stream().map(|site| site.name), Some("output"));
    assert_eq!(
        (config.layers(), config.vocabulary(), config.most_tokens()),
        (6, Some(96), Some(4096))
    );
    let site = |name| path.site(name).expect("a site");
    assert_eq!(
        (config.cols(site("input")), config.cols_of_token(site("input"))),
        (48, 4 * 48)
    );
    assert_eq!(
        (
            config.turned(site("attention.kv.window")),
            config.turned(site("output"))
        ),
        (8, 0)
    );
    let single = |name| site(name).decision().map(Decision::is_single);
    assert_eq!([single("moe.router"), single("output")], [Some(false), None]);
    let typed = (&*config as &dyn Any).downcast_ref::<deepseek_v4::Config>();
    assert_eq!(typed.map(|config| config.index_topk), Some(4));
    assert_eq!(named("swap_ffn").map(|path| path.output().name), Some("delta"));
    assert_eq!(Site::new(Some(3), "x").from_row(7).to_string(), "layers.3.x");
}

#[test]
fn a_model_type_that_is_unknown_is_told_with_those_that_are_known() {
    let error = |json: &str| find(json).map(|path| path.name).expect_err(json);
    let types = PATHS.iter().flat_map(|path| (path.model_types)());
    let types: Vec<String> = types.map(|name| format!("'{name}'")).collect();
    let known = format!("expected one of {}", types.join(", "));
    assert!(
        known.contains("'deepseek_v4', 'llama', ") && known.ends_with(", 'swap_ffn'"),
        "{known}"
    );
    assert_eq!(
        error(r#"{"model_type": "bert", "architectures": ["BertModel"]}"#),
        format!("model_type is 'bert' (BertModel), {known}")
    );
    assert_eq!(error(r#"{"model_type": "x"}"#), format!("model_type is 'x', {known}"));
    assert_eq!(error(r#"{"model_type": 3}"#), format!("model_type is 3, {known}"));
    assert_eq!(error("{}"), format!("model_type is missing, {known}"));
    assert!(error("[1]").starts_with("expected an object"));
    assert!(error("{").contains("JSON"));
    let error = read(r#"{"model_type": "deepseek_v4"}"#).expect_err("keys are missing");
    assert!(error.contains("num_hidden_layers is missing"), "{error}");
    let error = read(r#"{"model_type": "swap_ffn", "d_ff": 0}"#).expect_err("a size is 0");
    assert_eq!(error, "d_ff is 0");
}
