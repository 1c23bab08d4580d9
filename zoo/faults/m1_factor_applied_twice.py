import numpy as np
import ulplab
from layers import experts, mixture, routed
from entry import Entry

ENTRY = Entry(
    id="M1",
    op="moe",
    of="mixture of experts with a scaling factor of the routed ones",
    fault="the router multiplies weights by the factor, and the model multiplies the output by it again",
    symptom="GSM8K 0.52 to 0.66, and 0.95 with the fix; it came back in another model",
    threads=("https://github.com/vllm-project/vllm/pull/24119", "https://github.com/vllm-project/vllm/pull/45037"),
    escaped="a caller cannot see what the callee has done, and a cosine does not see a factor",
)
FACTOR = 2.5


def inputs(rng):
    return mixture(rng, scores="sigmoid", scaling_factor=FACTOR)


def kernel(inputs, fault):
    chosen, weights = routed(1 / (1 + np.exp(-inputs["logits"])), inputs["top_k"])
    y = experts(inputs["x"], chosen, weights * np.float32(FACTOR), inputs["w13"], inputs["w2"])
    return y * np.float32(FACTOR) if fault else y


def gate(inputs, got):
    ulplab.assert_close(got, op="moe", inputs=inputs)
