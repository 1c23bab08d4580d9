/// Agreement of a Swap-FFN model with the reference. The model expands each token to many vectors, one for each of its cores. For
/// each core, it decides several times whether to exchange the vector with one of four memory banks. A core agrees if all its
/// decisions so far equal those of the reference.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct History {
    /// Number of cores, summed over all tokens of the batch.
    pub cores: u64,
    /// Number of cores whose decisions so far all equal the reference's.
    pub same: u64,
    /// Number of lanes (each core has four) that are mapped to another bank than in the reference.
    pub lanes: u64,
}

metrics! {
    /// A flipped decision exchanges a whole vector and changes a bank permanently, so a core does not return to the reference's
    /// history.
    SAME_HISTORY "same_history" "" Higher Share [0.0, 1.0] History(|history| history.mean(history.same as f64));
        "share of cores whose decisions so far all equal the reference's"

    /// Hamming distance between the candidate's and the reference's map from lanes to banks. Unrelated maps have a distance of 3
    /// on average.
    LANE_DISTANCE "lane_distance" "" Lower Significant [0.0, 4.0] History(|history| history.mean(history.lanes as f64));
        "number of a core's four lanes that hold another bank, mean over cores"
}
