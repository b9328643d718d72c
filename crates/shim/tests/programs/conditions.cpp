/* A library that is linked against nothing, and so names no versions: the loader binds it to the oldest. */
#include <cstdio>
#include <pthread.h>
#include <sched.h>

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t condition;
static volatile int ready;

static void *waits(void *)
{
    pthread_mutex_lock(&mutex);
    ready = 1;
    while (ready == 1)
        pthread_cond_wait(&condition, &mutex);
    pthread_mutex_unlock(&mutex);
    return nullptr;
}

extern "C" void unversioned()
{
    pthread_cond_init(&condition, nullptr);
    /* An old condition is a pointer; what is behind it belongs to somebody else. */
    long *words = (long *)&condition;
    for (int i = 1; i < 6; i++)
        words[i] = i;
    pthread_t thread;
    pthread_create(&thread, nullptr, waits, nullptr);
    for (int there = 0; !there; sched_yield()) {
        pthread_mutex_lock(&mutex);
        there = ready == 1;
        pthread_mutex_unlock(&mutex);
    }
    pthread_mutex_lock(&mutex);
    ready = 2;
    pthread_cond_broadcast(&condition);
    pthread_mutex_unlock(&mutex);
    pthread_join(thread, nullptr);
    printf("old: %d", words[0] != 0);
    for (int i = 1; i < 6; i++)
        printf(" %ld", words[i]);
    puts("");
}
