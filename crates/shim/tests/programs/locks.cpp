/* Threads and locks: `locks WHAT` prints what came of it, the same with and without adapters.
 * Nothing here depends on time: who must wait is seen to wait before it is let go. */
#include <cerrno>
#include <csetjmp>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <dirent.h>
#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <stdexcept>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t condition = PTHREAD_COND_INITIALIZER;
static pthread_rwlock_t rwlock = PTHREAD_RWLOCK_INITIALIZER;
static pthread_barrier_t barrier;
static sem_t semaphore;
static volatile int ready;

#define NEVER_INLINED extern "C" __attribute__((noinline, used))

static pthread_t started(void *(*run)(void *), void *with = nullptr)
{
    pthread_t thread;
    int failed = pthread_create(&thread, nullptr, run, with);
    if (failed) {
        printf("create: %d\n", failed);
        exit(1);
    }
    return thread;
}

static long joined(pthread_t thread)
{
    void *answer;
    pthread_join(thread, &answer);
    return (long)answer;
}

/* Until so many threads sleep, as the kernel says. The caller does not. */
static void until_asleep(int wanted)
{
    for (int asleep = 0; asleep < wanted; sched_yield()) {
        asleep = 0;
        DIR *threads = opendir("/proc/self/task");
        while (struct dirent *thread = readdir(threads)) {
            char path[300], line[512];
            snprintf(path, sizeof path, "/proc/self/task/%s/stat", thread->d_name);
            FILE *stat = fopen(path, "r");
            if (!stat)
                continue;
            const char *end = fgets(line, sizeof line, stat) ? strrchr(line, ')') : nullptr;
            asleep += end && end[2] == 'S';
            fclose(stat);
        }
        closedir(threads);
    }
}

NEVER_INLINED void *waits_for_mutex(void *)
{
    long answer = pthread_mutex_lock(&mutex);
    pthread_mutex_unlock(&mutex);
    return (void *)answer;
}

NEVER_INLINED void *waits_for_condition(void *)
{
    pthread_mutex_lock(&mutex);
    ready = 1;
    long answer = 0;
    while (ready == 1)
        answer |= pthread_cond_wait(&condition, &mutex);
    pthread_mutex_unlock(&mutex);
    return (void *)answer;
}

NEVER_INLINED void *waits_at_barrier(void *)
{
    int answer = pthread_barrier_wait(&barrier);
    return (void *)(long)(answer == 0 || answer == PTHREAD_BARRIER_SERIAL_THREAD);
}

NEVER_INLINED void *waits_for_semaphore(void *)
{
    long answer = sem_wait(&semaphore);
    return (void *)answer;
}

NEVER_INLINED void *reads(void *)
{
    long answer = pthread_rwlock_rdlock(&rwlock);
    pthread_rwlock_unlock(&rwlock);
    return (void *)answer;
}

NEVER_INLINED void *writes(void *)
{
    long answer = pthread_rwlock_wrlock(&rwlock);
    pthread_rwlock_unlock(&rwlock);
    return (void *)answer;
}

static void wake_condition()
{
    pthread_mutex_lock(&mutex);
    ready = 2;
    pthread_cond_broadcast(&condition);
    pthread_mutex_unlock(&mutex);
}

static void until_condition_is_waited_for()
{
    for (int there = 0; !there; sched_yield()) {
        /* Whoever is ready has the mutex until it waits. */
        pthread_mutex_lock(&mutex);
        there = ready == 1;
        pthread_mutex_unlock(&mutex);
    }
}

