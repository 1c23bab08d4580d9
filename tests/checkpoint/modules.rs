//! Modules that a configuration names.

use ulplab_checkpoint::checkpoint::config::Modules;

#[test]
fn names_of_modules() {
    for (pattern, module, want) in [
        ("lm_head", "lm_head", true),
        ("lm_head", "model.lm_head_norm", false),
        ("model.layers.*.self_attn", "model.layers.3.self_attn.q_proj", true),
        ("model.layers.1.mlp", "model.layers.1.mlp.gate", true),
        ("model.layers.1", "model.layers.11.mlp", false),
        ("*router*", "model.layers.1.mlp.router", true),
        ("visual", "model.visual.blocks.0", true),
        ("re:.*gate$", "a.gate", true),
        ("model.layers.1.", "model.layers.1.mlp", true),
        ("model.layers.1.", "model.layers.11.mlp", false),
    ] {
        assert_eq!(
            Modules::parse(pattern).unwrap().has(module),
            Ok(want),
            "{pattern} {module}"
        );
    }
    for (part, module, want) in [
        ("model.layers.0.", "model.layers.0.mlp.up_proj", true),
        ("model.layers.0.", "model.layers.10.mlp", false),
        ("gate", "model.layers.0.mlp.gate_proj", true),
        ("visual.", "visual", true),
    ] {
        assert_eq!(Modules::Within(part.into()).has(module), Ok(want), "{part} {module}");
    }
}

#[test]
fn expressions_match_as_in_python() {
    for (pattern, name, want) in [
        (".*lm_head", "model.lm_head", true),
        ("lm_head", "model.lm_head", false),
        (r".*mlp\.gate$", "model.layers.0.mlp.gate_proj", false),
        (r"model\.layers\.[0-2]\.", "model.layers.3.mlp", false),
        (r".*\.(?:q|k|v)_proj", "a.k_proj", true),
        ("a|b", "xb", false),
        (r"(a*)*b", "aaaaaaaaaaaaaaaaaaaaaaaaaaaac", false),
        // What a parser of its own did not read.
        (r"^(?!.*experts).*$", "model.layers.0.mlp.experts.0.up_proj", false),
        (r"^(?!.*experts).*$", "model.layers.0.self_attn.q_proj", true),
        (r"(?=.*mlp).*up", "model.mlp.up_proj", true),
        (r".*(?<!shared_)experts", "a.shared_experts", false),
        (r"(?i).*LM_HEAD", "lm_head", true),
        (r".*\bgate\b", "mlp.gate", true),
        (r".*\bgate\b", "mlp.gate_proj", false),
        (r"\S+\.mlp", "model.mlp", true),
        (r"model\.layers\.\d{1,2}\.", "model.layers.123.mlp", false),
        (r"(?P<part>mlp).*(?P=part)", "mlp.x.mlp", true),
    ] {
        let modules = Modules::parse(&format!("re:{pattern}")).unwrap();
        assert_eq!(modules.has(name), Ok(want), "{pattern} {name}");
    }
    for wrong in ["(a", "a)", "a)|(b", "[a", "*", "a{2", r"\"] {
        let found = Modules::parse(&format!("re:{wrong}"));
        assert!(found.is_err() || wrong == "a{2", "{wrong}");
    }
}
