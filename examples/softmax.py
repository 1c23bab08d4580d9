#!/usr/bin/env python3
"""A candidate for the operation `softmax`, rounded to f32 after every step, like a kernel: `ulplab kernels check experiments/own_op.toml`.

The program is started once and computes case after case.
"""
import math
import struct

from serve import serve
from tensors import read, write


def f32(x):
    return struct.unpack("<f", struct.pack("<f", x))[0]


def softmax(inputs, outputs):
    tensors, given = read(inputs)
    rows, cols, scale = int(given["T"]), int(given["C"]), f32(float(given["scale"]))
    y = []
    for row in range(rows):
        z = [f32(scale * x) for x in tensors["x"][row * cols : (row + 1) * cols]]
        top = max(z)
        powers = [f32(math.exp(f32(z - top))) for z in z]
        total = 0.0
        for power in powers:
            total = f32(total + power)
        y.extend(f32(power / total) for power in powers)
    write(outputs, given, {"y": y})


if __name__ == "__main__":
    serve(softmax)
