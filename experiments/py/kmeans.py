"""scikit-learn's KMeans on made points (OpenMP loops over chunks, with BLAS inside).

Usage: kmeans.py [POINTS [CLUSTERS [ITERATIONS]]]. Prints the inertia.
"""
import sys

import numpy
from sklearn.cluster import KMeans

points, clusters, iterations = [int(v) for v in sys.argv[1:]] + [60000, 60, 60][len(sys.argv) - 1:]
random = numpy.random.default_rng(1)
centres = random.uniform(-10, 10, (clusters, 16))
data = centres[random.integers(0, clusters, points)] + random.standard_normal((points, 16)) * 4
model = KMeans(clusters, init="random", n_init=1, max_iter=iterations, tol=0, random_state=1)
print(f"inertia {model.fit(data).inertia_:.6e}")
