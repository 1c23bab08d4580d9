//! Builds the launches of the operation `delta_handover`: a prefill of the gated delta rule, then a decode step that reads the
//! states from the memory to which the prefill wrote them.

use crate::cuda::Compositions;
use crate::cuda::graph::{Graph, ceil, kernel};

/// Compositions of the operation `delta_handover`.
pub const DELTA_HANDOVER: Compositions = Compositions {
    op: "delta_handover",
    calls: "",
    variants: &[
        ("pointer", |g| delta_handover(g, false)),
        ("turned", |g| delta_handover(g, true)),
    ],
};

/// Launches a prefill in chunks, then a decode step. If `turned` is true, the prefill writes states as [K, V], and a kernel
/// transposes them to [V, K]; otherwise the prefill writes them as [V, K].
fn delta_handover(g: &mut Graph, turned: bool) -> Result<(), String> {
    let [t, n, h, gates, k, v] = g.sizes(["T", "N", "H", "G", "K", "V"]);
    let [chunks, index] = g.sizes(["chunks", "index"]);
    let (parts, wide) = (t / 64 + n, gates / 128);
    let left = h * (17408 + 49152 * wide);
    g.scratch("left", parts * left)?;
    let first = kernel("chunks", "delta_prefill_chunks_own_{gate}");
    let first = first
        .args("q k g beta starts left N H index scale")
        .on([parts * h], 256);
    let bytes = t * h * (516 + 4 * gates) + chunks * left + index * (n + 1);
    g.put(first.shared(60416 + 34816 * wide).bytes(bytes))?;
    let states = kernel("states", "delta_prefill_chunks_states_{gate}").on([n * h * 2], 128);
    let states = match turned {
        true => states.names("to = final, layout = in_vk"),
        false => states.names("to = state, layout = out_vk"),
    };
    let states = states
        .args("q k v initial starts left o to N H index in_vk layout")
        .programmatic();
    let own = if gates == 1 { 1024 } else { 512 };
    let bytes = t * h * own + chunks * left + 8 * n * h * k * v + index * (n + 1);
    g.put(states.shared(3 * (58368 + 16384 * wide) + 32).bytes(bytes))?;
    if turned {
        g.scratch("final", 4 * n * h * k * v)?;
        let tiles = ceil(k, 32) * ceil(v, 32);
        let turn = kernel("turn", "state_transpose_registers_f32").args("final state K V");
        g.put(turn.on([n * h * tiles], 32))?;
    }
    let decode = kernel("decode", "delta_decode_vk_{gate}_f32").on([v / 64, h * ceil(n, 65535), n.min(65535)], 128);
    let args = "next_q next_k next_v gate next_beta a_log dt_bias indices state next_o N H one K V bound";
    let bytes = n * h * (8 * k * v + 4 * k + 4 * v + 2 * gates + 2) + 4 * h * (gates + 1) + 4 * n;
    g.put(decode.args(args).bytes(bytes))
}
