/* A program of many short parallel regions, for tests. Prints its number of threads. */
#include <omp.h>
#include <stdio.h>

int main(void) {
    double sum = 0;
    for (int region = 0; region < 20000; region++) {
#pragma omp parallel for reduction(+ : sum) schedule(static)
        for (int i = 1; i < 40000; i++) sum += 1.0 / (i + region);
    }
    fprintf(stderr, "%f\n", sum);
    printf("%d\n", omp_get_max_threads());
    return 0;
}
