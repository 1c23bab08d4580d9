metrics! {
    /// The only metric that is not NaN if there are such elements.
    NONFINITE "nonfinite" "" Lower Count [0.0, COUNT]
        Pair(|pair| Some((pair.nonfinite_want + pair.nonfinite_got) as f64));
        "number of NaN and infinite elements in both tensors"
}
