/* A program for tests whose threads need each other: `spin FILE THREADS`. They meet at a barrier, for which they wait
 * in loops, again and again, until FILE is there. It does not outlive the folder it runs in either. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static atomic_long arrived, rounds, done;
static int threads;
static const char *file;

static void *meet(void *own) {
    char folder[4096];
    for (long round = 1; !atomic_load(&done); round++) {
        for (volatile int i = 0; i < 2000; i++) {}
        if (atomic_fetch_add(&arrived, 1) + 1 == round * threads) {
            /* The last one lets all go on, and looks now and then whether that is enough. */
            if (round % 500 == 0 && (!access(file, F_OK) || !getcwd(folder, sizeof folder)))
                atomic_store(&done, 1);
            atomic_store(&rounds, round);
        } else {
            while (atomic_load(&rounds) < round) {}
        }
    }
    return own;
}

int main(int argc, char **argv) {
    if (argc < 3) return 2;
    file = argv[1];
    threads = atoi(argv[2]);
    pthread_t others[threads];
    for (int i = 1; i < threads; i++)
        if (pthread_create(&others[i], 0, meet, 0)) return 3;
    meet(0);
    for (int i = 1; i < threads; i++) pthread_join(others[i], 0);
    return 0;
}
