#!/usr/bin/env python3
"""The reference of experiments/own_op.toml: the expected values of the operation `softmax`, and their error bounds.

Reads x [T, C] in f64, with the same numbers that candidates get. Writes y [T, C] in f64, and y.bound, the largest error that each
element of a candidate in f32 may have.

Usage: softmax_reference.py INPUTS OUTPUTS
"""
import math
import sys

from tensors import read, write

U = 2.0**-24  # half an ulp of 1 in f32


def main():
    inputs, outputs = sys.argv[1:]
    tensors, given = read(inputs)
    rows, cols, scale = int(given["T"]), int(given["C"]), float(given["scale"])
    y, bound = [], []
    for row in range(rows):
        z = [scale * x for x in tensors["x"][row * cols : (row + 1) * cols]]
        top = max(z)
        powers = [math.exp(z - top) for z in z]
        total = math.fsum(powers)
        # The scale, its products with x and with the largest x, and their difference round once each. An absolute error of the
        # argument is a relative error of the power, which itself is accurate to 2 ulp.
        errors = [(2 * abs(z) + 2 * abs(top) + abs(z - top) + 4.0) * U for z in z]
        # The relative error of a sum of positive terms is u for each addition that a term goes through, plus the terms' own error.
        share = math.fsum(power * error for power, error in zip(powers, errors)) / total
        for power, error in zip(powers, errors):
            y.append(power / total)
            relative = error + share + (cols + 1) * U
            # The factor covers second-order terms, the constant subnormal numbers.
            bound.append(relative * 1.01 * power / total + 2.0**-148)
    write(outputs, given, {"y": y, "y.bound": bound})


if __name__ == "__main__":
    main()
