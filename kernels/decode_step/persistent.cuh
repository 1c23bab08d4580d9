/*
[[variant]]
name = "persistent"
doc = """
a cluster of thread blocks runs all layers for one sequence, and exchanges vectors through shared memory; small models \
only. The number of blocks follows from that of the sequences, and changes no bits"""
needs = [
    "records == 0 && routed_bits == weight_bits",
    "C <= 64 && Rq <= 64 && D <= 512 && H <= 8 && HD <= 1024 && DI <= 128 && HI <= 8 && HI * DI <= 512 && G * Ro <= 64",
    "R <= 64 && E <= 32 && K <= 4 && K <= E && (K + 1) * I <= 256 && I <= 64 && V <= 256 && topk <= 64 && 2 * ms <= 128 && mh <= 128 && H + HI <= 16",
    "C % 4 == 0 && Rq % 4 == 0 && D % 8 == 0 && DI % 8 == 0 && R % 8 == 0 && G * Ro % 4 == 0 && I % 4 == 0",
    "81920 + 8 * Ns + 4 * H * (Wn + max(Nh, topk)) <= 232448",
]
scratch = [{ name = "sampled", bytes = "B * 4" }]

[[variant.launch]]
name = "step"
entry = "decode_step_persistent_{stored}"
grid = ["B * (16 / (1 + (B > 4)) / (1 + (B > 16)) / (1 + (B > 32)) / (1 + (B > 64)))"]
block = [544]
cluster = ["16 / (1 + (B > 4)) / (1 + (B > 16)) / (1 + (B > 32)) / (1 + (B > 64))"]
shared = "81920 + 8 * Ns + 4 * H * (Wn + max(Nh, topk))"
args = [
    "embedding", "head_fn", "head_base", "head_scale", "final_norm", "head", "head_scales", "attn_fn", "attn_base",
    "attn_scale", "attn_norm", "q_a", "q_a_scales", "q_norm", "q_b", "q_b_scales", "kv", "kv_scales", "kv_norm", "sinks", "o_a",
    "o_a_scales", "o_b", "o_b_scales", "moe_fn", "moe_base", "moe_scale", "moe_norm", "gate", "gate_scales", "gate_up",
    "gate_up_scales", "down", "down_scales", "shared_gate_up", "shared_gate_up_scales", "shared_down", "shared_down_scales",
    "bias", "table", "csa_kv", "csa_kv_scales", "csa_gate", "csa_gate_scales", "csa_ape", "csa_norm", "index_kv",
    "index_kv_scales", "index_gate", "index_gate_scales", "index_ape", "index_norm", "index_q", "index_q_scales", "index_heads",
    "index_heads_scales", "hca_kv", "hca_kv_scales", "hca_gate", "hca_gate_scales", "hca_ape", "hca_norm", "cos", "sin",
    "temperature", "sequence", "token", "position", "clock", "window", "csa_ring_kv", "csa_ring_gate", "csa_entries",
    "index_ring_kv", "index_ring_gate", "index_entries", "hca_ring_kv", "hca_ring_gate", "hca_entries", "logits", "sampled",
    "at_attention_input", "at_query", "at_kv_window", "at_kv_compressed", "at_index_query", "at_index_key", "at_topk",
    "at_heads", "at_attention_output", "at_moe_input", "at_router", "at_moe_output", "at_output", "B", "S", "layers", "lead",
    "hashes", "V", "C", "Rq", "H", "D", "R", "G", "Ro", "Wn", "HI", "DI", "topk", "E", "K", "I", "ms", "mh", "sparse", "Ns",
    "Nh", "eps", "index_scale", "attention_scale", "router_scale", "limit", "seed",
]
taps = [
    "at_attention_input", "at_query", "at_kv_window", "at_kv_compressed", "at_index_query", "at_index_key", "at_topk",
    "at_heads", "at_attention_output", "at_moe_input", "at_router", "at_moe_output", "at_output",
]
[[variant.launch]]
name = "end"
entry = "decode_step_end"
grid = [1]
block = [256]
args = ["sampled", "forced", "clock", "token", "position", "tokens", "B", "S", "P"]

[[mutant]]
name = "absent_pooled_as_zeros"
doc = "tokens before the first are pooled, as zeros"
variants = ["persistent"]

[[mutant]]
name = "entry_turned_late"
doc = "entries have the angles of the last token of their window"
variants = ["persistent"]

[[mutant]]
name = "last_key_lost"
doc = "the last key is not read"
variants = ["persistent"]

[[mutant]]
name = "shared_expert_lost"
doc = "the shared expert is not added"
variants = ["persistent"]
*/

