/* Threads that note when they are on a CPU, for the experiment gang-collective.
 *
 *   together THREADS SECONDS FILE
 *
 * Each thread reads the clock again and again. Where more than 10 µs lie between two readings it was away. FILE gets
 * the times between: for each stretch on a CPU, the thread's number, its begin and its end on the monotonic clock in
 * nanoseconds, as three 64-bit numbers.
 */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { AWAY_NS = 10000, MOST = 200000 };

struct stretch {
    uint64_t thread, begin, end;
};

static uint64_t end_ns;
static struct stretch *stretches[64];
static long counts[64];

static uint64_t now_ns(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

static void *run(void *argument)
{
    long self = (intptr_t)argument, count = 0;
    uint64_t begin = now_ns(), last = begin;
    while (last < end_ns && count < MOST) {
        uint64_t now = now_ns();
        if (now - last > AWAY_NS) {
            stretches[self][count++] = (struct stretch){self, begin, last};
            begin = now;
        }
        last = now;
    }
    counts[self] = count;
    return NULL;
}

int main(int count, char **words)
{
    int threads = count == 4 ? atoi(words[1]) : 0;
    FILE *file = threads >= 1 && threads <= 64 ? fopen(words[3], "wb") : NULL;
    if (!file) {
        fputs("usage: together THREADS SECONDS FILE\n", stderr);
        return 2;
    }
    pthread_t all[64];
    end_ns = now_ns() + (uint64_t)(atof(words[2]) * 1e9);
    for (int i = 0; i < threads; i++)
        stretches[i] = calloc(MOST, sizeof(struct stretch));
    for (int i = 0; i < threads; i++)
        pthread_create(&all[i], NULL, run, (void *)(intptr_t)i);
    for (int i = 0; i < threads; i++) {
        pthread_join(all[i], NULL);
        fwrite(stretches[i], sizeof(struct stretch), counts[i], file);
    }
    return fclose(file) != 0;
}
