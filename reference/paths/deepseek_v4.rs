//! Stub.
use super::TensorSpec;
#[derive(Clone, Debug, serde::Deserialize)]
pub struct Config {
    pub vocab_size: usize,
    pub hidden_size: usize,
    pub moe_intermediate_size: usize,
    pub num_attention_heads: usize,
    pub head_dim: usize,
    pub q_lora_rank: usize,
    pub n_routed_experts: usize,
    pub num_experts_per_tok: usize,
    pub o_groups: usize,
    pub o_lora_rank: usize,
    pub index_n_heads: usize,
    pub index_head_dim: usize,
    pub hc_mult: usize,
    pub layer_types: Vec<String>,
    pub mlp_layer_types: Vec<String>,
    pub num_hidden_layers: usize,
}
impl Config {
    pub fn check(&self) -> Result<(), String> {
        if self.layer_types.len() != self.num_hidden_layers {
            return Err(format!(
                "layer_types has {} entries, num_hidden_layers is {}",
                self.layer_types.len(),
                self.num_hidden_layers
            ));
        }
        Ok(())
    }
    pub fn tensors(&self) -> Vec<TensorSpec> {
        let mut all = Vec::new();
        let mut add = |name: String, shape: &[usize]| {
            let integer = name.ends_with("tid2eid");
            all.push(TensorSpec {
                name,
                shape: shape.to_vec(),
                integer,
            })
        };
        let (d, v, n, i, e, h, hd, q) = (
            self.hidden_size,
            self.vocab_size,
            self.hc_mult,
            self.moe_intermediate_size,
            self.n_routed_experts,
            self.num_attention_heads,
            self.head_dim,
            self.q_lora_rank,
        );
        add("model.embed_tokens.weight".into(), &[v, d]);
        for (l, (ty, mlp)) in self.layer_types.iter().zip(&self.mlp_layer_types).enumerate() {
            let p = format!("model.layers.{l}.");
            for hc in ["attn_hc", "ffn_hc"] {
                add(format!("{p}{hc}.fn"), &[(2 + n) * n, n * d]);
                add(format!("{p}{hc}.base"), &[(2 + n) * n]);
                add(format!("{p}{hc}.scale"), &[3]);
            }
            add(format!("{p}input_layernorm.weight"), &[d]);
            add(format!("{p}post_attention_layernorm.weight"), &[d]);
            let a = format!("{p}self_attn.");
            add(format!("{a}q_a_proj.weight"), &[q, d]);
            add(format!("{a}q_a_norm.weight"), &[q]);
            add(format!("{a}q_b_proj.weight"), &[h * hd, q]);
            add(format!("{a}kv_proj.weight"), &[hd, d]);
            add(format!("{a}kv_norm.weight"), &[hd]);
            add(
                format!("{a}o_a_proj.weight"),
                &[self.o_groups * self.o_lora_rank, h * hd / self.o_groups],
            );
            add(format!("{a}o_b_proj.weight"), &[d, self.o_groups * self.o_lora_rank]);
            add(format!("{a}sinks"), &[h]);
            let csa = ty.starts_with("compressed");
            let (m, c) = if csa { (4, 2) } else { (128, 1) };
            for (pre, w) in [("compressor.", hd), ("compressor.indexer.", self.index_head_dim)] {
                if pre.contains("indexer") && !csa {
                    continue;
                }
                add(format!("{a}{pre}kv_proj.weight"), &[c * w, d]);
                add(format!("{a}{pre}gate_proj.weight"), &[c * w, d]);
                add(format!("{a}{pre}position_bias"), &[m, c * w]);
                add(format!("{a}{pre}kv_norm.weight"), &[w]);
            }
            if csa {
                add(
                    format!("{a}compressor.indexer.q_b_proj.weight"),
                    &[self.index_n_heads * self.index_head_dim, q],
                );
                add(
                    format!("{a}compressor.indexer.scorer.weights_proj.weight"),
                    &[self.index_n_heads, d],
                );
            }
            let p = format!("{p}mlp.");
            add(format!("{p}gate.weight"), &[e, d]);
            if mlp == "hash_moe" {
                add(format!("{p}gate.tid2eid"), &[v, self.num_experts_per_tok])
            } else {
                add(format!("{p}gate.e_score_correction_bias"), &[e])
            }
            add(format!("{p}experts.gate_up_proj"), &[e, 2 * i, d]);
            add(format!("{p}experts.down_proj"), &[e, d, i]);
            for x in ["gate", "up"] {
                add(format!("{p}shared_experts.{x}_proj.weight"), &[i, d]);
            }
            add(format!("{p}shared_experts.down_proj.weight"), &[d, i]);
        }
        add("model.norm.weight".into(), &[d]);
        add("lm_head.weight".into(), &[v, d]);
        add("model.hc_head.hc_fn".into(), &[n, n * d]);
        add("model.hc_head.hc_base".into(), &[n]);
        add("model.hc_head.hc_scale".into(), &[1]);
        all
    }
}