// The variant `persistent`: a cluster of CTAs runs all layers for one sequence.
#pragma once

#include "decode_step/attention.cuh"
#include "decode_step/prefetch.cuh"

namespace persistent {

// ---- experts

// The experts of the token, and their weights; by the first warp, a lane for each expert.
template <class W> __device__ __forceinline__ void route(const Context<W> &c, int layer, float bias) {
    const Arguments<W> &a = c.a;
    const int lane = threadIdx.x % 32;
    const float sigma = lane < a.E ? router_file::sqrt_softplus(c.s.expert_logits[lane]) : 0.0f;
    const u64 place = lane < a.E ? router_file::place_of(sigma + bias, lane) : 0;
    int before = 0;
#pragma unroll 4
    for (int other = 0; other < a.E; other++)
        before += __shfl_sync(0xffffffff, place, other) > place;
    float sum = 0.0f, own = 0.0f;
#pragma unroll 1
    for (int slot = 0; slot < a.K; slot++) {
        int expert = __ffs(__ballot_sync(0xffffffff, lane < a.E && before == slot)) - 1;
        if (layer < a.hashes)
            expert = __ldg(a.table + ((size_t)layer * a.V + c.row.token) * a.K + slot);
        const float of_slot = __shfl_sync(0xffffffff, sigma, expert);
        sum += of_slot;
        if (lane == slot)
            own = of_slot, c.s.experts[slot] = expert;
    }
    if (lane < a.K)
        c.s.expert_weights[lane] = own / (sum + 1e-20f) * a.router_scale;
}

// The second products, added up over experts; by each CTA, all of it. Sixteen lanes have two channels, and load a number of slots at
// a time.
template <class W> __device__ __forceinline__ void mix(const Context<W> &c, int layer) {
    constexpr int GROUPS = WORKERS / 16, SLOTS = 3;
    const Arguments<W> &a = c.a;
    const int lane = threadIdx.x % 16;
#ifdef MUTANT_SHARED_EXPERT_LOST
    const int slots = a.K;
#else
    const int slots = a.K + 1;
#endif
    const auto down = Matrix<W>{a.down, a.down_scales}.from((size_t)layer * a.E * a.C, a.I);
    const auto shared = Matrix<W>{a.shared_down, a.shared_down_scales}.from((size_t)layer * a.C, a.I);
#pragma unroll 1
    for (int first = 0; first < a.C; first += 2 * GROUPS) {
        const int channel = first + threadIdx.x / 16, other = channel + GROUPS;
        float sums[2] = {};
#pragma unroll 1
        for (int block = 0; block < slots; block += SLOTS) {
            float4 weights[2][SLOTS];
#pragma unroll
            for (int i = 0; i < SLOTS; i++) {
                const int slot = block + i;
                const Matrix<W> matrix = slot < a.K ? down.from(c.s.experts[slot] * a.C, a.I) : shared;
                const bool there = slot < slots && 4 * lane < a.I;
                const float4 zeros = make_float4(0, 0, 0, 0);
                weights[0][i] = there && channel < a.C ? matrix.row(channel, a.I).four(4 * lane) : zeros;
                weights[1][i] = there && other < a.C ? matrix.row(other, a.I).four(4 * lane) : zeros;
            }
#pragma unroll
            for (int i = 0; i < SLOTS; i++) {
                if (block + i >= slots || 4 * lane >= a.I)
                    continue;
                const float4 hidden = load4(c.s.hidden + (block + i) * a.I + 4 * lane);
                sums[0] = dot4(weights[0][i], hidden, sums[0]), sums[1] = dot4(weights[1][i], hidden, sums[1]);
            }
        }
        sums[0] = lanes_sum<16>(sums[0]), sums[1] = lanes_sum<16>(sums[1]);
        if (lane == 0 && channel < a.C)
            c.s.out[channel] = sums[0];
        if (lane == 0 && other < a.C)
            c.s.out[other] = sums[1];
    }
    workers_sync();
}

template <class W> __device__ __forceinline__ void experts(const Context<W> &c, int layer) {
    const Arguments<W> &a = c.a;
    const float bias = __ldg(a.bias + layer * a.E + min((int)threadIdx.x % 32, a.E - 1));
    c.keep(a.at_moe_input, layer, a.layers, c.s.normed, a.C);
    const auto gate = Matrix<W>{a.gate, a.gate_scales}.from((size_t)layer * a.E, a.C);
    products<16, 1>(
        a.E, a.C, [&](int unit) { return gate.row(unit, a.C); }, [&](int) { return c.s.normed; },
        [&](int unit, float product) {
            if (threadIdx.x % 16 == 0)
                c.s.expert_logits[unit] = product;
        });
    workers_sync();
    if (threadIdx.x < 32)
        route(c, layer, bias);
    workers_sync();
    if (layer >= a.hashes)
        c.keep(a.at_router, layer - a.hashes, a.layers - a.hashes, c.s.experts, a.K);

    // Rows of gate and of up in turn, so that the two halves of a warp have both of one number.
    const Share share = c.team.share<1>((a.K + 1) * a.I);
    const auto gate_up = Matrix<W>{a.gate_up, a.gate_up_scales}.from((size_t)layer * a.E * 2 * a.I, a.C);
    const auto shared = Matrix<W>{a.shared_gate_up, a.shared_gate_up_scales}.from((size_t)layer * 2 * a.I, a.C);
    products<16, 2>(
        2 * share.count, a.C,
        [&](int unit) {
            const int of = c.s.hidden_rows[unit / 2], slot = of >> 8, row = (of & 255) + unit % 2 * a.I;
            return slot < a.K ? gate_up.row(c.s.experts[slot] * 2 * a.I + row, a.C) : shared.row(row, a.C);
        },
        [&](int) { return c.s.normed; },
        [&](int unit, float product) {
            const int at = share.first + unit / 2, slot = c.s.hidden_rows[unit / 2] >> 8, lane = threadIdx.x % 32;
            // Both halves are here, as the number of units is even.
            const float other = __shfl_xor_sync(0xffffffff, product, 16);
            const float gate = lane < 16 ? product : other, up = lane < 16 ? other : product;
            const float weight = slot < a.K ? c.s.expert_weights[slot] : 1.0f;
            c.team.give(c.s.hidden + at, experts_file::swiglu(gate, up, a.limit) * weight, lane);
        });
    cluster_sync();

    mix(c, layer);
    c.keep(a.at_moe_output, layer, a.layers, c.s.out, a.C);
}

// ---- all layers

// The streams of the token, and angles.
template <class W> __device__ __forceinline__ void begin(const Context<W> &c) {
    const Arguments<W> &a = c.a;
    const int t = turned_position(a.position, c.row.row), pairs = a.R / 2;
#pragma unroll 1
    for (int at = threadIdx.x; at < STREAMS * a.C; at += WORKERS)
        c.s.x[at] = stream_begins(a.embedding[(size_t)c.row.token * a.C + at % a.C], at / a.C);
#pragma unroll 1
    for (int at = threadIdx.x; at < 3 * pairs; at += WORKERS) {
        const int table = at / pairs, pair = at % pairs;
#ifdef MUTANT_ENTRY_TURNED_LATE
        const int from = t;
#else
        const int from = table == 0 ? t : table == 1 ? t / a.ms * a.ms : t / a.mh * a.mh;
#endif
        c.s.cos[table][pair] = from < 0 ? 1.0f : a.cos[(size_t)from * pairs + pair];
        c.s.sin[table][pair] = from < 0 ? 0.0f : a.sin[(size_t)from * pairs + pair];
    }
    list_shares(c);
    workers_sync();
}

// Zeros in the place of values that a tap keeps.
template <class W, class T> __device__ __forceinline__ void clear(const Context<W> &c, T *tap, int layers, int cols) {
#pragma unroll 1
    for (int layer = 0; tap && layer < layers; layer++)
#pragma unroll 1
        for (int at = threadIdx.x; at < cols; at += THREADS)
            c.kept(tap, layer, layers, cols)[at] = 0;
}

// What a row of padding leaves.
template <class W> __device__ __forceinline__ void pad(const Context<W> &c) {
    const Arguments<W> &a = c.a;
    clear(c, a.at_attention_input, a.layers, a.C);
    clear(c, a.at_query, a.layers, a.H * a.D);
    clear(c, a.at_kv_window, a.layers, a.D);
    clear(c, a.at_kv_compressed, a.layers, a.D);
    clear(c, a.at_index_query, a.sparse, a.HI * a.DI);
    clear(c, a.at_index_key, a.sparse, a.DI);
    clear(c, a.at_topk, a.sparse, a.topk);
    clear(c, a.at_heads, a.layers, a.H * a.D);
    clear(c, a.at_attention_output, a.layers, a.C);
    clear(c, a.at_moe_input, a.layers, a.C);
    clear(c, a.at_router, a.layers - a.hashes, a.K);
    clear(c, a.at_moe_output, a.layers, a.C);
    clear(c, a.at_output, a.layers, STREAMS * a.C);
    clear(c, a.logits, 1, a.V);
    if (threadIdx.x == 0)
        a.sampled[c.row.row] = -1;
}

template <class W> __device__ __forceinline__ void step(const Arguments<W> &a) {
    extern __shared__ float4 smem[];
    Shared<W> &s = *(Shared<W> *)smem;
    const Team team = Team::own();
    const int row = blockIdx.x >> team.bits;
    const Context<W> c = {a, s, team, {row, min(*a.clock, a.S - 1), a.position[row], token_of(a.token, row)}};
    if (c.row.position < 0) {
        if (team.rank == 0)
            pad(c);
        return;
    }
    const bool mixes = threadIdx.x >= WORKERS, first_of_mixer = threadIdx.x == WORKERS;
    if (first_of_mixer)
        find(c, 0, s.layers[0]);
    // Others write to this shared memory only once it exists.
    cluster_sync();
    if (mixes) {
        list_ranges(c);
#pragma unroll 1
        for (int half = 0; half < 2 * a.layers; half++) {
            const int next = half / 2 + 1;
            const Layer<W> &layer = s.layers[half / 2 % 2];
            make_mixing(c, layer.mixing[half % 2], [&] {
                if (half % 2 == 1 || next == a.layers)
                    return;
                prefetch(c, next);
                if (first_of_mixer)
                    find(c, next, s.layers[next % 2]);
                __syncwarp();
            });
#pragma unroll 1
            for (int left = half % 2 == 0 ? exchanges(layer.sparse) - 1 : 0; left > 0; left--)
                cluster_sync();
        }
        cluster_sync();
        return;
    }
    begin(c);
#pragma unroll 1
    for (int half = 0; half < 2 * a.layers; half++) {
        const Layer<W> &layer = s.layers[half / 2 % 2];
        const Mixing &mixing = layer.mixing[half % 2];
        enter(c, mixing.fn, mixing.base, mixing.scale, mixing.norm, MUS);
        if (half % 2 == 0)
            attention(c, layer);
        else
            experts(c, half / 2);
        leave(c);
        if (half % 2 == 1)
            c.keep(a.at_output, half / 2, a.layers, c.s.x, STREAMS * a.C);
    }
    head(c);
}

} // namespace persistent

