// A token up to its last event in one launch: thread blocks, one for each of as many multiprocessors, that take rows to swap and tiles
// of both products in turn, and begin each when those that it needs are there. All of them are resident.
#pragma once

#include "swap_ffn/down.cuh"
#include "swap_ffn/gate_up.cuh"

constexpr int BLOCKS = 128, ROW_TEAM = 64, TEAMS = 256 / ROW_TEAM;

// All banks of a row, before it is known which.
template <int N, int THREADS> struct PrefetchedBanks {
    uint2 banks[BANKS][N];

    __device__ __forceinline__ explicit PrefetchedBanks(const uint2 *from) {
#pragma unroll
        for (int bank = 0; bank < BANKS; bank++) {
#pragma unroll
            for (int i = 0; i < N; i++)
                banks[bank][i] = from[bank * (WIDTH / 4) + RowFragment<N, THREADS>::at(i)];
        }
    }

    __device__ __forceinline__ void load(RowFragment<N, THREADS> &in, const uint2 *, int physical, int) const {
#pragma unroll
        for (int i = 0; i < N; i++) {
            uint2 own = banks[0][i];
#pragma unroll
            for (int bank = 1; bank < BANKS; bank++)
                own = physical == bank ? banks[bank][i] : own;
            in.x[i] = load_vec4((const bf16 *)&own, 0);
        }
    }
};

template <class T> struct Events {
    SharedStorage<T> tiles;
    float partials[TEAMS * (ROW_TEAM / 32) * (SUMS + 1)];
    int number;
};

// What thread blocks do, by number: rows of the swap, tiles of the first product, parts of tiles of the second.
template <int SPLIT> struct Work {
    Counters joint;
    int own; // rows that each has
    // The number of the thread block, from shared memory: were it known to be the same in every step, addresses made of it
    // would be kept in registers that products need.
    const volatile int *number;

    __device__ __forceinline__ Work(Counters joint, const volatile int *number)
        : joint(joint), own(joint.rows / BLOCKS), number(number) {}

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
    __device__ __forceinline__ void n_ready(int block, int event, int j, int step) const {
        if (j == 0)
            wait_counter(joint.swapped(block), (event + 1) * (TILE_ROWS / own));
        else
            x_ready(block, step);
    }
    __device__ __forceinline__ void x_ready(int block, int step) const {
        wait_counter(joint.x(block), step * DOWN_PARTS * SPLIT);
    }

    __device__ __forceinline__ u32 *h_count(Tile up) const {
        return joint.h(up.block, up.tile / (UP_PARTS / 4));
    }
    // Until the hidden numbers of a split are there.
    __device__ __forceinline__ void h_ready(Tile down, int step) const {
        for (int quarter = down.split * (4 / SPLIT); quarter < (down.split + 1) * (4 / SPLIT); quarter++)
            wait_counter(joint.h(down.block, quarter), (step + 1) * UP_PARTS / 4 * 2);
    }

    // The first row that this thread block swaps.
    __device__ __forceinline__ int first_row() const {
        return *number * own;
    }
};

template <class T, int SPLIT>
__device__ __forceinline__ void events_producer(SharedStorage<T> &own, GateUpArgs up, DownArgs down, Work<SPLIT> work, int E,
                                                int J) {
    const bool parted = SPLIT > 1;
    const Prefetch ups_ahead =
        parted ? Prefetch{weights_read_once(work.joint), 1, 1} : Prefetch{weights_read_once(work.joint), MAX_STAGES, MAX_STAGES};
    const Prefetch downs_ahead = {weights_read_once(work.joint), parted ? 3 : MAX_STAGES, MAX_STAGES};
    u32 ups = 0, downs = 0;
    for (int event = 0, step = 0; event < E; event++) {
        const auto swap_begins = [&] {
            wait_on_dependent_grids();
            work.x_ready(work.first_row() / TILE_ROWS, step);
            mbarrier_arrive(&own.x_ready);
        };
        if (J == 0) {
            swap_begins();
            // Not twice before those that multiply have seen it.
            if (event + 1 < E)
                work.n_ready(work.first_row() / TILE_ROWS, event, 0, step);
        }
        for (int j = 0; j < J; j++, step++) {
            drain(down_pipeline(own), downs);
            // Weights that come sooner keep others from what they wait for.
            if (SPLIT > 1 && step > 0)
                mbarrier_wait_parity(&own.partials_read, step - 1 & 1);
            for (int i = 0; i < work.ups(); i++, ups += UP_COUNT<T>) {
                const auto at = work.up(i);
                gate_up_producer(own, up, ups, at.block, at.tile, ups_ahead, [&] {
                    if (i == 0 && j == 0)
                        swap_begins();
                    work.n_ready(at.block, event, j, step);
                });
            }
            drain(up_pipeline(own), ups);
            for (int i = 0; i < work.downs(); i++, downs += DOWN_COUNT<T, SPLIT>) {
                const auto at = work.down(i);
                down_producer<SPLIT, (SPLIT > 1)>(
                    own, down, downs, at.block, at.tile, at.split, downs_ahead,
                    [&] { mbarrier_wait_parity(&own.h_signalled, step & 1); }, [&] { work.h_ready(at, step); });
            }
        }
    }
}

