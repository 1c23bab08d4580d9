// All events of a token in one launch: thread blocks, one for each of as many multiprocessors, that take rows to swap and tiles
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
    __device__ __forceinline__ Tile up(int i) const {
        const int at = *number + i * BLOCKS;
        return {at / UP_PARTS, at % UP_PARTS, 0};
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
    // Until the hidden numbers of a split are there.
    __device__ __forceinline__ void h_there(int block, int split, int step) const {
        for (int quarter = split * 4 / SPLIT; quarter < (split + 1) * 4 / SPLIT; quarter++)
            await(joint.h(block, quarter), (step + 1) * UP_PARTS / 4 * 2);
    }
};

template <class T, int SPLIT>
__device__ __forceinline__ void fetch_events(Tiles<T> &own, GateUpArgs up, DownArgs down, Work<SPLIT> work, int E, int J) {
    u32 ups = 0, downs = 0;
    for (int step = 0; step < E * J; step++) {
        drain(down_ring(own), downs);
        for (int i = 0; i < work.ups(); i++, ups += UP_COUNT<T>) {
            const auto at = work.up(i);
            gate_up_fetch(own, up, ups, at.block, at.tile, [&] {
                wait_for_last();
                work.n_there(at.block, step / J, step % J, step);
            });
        }
        drain(up_ring(own), ups);
        for (int i = 0; i < work.downs(); i++, downs += DOWN_COUNT<T, SPLIT>) {
            const auto at = work.down(i);
            down_fetch<SPLIT>(own, down, downs, at.block, at.tile, at.split, [&] { work.h_there(at.block, at.split, step); });
        }
    }
}

// By a warp.
template <class Ready> __device__ __forceinline__ void warp_waits(Ready ready) {
    if (threadIdx.x % 32 == 0)
        ready();
    __syncwarp();
}

template <class T, int SPLIT>
__device__ __forceinline__ void multiply_events(Tiles<T> &own, float *room, Rule rule, Store store, GateUpArgs up, DownArgs down, Work<SPLIT> work,
                                                int E, int J) {
    const Joint joint = work.joint;
    const int team = (threadIdx.x - 128) / ROW_TEAM;
    const Team<ROW_TEAM> mates = {room + team * (ROW_TEAM / 32) * (SUMS + 1), 4 + team};
    u32 ups = 0, downs = 0;
    for (int event = 0, step = 0; event < E; event++) {
        {
            constexpr int N = WIDTH / 4 / ROW_TEAM;
            Fours<N, ROW_TEAM> weight;
            weight.load(store.g, WIDTH);
            const int first = *work.number * work.own, block = first / TILE_ROWS;
            if (event == 0)
                wait_for_last();
            const Tiled<T::bytes == 1, ROW_TEAM> operand = {down.n, joint.n_largest(step, 0), mates};
            const int decided = event * joint.rows;
            if (SPLIT > 1) {
                // A row for each, whose banks nobody else changes.
                const EarlyBanks<N, ROW_TEAM> banks((const uint2 *)store.ram + (size_t)(first + team) * BANKS * (WIDTH / 4));
                warp_waits([&] { work.x_there(block, step); });
                swap<N>(rule, store, mates, first + team, decided + first + team, weight, banks, operand);
            } else {
                warp_waits([&] { work.x_there(block, step); });
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
                warp_waits([&] { work.n_there(at.block, event, j, step); });
                gate_up_multiply(own, up, ups, at.block, at.tile, step, joint,
                                 [&] { signal(joint.h(at.block, at.tile / (UP_PARTS / 4))); });
            }
            for (int i = 0; i < work.downs(); i++, downs += DOWN_COUNT<T, SPLIT>) {
                const auto at = work.down(i);
                if (T::bytes == 1)
                    warp_waits([&] { work.h_there(at.block, at.split, step); });
                down_multiply<SPLIT>(own, down, downs, at.block, at.tile, at.split, step, j == J - 1, joint);
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
__device__ __forceinline__ void events(Rule rule, Store store, GateUpArgs up, DownArgs down, Joint joint, int E, int J) {
    extern __shared__ __align__(1024) unsigned char shared[];
    Events<T> &own = *(Events<T> *)shared;
    if (threadIdx.x == 0)
        own.number = blockIdx.x;
    tiles_init(own.tiles);
    start_next();
    const Work<SPLIT> work(joint, &own.number);
    if (threadIdx.x < 128) {
        registers_less<40>();
        if (threadIdx.x == 0)
            fetch_events(own.tiles, up, down, work, E, J);
    } else {
        registers_more<232>();
        multiply_events<T, SPLIT>(own.tiles, own.room, rule, store, up, down, work, E, J);
    }
}
