// The entry points of the unfused variant.
#pragma once

#include "swap_ffn/unfused.cuh"

#define STEP(NAME, ...) KERNEL(swap_ffn_unfused_##NAME, __launch_bounds__(ROW_THREADS))(__VA_ARGS__)

STEP(film, const bf16 *x_in, const float *scale, const float *shift, float *x, int B, int C, int D, int begin) {
    const Place place(D);
    const size_t core = (size_t)(place.row % C) * D + place.column;
    if (begin && place.exists)
        x[place.at] = to_f32(x_in[(size_t)(place.row / C) * D + place.column]) * scale[core] + shift[core];
}

STEP(norm, const float *x, float *norm, int D, float eps) {
    norm_of_row(x, norm, D, eps);
}

STEP(scale, const float *x, const float *norm, const float *g, float *normed, int B, int C, int D) {
    const Place place(D);
    if (place.exists)
        normed[place.at] = x[place.at] * norm[place.row] * g[place.column];
}

STEP(project, const float *normed, const bf16 *weight, float *z, int B, int C, int D) {
    simple_product(normed, weight, B * C, ROUTER, D,
                   [&](int row, int column, float sum) { z[(size_t)row * ROUTER + column] = sum; });
}

STEP(logit, const float *z, const float *weight, const float *bias, float *logit, int B, int C) {
    logit_of_row(z, weight, bias, logit, B * C);
}

// σ(l) > ½, the same as l > 0 except next to 0.
STEP(gate, const float *logit, u8 *gate, int B, int C) {
    const int row = element();
    if (row < B * C)
        gate[row] = 1.0f / (1.0f + expf(-logit[row])) > 0.5f;
}

STEP(banks, const float *z, const float *weight, float *banks, int B, int C) {
    const int row = element();
    if (row >= B * C)
        return;
    for (int bank = 0; bank < BANKS; bank++) {
        float sum = 0.0f;
        for (int i = 0; i < ROUTER; i++)
            sum = fmaf(z[(size_t)row * ROUTER + i], weight[i * BANKS + bank], sum);
        banks[row * BANKS + bank] = sum;
    }
}

STEP(bank, const float *banks, const float *bias, u8 *bank, int B, int C) {
    bank_of_row(banks, bias, bank, B * C);
}

STEP(lanes, const u8 *map, u8 *lanes, int B, int C) {
    const int row = element();
    if (row < B * C) {
        for (int i = 0; i < BANKS; i++)
            lanes[row * BANKS + i] = map[row] >> 2 * i & 3;
    }
}

STEP(physical, const u8 *lanes, const u8 *bank, u8 *physical, int B, int C) {
    const int row = element();
    if (row < B * C)
        physical[row] = lanes[row * BANKS + bank[row]];
}

STEP(gather, const bf16 *ram, const u8 *physical, bf16 *gathered, int B, int C, int D) {
    const Place place(D);
    if (place.exists)
        gathered[place.at] = ram[((size_t)place.row * BANKS + physical[place.row]) * D + place.column];
}

#define WRITE(BANK)                                                                                                       \
    STEP(write_##BANK, const u8 *gate, const u8 *physical, const bf16 *ram, const float *x, bf16 *next_ram, int B, int C, \
         int D) {                                                                                                         \
        next_bank(gate, physical, ram, x, next_ram, BANK, B * C, D);                                                      \
    }
WRITE(0)
WRITE(1)
WRITE(2)
WRITE(3)

STEP(take, const u8 *gate, const bf16 *gathered, float *x, int B, int C, int D) {
    const Place place(D);
    if (place.exists && gate[place.row])
        x[place.at] = to_f32(gathered[place.at]);
}

STEP(stack, const bf16 *next_ram, bf16 *ram, int B, int C, int D) {
    const Place place(D);
    const int row = place.row / BANKS, bank = place.row % BANKS;
    if (place.exists)
        ram[place.at] = next_ram[((size_t)bank * B * C + row) * D + place.column];
}

#define LANES(L, RULE)                                                                                                   \
    STEP(first_lane_##L, const u8 *gate, const u8 *bank, const u8 *physical, const u8 *lanes, u8 *next, int B, int C) {  \
        next_lanes<RULE, 0, 0>(gate, bank, physical, lanes, next, B * C);                                                \
    }                                                                                                                    \
    STEP(middle_lane_##L, const u8 *gate, const u8 *bank, const u8 *physical, const u8 *lanes, u8 *next, int B, int C) { \
        next_lanes<RULE, 1, 2>(gate, bank, physical, lanes, next, B * C);                                                \
    }                                                                                                                    \
    STEP(last_lane_##L, const u8 *gate, const u8 *bank, const u8 *physical, const u8 *lanes, u8 *next, int B, int C) {   \
        next_lanes<RULE, 3, 3>(gate, bank, physical, lanes, next, B * C);                                                \
    }
LANES(transpose, TRANSPOSE)
LANES(move, MOVE)
LANES(literal, LITERAL)

STEP(pack, const u8 *gate, const u8 *bank, const u8 *lanes, u8 *map, u8 *decisions, int event, int B, int C) {
    const int row = element();
    if (row >= B * C)
        return;
    lanes += row * BANKS;
    map[row] = (u8)(lanes[0] | lanes[1] << 2 | lanes[2] << 4 | lanes[3] << 6);
    decisions[(size_t)event * B * C + row] = (u8)(gate[row] << 2 | bank[row]);
}

STEP(operand, const float *x, const float *g, unsigned char *n, int D, float eps) {
    __shared__ float partials[ROW_THREADS / 32];
    const Team<ROW_THREADS> team = {partials, 0};
    RowFragment<4> own, weight;
    own.load(x + (size_t)blockIdx.x * D, D);
    weight.load(g, D);
    const float squares[1] = {own.dot(own)};
    team.add(squares);
    write_operand(Bf16Rows{n}, own, team.sum<1>(0), weight, blockIdx.x, D, eps);
}

STEP(activate, const float *gates, const float *ups, bf16 *h, int B, int C, int F) {
    const Place place(F);
    if (place.exists)
        from_f32(h[place.at], silu(gates[place.at]) * ups[place.at]);
}

STEP(keep, const float *x, float *kept, int B, int C, int D) {
    const Place place(D);
    if (place.exists)
        kept[place.at] = x[place.at];
}

STEP(add, const float *kept, float *x, int B, int C, int D) {
    const Place place(D);
    if (place.exists)
        x[place.at] = kept[place.at] + x[place.at];
}

STEP(reduce, const float *pooled, const bf16 *basis, float *consumer, int D) {
    reduce_one(pooled, basis, consumer, D);
}

STEP(sum, const float *consumer, float *reduced, int B) {
    const int at = element();
    if (at >= B * REDUCED)
        return;
    float sum = 0.0f;
    for (int k = 0; k < COLLAPSE; k++)
        sum += consumer[((size_t)(at / REDUCED) * COLLAPSE + k) * REDUCED + at % REDUCED];
    reduced[at] = sum;
}

STEP(silu, float *reduced, int B) {
    const int at = element();
    if (at < B * REDUCED)
        reduced[at] = silu(reduced[at]);
}
