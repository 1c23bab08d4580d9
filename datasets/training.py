"""What the training scripts of qwen3-mini, gptoss-mini and qwen35-mini share: corpus, baseline, loop, FP8, export.

A model is an object with `config` (the configuration that transformers reads), `batch`, `length`, `learning_rate`,
`parameters(generator)` (FP32 tensors by their names in the checkpoint), `forward(parameters, ids)` (logits and an auxiliary
loss) and `store(parameters)` (the tensors of the file, and the parameters that a reader recovers from them).

Usage: training.py baseline OUT.json --texts DIR     n-gram models on the same split
"""
import argparse
import json
import math
import pathlib
import random
import sysconfig
import time

import numpy as np
import torch
import torch.nn.functional as F

PYTHON_BYTES = 16 << 20  # of the standard library, after its files are shuffled
HELD_OUT = 0.05  # of each training text, at its end
EVALUATED = 160_000  # bytes of each text at most
SHARES = {"tinyshakespeare": 0.20, "pride_and_prejudice": 0.15, "python": 0.65}


def standard_library():
    """Sources of this Python's standard library without installed packages, in an order that depends on names only."""
    root = pathlib.Path(sysconfig.get_paths()["stdlib"])
    files = sorted(p for p in root.rglob("*.py") if not {"site-packages", "dist-packages"} & set(p.parts))
    random.Random(20261125).shuffle(files)
    text = bytearray()
    for file in files:
        try:
            text += file.read_bytes() + b"\n"
        except OSError:
            continue
        if len(text) >= PYTHON_BYTES:
            break
    return bytes(text[:PYTHON_BYTES])


def corpus(texts):
    """Pairs (train, held out) by text; alice is held out as a whole."""
    whole = {name: (texts / f"{name}.txt").read_bytes() for name in ("tinyshakespeare", "pride_and_prejudice")}
    whole["python"] = standard_library()
    split = {}
    for name, text in whole.items():
        cut = int(len(text) * (1 - HELD_OUT))
        split[name] = (text[:cut], text[cut:][:EVALUATED])
    split["alice"] = (b"", (texts / "alice.txt").read_bytes()[:EVALUATED])
    return split


def baseline(texts):
    """Nats per byte of n-gram models with add-k smoothing, order 0, 2 and 3; k is the best of five for each held-out text."""
    split = corpus(texts)
    train = [np.frombuffer(text, np.uint8).astype(np.uint32) for text, _ in split.values() if text]

    def grams(text, n):
        code = np.zeros(len(text) - n + 1, np.uint32)
        for i in range(n):
            code = code << np.uint32(8) | text[i : len(text) - n + 1 + i]
        return code

    def counted(n):
        return np.unique(np.concatenate([grams(text, n) for text in train]), return_counts=True)

    def looked_up(table, code):
        keys, counts = table
        at = np.searchsorted(keys, code).clip(max=len(keys) - 1)
        return np.where(keys[at] == code, counts[at], 0).astype(np.float64)

    result = {name: {} for name in split}
    for order in (0, 2, 3):
        joint = counted(order + 1)
        context = counted(order) if order else None
        for name, (_, held) in split.items():
            text = np.frombuffer(held, np.uint8).astype(np.uint32)
            code = grams(text, order + 1)
            seen = looked_up(joint, code)
            total = looked_up(context, code >> np.uint32(8)) if order else np.full(len(code), float(joint[1].sum()))
            losses = [float(-np.log((seen + k) / (total + 256 * k)).mean()) for k in (1e-3, 1e-2, 0.03, 0.1, 1.0)]
            result[name][f"order_{order}"] = round(min(losses), 4)
    return result


class Embedding(torch.autograd.Function):
    """Rows of a table of 256; the gradient is a product with one-hot rows, which a CUDA graph can hold."""

    @staticmethod
    def forward(ctx, ids, table):
        ctx.save_for_backward(ids)
        return table[ids]

    @staticmethod
    def backward(ctx, grad):
        hot = ctx.saved_tensors[0].flatten()[:, None] == torch.arange(256, device=grad.device)
        return None, hot.to(grad.dtype).T @ grad.flatten(0, -2)


