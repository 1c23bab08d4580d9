from entry import Entry

ENTRY = Entry(
    id="M12",
    op="moe",
    format="nvfp4",
    of="mixture of experts in NVFP4, and copies of blocks of a cache",
    fault="a store goes past the end of its tile, into a neighbour's memory",
    symptom="an innocent kernel fails later, after some fifty calls",
    threads=(
        "https://github.com/flashinfer-ai/flashinfer/issues/3957",
        "https://github.com/NVIDIA/TensorRT-LLM/pull/4943",
    ),
    escaped="the kernel's own result is right, and nobody looks at the memory around it",
    planted=("compressor.entry_late", "compressor.scratch_overlaps"),
)
