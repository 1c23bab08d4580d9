// A token up to its last event in one launch: thread blocks, one for each of as many multiprocessors, that take rows to swap and tiles
// of both products in turn, and begin each when those that it needs are there. All of them are resident.
#pragma once

#include "swap_ffn_down.cuh"
#include "swap_ffn_gate_up.cuh"

constexpr int BLOCKS = 128, ROW_TEAM = 64, TEAMS = 256 / ROW_TEAM;

// All banks of a row, before it is known which.
template <int N, int THREADS> struct EarlyBanks {
    uint2 banks[BANKS][N];

    __device__ __forceinline__ explicit EarlyBanks(const uint2 *from) {
#pragma unroll
        for (int bank = 0; bank < BANKS; bank++)
#pragma unroll
            for (int i = 0; i < N; i++)
                banks[bank][i] = from[bank * (WIDTH / 4) + Fours<N, THREADS>::at(i)];
    }

    __device__ __forceinline__ void load(Fours<N, THREADS> &in, const uint2 *, int physical, int) const {
#pragma unroll
        for (int i = 0; i < N; i++) {
            uint2 own = banks[0][i];
#pragma unroll
            for (int bank = 1; bank < BANKS; bank++)
                own = physical == bank ? banks[bank][i] : own;
            in.x[i] = four((const bf16 *)&own, 0);
        }
    }
};

template <class T> struct Events {
    Tiles<T> tiles;
    float room[TEAMS * (ROW_TEAM / 32) * (SUMS + 1)];
    int number;
};

// What thread blocks do, by number: rows of the swap, tiles of the first product, parts of tiles of the second.
template <int SPLIT> struct Work {
    Joint joint;
    int own; // rows that each has
    // The number of the thread block, from shared memory: were it known to be the same in every step, addresses made of it
    // would be kept in registers that products need.
    const volatile int *number;

    __device__ __forceinline__ Work(Joint joint, const volatile int *number) : joint(joint), own(joint.rows / BLOCKS), number(number) {}

    struct Tile {
        int block, tile, split;
    };
    __device__ __forceinline__ int ups() const {
        return joint.rows / TILE_ROWS * UP_PARTS / BLOCKS;
    }
    // Of a part of a tile of the second product some of what it needs has been made here.
    __device__ __forceinline__ Tile up(int i) const {
        const int at = *number + i * BLOCKS, tile = at % UP_PARTS;
        return {at / UP_PARTS, SPLIT > 1 ? tile % SPLIT * DOWN_PARTS + tile / SPLIT : tile, 0};
    }
    __device__ __forceinline__ int downs() const {
        return joint.rows / TILE_ROWS * DOWN_PARTS * SPLIT / BLOCKS;
    }
    __device__ __forceinline__ Tile down(int i) const {
        const int at = *number + i * BLOCKS;
        return {at / (DOWN_PARTS * SPLIT), at / SPLIT % DOWN_PARTS, at % SPLIT};
    }

    // Until the rows of a block are those that step j of an event begins with.
    __device__ __forceinline__ void n_there(int block, int event, int j, int step) const {
        if (j == 0)
            await(joint.swapped(block), (event + 1) * (TILE_ROWS / own));
        else
            x_there(block, step);
    }
    __device__ __forceinline__ void x_there(int block, int step) const {
        await(joint.x(block), step * DOWN_PARTS * SPLIT);
    }

    __device__ __forceinline__ u32 *h_count(Tile up) const {
        return joint.h(up.block, up.tile / (UP_PARTS / 4));
    }
    // Until the hidden numbers of a split are there.
    __device__ __forceinline__ void h_there(Tile down, int step) const {
        for (int quarter = down.split * (4 / SPLIT); quarter < (down.split + 1) * (4 / SPLIT); quarter++)
            await(joint.h(down.block, quarter), (step + 1) * UP_PARTS / 4 * 2);
    }

    // The first row that this thread block swaps.
    __device__ __forceinline__ int first_row() const {
        return *number * own;
    }
};

template <class T, int SPLIT>
__device__ __forceinline__ void fetch_events(Tiles<T> &own, GateUpArgs up, DownArgs down, Work<SPLIT> work, int E, int J) {
    const bool parted = SPLIT > 1;
    const Ahead ups_ahead = parted ? Ahead{few(work.joint), 1, 1} : Ahead{few(work.joint), MOST_STAGES, MOST_STAGES};
    const Ahead downs_ahead = {few(work.joint), parted ? 3 : MOST_STAGES, MOST_STAGES};
    u32 ups = 0, downs = 0;
    for (int event = 0, step = 0; event < E; event++) {
        const auto swap_begins = [&] {
            wait_for_last();
            work.x_there(work.first_row() / TILE_ROWS, step);
            barrier_arrive(&own.x_there);
        };
        if (J == 0) {
            swap_begins();
            // Not twice before those that multiply have seen it.
            if (event + 1 < E)
                work.n_there(work.first_row() / TILE_ROWS, event, 0, step);
        }
        for (int j = 0; j < J; j++, step++) {
            drain(down_ring(own), downs);
            // Weights that come sooner keep others from what they wait for.
            if (SPLIT > 1 && step > 0)
                arrival_wait(&own.taken, step - 1 & 1);
            for (int i = 0; i < work.ups(); i++, ups += UP_COUNT<T>) {
                const auto at = work.up(i);
                gate_up_fetch(own, up, ups, at.block, at.tile, ups_ahead, [&] {
                    if (i == 0 && j == 0)
                        swap_begins();
                    work.n_there(at.block, event, j, step);
                });
            }
            drain(up_ring(own), ups);
            for (int i = 0; i < work.downs(); i++, downs += DOWN_COUNT<T, SPLIT>) {
                const auto at = work.down(i);
                down_fetch<SPLIT, (SPLIT > 1)>(own, down, downs, at.block, at.tile, at.split, downs_ahead, [&] { arrival_wait(&own.h_told, step & 1); }, [&] { work.h_there(at, step); });
            }
        }
    }
}

