from entry import Entry

ENTRY = Entry(
    id="M5",
    op="moe",
    of="router with square roots of softplus",
    fault="weights are divided by their sum, with no floor under it: it is 0 where softplus underflows",
    symptom="a token loses all its routed experts, or has NaN",
    threads=("https://github.com/sgl-project/sglang/pull/34459",),
    escaped="weights are below every tolerance, and of four implementations each lacked another part",
    planted=("router.tiny_lost",),
)
