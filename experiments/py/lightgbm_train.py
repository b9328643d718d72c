"""Trains a LightGBM classifier on made data: many short OpenMP regions (libgomp).

Usage: lightgbm_train.py [ROWS [COLUMNS [TREES]]]. Prints the log loss, which does not depend on the
number of threads beyond rounding.
"""
import sys

import lightgbm
import numpy

rows, columns, trees = [int(v) for v in sys.argv[1:]] + [20000, 50, 150][len(sys.argv) - 1:]
random = numpy.random.default_rng(1)
data = random.standard_normal((rows, columns), dtype=numpy.float32)
weights = random.standard_normal(columns)
target = (data @ weights + numpy.sin(3 * data[:, 0]) + random.standard_normal(rows) > 0).astype(int)
parameters = {"objective": "binary", "num_leaves": 63, "verbose": -1, "seed": 1,
              "deterministic": True, "force_row_wise": True}
booster = lightgbm.train(parameters, lightgbm.Dataset(data, target), trees)
guess = numpy.clip(booster.predict(data), 1e-9, 1 - 1e-9)
print(f"log loss {-numpy.mean(numpy.where(target, numpy.log(guess), numpy.log(1 - guess))):.4f}")
