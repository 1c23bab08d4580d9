#!/usr/bin/env python3
"""Loads qwen3-mini, gptoss-mini and qwen35-mini with transformers, FP32, eager, on the CPU, and tells what training has made of them.

For each model: nats per byte of texts, and the spread of what a random model would not have: sinks and their share of the attention,
decays of the gated delta rule, shares of the experts. Prints one JSON object per model. The loss is over windows of the trained length, or
of --length, and then by 1,024 positions, too.

Needs: pip install accelerate numpy safetensors torch transformers>=5.17   (measured with torch 2.15, transformers 5.24)
Usage: transformers_minis.py [MODEL ...] [--texts alice tinyshakespeare] [--windows 8 | --starts 0 20000] [--length 8192] [--threads 2]
       [--datasets DIR]
"""
import argparse
import json
import os
import pathlib
import sys

os.environ.setdefault("HF_HUB_OFFLINE", "1")
HERE = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(HERE / "datasets"))

import torch
import transformers
from training import reload

MODELS = ["qwen3-mini", "gptoss-mini", "qwen35-mini"]


def quantiles(values):
    values = torch.as_tensor(values).double().flatten()
    points = torch.tensor([0, 0.05, 0.5, 0.95, 1], dtype=torch.float64)
    return [round(v, 4) for v in torch.quantile(values, points).tolist()]


def watch(model):
    """Hooks that collect sinks' shares, decays and chosen experts of each forward pass."""
    seen = {"sink_share": [], "decay": [], "beta": [], "experts": [], "output_gate": []}

    def attention(module, inputs, output):
        seen["sink_share"].append((1 - output[1].sum(-1)).mean((0, 2)))  # by head

    def delta(module, inputs, output):
        hidden = inputs[0] if inputs else delta.hidden
        a = module.in_proj_a(hidden)
        decay = (-module.A_log.exp() * torch.nn.functional.softplus(a + module.dt_bias)).exp()
        seen["decay"].append(decay[0, ::16])
        seen["beta"].append(module.in_proj_b(hidden).sigmoid()[0, ::16])

    def delta_input(module, positional, named):
        delta.hidden = positional[0] if positional else named["hidden_states"]

    def router(module, inputs, output):
        seen["experts"].append(torch.bincount(output[2].flatten(), minlength=module.num_experts).double())

    for name, module in model.named_modules():
        if hasattr(module, "sinks"):
            module.register_forward_hook(attention)
        if hasattr(module, "A_log"):
            module.register_forward_pre_hook(delta_input, with_kwargs=True)
            module.register_forward_hook(delta)
        if name.endswith("mlp.router"):
            module.register_forward_hook(router)
    return seen


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=MODELS)
    parser.add_argument("--datasets", type=pathlib.Path, default=HERE / "datasets")
    parser.add_argument("--texts", nargs="+", default=["alice"])
    parser.add_argument("--windows", type=int, default=8, help="spread evenly over the text")
    parser.add_argument("--starts", nargs="+", type=int, help="bytes at which windows start, in their place")
    parser.add_argument("--length", type=int, help="tokens of a window; the trained length if it isn't given")
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    for name in arguments.models:
        model = reload(arguments.datasets / name)
        length = arguments.length or model.config.max_position_embeddings
        result = {"model": name, "transformers": transformers.__version__, "torch": torch.__version__, "window": length}
        seen = watch(model)
        with torch.inference_mode():
            for text in arguments.texts:
                ids = torch.tensor(list((arguments.datasets / f"text/{text}.txt").read_bytes()))
                starts = arguments.starts or torch.linspace(0, len(ids) - length - 1, arguments.windows).long().tolist()
                losses = []
                for start in starts:
                    window = ids[start : start + length + 1]
                    logits = model(window[None, :-1], use_cache=False).logits[0]
                    losses.append(torch.nn.functional.cross_entropy(logits.double(), window[1:], reduction="none"))
                by_position = torch.stack(losses).mean(0)
                result[f"nats_per_byte.{text}"] = round(by_position.mean().item(), 4)
                if arguments.length:
                    parts = by_position.split(1024)
                    result[f"nats_per_byte_by_1024.{text}"] = [round(part.mean().item(), 4) for part in parts]
        if seen["sink_share"]:
            result["sinks"] = quantiles(torch.cat([m.sinks for m in model.modules() if hasattr(m, "sinks")]).detach())
            result["sink_share_by_head"] = quantiles(torch.cat(seen["sink_share"]))
        if seen["decay"]:
            result["decay"] = quantiles(torch.cat([d.flatten() for d in seen["decay"]]))
            result["beta"] = quantiles(torch.cat([d.flatten() for d in seen["beta"]]))
            layers = sum(hasattr(m, "A_log") for m in model.modules())
            heads = torch.stack(seen["decay"]).view(-1, layers, *seen["decay"][0].shape).mean((0, 2))
            result["mean_decay_by_head"] = quantiles(heads)
        if seen["experts"]:
            layers = sum(n.endswith("mlp.router") for n, _ in model.named_modules())
            share = torch.stack(seen["experts"]).view(-1, layers, model.config.num_local_experts).sum(0)
            result["expert_share"] = quantiles(share / share.sum(-1, keepdim=True))
        result["quantiles"] = "minimum, 5 %, 50 %, 95 %, maximum"
        print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