#define PARAMETER(TYPE, NAME) TYPE *NAME,
#define SIZE_PARAMETER(NAME) int NAME,
#define POINTER(TYPE, NAME) NAME,
#define SIZE(NAME) NAME,
#define PERSISTENT(WEIGHTS)                                                                                    \
    namespace of_##WEIGHTS {                                                                                   \
        typedef stored_##WEIGHTS::Code Code;                                                                   \
        typedef stored_##WEIGHTS::Scale Scale;                                                                 \
        extern "C" __global__ void __launch_bounds__(persistent::THREADS, 1) decode_step_persistent_##WEIGHTS( \
            DECODE_STEP_POINTERS(PARAMETER) DECODE_STEP_SIZES(SIZE_PARAMETER) float eps, float index_scale,    \
            float attention_scale, float router_scale, float limit, long long seed) {                          \
            const persistent::Arguments<stored_##WEIGHTS> arguments = {                                        \
                DECODE_STEP_POINTERS(POINTER) DECODE_STEP_SIZES(SIZE) eps,                                     \
                index_scale,                                                                                   \
                attention_scale,                                                                               \
                router_scale,                                                                                  \
                limit,                                                                                         \
                seed};                                                                                         \
            persistent::step(arguments);                                                                       \
        }                                                                                                      \
    }

PERSISTENT(f32)
PERSISTENT(bf16)
PERSISTENT(fp8_b64_f32)
