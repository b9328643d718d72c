/* A program made for tests: `made MODE [N]`, with N threads that share a fixed amount of work.
 *   work N     the work, shared out evenly
 *   serial     the work, in one thread
 *   spin N     the work in one thread, while N-1 others wait for it in a loop
 *   few N M    as work; fails with more than M threads
 *   fail       an error text and exit code 3
 *   input N    as work; prints how many bytes came on standard input
 *   write N    as work; first overwrites, appends to, renames and deletes files in the current folder
 */
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifndef ROUNDS
#define ROUNDS 1500000000L
#endif

static const long TOTAL = ROUNDS;
static atomic_int finished;
static volatile unsigned long sink;

static void burn(long rounds) {
    unsigned long x = (unsigned long)rounds | 1;
    for (long i = 0; i < rounds; i++) x = x * 6364136223846793005UL + 1442695040888963407UL;
    sink = x;
}

static void *worker(void *rounds) { burn((long)rounds); return 0; }

static void *spinner(void *unused) {
    (void)unused;
    while (!atomic_load_explicit(&finished, memory_order_relaxed)) __asm__ volatile("pause");
    return 0;
}

static int share(int n, void *(*each)(void *), long rounds) {
    pthread_t threads[64];
    if (n < 1 || n > 64) { fprintf(stderr, "made: %d threads?\n", n); return 2; }
    for (int i = 1; i < n; i++) pthread_create(&threads[i], 0, each, (void *)rounds);
    burn(rounds);
    atomic_store(&finished, 1);
    for (int i = 1; i < n; i++) pthread_join(threads[i], 0);
    return 0;
}

static void write_files(void) {
    FILE *f = fopen("overwritten", "r+");
    if (f) { fputs("changed", f); fclose(f); }
    f = fopen("appended", "a");
    if (f) { fputs("more", f); fclose(f); }
    rename("renamed", "renamed.new");
    unlink("deleted");
    f = fopen("created", "w");
    if (f) fclose(f);
}

int main(int argc, char **argv) {
    const char *mode = argc > 1 ? argv[1] : "";
    int n = argc > 2 ? atoi(argv[2]) : 1;
    if (!strcmp(mode, "work")) return share(n, worker, TOTAL / n);
    if (!strcmp(mode, "few")) {
        if (argc > 3 && n > atoi(argv[3])) { fputs("made: too many threads\n", stderr); return 4; }
        return share(n, worker, TOTAL / n);
    }
    if (!strcmp(mode, "serial")) { burn(TOTAL); return 0; }
    if (!strcmp(mode, "spin")) return share(n, spinner, TOTAL);
    if (!strcmp(mode, "fail")) { fputs("made: this always fails\n", stderr); return 3; }
    if (!strcmp(mode, "signal")) { burn(1000); raise(SIGUSR1); }
    if (!strcmp(mode, "write")) { write_files(); return share(n, worker, TOTAL / n); }
    if (!strcmp(mode, "input")) {
        char buffer[65536];
        long total = 0;
        size_t got;
        while ((got = fread(buffer, 1, sizeof buffer, stdin)) > 0) total += (long)got;
        printf("%ld\n", total);
        return share(n, worker, TOTAL / n);
    }
    fputs("made: no such mode\n", stderr);
    return 2;
}
