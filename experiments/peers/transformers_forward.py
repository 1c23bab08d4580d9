#!/usr/bin/env python3
"""Times transformers' DeepSeek-V4 on the computation of `reference`: FP32, eager, on the CPU.

Times dsv4-mini on the start of a text: one forward pass over the window without cache, and one decode step on a cache that
holds the window. Prints one JSON object; seconds are per call. `ulplab dev bench --peer FILE` reports it beside its own times.

Needs: pip install numpy safetensors torch transformers>=5.17   (measured with torch 2.15, transformers 5.23)
Usage: transformers_forward.py [--tokens 512] [--runs 7] [--threads 2] [--datasets DIR]
"""
import argparse
import copy
import json
import os
import pathlib
import statistics
import time

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
import transformers
from safetensors.torch import load_file
from transformers import DeepseekV4Config, DeepseekV4ForCausalLM


def load(folder):
    """The model with its weights dequantized: fl32(code * scale), a scale per block of columns."""
    config = DeepseekV4Config(**json.loads((folder / "config.json").read_text()))
    config._attn_implementation = "eager"
    stored = {}
    for shard in sorted(folder.glob("*.safetensors")):
        stored.update(load_file(shard))
    weights = {}
    for name, value in stored.items():
        if name.endswith("_scale") and name.removesuffix("_scale") in stored:
            continue
        scale = stored.get(name + "_scale")
        if value.dtype == torch.float8_e4m3fn:
            blocks = value.float().unflatten(-1, (scale.shape[-1], -1))
            value = (blocks * scale.unsqueeze(-1)).flatten(-2)
        weights[name] = value
    model = DeepseekV4ForCausalLM(config).float().eval()
    own = model.state_dict()
    unknown, missing = weights.keys() - own.keys(), {k for k in own.keys() - weights.keys() if "rotary_emb" not in k}
    assert not unknown and not missing, f"unknown {sorted(unknown)[:5]}, missing {sorted(missing)[:5]}"
    model.load_state_dict(weights, strict=False)
    return model


def seconds(run, prepare, runs):
    """Seconds per `run(prepare())`, after one warm-up call; only `run` is timed."""
    measured = []
    for _ in range(runs + 1):
        prepared = prepare()
        start = time.perf_counter()
        run(prepared)
        measured.append(time.perf_counter() - start)
    measured = measured[1:]
    return {
        "median": statistics.median(measured),
        "min": min(measured),
        "max": max(measured),
        "stdev": statistics.stdev(measured) if runs > 1 else None,
        "runs": runs,
    }


def main():
    here = pathlib.Path(__file__).resolve().parents[2]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--datasets", type=pathlib.Path, default=here / "datasets")
    parser.add_argument("--text", default="text/tinyshakespeare.txt", help="relative to the data sets")
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)

    model = load(arguments.datasets / "dsv4-mini")
    text = (arguments.datasets / arguments.text).read_bytes()[: arguments.tokens + 1]
    ids = torch.tensor(list(text))[None]
    window, following = ids[:, :-1], ids[:, -1:]

    with torch.inference_mode():
        # Nats per byte of the window: a model loaded wrongly would not know the text.
        logits = model(window, use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(logits[0].double(), ids[0, 1:]).item()
        forward = seconds(lambda _: model(window, use_cache=False), lambda: None, arguments.runs)
        cache = model(window, use_cache=True).past_key_values
        decode = seconds(
            lambda past: model(following, past_key_values=past, use_cache=True),
            lambda: copy.deepcopy(cache),
            arguments.runs,
        )
    result = {
        "name": f"transformers {transformers.__version__} (FP32, eager)",
        "model": "dsv4-mini",
        "tokens": arguments.tokens,
        "threads": arguments.threads,
        "nats_per_byte": loss,
        "forward": forward,
        "decode": decode,
        "torch": torch.__version__,
        "cpu": torch.backends.cpu.get_cpu_capability(),
    }
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
