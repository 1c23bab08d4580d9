#!/usr/bin/env python3
"""What is right of the operation `softmax`, and how near is near enough: the reference of experiments/own_op.toml.

Reads x [T, C] in f64, the numbers that candidates are given. Writes y [T, C] in f64, and y.bound: by how much each element
of a candidate in f32 may err.

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
        # The scale, its products with x and the largest one, and their difference round once each: absolute errors of the
        # argument are relative ones of the power, which is itself given to 2 ulp.
        errors = [(2 * abs(z) + 2 * abs(top) + abs(z - top) + 4.0) * U for z in z]
        # A sum of positive terms errs by u for each addition that a term goes through, and by what its terms err.
        share = math.fsum(power * error for power, error in zip(powers, errors)) / total
        for power, error in zip(powers, errors):
            y.append(power / total)
            relative = error + share + (cols + 1) * U
            # Of second order, and of numbers below the normal ones.
            bound.append(relative * 1.01 * power / total + 2.0**-148)
    write(outputs, given, {"y": y, "y.bound": bound})


if __name__ == "__main__":
    main()
