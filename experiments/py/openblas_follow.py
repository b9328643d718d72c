"""Products of matrices until the input ends; prints OpenBLAS's number of threads and the time (monotonic, in
nanoseconds) whenever the number changes.

Usage: openblas_follow.py
"""
import ctypes
import glob
import os
import select
import sys
import time

import numpy

folder = os.path.join(os.path.dirname(numpy.__file__), "..", "numpy.libs")
library = ctypes.CDLL(glob.glob(os.path.join(folder, "libscipy_openblas64_*"))[0])
threads = library.scipy_openblas_get_num_threads64_
a = numpy.ones((64, 64))
last = 0
while not select.select([sys.stdin], [], [], 0)[0]:
    for _ in range(50):
        now = threads()
        if now != last:
            print(now, time.monotonic_ns(), flush=True)
            last = now
        a @ a