static void contended()
{
    pthread_mutex_lock(&mutex);
    pthread_t thread = started(waits_for_mutex);
    until_asleep(1);
    pthread_mutex_unlock(&mutex);
    printf("mutex %ld\n", joined(thread));

    thread = started(waits_for_condition);
    until_condition_is_waited_for();
    wake_condition();
    printf("condition %ld\n", joined(thread));

    pthread_barrier_init(&barrier, nullptr, 2);
    thread = started(waits_at_barrier);
    until_asleep(1);
    long own = (long)waits_at_barrier(nullptr);
    printf("barrier %ld %ld\n", own, joined(thread));

    sem_init(&semaphore, 0, 0);
    thread = started(waits_for_semaphore);
    until_asleep(1);
    sem_post(&semaphore);
    printf("semaphore %ld\n", joined(thread));

    pthread_rwlock_wrlock(&rwlock);
    thread = started(reads);
    until_asleep(1);
    pthread_rwlock_unlock(&rwlock);
    printf("reader %ld\n", joined(thread));
    pthread_rwlock_rdlock(&rwlock);
    thread = started(writes);
    until_asleep(1);
    pthread_rwlock_unlock(&rwlock);
    printf("writer %ld\n", joined(thread));
}

static void uncontended()
{
    sem_init(&semaphore, 0, 1);
    int wrong = 0;
    for (int i = 0; i < 1000; i++) {
        wrong |= pthread_mutex_lock(&mutex) | pthread_mutex_unlock(&mutex);
        wrong |= pthread_rwlock_rdlock(&rwlock) | pthread_rwlock_unlock(&rwlock);
        wrong |= pthread_rwlock_wrlock(&rwlock) | pthread_rwlock_unlock(&rwlock);
        wrong |= sem_wait(&semaphore) | sem_post(&semaphore);
    }
    printf("%d\n", wrong);
}

static void *dies_with(void *lock)
{
    pthread_mutex_lock((pthread_mutex_t *)lock);
    return nullptr;
}

static void *locks_and_unlocks(void *lock)
{
    long first = pthread_mutex_lock((pthread_mutex_t *)lock);
    return (void *)(first << 16 | pthread_mutex_unlock((pthread_mutex_t *)lock));
}

static void of_kind(int type, int robust, int protocol, int shared)
{
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_settype(&attributes, type);
    pthread_mutexattr_setrobust(&attributes, robust);
    pthread_mutexattr_setprotocol(&attributes, protocol);
    pthread_mutexattr_setpshared(&attributes, shared);
    pthread_mutex_t lock;
    int made = pthread_mutex_init(&lock, &attributes);
    printf("type %d robust %d protocol %d shared %d: %d", type, robust, protocol, shared, made);
    printf(" lock %d", pthread_mutex_lock(&lock));
    struct timespec past = {0, 0};
    bool again = type == PTHREAD_MUTEX_RECURSIVE || type == PTHREAD_MUTEX_ERRORCHECK;
    if (again) {
        int second = pthread_mutex_lock(&lock);
        printf(" again %d", second);
        int third = pthread_mutex_timedlock(&lock, &past);
        printf(" timed %d", third);
        for (int held = (second == 0) + (third == 0); held > 0; held--)
            printf(" unlock %d", pthread_mutex_unlock(&lock));
    } else if (protocol == PTHREAD_PRIO_NONE) {
        printf(" timed %d", pthread_mutex_timedlock(&lock, &past));
    }
    pthread_t thread = started(locks_and_unlocks, &lock);
    until_asleep(1);
    printf(" unlock %d", pthread_mutex_unlock(&lock));
    printf(" other %lx", joined(thread));
    if (robust == PTHREAD_MUTEX_ROBUST) {
        joined(started(dies_with, &lock));
        printf(" owner died %d", pthread_mutex_lock(&lock));
        printf(" consistent %d", pthread_mutex_consistent(&lock));
        printf(" unlock %d", pthread_mutex_unlock(&lock));
        joined(started(dies_with, &lock));
        printf(" owner died %d", pthread_mutex_lock(&lock));
        printf(" unlock %d", pthread_mutex_unlock(&lock));
        printf(" lost %d", pthread_mutex_lock(&lock));
    } else if (type == PTHREAD_MUTEX_ERRORCHECK) {
        printf(" not ours %d", pthread_mutex_unlock(&lock));
    }
    printf("\n");
}

