/* OpenMP regions for the experiments about adapters.
 *
 *   regions cost N        begins N empty regions, and N pieces of a dynamic loop for each 100 of them;
 *                         prints nanoseconds for each region and for each piece
 *   regions follow        begins regions of some 50 µs until its input ends; prints the size of the team and
 *                         the time (monotonic, ns) whenever the size changes
 *   regions two A B N     N times a region that scales and one that does not, with A and B threads (0: as the
 *                         runtime has it); prints the seconds of all, and of each of the two
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

/* Two regions of some 0.5 ms each with one thread: one whose threads compute apart, one whose threads write to
 * the same cache line all the time. */
static void two(int first, int second, long times)
{
    static _Atomic long shared;
    int own = omp_get_max_threads();
    long long began = now(), of_first = 0;
    for (long i = 0; i < times; i++) {
        long long start = now();
        omp_set_num_threads(first ? first : own);
        double sum = 0;
#pragma omp parallel for reduction(+ : sum) schedule(static)
        for (int j = 0; j < 400000; j++)
            sum += 1.0 / (1 + j);
        sink = sum;
        of_first += now() - start;
        omp_set_num_threads(second ? second : own);
#pragma omp parallel for schedule(static)
        for (int j = 0; j < 60000; j++)
            shared++;
    }
    double all = (now() - began) / 1e9, part = of_first / 1e9;
    printf("%.6f %.6f %.6f\n", all, part, all - part);
}

int main(int argc, char **argv)
{
    if (argc > 2 && strcmp(argv[1], "cost") == 0)
        cost(atol(argv[2]));
    else if (argc > 1 && strcmp(argv[1], "follow") == 0)
        follow();
    else if (argc > 4 && strcmp(argv[1], "two") == 0)
        two(atoi(argv[2]), atoi(argv[3]), atol(argv[4]));
    else
        return 2;
    return 0;
}
