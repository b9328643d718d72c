"""Singular values of random matrices (NumPy's OpenBLAS, threads of its own that spin).

Usage: numpy_svd.py [SIZE [REPEATS]]. Prints their sum.
"""
import sys

import numpy

size, repeats = [int(v) for v in sys.argv[1:]] + [800, 4][len(sys.argv) - 1:]
random = numpy.random.default_rng(1)
total = 0.0
for _ in range(repeats):
    total += numpy.linalg.svd(random.standard_normal((size, size)))[1].sum()
print(f"sum of singular values {total:.6e}")