def fp8(weights):
    """Stores matrices as E4M3 with one FP32 scale per row and block of 64 columns (48 or 16 if 64 does not divide the row);
    other tensors stay FP32. Returns (stored, used): `used` has exactly fl32(code * scale) in the place of the matrices."""
    stored, used = {}, {}
    for name, value in weights.items():
        value = value.detach().float().cpu().contiguous()
        columns = value.shape[-1]
        if value.ndim < 2 or columns % 16:
            stored[name] = used[name] = value
            continue
        block = 64 if columns % 64 == 0 else 48 if columns % 48 == 0 else 16
        blocks = value.unflatten(-1, (-1, block))
        scale = blocks.abs().amax(-1, keepdim=True).clamp_min(1e-12) / 448
        code = (blocks / scale).to(torch.float8_e4m3fn)
        stored[name] = code.flatten(-2).contiguous()
        stored[name + "_scale"] = scale.squeeze(-1).contiguous()
        used[name] = (code.float() * scale).flatten(-2)
    return stored, used


def arguments(description):
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=pathlib.Path, help="folder of the checkpoint")
    parser.add_argument("--texts", type=pathlib.Path, default=pathlib.Path(__file__).parent / "text")
    parser.add_argument("--seconds", type=float, default=420, help="from the start of the process to the end of training")
    parser.add_argument("--mode", choices=["graph", "compile", "eager"], default="graph", help="how a step is executed on a GPU")
    parser.add_argument("--toy", action="store_true", help="few layers and short windows, to try the script on a CPU")
    return parser.parse_args()


STARTED = time.time()


