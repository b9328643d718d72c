"""A relaxation on a grid in a numba parallel loop: one short parallel region a step.

Usage: numba_loop.py LAYER [SIZE [STEPS]], LAYER being omp or tbb. Prints the grid's sum.
"""
import ctypes
import sys

import numba
import numpy

numba.config.THREADING_LAYER = sys.argv[1]
if sys.argv[1] == "tbb":  # the wheel puts it where the loader does not look
    ctypes.CDLL(sys.prefix + "/lib/libtbb.so.12", ctypes.RTLD_GLOBAL)
size, steps = [int(v) for v in sys.argv[2:]] + [1000, 2500][len(sys.argv) - 2:]


@numba.njit(parallel=True, fastmath=False)
def step(old, new):
    for i in numba.prange(1, old.shape[0] - 1):
        for j in range(1, old.shape[1] - 1):
            new[i, j] = 0.25 * (old[i - 1, j] + old[i + 1, j] + old[i, j - 1] + old[i, j + 1])


a = numpy.zeros((size, size))
a[0, :] = 1.0
b = a.copy()
for _ in range(steps):
    step(a, b)
    a, b = b, a
print(f"sum {a.sum():.9e} ({numba.threading_layer()})")
