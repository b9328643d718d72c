/* Programs whose threads need each other, for the experiments about gangs.
 *
 *   gangs spin THREADS ROUNDS  threads that meet at a spinning barrier after every 10 to 20 µs of work
 *   gangs cg ROUNDS            conjugate gradients on a sparse matrix: many short parallel loops and sums
 *   gangs mg ROUNDS            sweeps of a stencil over a grid, with a barrier after each
 *   gangs half THREADS ROUNDS  THREADS threads of which half work, each by itself, and half sleep
 *
 * The loops are like those of the NAS parallel benchmarks CG and MG; none is theirs. OpenMP's own variables say
 * how many threads there are and how they wait. Each prints a checksum.
 *
 * The file that GANGS_PROGRESS names, if any, is mapped: its first eight bytes count the rounds done.
 */
#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static uint64_t nowhere;
static _Atomic uint64_t *progress = (_Atomic uint64_t *)&nowhere;

static void count_in(const char *path)
{
    int file = path ? open(path, O_RDWR | O_CREAT, 0600) : -1;
    if (file < 0 || ftruncate(file, 4096) != 0)
        return;
    void *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (page != MAP_FAILED)
        progress = page;
    close(file);
}

static void round_done(void)
{
    atomic_fetch_add_explicit(progress, 1, memory_order_relaxed);
}

/* --- threads and a spinning barrier ------------------------------------------------------------- */

static int threads;
static long rounds;
static _Atomic int arrived;
static _Atomic long phase;
static double results[1024];

static void meet(void)
{
    long now = atomic_load(&phase);
    if (atomic_fetch_add(&arrived, 1) == threads - 1) {
        atomic_store(&arrived, 0);
        atomic_store(&phase, now + 1);
        round_done();
    } else {
        while (atomic_load_explicit(&phase, memory_order_acquire) == now)
            ;
    }
}

static double work(int steps, double x)
{
    for (int i = 0; i < steps; i++)
        x = x * 1.0000001 + 1e-9 * i;
    return x;
}

static void *spinner(void *argument)
{
    int self = (int)(intptr_t)argument;
    double x = self;
    for (long i = 0; i < rounds; i++) {
        x = work(4000, x);
        meet();
    }
    results[self] = x;
    return NULL;
}

static void *half(void *argument)
{
    int self = (int)(intptr_t)argument;
    double x = self;
    if (self % 2 != 0) {
        while (atomic_load(&arrived) < (threads + 1) / 2)
            usleep(10000);
        return NULL;
    }
    for (long i = 0; i < rounds; i++) {
        x = work(4000, x);
        if (self == 0)
            round_done();
    }
    atomic_fetch_add(&arrived, 1);
    results[self] = x;
    return NULL;
}

static void run_threads(void *(*body)(void *))
{
    pthread_t *all = calloc(threads, sizeof *all);
    for (int i = 0; i < threads; i++)
        pthread_create(&all[i], NULL, body, (void *)(intptr_t)i);
    double sum = 0;
    for (int i = 0; i < threads; i++) {
        pthread_join(all[i], NULL);
        sum += results[i];
    }
    free(all);
    printf("%.6f\n", sum);
}

/* --- conjugate gradients ------------------------------------------------------------------------ */

enum { ROWS = 4000, WIDE = 7 };

static void cg(void)
{
    static double x[ROWS], r[ROWS], p[ROWS], q[ROWS];
    static const int step[WIDE] = {-61, -17, -1, 0, 1, 17, 61};
    double rho = ROWS;
    for (int i = 0; i < ROWS; i++)
        r[i] = p[i] = 1;
    for (long round = 0; round < rounds; round++) {
        double pq = 0, next = 0;
#pragma omp parallel for reduction(+ : pq)
        for (int i = 0; i < ROWS; i++) {
            double sum = 0;
            for (int k = 0; k < WIDE; k++) {
                int j = i + step[k];
                if (j >= 0 && j < ROWS)
                    sum += (k == WIDE / 2 ? 8.0 : -1.0) * p[j];
            }
            q[i] = sum;
            pq += sum * p[i];
        }
        double alpha = rho / (pq + 1e-30);
#pragma omp parallel for reduction(+ : next)
        for (int i = 0; i < ROWS; i++) {
            x[i] += alpha * p[i];
            r[i] -= alpha * q[i];
            next += r[i] * r[i];
        }
        double beta = next / (rho + 1e-30);
        rho = next;
#pragma omp parallel for
        for (int i = 0; i < ROWS; i++)
            p[i] = r[i] + beta * p[i];
        if (rho < 1e-20) {
            /* Solved: again, with another right-hand side. */
            rho = 0;
#pragma omp parallel for reduction(+ : rho)
            for (int i = 0; i < ROWS; i++) {
                r[i] = p[i] = 1 + i % 3;
                rho += r[i] * r[i];
            }
        }
        round_done();
    }
    double sum = 0;
    for (int i = 0; i < ROWS; i++)
        sum += x[i];
    printf("%.6e\n", sum);
}

/* --- sweeps of a stencil ------------------------------------------------------------------------ */

enum { SIDE = 192 };

static void mg(void)
{
    static double grid[2][SIDE][SIDE];
    for (int i = 0; i < SIDE; i++)
        for (int j = 0; j < SIDE; j++)
            grid[0][i][j] = (i * 31 + j * 17) % 11;
    for (long round = 0; round < rounds; round++) {
#pragma omp parallel
        for (int sweep = 0; sweep < 8; sweep++) {
            double(*from)[SIDE] = grid[sweep % 2], (*to)[SIDE] = grid[1 - sweep % 2];
#pragma omp for
            for (int i = 1; i < SIDE - 1; i++)
                for (int j = 1; j < SIDE - 1; j++)
                    to[i][j] = 0.5 * from[i][j] + 0.125 * (from[i - 1][j] + from[i + 1][j] +
                                                         from[i][j - 1] + from[i][j + 1]);
        }
        round_done();
    }
    double sum = 0;
    for (int i = 0; i < SIDE; i++)
        for (int j = 0; j < SIDE; j++)
            sum += grid[0][i][j];
    printf("%.6e\n", sum);
}

int main(int count, char **words)
{
    const char *what = count > 1 ? words[1] : "";
    count_in(getenv("GANGS_PROGRESS"));
    if (count == 4 && (strcmp(what, "spin") == 0 || strcmp(what, "half") == 0)) {
        threads = atoi(words[2]);
        rounds = strtol(words[3], NULL, 10);
        if (threads < 1 || threads > 1024)
            return 2;
        run_threads(what[0] == 's' ? spinner : half);
    } else if (count == 3 && strcmp(what, "cg") == 0) {
        rounds = atol(words[2]);
        cg();
    } else if (count == 3 && strcmp(what, "mg") == 0) {
        rounds = atol(words[2]);
        mg();
    } else {
        fputs("usage: gangs spin|half THREADS ROUNDS | cg|mg ROUNDS\n", stderr);
        return 2;
    }
    return 0;
}
