/* OpenMP regions for the experiments about adapters.
 *
 *   regions cost N        begins N empty regions, and N pieces of a dynamic loop for each 100 of them;
 *                         prints nanoseconds for each region and for each piece
 *   regions follow        begins regions of some 50 µs until its input ends; prints the size of the team and
 *                         the time (monotonic, ns) whenever the size changes
 */
#include <omp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static volatile double sink;

static long long now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static void cost(long regions)
{
    long long began = now();
    for (long i = 0; i < regions; i++) {
#pragma omp parallel
        sink = 1;
    }
    double region = (double)(now() - began) / regions;
    long pieces = regions * 4;
    began = now();
#pragma omp parallel
#pragma omp for schedule(dynamic, 1)
    for (long i = 0; i < pieces; i++)
        sink = 2;
    printf("%.3f %.3f\n", region, (double)(now() - began) / pieces);
}

static void follow(void)
{
    struct pollfd input = {.fd = 0, .events = POLLIN};
    int last = 0;
    while (poll(&input, 1, 0) == 0) {
        for (int i = 0; i < 20; i++) {
            int size = 0;
            long long began = now();
#pragma omp parallel
            {
#pragma omp single nowait
                size = omp_get_num_threads();
                double x = 1;
                for (int j = 0; j < 20000; j++)
                    x = x * 1.0000001 + j;
                sink = x;
            }
            if (size != last) {
                printf("%d %lld\n", size, began);
                fflush(stdout);
                last = size;
            }
        }
    }
}

int main(int argc, char **argv)
{
    if (argc > 2 && strcmp(argv[1], "cost") == 0)
        cost(atol(argv[2]));
    else if (argc > 1 && strcmp(argv[1], "follow") == 0)
        follow();
    else
        return 2;
    return 0;
}
