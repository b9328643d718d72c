// A program with one data race, which says something and takes as long as it is told, in tenths of a second.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static int counter;

static void *adds(void *a) { counter++; return a; }

int main(int argc, char **argv) {
    pthread_t one, other;
    pthread_create(&one, NULL, adds, NULL);
    pthread_create(&other, NULL, adds, NULL);
    pthread_join(one, NULL);
    pthread_join(other, NULL);
    for (int i = argc > 1 ? atoi(argv[1]) : 0; i > 0; i--)
        nanosleep(&(struct timespec){0, 100000000}, NULL);
    puts("done");
    return 3;
}
