//! What running a kernel shows. `backend::cuda` measures these itself.

use super::{Better, Eval, Metric, Show};

const fn metric(name: &'static str, doc: &'static str, better: Better, show: Show) -> Metric {
    Metric {
        name,
        doc,
        unit: "",
        better,
        show,
        eval: Eval::Kernel,
    }
}

/// A time in microseconds.
const fn time(name: &'static str, doc: &'static str) -> Metric {
    Metric {
        unit: "µs",
        ..metric(name, doc, Better::Lower, Show::Tenths)
    }
}

pub const VIOLATIONS: Metric = metric(
    "violations",
    "number of violations: elements that are not equal or not within their bound, and changed bytes that the kernel must not change",
    Better::Lower,
    Show::Count,
);
pub const BOUND_RATIO: Metric = metric(
    "bound_ratio",
    "largest error over its derived bound; above 1 is a violation",
    Better::Lower,
    Show::Significant,
);
pub const US_COLD: Metric = time("us_cold", "median time after a flush of the L2 cache");
pub const US_COLD_P10: Metric = time(
    "us_cold_p10",
    "10th percentile of the time after a flush of the L2 cache",
);
pub const US_COLD_P90: Metric = time(
    "us_cold_p90",
    "90th percentile of the time after a flush of the L2 cache",
);
pub const US_HOT: Metric = time("us_hot", "median time of launches back to back");
pub const US_GRAPH: Metric = time(
    "us_graph",
    "median time of one of many runs in a graph, all on the same memory",
);
pub const US_ROTATED: Metric = time(
    "us_rotated",
    "median time of one of many runs in a graph, each on another copy of all buffers, so that nothing is in the cache",
);
pub const MEGABYTES: Metric = Metric {
    unit: "MB",
    ..metric(
        "megabytes",
        "10⁶ bytes that must move: each input read once, each output written once",
        Better::Lower,
        Show::Tenths,
    )
};
pub const OF_COPY: Metric = metric(
    "of_copy",
    "bytes that must move, divided by the cold time, relative to the bandwidth of a copy on the device in the same run",
    Better::Higher,
    Show::Share,
);
pub const OF_COPY_ROTATED: Metric = metric(
    "of_copy_rotated",
    "bytes that must move, divided by the rotated time, relative to the bandwidth of a copy on the device in the same run",
    Better::Higher,
    Show::Share,
);
pub const OF_MATMUL: Metric = metric(
    "of_matmul",
    "operations of matrix products, divided by the cold time, relative to the rate of a large product of the same type on \
     the device in the same run",
    Better::Higher,
    Show::Share,
);
pub const US_CLAIMED: Metric = time("us_claimed", "time that a program reports itself");
pub const US_PEER: Metric = time(
    "us_peer",
    "median cold time of the fastest peer (third-party implementation) on the case",
);
pub const TIMES_PEER: Metric = metric(
    "times_peer",
    "cold time of the fastest peer on the case over the kernel's",
    Better::Higher,
    Show::Significant,
);
