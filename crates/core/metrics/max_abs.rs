metrics! {
    /// max |x − y|. It is an extreme value, so it grows with the number of elements.
    MAX_ABS "max_abs" "" Lower Significant [0.0, DIFFERENCE] Pair(|pair| pair.judge(|pair| pair.max_abs));
        "largest absolute error of an element"
}
