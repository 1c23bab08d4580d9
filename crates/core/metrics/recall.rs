// The documentation of `Choice` defines contested rows and the treatment of ties.
metrics! {
    /// Mean over contested rows (more than k items) of |A ∩ B| / |A|, where A is the reference's selection and B the candidate's.
    RECALL "recall" "" Higher Share [0.0, 1.0] Choice(|choice| choice.mean(choice.recall));
        "share of the reference's top-k that the candidate also selected"

    RECALL_MIN "recall_min" "" Higher Share [0.0, 1.0] Choice(|choice| choice.judge(|choice| choice.recall_min));
        "recall of the worst row"

    /// Mean over contested rows of mass(A ∩ B) / mass(A), where A is the reference's selection and B the candidate's. The mass of
    /// a set is the reference's attention or gate weight of its items. Items in which A and B differ have scores near the
    /// selection threshold and little mass, so this metric is nearer to 1 than the recall.
    RECALL_MASS "recall_mass" "" Higher Share [0.0, 1.0] Choice(|choice| choice.mean(choice.recall_mass?));
        "recall weighted by the mass the reference gives each item"

    AGREEMENT "agreement" "" Higher Share [0.0, 1.0] Choice(|choice| choice.mean(choice.equal as f64));
        "share of rows in which both select the same set"
}
