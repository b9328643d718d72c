/* A thread waits for a mutex in a function of this name, until it has been seen to sleep; others do not wait. */
#define _GNU_SOURCE
#include <dirent.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

__attribute__((noinline)) void *waits_its_turn(void *unused)
{
    (void)unused;
    pthread_setname_np(pthread_self(), "patient-1");
    pthread_mutex_lock(&mutex);
    pthread_mutex_unlock(&mutex);
    return NULL;
}

/* Whether a thread sleeps, as the kernel says; the caller does not. */
static int one_sleeps(void)
{
    int sleeps = 0;
    DIR *threads = opendir("/proc/self/task");
    struct dirent *thread;
    while ((thread = readdir(threads))) {
        char path[300], line[512];
        snprintf(path, sizeof path, "/proc/self/task/%s/stat", thread->d_name);
        FILE *stat = fopen(path, "r");
        if (!stat)
            continue;
        const char *end = fgets(line, sizeof line, stat) ? strrchr(line, ')') : NULL;
        sleeps |= end && end[2] == 'S';
        fclose(stat);
    }
    closedir(threads);
    return sleeps;
}

int main(void)
{
    pthread_t thread;
    pthread_mutex_lock(&mutex);
    pthread_create(&thread, NULL, waits_its_turn, NULL);
    while (!one_sleeps())
        sched_yield();
    pthread_mutex_unlock(&mutex);
    pthread_join(thread, NULL);
    for (int i = 0; i < 1000; i++) {
        pthread_mutex_lock(&mutex);
        pthread_mutex_unlock(&mutex);
    }
    puts("done");
    return 0;
}