// By a warp for each group of those that multiply.
template <class T, int SPLIT>
__device__ __forceinline__ void store_events(Tiles<T> &own, GateUpArgs up, Work<SPLIT> work, int E, int J, int group) {
    for (int step = 0; step < E * J; step++)
        for (int i = 0; i < work.ups(); i++) {
            const auto at = work.up(i);
            gate_up_store(own, up, group, at.block, at.tile, [&] {
                signal(work.h_count(at));
                if (SPLIT > 1) {
                    barrier_arrive(&own.h_told);
                    mate_arrive(at_mate(own.room_there + group));
                }
            });
        }
}

template <class T, int SPLIT>
__device__ __forceinline__ void multiply_events(Tiles<T> &own, float *room, Film film, Rule rule, Store store, GateUpArgs up, DownArgs down,
                                                Work<SPLIT> work, int E, int J) {
    const Joint joint = work.joint;
    const int team = (threadIdx.x - 128) / ROW_TEAM, group = threadIdx.x / 128 - 1;
    const Team<ROW_TEAM> mates = {room + team * (ROW_TEAM / 32) * (SUMS + 1), 4 + team};
    u32 ups = 0, downs = 0;
    for (int event = 0, step = 0; event < E; event++) {
        {
            constexpr int N = WIDTH / 4 / ROW_TEAM;
            Fours<N, ROW_TEAM> weight;
            weight.load(store.g, WIDTH);
            const int first = work.first_row(), block = first / TILE_ROWS;
            const Tiled<T::bytes == 1, ROW_TEAM> operand = {down.n, joint.rows, mates};
            if (event == 0) {
                wait_for_last();
                for (int row = first + team; row < first + work.own; row += TEAMS) {
                    settle_row<N>(film, mates, store.x, down.router, weight, store.sums, operand, row, WIDTH, store.eps);
                    // The room serves the next.
                    warps_barrier(mates.barrier, ROW_TEAM);
                }
            }
            const int decided = event * joint.rows;
            if (SPLIT > 1) {
                // A row for each, whose banks nobody else changes.
                const EarlyBanks<N, ROW_TEAM> banks((const uint2 *)store.ram + (size_t)(first + team) * BANKS * (WIDTH / 4));
                arrival_wait(&own.x_there, event & 1);
                swap<N>(rule, store, mates, first + team, decided + first + team, weight, banks, operand);
            } else {
                arrival_wait(&own.x_there, event & 1);
                for (int i = team; i < work.own; i += TEAMS) {
                    swap<N>(rule, store, mates, first + i, decided + first + i, weight, LateBank(), operand);
                    // The room serves the next.
                    warps_barrier(mates.barrier, ROW_TEAM);
                }
            }
            warps_barrier(3, 256);
            if (threadIdx.x == 128)
                signal(joint.swapped(block));
        }
        for (int j = 0; j < J; j++, step++) {
            for (int i = 0; i < work.ups(); i++, ups += UP_COUNT<T>) {
                const auto at = work.up(i);
                gate_up_multiply(own, up, ups, at.block, at.tile, joint);
            }
            for (int i = 0; i < work.downs(); i++, downs += DOWN_COUNT<T, SPLIT>) {
                const auto at = work.down(i);
                if (SPLIT > 1)
                    // All of a group have written their rows of h.
                    warps_barrier(1 + group, 128);
                down_multiply<SPLIT, (SPLIT > 1)>(own, down, downs, at.block, at.tile, at.split, step, j == J - 1, joint);
                warps_barrier(3, 256);
                if (threadIdx.x == 128)
                    signal(joint.x(at.block));
            }
        }
        // Nobody here waits for a count any more, nor for anything.
        if (event == E - 1 && threadIdx.x == 128)
            joint.leave(BLOCKS);
    }
}

template <class T, int SPLIT>
__device__ __forceinline__ void events(Film film, Rule rule, Store store, GateUpArgs up, DownArgs down, Joint joint, int E, int J) {
    extern __shared__ __align__(1024) unsigned char shared[];
    Events<T> &own = *(Events<T> *)shared;
    if (threadIdx.x == 0)
        own.number = blockIdx.x;
    tiles_init(own.tiles);
    start_next();
    if (SPLIT > 1)
        mates_barrier();
    const Work<SPLIT> work(joint, &own.number);
    gate_up_scales(own.tiles, up, work.up(0).tile);
    __syncthreads();
    if (threadIdx.x < 128) {
        registers_less<40>();
        const int warp = threadIdx.x / 32;
        if (threadIdx.x == 0)
            fetch_events(own.tiles, up, down, work, E, J);
        else if (warp == 1 || warp == 2)
            store_events(own.tiles, up, work, E, J, warp - 1);
    } else {
        registers_more<232>();
        multiply_events<T, SPLIT>(own.tiles, own.room, film, rule, store, up, down, work, E, J);
    }
    // What is sent arrives before the one it is sent to ends.
    if (SPLIT > 1)
        mates_barrier();
}
