from entry import Entry

ENTRY = Entry(
    id="A13",
    op="attention",
    of="attention through tiles in shared memory",
    fault="a barrier stands where only some warps come by: a tile is overwritten while others read it",
    symptom="wrong beyond some length of context",
    threads=("https://github.com/ggml-org/llama.cpp/pull/13469", "https://github.com/ggml-org/llama.cpp/pull/13438"),
    escaped="luck with timing, and short contexts",
    planted=("record_attention.tile_overwritten",),
)
