/* Products of matrices, one parallel section each, for the experiment oversubscription.
 *
 *   sections static|dynamic SIZE COUNT     COUNT products of matrices of SIZE × SIZE; 0: until SIGTERM
 *
 * The outermost loop is shared out among as many threads as OpenMP has. Prints when it began (monotonic time) and the
 * CPU time that it used from then on, in seconds, and a line for each product: when it was done.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MOST = 1 << 20, LARGEST = 4096 };

static volatile sig_atomic_t stop;
static double done[MOST];

static void on_term(int signal)
{
    (void)signal;
    stop = 1;
}

static double now(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

/* The sums are the thread's own until they are done: rows of several threads share cache lines. */
static void row(int size, int i, const float *a, const float *b, float *c)
{
    float sums[LARGEST];
    memset(sums, 0, size * sizeof *sums);
    for (int k = 0; k < size; k++)
        for (int j = 0; j < size; j++)
            sums[j] += a[i * size + k] * b[k * size + j];
    memcpy(c + i * size, sums, size * sizeof *sums);
}

static void product(int dynamic, int size, const float *a, const float *b, float *c)
{
    if (dynamic) {
#pragma omp parallel for schedule(dynamic, 1)
        for (int i = 0; i < size; i++)
            row(size, i, a, b, c);
    } else {
#pragma omp parallel for schedule(static)
        for (int i = 0; i < size; i++)
            row(size, i, a, b, c);
    }
}

int main(int count, char **words)
{
    int size = count == 4 ? atoi(words[2]) : 0;
    long products = count == 4 ? atol(words[3]) : -1;
    int known = count == 4 && (!strcmp(words[1], "static") || !strcmp(words[1], "dynamic"));
    if (!known || size < 1 || size > LARGEST || products < 0 || products > MOST) {
        fputs("usage: sections static|dynamic SIZE COUNT\n", stderr);
        return 2;
    }
    signal(SIGTERM, on_term);
    int dynamic = words[1][0] == 'd';
    size_t elements = (size_t)size * size;
    float *all = malloc(3 * elements * sizeof *all);
    for (size_t i = 0; i < 3 * elements; i++)
        all[i] = 1.0f / (1 + i % 100);
    double began = now(CLOCK_MONOTONIC), used = now(CLOCK_PROCESS_CPUTIME_ID);
    long made = 0;
    while (made < (products ? products : MOST) && !stop) {
        product(dynamic, size, all, all + elements, all + 2 * elements);
        done[made++] = now(CLOCK_MONOTONIC);
    }
    printf("%.6f %.6f\n", began, now(CLOCK_PROCESS_CPUTIME_ID) - used);
    for (long i = 0; i < made; i++)
        printf("%.6f\n", done[i]);
    return 0;
}
