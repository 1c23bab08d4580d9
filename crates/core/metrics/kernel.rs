//! Metrics of kernel runs, which `backend::cuda` measures.

metrics! {
    VIOLATIONS "violations" "" Lower Count [0.0, COUNT] Kernel;
        "number of violations: elements that are not equal or not within their bound, and changed bytes that the \
         kernel must not change"
    UNEQUAL "unequal" "" Lower Count [0.0, COUNT] Kernel;
        "number of elements whose bits are not those of the operation's definition, for kernels that are judged by \
         bounds"
    BOUND_RATIO "bound_ratio" "" Lower Significant [0.0, RATIO] Kernel;
        "largest error over its derived bound; above 1 is a violation"
    US_COLD "us_cold" "µs" Lower Tenths [0.0, COUNT / 1e3] Kernel;
        "median time after a flush of the L2 cache"
    US_COLD_P10 "us_cold_p10" "µs" Lower Tenths [0.0, COUNT / 1e3] Kernel;
        "10th percentile of the time after a flush of the L2 cache"
    US_COLD_P90 "us_cold_p90" "µs" Lower Tenths [0.0, COUNT / 1e3] Kernel;
        "90th percentile of the time after a flush of the L2 cache"
    US_HOT "us_hot" "µs" Lower Tenths [0.0, COUNT / 1e3] Kernel;
        "median time of launches back to back"
    US_GRAPH "us_graph" "µs" Lower Tenths [0.0, COUNT / 1e3] Kernel;
        "median time of one of many runs in a graph, all on the same memory"
    US_ROTATED "us_rotated" "µs" Lower Tenths [0.0, COUNT / 1e3] Kernel;
        "median time of one of many runs in a graph, each on another copy of all buffers, so that nothing is in the \
         cache"
    US_CACHED "us_cached" "µs" Lower Tenths [0.0, COUNT / 1e3] Kernel;
        "median time of one of many runs in a graph whose large buffers are the same few megabytes over and over, so \
         that they come from the L2 cache: what a kernel takes if memory costs it nothing"
    MEGABYTES "megabytes" "MB" Lower Tenths [0.0, COUNT] Kernel;
        "10⁶ bytes that must move: each input read once, each output written once"
    OF_COPY "of_copy" "" Higher Share [0.0, COUNT] Kernel;
        "bytes that must move, divided by the cold time, relative to the bandwidth of a copy on the device in the \
         same run"
    OF_COPY_ROTATED "of_copy_rotated" "" Higher Share [0.0, COUNT] Kernel;
        "bytes that must move, divided by the rotated time, relative to the bandwidth of a copy on the device in the \
         same run"
    OF_MATMUL "of_matmul" "" Higher Share [0.0, COUNT] Kernel;
        "operations of matrix products, divided by the cold time, relative to the rate of a large product of the same \
         type on the device in the same run"
    US_CLAIMED "us_claimed" "µs" Lower Tenths [0.0, COUNT / 1e3] Kernel;
        "time that a program reports itself"
    US_PEER "us_peer" "µs" Lower Tenths [0.0, COUNT / 1e3] Kernel;
        "median cold time of the fastest peer (third-party implementation) on the case"
    US_LIMIT "us_limit" "µs" Lower Tenths [0.0, COUNT / 1e3] Kernel;
        "median cold time of a kernel that moves the bytes of the case in the same pattern and computes nothing"
    OF_LIMIT "of_limit" "" Higher Share [0.0, COUNT] Kernel;
        "cold time of a kernel that moves the bytes of the case and computes nothing, over the kernel's"
    TIMES_PEER "times_peer" "" Higher Significant [0.0, COUNT] Kernel;
        "cold time of the fastest peer on the case over the kernel's"
}
