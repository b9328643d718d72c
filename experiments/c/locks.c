/* Locks for the experiment about what adapters cost:
 *
 *   locks N     locks and unlocks a mutex N times that nobody else wants, and the same with a semaphore and a
 *               read-write lock; prints nanoseconds for each of the three
 */
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_rwlock_t rwlock = PTHREAD_RWLOCK_INITIALIZER;
static sem_t semaphore;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e9 + t.tv_nsec;
}

static void *idle(void *unused)
{
    return unused;
}

int main(int argc, char **argv)
{
    long times = argc > 1 ? atol(argv[1]) : 0;
    /* The C library may know a process that never had a second thread. */
    pthread_t thread;
    if (times <= 0 || pthread_create(&thread, NULL, idle, NULL) || pthread_join(thread, NULL))
        return 2;
    sem_init(&semaphore, 0, 1);
    double began = now();
    for (long i = 0; i < times; i++) {
        pthread_mutex_lock(&mutex);
        pthread_mutex_unlock(&mutex);
    }
    double of_mutex = (now() - began) / times;
    began = now();
    for (long i = 0; i < times; i++) {
        sem_wait(&semaphore);
        sem_post(&semaphore);
    }
    double of_semaphore = (now() - began) / times;
    began = now();
    for (long i = 0; i < times; i++) {
        pthread_rwlock_wrlock(&rwlock);
        pthread_rwlock_unlock(&rwlock);
    }
    printf("%.3f %.3f %.3f\n", of_mutex, of_semaphore, (now() - began) / times);
    return 0;
}
