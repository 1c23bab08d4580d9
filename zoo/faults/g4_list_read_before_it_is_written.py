from entry import Entry

ENTRY = Entry(
    id="G4",
    op="matmul",
    of="product that finds its rows through a list in shared memory",
    fault="a barrier is missing: the list is read before all of it is written",
    symptom="wrong for some shapes on some numbers of multiprocessors",
    threads=("https://github.com/ggml-org/llama.cpp/pull/13294",),
    escaped="timing decides, and one run is right",
    planted=("state_transpose.barrier_missing", "delta_decode.barrier_missing", "linear.parts_early"),
)