static void kinds()
{
    int types[] = {PTHREAD_MUTEX_NORMAL, PTHREAD_MUTEX_RECURSIVE, PTHREAD_MUTEX_ERRORCHECK, PTHREAD_MUTEX_ADAPTIVE_NP};
    for (int type : types)
        for (int robust : {(int)PTHREAD_MUTEX_STALLED, (int)PTHREAD_MUTEX_ROBUST})
            for (int protocol : {(int)PTHREAD_PRIO_NONE, (int)PTHREAD_PRIO_INHERIT})
                for (int shared : {(int)PTHREAD_PROCESS_PRIVATE, (int)PTHREAD_PROCESS_SHARED})
                    of_kind(type, robust, protocol, shared);
    /* Read-write locks that their own thread holds; errors and times that are over. */
    struct timespec past = {0, 0};
    pthread_rwlock_wrlock(&rwlock);
    printf("reading what is written %d", pthread_rwlock_rdlock(&rwlock));
    printf(" writing twice %d\n", pthread_rwlock_wrlock(&rwlock));
    printf("in time %d %d", pthread_rwlock_timedrdlock(&rwlock, &past), pthread_rwlock_timedwrlock(&rwlock, &past));
    printf(" by clock %d", pthread_rwlock_clockrdlock(&rwlock, CLOCK_MONOTONIC, &past));
    printf(" %d\n", pthread_rwlock_clockwrlock(&rwlock, CLOCK_MONOTONIC, &past));
    joined(started([](void *) -> void * {
        struct timespec over = {0, 0};
        printf("others in time %d", pthread_rwlock_timedrdlock(&rwlock, &over));
        printf(" by clock %d\n", pthread_rwlock_clockwrlock(&rwlock, CLOCK_MONOTONIC, &over));
        return nullptr;
    }));
    sem_init(&semaphore, 0, 0);
    errno = 0;
    int answer = sem_timedwait(&semaphore, &past);
    printf("semaphore %d %d\n", answer, errno);
    pthread_mutex_lock(&mutex);
    printf("condition %d\n", pthread_cond_timedwait(&condition, &mutex, &past));
    printf("condition by clock %d\n", pthread_cond_clockwait(&condition, &mutex, CLOCK_MONOTONIC, &past));
    printf("mutex by clock %d\n", pthread_mutex_clocklock(&mutex, CLOCK_MONOTONIC, &past));
    printf("semaphore by clock %d\n", sem_clockwait(&semaphore, CLOCK_MONOTONIC, &past));
}

static void unlocks(void *)
{
    printf("cleaned up\n");
    pthread_mutex_unlock(&mutex);
}

struct Object {
    ~Object() { printf("destroyed\n"); }
};

static void *is_cancelled(void *)
{
    Object object;
    pthread_mutex_lock(&mutex);
    pthread_cleanup_push(unlocks, nullptr);
    ready = 1;
    while (true)
        pthread_cond_wait(&condition, &mutex);
    pthread_cleanup_pop(1);
}

static void *is_cancelled_at_semaphore(void *)
{
    Object object;
    while (true)
        sem_wait(&semaphore);
}

static void cancelled()
{
    pthread_t thread = started(is_cancelled);
    until_condition_is_waited_for();
    pthread_cancel(thread);
    printf("%d\n", joined(thread) == (long)PTHREAD_CANCELED);
    printf("mutex %d\n", pthread_mutex_lock(&mutex));
    pthread_mutex_unlock(&mutex);

    sem_init(&semaphore, 0, 0);
    thread = started(is_cancelled_at_semaphore);
    until_asleep(1);
    pthread_cancel(thread);
    printf("%d\n", joined(thread) == (long)PTHREAD_CANCELED);
    /* A wait that would not block is a place to be cancelled, too. */
    thread = started([](void *) -> void * {
        Object object;
        int state;
        pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &state);
        while (ready != 3)
            sched_yield();
        pthread_setcancelstate(state, nullptr);
        sem_wait(&semaphore);
        return nullptr;
    });
    sem_post(&semaphore);
    pthread_cancel(thread);
    ready = 3;
    int value;
    printf("%d", joined(thread) == (long)PTHREAD_CANCELED);
    sem_getvalue(&semaphore, &value);
    printf(" %d\n", value);
}

static void deep(int depth)
{
    Object object;
    if (depth == 0)
        throw std::runtime_error("thrown");
    deep(depth - 1);
}

