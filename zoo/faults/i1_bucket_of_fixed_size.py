import numpy as np
import ulplab
from layers import normal
from entry import Entry

ENTRY = Entry(
    id="I1",
    op="top_k",
    of="top-k of an indexer's scores, by the buckets of a radix",
    fault="of scores in the bucket where k is reached, only the first 4096 are candidates",
    symptom="6 to 42 of 2048 are wrong in every row, others in each run; no error is raised",
    threads=("https://github.com/sgl-project/sglang/issues/36807", "https://github.com/vllm-project/vllm/issues/55314"),
    escaped="scores that are well spread never fill a bucket, and a recall of 99 % passes",
    absent="an indexer",
)
TOP_K, BUFFER = 2048, 4096


def inputs(rng):
    return rng.uniform(1.25, 1.5, (2, 4131)).astype(np.float32)


def usual(rng):
    return normal(rng, 2, 15_001)


def kernel(scores, fault):
    # The upper 8 bits of f16 as integers of the same order: sign, exponent, and two bits of the significand.
    bits = scores.astype(np.float16).view(np.int16)
    buckets = np.where(bits < 0, ~(bits & 0x7FFF), bits) >> 8
    chosen = []
    for row, bucket in zip(scores, buckets):
        reached = np.sort(bucket)[-TOP_K]
        candidates = np.flatnonzero(bucket == reached)[: BUFFER if fault else None]
        found = np.sort(np.concatenate([np.flatnonzero(bucket > reached), candidates]))
        chosen.append(found[np.argsort(-row[found], kind="stable")[:TOP_K]])
    return {"values": np.take_along_axis(scores, np.stack(chosen), -1), "indices": np.stack(chosen)}


def gate(scores, got):
    ulplab.assert_close(got, op="top_k", inputs=dict(x=scores, k=TOP_K))


def numbers(scores, got):
    return got["values"]


def indices(scores, got):
    return got["indices"]