def train(model, options):
    """Trains until `options.seconds` have passed since the start of the process, evaluates, stores, evaluates what is stored."""
    torch.manual_seed(20261125)
    torch.set_float32_matmul_precision("high")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    gpu = device == "cuda"
    mode = options.mode if gpu else "eager"
    if gpu:
        torch.backends.cuda.enable_cudnn_sdp(False)
    weights = {n: w.to(device).requires_grad_() for n, w in model.parameters(torch.Generator().manual_seed(7)).items()}
    model.prepare(device, torch.bfloat16 if gpu else torch.float32, compiled=mode != "eager")
    count = sum(w.numel() for w in weights.values())
    print(f"{model.name}: {count / 1e6:.3f} M parameters, mode {mode}, torch {torch.__version__}", flush=True)

    split = corpus(options.texts)
    names = list(SHARES)
    data = torch.frombuffer(bytearray(b"".join(split[n][0] for n in names)), dtype=torch.uint8).to(device)
    sizes = np.array([len(split[n][0]) for n in names])
    origin = np.concatenate([[0], sizes.cumsum()[:-1]])
    rng = np.random.default_rng(1234)
    batch, length = model.batch, model.length

    def drawn(steps):
        source = rng.choice(len(names), (steps, batch), p=[SHARES[n] for n in names])
        start = origin[source] + (rng.random((steps, batch)) * (sizes[source] - length - 1)).astype(np.int64)
        return torch.from_numpy(start).to(device)

    groups = [
        {"params": [w for n, w in weights.items() if w.ndim >= 2 and "conv1d" not in n and "bias" not in n], "weight_decay": 0.05},
        {"params": [w for n, w in weights.items() if not (w.ndim >= 2 and "conv1d" not in n and "bias" not in n) and not model.fast(n)],
         "weight_decay": 0.0},
        {"params": [w for n, w in weights.items() if model.fast(n)], "weight_decay": 0.0},
    ]
    factors = [1.0, 1.0, 4.0]
    factors = [f for f, g in zip(factors, groups) if g["params"]]
    groups = [g for g in groups if g["params"]]
    for group in groups:
        group["lr"] = torch.tensor(0.0, device=device) if gpu else 0.0
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.97), **({"fused": True, "capturable": True} if gpu else {}))

    def set_rate(rate):
        for group, factor in zip(optimizer.param_groups, factors):
            if gpu:
                group["lr"].fill_(rate * factor)
            else:
                group["lr"] = rate * factor

    # A step reads and writes tensors that stay where they are, so that one CUDA graph can replay it.
    window = torch.zeros(batch, length + 1, dtype=torch.uint8, device=device)
    rows = torch.zeros(batch, device=device)
    auxiliary = torch.zeros((), device=device)
    parameters = list(weights.values())

    def step():
        ids = window.long()
        logits, aux = model.forward(weights, ids[:, :-1])
        losses = F.cross_entropy(logits.float().flatten(0, 1), ids[:, 1:].flatten(), reduction="none").view(batch, length)
        (losses.mean() + aux).backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        rows.copy_(losses.detach().mean(1))
        auxiliary.copy_(aux.detach())

    column = torch.arange(length + 1, device=device)

    def load(start):
        window.copy_(data[start[:, None] + column])

    starts = drawn(1000)
    load(starts[0])
    run = step
    if mode == "graph":
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                step()
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step()
        run = graph.replay
    else:
        step()
    if gpu:
        torch.cuda.synchronize()
    first = time.time()
    print(f"{model.name}: first steps after {first - STARTED:.0f} s", flush=True)

    log, done, snapshot, penalty = [], 0, None, 1.0
    end = max(STARTED + options.seconds, first + 1)
    while True:
        now = time.time()
        if now >= end:
            break
        fraction = (now - first) / (end - first)
        cosine = 0.5 * (1 + math.cos(math.pi * fraction))
        set_rate(penalty * model.learning_rate * min(1, (done + 1) / 100) * cosine)
        model.progress(fraction)
        load(starts[done % 1000])
        run()
        done += 1
        if done % 1000 == 0:
            starts = drawn(1000)
        if done % 20 == 0 or done <= 2:
            loss = rows.mean().item()  # waits for the device, so that the schedule follows the clock
            if not math.isfinite(loss):
                print(f"{model.name}: step {done} loss {loss}; back to the last snapshot at half the rate", flush=True)
                penalty /= 2
                with torch.no_grad():
                    for weight, kept in zip(parameters, snapshot):
                        weight.copy_(kept)
                    for state in optimizer.state.values():
                        state["exp_avg"].zero_()
                        state["exp_avg_sq"].zero_()
                continue
            if done % 100 == 0 or snapshot is None:
                snapshot = [w.detach().clone() for w in parameters]
            elapsed = time.time() - first
            if done % 100 == 0 or done in (2, 20):
                log.append([done, round(elapsed, 1), round(loss, 4), round(auxiliary.item(), 5)])
            if done % 200 == 0 or done in (2, 20, 40, 100):
                print(f"{model.name}: step {done} {elapsed:.0f} s, {done / elapsed:.2f} steps/s, loss {loss:.4f} aux {auxiliary.item():.4f}"
                      + (f" mem {torch.cuda.max_memory_reserved() / 2**30:.0f} G" if gpu else ""), flush=True)
    trained = time.time() - first

    def evaluate():
        """Mean loss by text over whole windows. A step at learning rate zero changes no parameter, and needs no second graph."""
        set_rate(0.0)
        result = {}
        for name, (_, held) in split.items():
            text = torch.frombuffer(bytearray(held), dtype=torch.uint8).to(device)
            at = torch.arange(0, len(text) - length - 1, length, device=device)
            if options.toy:
                at = at[:batch]
            losses = []
            for part in at.split(batch):
                padded = torch.cat([part, part[:1].expand(batch - len(part))])
                window.copy_(text[padded[:, None] + column])
                run()
                losses.append(rows[: len(part)].clone())
            result[name] = round(torch.cat(losses).double().mean().item(), 4)
        return result

    before = evaluate()
    stored, used = model.store({n: w.detach().float().cpu() for n, w in weights.items()})
    with torch.no_grad():
        for name, weight in weights.items():
            weight.copy_(used[name])
    after = evaluate()
    options.out.mkdir(parents=True, exist_ok=True)
    from safetensors.torch import save_file
    save_file(stored, options.out / "model.safetensors", metadata={"format": "pt"})
    (options.out / "config.json").write_text(json.dumps(model.config, indent=2) + "\n")
    report = {
        "parameters": count, "steps": done, "batch": batch, "length": length, "seconds": round(trained, 1),
        "device": torch.cuda.get_device_name() if gpu else "cpu", "torch": torch.__version__,
        "training_bytes": {n: len(split[n][0]) for n in names}, "held_out_bytes": {n: len(h) for n, (_, h) in split.items()},
        "nats_per_byte": before, "nats_per_byte_stored": after,
        "log_columns": ["step", "seconds", "loss", "auxiliary"], "log": log,
    }
    (options.out / "train.json").write_text(json.dumps(report) + "\n")
    size = sum(f.stat().st_size for f in options.out.iterdir())
    print(f"{model.name}: {done} steps, {done / trained:.2f}/s, {size / 1e6:.2f} MB, before {before} stored {after}", flush=True)
    try:
        check(model, options.out, used)
    except Exception as error:  # the checkpoint is written; what cannot be checked here is checked where it arrives
        print(f"{model.name}: transformers did not check it: {type(error).__name__}: {error}", flush=True)


