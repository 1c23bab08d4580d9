import numpy as np
import ulplab
from entry import Entry
from ml_dtypes import float8_e4m3fn, float8_e4m3fnuz

ENTRY = Entry(
    id="K5",
    op="quantize",
    format="fp8",
    of="FP8 KV cache on a device whose E4M3 is FNUZ",
    fault="codes are written in FNUZ and read in FN, where the same bits are twice as large",
    symptom="GSM8K 0.967 to 0.010, and every request is answered with status 200",
    threads=("https://github.com/vllm-project/vllm/pull/45720", "https://github.com/vllm-project/vllm/issues/45562"),
    escaped="this device is not tested, and a factor of 2 leaves cosine at 1",
)


def inputs(rng):
    return rng.standard_normal((41, 192)).astype(np.float32)


def kernel(x, fault):
    dtype, largest = (float8_e4m3fnuz, 224) if fault else (float8_e4m3fn, 448)
    scales = np.abs(x).max(-1, keepdims=True) / np.float32(largest)
    return (x / scales).astype(dtype).view(np.uint8), scales


def gate(x, got):
    ulplab.assert_quantized(*got, x, "fp8_token")


def want(x):
    return x


def numbers(x, got):
    return ulplab.dequantize(*got, format="fp8_token", shape=x.shape)
