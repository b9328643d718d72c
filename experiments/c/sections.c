/* Products of matrices, one parallel section each, for the experiment oversubscription.
 *
 *   sections static|dynamic SIZE COUNT     COUNT products of matrices of SIZE × SIZE; 0: until its input ends
 *
 * The outermost loop is shared out among as many threads as OpenMP has. Prints how many products it made, the mean
 * time of one, and the time of all, in seconds.
 */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

static void row(int size, int i, const float *a, const float *b, float *c)
{
    for (int j = 0; j < size; j++)
        c[i * size + j] = 0;
    for (int k = 0; k < size; k++)
        for (int j = 0; j < size; j++)
            c[i * size + j] += a[i * size + k] * b[k * size + j];
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
    long products = count == 4 ? atol(words[3]) : 0;
    if (size < 1 || (strcmp(words[1], "static") && strcmp(words[1], "dynamic"))) {
        fputs("usage: sections static|dynamic SIZE COUNT\n", stderr);
        return 2;
    }
    int dynamic = words[1][0] == 'd';
    size_t elements = (size_t)size * size;
    float *all = malloc(3 * elements * sizeof *all);
    for (size_t i = 0; i < 3 * elements; i++)
        all[i] = 1.0f / (1 + i % 100);
    struct pollfd input = {.fd = 0, .events = POLLIN};
    double began = now();
    long done = 0;
    while (products ? done < products : poll(&input, 1, 0) == 0) {
        product(dynamic, size, all, all + elements, all + 2 * elements);
        done++;
    }
    double seconds = now() - began;
    printf("%ld %.9f %.9f\n", done, done ? seconds / done : 0, seconds);
    return 0;
}
