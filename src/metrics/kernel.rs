//! What running a kernel shows. `backend::cuda` measures these itself.

use super::{Better, Eval, Metric};

const fn metric(name: &'static str, doc: &'static str, unit: &'static str, better: Better) -> Metric {
    Metric {
        name,
        doc,
        unit,
        better,
        eval: Eval::Kernel,
    }
}

pub static VIOLATIONS: Metric = metric(
    "violations",
    "elements that are not what they must be: not equal, out of their bound, or bytes changed that are not a kernel's to change",
    "",
    Better::Lower,
);
pub static BOUND_RATIO: Metric = metric(
    "bound_ratio",
    "largest error over its derived bound; above 1 is a violation",
    "",
    Better::Lower,
);
pub static US_COLD: Metric = metric(
    "us_cold",
    "median time with the second-level cache flushed before",
    "µs",
    Better::Lower,
);
pub static US_COLD_P10: Metric = metric("us_cold_p10", "10th percentile of it", "µs", Better::Lower);
pub static US_COLD_P90: Metric = metric("us_cold_p90", "90th percentile of it", "µs", Better::Lower);
pub static US_HOT: Metric = metric("us_hot", "median time of launches back to back", "µs", Better::Lower);
pub static US_GRAPH: Metric = metric("us_graph", "median time of one of many in a graph", "µs", Better::Lower);
pub static MEGABYTES: Metric = metric(
    "megabytes",
    "10⁶ bytes that must move: each input read once, each output written once",
    "MB",
    Better::Lower,
);
pub static OF_COPY: Metric = metric(
    "of_copy",
    "bytes that must move over the cold time, as a share of what a copy reaches on the device in the same run",
    "",
    Better::Higher,
);
pub static US_CLAIMED: Metric = metric("us_claimed", "time that a program says it took", "µs", Better::Lower);
pub static US_PEER: Metric = metric(
    "us_peer",
    "median time of the fastest of other people's code on the case, with the second-level cache flushed before",
    "µs",
    Better::Lower,
);
pub static TIMES_PEER: Metric = metric("times_peer", "that over the cold time", "", Better::Higher);
