import numpy as np
import ulplab
from entry import Entry
from ml_dtypes import bfloat16

ENTRY = Entry(
    id="K4",
    op="kv_record",
    format="fp8",
    of="KV records of 512 FP8 codes, four f32 scales and 64 bf16 numbers with positions",
    fault="a block of 128 that holds the end of one part and the start of the next is read from the next alone",
    symptom="accuracy 0.8 to 0: the scales are numbers from before the second part",
    threads=("https://github.com/sgl-project/sglang/pull/15522",),
    escaped="the first part of a record without scales, 512, is a multiple of 128, and 528 is not",
    absent="latent keys and values in records",
)


def drawn(rng, scaled):
    latent = rng.standard_normal((17, 512)).astype(np.float32)
    return latent, rng.standard_normal((17, 64)).astype(bfloat16), scaled


def inputs(rng):
    return drawn(rng, True)


def usual(rng):
    return drawn(rng, False)


def parts(inputs):
    """The parts of records, as bytes."""
    latent, rope, scaled = inputs
    stored = ulplab.quantize(latent, "fp8_b128_f32" if scaled else "e4m3")
    first = np.concatenate([stored.codes, stored.scales.view(np.uint8)], 1) if scaled else stored.codes
    return first, rope.view(np.uint8)


def kernel(inputs, fault):
    first, second = parts(inputs)
    width = first.shape[1]
    records = np.empty((len(first), width + second.shape[1]), np.uint8)
    for start in range(0, records.shape[1], 128):
        for at in range(start, min(start + 128, records.shape[1])):
            of_first = start + 128 <= width if fault else at < width
            # Before a row of the second part lies the row before it, as in memory.
            place = np.arange(len(first)) * second.shape[1] + at - width
            records[:, at] = first[:, at] if of_first else second.reshape(-1)[place]
    return records


def gate(inputs, got):
    width = 512
    if inputs[2]:
        width = 528
        ulplab.assert_quantized(got[:, :512], got[:, 512:528].copy().view(np.float32), inputs[0], "fp8_b128_f32")
    else:
        assert np.array_equal(got[:, :512], ulplab.quantize(inputs[0], "e4m3").codes), "codes differ"
    assert np.array_equal(got[:, width:], inputs[1].view(np.uint8)), "the part with positions differs"
