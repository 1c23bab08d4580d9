// The persistent kernel: a token up to its last event in one launch. The CTAs, one for each of as many SMs and all resident, take
// rows to swap and tiles of both products in turn, and begin each when its inputs are ready.
#pragma once

#include "swap_ffn/down.cuh"
#include "swap_ffn/gate_up.cuh"

constexpr int CTAS = 128, ROW_TEAM = 64, TEAMS = 256 / ROW_TEAM;

// Prefetches all banks of a row, before it is known which one is swapped in.
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
            uint2 bank_data = banks[0][i];
#pragma unroll
            for (int bank = 1; bank < BANKS; bank++)
                bank_data = physical == bank ? banks[bank][i] : bank_data;
            in.x[i] = load_vec4((const bf16 *)&bank_data, 0);
        }
    }
};

template <class T> struct Events {
    SharedStorage<T> tiles;
    float partials[TEAMS * (ROW_TEAM / 32) * (SUMS + 1)];
    int number;
};

// The schedule of CTAs: rows of the swap, tiles of the first product, splits of tiles of the second.
template <int SPLIT> struct Work {
    Counters counters;
    int cta_rows; // rows that each CTA swaps
    // The number of the CTA, from shared memory: if the compiler knew that it is the same in every step, it would keep addresses made
    // of it in registers that the products need.
    const volatile int *number;

    __device__ __forceinline__ Work(Counters counters, const volatile int *number)
        : counters(counters), cta_rows(counters.rows / CTAS), number(number) {}

    struct Tile {
        int block, tile, split;
    };
    __device__ __forceinline__ int ups() const {
        return counters.rows / TILE_ROWS * UP_PARTS / CTAS;
    }
    // A CTA's split of the second product needs some of the h that the CTA itself makes here.
    __device__ __forceinline__ Tile up(int i) const {
        const int at = *number + i * CTAS, tile = at % UP_PARTS;
        return {at / UP_PARTS, SPLIT > 1 ? tile % SPLIT * DOWN_PARTS + tile / SPLIT : tile, 0};
    }
    __device__ __forceinline__ int downs() const {
        return counters.rows / TILE_ROWS * DOWN_PARTS * SPLIT / CTAS;
    }
    __device__ __forceinline__ Tile down(int i) const {
        const int at = *number + i * CTAS;
        return {at / (DOWN_PARTS * SPLIT), at / SPLIT % DOWN_PARTS, at % SPLIT};
    }

    // Waits until the rows of a block are those that step j of an event begins with.
    __device__ __forceinline__ void n_ready(int block, int event, int j, int step) const {
        if (j == 0)
            wait_counter(counters.swapped(block), (event + 1) * (TILE_ROWS / cta_rows));
        else
            x_ready(block, step);
    }
    __device__ __forceinline__ void x_ready(int block, int step) const {
        wait_counter(counters.x(block), step * DOWN_PARTS * SPLIT);
    }

    __device__ __forceinline__ u32 *h_count(Tile up) const {
        return counters.h(up.block, up.tile / (UP_PARTS / 4));
    }
    // Waits until h of a split is there.
    __device__ __forceinline__ void h_ready(Tile down, int step) const {
        for (int quarter = down.split * (4 / SPLIT); quarter < (down.split + 1) * (4 / SPLIT); quarter++)
            wait_counter(counters.h(down.block, quarter), (step + 1) * UP_PARTS / 4 * 2);
    }

    // The first row that this CTA swaps.
    __device__ __forceinline__ int first_row() const {
        return *number * cta_rows;
    }
};

template <class T, int SPLIT>
__device__ __forceinline__ void events_producer(SharedStorage<T> &smem, GateUpArgs up, DownArgs down, Work<SPLIT> work, int E,
                                                int J) {
    const bool split_k = SPLIT > 1;
    const Prefetch up_prefetch = split_k ? Prefetch{weights_read_once(work.counters), 1, 1}
                                         : Prefetch{weights_read_once(work.counters), MAX_STAGES, MAX_STAGES};
    const Prefetch down_prefetch = {weights_read_once(work.counters), split_k ? 3 : MAX_STAGES, MAX_STAGES};
    u32 ups = 0, downs = 0;
    for (int event = 0, step = 0; event < E; event++) {
        const auto swap_begins = [&] {
            wait_on_dependent_grids();
            work.x_ready(work.first_row() / TILE_ROWS, step);
            mbarrier_arrive(&smem.x_ready);
        };
        if (J == 0) {
            swap_begins();
            // The barrier must not complete twice before the consumers have seen it.
            if (event + 1 < E)
                work.n_ready(work.first_row() / TILE_ROWS, event, 0, step);
        }
        for (int j = 0; j < J; j++, step++) {
            drain(down_pipeline(smem), downs);
            // Weights that come sooner would delay the partials that other CTAs wait for.
            if (SPLIT > 1 && step > 0)
                mbarrier_wait_parity(&smem.partials_read, step - 1 & 1);
            for (int i = 0; i < work.ups(); i++, ups += UP_COUNT<T>) {
                const auto at = work.up(i);
                gate_up_producer(smem, up, ups, at.block, at.tile, up_prefetch, [&] {
                    if (i == 0 && j == 0)
                        swap_begins();
                    work.n_ready(at.block, event, j, step);
                });
            }
            drain(up_pipeline(smem), ups);
            for (int i = 0; i < work.downs(); i++, downs += DOWN_COUNT<T, SPLIT>) {
                const auto at = work.down(i);
                down_producer<SPLIT, (SPLIT > 1)>(
                    smem, down, downs, at.block, at.tile, at.split, down_prefetch,
                    [&] { mbarrier_wait_parity(&smem.h_signalled, step & 1); }, [&] { work.h_ready(at, step); });
            }
        }
    }
}

