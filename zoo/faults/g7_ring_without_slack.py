from entry import Entry

ENTRY = Entry(
    id="G7",
    op="matmul",
    of="product through a ring of stages in shared memory",
    fault="the prologue fills every stage, and the next load overwrites one that is still read",
    symptom="some processes are always wrong, others never",
    threads=("https://github.com/ROCm/aiter/pull/4537",),
    escaped="repeating in one process proves nothing: its timing is the same",
    planted=("fp8_gemm.stage_overwritten", "linear.stage_overwritten", "fp4_gemm.slot_overwritten"),
)