static void exceptions()
{
    joined(started([](void *) -> void * {
        try {
            deep(2);
        } catch (const std::exception &e) {
            printf("caught %s\n", e.what());
        }
        return nullptr;
    }));
    joined(started([](void *) -> void * {
        Object object;
        pthread_exit(nullptr);
    }));
}

static void named()
{
    for (int i = 0; i < 3; i++) {
        char name[32];
        snprintf(name, sizeof name, "pool-%d", i);
        printf("%d\n", pthread_setname_np(pthread_self(), name));
    }
    printf("%d\n", pthread_setname_np(pthread_self(), "a name that is too long"));
    char name[16];
    pthread_getname_np(pthread_self(), name, sizeof name);
    puts(name);
    for (int i = 0; i < 5; i++)
        joined(started([](void *) -> void * { return nullptr; }));
}

static void forked()
{
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        contended();
        fflush(stdout);
        _exit(7);
    }
    int status;
    waitpid(child, &status, 0);
    printf("child %d\n", WEXITSTATUS(status));
    contended();
}

static void left()
{
    /* Out of a wait by longjmp. */
    static sigjmp_buf back;
    sem_init(&semaphore, 0, 0);
    if (sigsetjmp(back, 1) == 0) {
        struct sigaction action = {};
        action.sa_handler = [](int) { siglongjmp(back, 1); };
        sigaction(SIGALRM, &action, nullptr);
        ualarm(1000, 0);
        sem_wait(&semaphore);
    }
    printf("left\n");
    contended();
}

/* The condition variables of before 2002, which the C library keeps for programs that were linked then. */
#ifdef OLD
__asm__(".symver pthread_cond_init, pthread_cond_init@GLIBC_2.2.5");
__asm__(".symver pthread_cond_wait, pthread_cond_wait@GLIBC_2.2.5");
__asm__(".symver pthread_cond_timedwait, pthread_cond_timedwait@GLIBC_2.2.5");
__asm__(".symver pthread_cond_broadcast, pthread_cond_broadcast@GLIBC_2.2.5");
#endif

static void old_conditions()
{
    /* What is behind a condition of the old size, a pointer, belongs to somebody else. */
    static struct {
        pthread_cond_t condition;
    } old;
    long *words = (long *)&old.condition;
    pthread_cond_init(&old.condition, nullptr);
    for (int i = 1; i < 6; i++)
        words[i] = i;
    pthread_t thread = started([](void *) -> void * {
        pthread_mutex_lock(&mutex);
        ready = 1;
        long answer = 0;
        while (ready == 1)
            answer |= pthread_cond_wait(&old.condition, &mutex);
        pthread_mutex_unlock(&mutex);
        return (void *)answer;
    });
    until_condition_is_waited_for();
    struct timespec past = {0, 0};
    pthread_mutex_lock(&mutex);
    printf("timed %d\n", pthread_cond_timedwait(&old.condition, &mutex, &past));
    ready = 2;
    pthread_cond_broadcast(&old.condition);
    pthread_mutex_unlock(&mutex);
    printf("old %ld\n", joined(thread));
    for (int i = 1; i < 6; i++)
        printf("%ld ", words[i]);
    puts("");
}

/* The same in a library that names no versions. */
static void unversioned()
{
    void *library = dlopen(getenv("LIBRARY"), RTLD_NOW);
    if (!library) {
        puts(dlerror());
        exit(1);
    }
    ((void (*)())dlsym(library, "unversioned"))();
}

int main(int, char **arguments)
{
    setvbuf(stdout, nullptr, _IOLBF, 0);
    struct {
        const char *name;
        void (*run)();
    } all[] = {
        {"contended", contended}, {"uncontended", uncontended}, {"kinds", kinds},   {"cancelled", cancelled},
        {"exceptions", exceptions}, {"named", named},           {"forked", forked}, {"left", left},
        {"old", old_conditions},    {"unversioned", unversioned},
    };
    for (auto &one : all)
        if (strcmp(one.name, arguments[1]) == 0) {
            one.run();
            return 0;
        }
    return 2;
}
