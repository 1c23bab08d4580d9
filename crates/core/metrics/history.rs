use super::{Better, Eval, Metric, Show};

/// The state of the cores after the decisions so far.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct History {
    /// Number of cores: rows of all tokens of the batch.
    pub cores: u64,
    /// Cores whose decisions so far all equal the reference's.
    pub same: u64,
    /// Lanes (each core has four) that hold another bank than the reference's.
    pub lanes: u64,
}

/// One flip exchanges a whole vector and changes the bank it leaves behind for good, so a core does not return to the
/// reference's history.
pub const SAME_HISTORY: Metric = Metric {
    name: "same_history",
    doc: "share of cores whose decisions so far all equal the reference's",
    unit: "",
    better: Better::Higher,
    show: Show::Share,
    eval: Eval::History(|history| (history.cores > 0).then(|| history.same as f64 / history.cores as f64)),
};

/// Hamming distance of the maps. Unrelated maps have a distance of 3.
pub const LANE_DISTANCE: Metric = Metric {
    name: "lane_distance",
    doc: "number of a core's four lanes that hold another bank, mean over cores",
    unit: "",
    better: Better::Lower,
    show: Show::Significant,
    eval: Eval::History(|history| (history.cores > 0).then(|| history.lanes as f64 / history.cores as f64)),
};