// One store warp for each consumer warpgroup.
template <class T, int SPLIT>
__device__ __forceinline__ void events_store(SharedStorage<T> &smem, GateUpArgs up, Work<SPLIT> work, int E, int J, int group) {
    for (int step = 0; step < E * J; step++) {
        for (int i = 0; i < work.ups(); i++) {
            const auto at = work.up(i);
            gate_up_store(smem, up, group, at.block, at.tile, [&] {
                signal_counter(work.h_count(at));
                if (SPLIT > 1) {
                    mbarrier_arrive(&smem.h_signalled);
                    mbarrier_arrive_cluster(map_shared_peer(smem.peer_smem_free + group));
                }
            });
        }
    }
}

template <class T, int SPLIT>
__device__ __forceinline__ void events_consumer(SharedStorage<T> &smem, float *partials, Film film, Rule rule, Store store,
                                                GateUpArgs up, DownArgs down, Work<SPLIT> work, int E, int J) {
    const Counters counters = work.counters;
    const int team_index = (threadIdx.x - 128) / ROW_TEAM, group = threadIdx.x / 128 - 1;
    const Team<ROW_TEAM> team = {partials + team_index * (ROW_TEAM / 32) * (SUMS + 1), 4 + team_index};
    u32 ups = 0, downs = 0;
    for (int event = 0, step = 0; event < E; event++) {
        {
            constexpr int N = WIDTH / 4 / ROW_TEAM;
            RowFragment<N, ROW_TEAM> weight;
            weight.load(store.g, WIDTH);
            const int first = work.first_row(), block = first / TILE_ROWS;
            const TiledRows<T::bytes == 1, ROW_TEAM> operand = {down.n, counters.rows, team};
            if (event == 0) {
                wait_on_dependent_grids();
                for (int row = first + team_index; row < first + work.cta_rows; row += TEAMS) {
                    prepare_row<N>(film, team, store.x, down.router, weight, store.sums, operand, row, WIDTH, store.eps);
                    // The next row uses the same partials.
                    named_barrier_sync(team.barrier, ROW_TEAM);
                }
            }
            const int decided = event * counters.rows;
            if (SPLIT > 1) {
                // Each team has one row, whose banks nobody else changes.
                const PrefetchedBanks<N, ROW_TEAM> banks((const uint2 *)store.ram +
                                                         (size_t)(first + team_index) * BANKS * (WIDTH / 4));
                mbarrier_wait_parity(&smem.x_ready, event & 1);
                swap<N>(rule, store, team, first + team_index, decided + first + team_index, weight, banks, operand);
            } else {
                mbarrier_wait_parity(&smem.x_ready, event & 1);
                for (int i = team_index; i < work.cta_rows; i += TEAMS) {
                    swap<N>(rule, store, team, first + i, decided + first + i, weight, LoadedBank(), operand);
                    // The next row uses the same partials.
                    named_barrier_sync(team.barrier, ROW_TEAM);
                }
            }
            named_barrier_sync(3, 256);
            if (threadIdx.x == 128)
                signal_counter(counters.swapped(block));
        }
        for (int j = 0; j < J; j++, step++) {
            for (int i = 0; i < work.ups(); i++, ups += UP_COUNT<T>) {
                const auto at = work.up(i);
                gate_up_consumer(smem, up, ups, at.block, at.tile, counters);
            }
            for (int i = 0; i < work.downs(); i++, downs += DOWN_COUNT<T, SPLIT>) {
                const auto at = work.down(i);
                if (SPLIT > 1)
                    // All warps of the warpgroup have written their rows of h.
                    named_barrier_sync(1 + group, 128);
                down_consumer<SPLIT, (SPLIT > 1)>(smem, down, downs, at.block, at.tile, at.split, step, j == J - 1, counters);
                named_barrier_sync(3, 256);
                if (threadIdx.x == 128)
                    signal_counter(counters.x(at.block));
            }
        }
        // No thread of this CTA waits for a counter any more.
        if (event == E - 1 && threadIdx.x == 128)
            counters.reset_by_last(CTAS);
    }
}

template <class T, int SPLIT>
__device__ __forceinline__ void events(Film film, Rule rule, Store store, GateUpArgs up, DownArgs down, Counters counters, int E,
                                       int J) {
    extern __shared__ __align__(1024) unsigned char smem_bytes[];
    Events<T> &smem = *(Events<T> *)smem_bytes;
    if (threadIdx.x == 0)
        smem.number = blockIdx.x;
    smem_init(smem.tiles);
    launch_dependent_grids();
    if (SPLIT > 1)
        cluster_sync();
    const Work<SPLIT> work(counters, &smem.number);
    gate_up_scales(smem.tiles, up, work.up(0).tile);
    __syncthreads();
    if (threadIdx.x < 128) {
        warpgroup_reg_dealloc<40>();
        const int warp = threadIdx.x / 32;
        if (threadIdx.x == 0)
            events_producer(smem.tiles, up, down, work, E, J);
        else if (warp == 1 || warp == 2)
            events_store(smem.tiles, up, work, E, J, warp - 1);
    } else {
        warpgroup_reg_alloc<232>();
        events_consumer<T, SPLIT>(smem.tiles, smem.partials, film, rule, store, up, down, work, E, J);
    }
    // A CTA must not exit while its peer still writes to its shared memory.
    if (SPLIT > 1)
        cluster_sync();
}
