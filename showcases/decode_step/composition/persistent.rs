//! Persistent variant of the decode step: in a single launch, a cluster of thread blocks runs all layers of a sequence.

use super::end;
use ulplab_backend::cuda::graph::{Graph, kernel};

/// Adds one launch for all layers, with a cluster of thread blocks for each sequence. For larger batches, a cluster has fewer
/// thread blocks, and a thread block has more warps.
pub(super) fn persistent(g: &mut Graph) -> Result<(), String> {
    let [b] = g.sizes(["B"]);
    g.scratch("sampled", b * 4)?;
    let team = [4, 16, 32, 64]
        .iter()
        .fold(16, |team, rows| if b > *rows { team / 2 } else { team });
    let (name, entry, threads) = match b <= 4 {
        true => ("few", "decode_step_persistent_{stored}", 320),
        false => ("many", "decode_step_persistent_many_{stored}", 576),
    };
    let layers = kernel(name, entry)
        .on([b * team], threads)
        .cluster(team)
        .shared(232_448);
    let layers = layers.args(
        "embedding head_fn head_base head_scale final_norm head head_scales attn_fn attn_base attn_scale attn_norm q_a q_a_scales \
         q_norm q_b q_b_scales kv kv_scales kv_norm sinks o_a o_a_scales o_b o_b_scales moe_fn moe_base moe_scale moe_norm gate \
         gate_scales gate_up gate_up_scales down down_scales shared_gate_up shared_gate_up_scales shared_down shared_down_scales bias \
         table csa_kv csa_kv_scales csa_gate csa_gate_scales csa_ape csa_norm index_kv index_kv_scales index_gate index_gate_scales \
         index_ape index_norm index_q index_q_scales index_heads index_heads_scales hca_kv hca_kv_scales hca_gate hca_gate_scales \
         hca_ape hca_norm cos sin temperature sequence token position clock window csa_ring_kv csa_ring_gate csa_entries index_ring_kv \
         index_ring_gate index_entries hca_ring_kv hca_ring_gate hca_entries logits sampled at_attention_input at_query at_kv_window \
         at_kv_compressed at_index_query at_index_key at_topk at_heads at_attention_output at_moe_input at_router at_moe_output \
         at_output B S layers lead hashes sparse Ns Nh V C Rq H D R G Ro Wn HI DI topk E K I ms mh eps index_scale attention_scale \
         router_scale limit seed",
    );
    g.put(layers.taps(
        "at_attention_input at_query at_kv_window at_kv_compressed at_index_query at_index_key at_topk at_heads at_attention_output \
         at_moe_input at_router at_moe_output at_output",
    ))?;
    g.put(end().cluster(1))
}
