//! The place in a model that a name of a tensor means.

use ulplab_checkpoint::checkpoint::counterpart::place;

#[test]
fn names_of_programs_mean_the_same_place() {
    let same = |a: &str, b: &str| assert_eq!(place(a).1, place(b).1, "{a} {b}");
    same("model.layers.3.mlp.up_proj.weight", "layers.3.feed_forward.w3.weight");
    same(
        "model.language_model.layers.0.self_attn.o_proj.weight",
        "layers.0.attn.wo.weight",
    );
    same(
        "model.layers.1.block_sparse_moe.experts.7.w2.weight",
        "layers.1.ffn.experts.7.down_proj",
    );
    same("lm_head.weight", "language_model.head.weight");
    let differ = |a: &str, b: &str| assert_ne!(place(a).1, place(b).1, "{a} {b}");
    differ("layers.0.attention.wq.weight", "model.layers.0.self_attn.q_proj.weight");
    differ(
        "model.layers.1.mlp.up_proj.weight",
        "model.layers.11.mlp.up_proj.weight",
    );
    let (prefix, found) = place("model.layers.1.mlp.experts.12.gate_proj.weight");
    assert_eq!(
        (prefix.as_str(), found.within.as_str(), found.expert),
        ("model", "layers.1.mlp.experts", Some(12))
    );
    assert_eq!(place("layers.0.proj").1.expert, None);
    assert_eq!(place("w").1.leaf, "w");
    assert_eq!(place("3").1.leaf, "3");
    assert_eq!(place("").1.leaf, "");
    assert_eq!(place("a.99999999999999999999999.b").1.leaf, "b");
}