// By a warp for each group of those that multiply.
template <class T, int SPLIT>
__device__ __forceinline__ void events_store(SharedStorage<T> &own, GateUpArgs up, Work<SPLIT> work, int E, int J, int group) {
    for (int step = 0; step < E * J; step++) {
        for (int i = 0; i < work.ups(); i++) {
            const auto at = work.up(i);
            gate_up_store(own, up, group, at.block, at.tile, [&] {
                signal_counter(work.h_count(at));
                if (SPLIT > 1) {
                    mbarrier_arrive(&own.h_signalled);
                    mbarrier_arrive_cluster(map_shared_peer(own.peer_smem_free + group));
                }
            });
        }
    }
}

template <class T, int SPLIT>
__device__ __forceinline__ void events_consumer(SharedStorage<T> &own, float *partials, Film film, Rule rule, Store store,
                                                GateUpArgs up, DownArgs down, Work<SPLIT> work, int E, int J) {
    const Counters joint = work.joint;
    const int team_index = (threadIdx.x - 128) / ROW_TEAM, group = threadIdx.x / 128 - 1;
    const Team<ROW_TEAM> team = {partials + team_index * (ROW_TEAM / 32) * (SUMS + 1), 4 + team_index};
    u32 ups = 0, downs = 0;
    for (int event = 0, step = 0; event < E; event++) {
        {
            constexpr int N = WIDTH / 4 / ROW_TEAM;
            RowFragment<N, ROW_TEAM> weight;
            weight.load(store.g, WIDTH);
            const int first = work.first_row(), block = first / TILE_ROWS;
            const TiledRows<T::bytes == 1, ROW_TEAM> operand = {down.n, joint.rows, team};
            if (event == 0) {
                wait_on_dependent_grids();
                for (int row = first + team_index; row < first + work.own; row += TEAMS) {
                    prepare_row<N>(film, team, store.x, down.router, weight, store.sums, operand, row, WIDTH, store.eps);
                    // The room serves the next.
                    named_barrier_sync(team.barrier, ROW_TEAM);
                }
            }
            const int decided = event * joint.rows;
            if (SPLIT > 1) {
                // A row for each, whose banks nobody else changes.
                const PrefetchedBanks<N, ROW_TEAM> banks((const uint2 *)store.ram +
                                                         (size_t)(first + team_index) * BANKS * (WIDTH / 4));
                mbarrier_wait_parity(&own.x_ready, event & 1);
                swap<N>(rule, store, team, first + team_index, decided + first + team_index, weight, banks, operand);
            } else {
                mbarrier_wait_parity(&own.x_ready, event & 1);
                for (int i = team_index; i < work.own; i += TEAMS) {
                    swap<N>(rule, store, team, first + i, decided + first + i, weight, LoadedBank(), operand);
                    // The room serves the next.
                    named_barrier_sync(team.barrier, ROW_TEAM);
                }
            }
            named_barrier_sync(3, 256);
            if (threadIdx.x == 128)
                signal_counter(joint.swapped(block));
        }
        for (int j = 0; j < J; j++, step++) {
            for (int i = 0; i < work.ups(); i++, ups += UP_COUNT<T>) {
                const auto at = work.up(i);
                gate_up_consumer(own, up, ups, at.block, at.tile, joint);
            }
            for (int i = 0; i < work.downs(); i++, downs += DOWN_COUNT<T, SPLIT>) {
                const auto at = work.down(i);
                if (SPLIT > 1)
                    // All of a group have written their rows of h.
                    named_barrier_sync(1 + group, 128);
                down_consumer<SPLIT, (SPLIT > 1)>(own, down, downs, at.block, at.tile, at.split, step, j == J - 1, joint);
                named_barrier_sync(3, 256);
                if (threadIdx.x == 128)
                    signal_counter(joint.x(at.block));
            }
        }
        // Nobody here waits for a count any more, nor for anything.
        if (event == E - 1 && threadIdx.x == 128)
            joint.store_partial(BLOCKS);
    }
}

template <class T, int SPLIT>
__device__ __forceinline__ void events(Film film, Rule rule, Store store, GateUpArgs up, DownArgs down, Counters joint, int E,
                                       int J) {
    extern __shared__ __align__(1024) unsigned char shared[];
    Events<T> &own = *(Events<T> *)shared;
    if (threadIdx.x == 0)
        own.number = blockIdx.x;
    smem_init(own.tiles);
    launch_dependent_grids();
    if (SPLIT > 1)
        cluster_sync();
    const Work<SPLIT> work(joint, &own.number);
    gate_up_scales(own.tiles, up, work.up(0).tile);
    __syncthreads();
    if (threadIdx.x < 128) {
        warpgroup_reg_dealloc<40>();
        const int warp = threadIdx.x / 32;
        if (threadIdx.x == 0)
            events_producer(own.tiles, up, down, work, E, J);
        else if (warp == 1 || warp == 2)
            events_store(own.tiles, up, work, E, J, warp - 1);
    } else {
        warpgroup_reg_alloc<232>();
        events_consumer<T, SPLIT>(own.tiles, own.partials, film, rule, store, up, down, work, E, J);
    }
    // What is sent arrives before the one it is sent to ends.
    if (SPLIT > 1)
        cluster_sync();
}
