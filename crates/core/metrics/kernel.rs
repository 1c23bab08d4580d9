//! Metrics of kernel runs. `backend::cuda` measures them.

use super::{Better, Eval, Metric, Show};

const fn metric(name: &'static str, doc: &'static str, better: Better, show: Show) -> Metric {
    Metric::new(name, doc, better, show, Eval::Kernel)
}

/// A time in microseconds.
const fn time(name: &'static str, doc: &'static str) -> Metric {
    Metric {
        unit: "µs",
        ..metric(name, doc, Better::Lower, Show::Tenths)
    }
}

/// How many elements or bytes are wrong; a kernel is right if it is 0.
pub const VIOLATIONS: Metric = metric(
    "violations",
    "number of violations: elements that are not equal or not within their bound, and changed bytes that the kernel must not change",
    Better::Lower,
    Show::Count,
);
/// How many elements of an output have other bits than the operation's definition, where a kernel that states its accumulator is judged by
/// bounds.
pub const UNEQUAL: Metric = metric(
    "unequal",
    "number of elements whose bits are not those of the operation's definition, for kernels that are judged by bounds",
    Better::Lower,
    Show::Count,
);
/// The largest error as a multiple of its derived bound.
pub const BOUND_RATIO: Metric = metric(
    "bound_ratio",
    "largest error over its derived bound; above 1 is a violation",
    Better::Lower,
    Show::Significant,
);
/// Median time with a cold L2 cache.
pub const US_COLD: Metric = time("us_cold", "median time after a flush of the L2 cache");
/// 10th percentile of the time with a cold L2 cache.
pub const US_COLD_P10: Metric = time(
    "us_cold_p10",
    "10th percentile of the time after a flush of the L2 cache",
);
/// 90th percentile of the time with a cold L2 cache.
pub const US_COLD_P90: Metric = time(
    "us_cold_p90",
    "90th percentile of the time after a flush of the L2 cache",
);
/// Median time of launches back to back, with a warm cache.
pub const US_HOT: Metric = time("us_hot", "median time of launches back to back");
/// Median time per run in a CUDA graph, with a warm cache.
pub const US_GRAPH: Metric = time(
    "us_graph",
    "median time of one of many runs in a graph, all on the same memory",
);
/// Median time per run in a CUDA graph whose runs use different copies of the buffers, so that the cache is cold.
pub const US_ROTATED: Metric = time(
    "us_rotated",
    "median time of one of many runs in a graph, each on another copy of all buffers, so that nothing is in the cache",
);
/// Median time per run in a CUDA graph, with all large buffers in the cache.
pub const US_CACHED: Metric = time(
    "us_cached",
    "median time of one of many runs in a graph whose large buffers are the same few megabytes over and over, so that they come from \
     the L2 cache: what a kernel takes if memory costs it nothing",
);
/// The least memory traffic of a case, in 10⁶ bytes.
pub const MEGABYTES: Metric = Metric {
    unit: "MB",
    ..metric(
        "megabytes",
        "10⁶ bytes that must move: each input read once, each output written once",
        Better::Lower,
        Show::Tenths,
    )
};
/// Share of the bandwidth of a device-to-device copy, by the cold time.
pub const OF_COPY: Metric = metric(
    "of_copy",
    "bytes that must move, divided by the cold time, relative to the bandwidth of a copy on the device in the same run",
    Better::Higher,
    Show::Share,
);
/// Share of the bandwidth of a device-to-device copy, by the rotated time.
pub const OF_COPY_ROTATED: Metric = metric(
    "of_copy_rotated",
    "bytes that must move, divided by the rotated time, relative to the bandwidth of a copy on the device in the same run",
    Better::Higher,
    Show::Share,
);
/// Share of the throughput of a large matrix product, by the cold time.
pub const OF_MATMUL: Metric = metric(
    "of_matmul",
    "operations of matrix products, divided by the cold time, relative to the rate of a large product of the same type on \
     the device in the same run",
    Better::Higher,
    Show::Share,
);
/// The time that a third-party program reports for itself; it is not verified.
pub const US_CLAIMED: Metric = time("us_claimed", "time that a program reports itself");
/// Median cold time of the fastest third-party implementation.
pub const US_PEER: Metric = time(
    "us_peer",
    "median cold time of the fastest peer (third-party implementation) on the case",
);
/// Median cold time of a kernel that only moves the bytes.
pub const US_LIMIT: Metric = time(
    "us_limit",
    "median cold time of a kernel that moves the bytes of the case in the same pattern and computes nothing",
);
/// How near the kernel is to one that only moves the bytes; 1 is as fast.
pub const OF_LIMIT: Metric = metric(
    "of_limit",
    "cold time of a kernel that moves the bytes of the case and computes nothing, over the kernel's",
    Better::Higher,
    Show::Share,
);
/// Speed relative to the fastest third-party implementation; above 1 the kernel is faster.
pub const TIMES_PEER: Metric = metric(
    "times_peer",
    "cold time of the fastest peer on the case over the kernel's",
    Better::Higher,
    Show::Significant,
);