def reload(folder):
    """The checkpoint in transformers: FP32, eager, on the CPU; `<name>_scale` is applied first, MXFP4 by transformers."""
    import transformers
    from safetensors.torch import load_file
    config = transformers.AutoConfig.from_pretrained(folder)
    if getattr(config, "quantization_config", None):
        quantization = transformers.Mxfp4Config(dequantize=True)
        return transformers.AutoModelForCausalLM.from_pretrained(
            folder, quantization_config=quantization, dtype=torch.bfloat16, attn_implementation="eager").float().eval()
    stored = load_file(pathlib.Path(folder) / "model.safetensors")
    weights = {}
    for name, value in stored.items():
        scale = stored.get(name + "_scale")
        if scale is not None:
            value = (value.float().unflatten(-1, (scale.shape[-1], -1)) * scale.unsqueeze(-1)).flatten(-2)
        if not name.endswith("_scale"):
            weights[name] = value
    config._attn_implementation = "eager"
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    missing, unknown = model.load_state_dict(weights, strict=False)
    tied = {"lm_head.weight"} if config.tie_word_embeddings else set()
    assert not unknown and not set(missing) - tied, (unknown, missing)
    model.tie_weights()
    return model


def check(model, folder, used):
    """Compares the training code with transformers on the stored checkpoint, both FP32 on the CPU."""
    import transformers
    theirs = reload(folder)
    ids = torch.frombuffer(bytearray((b"Alice was beginning to get very tired of sitting by her sister on the bank, " * 4)[:256]), dtype=torch.uint8).long()[None]
    model.prepare("cpu", torch.float32, compiled=False)
    with torch.no_grad():
        wanted = theirs(ids, use_cache=False).logits.double()
        got, _ = model.forward({n: w.float() for n, w in used.items()}, ids)
    error = ((got.double() - wanted).norm() / wanted.norm()).item()
    print(f"{model.name}: transformers {transformers.__version__} loads it; relative difference of the logits {error:.1e}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["baseline"])
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--texts", type=pathlib.Path, default=pathlib.Path(__file__).parent / "text")
    given = parser.parse_args()
    table = baseline(given.texts)
    given.out.write_text(json.dumps(table, indent=1) + "\n")
    print("baseline", json.dumps(table), flush=True)
