// A program that nobody changed, as a compiler for LLVM's OpenMP would have made it. Reads commands, one a
// line, and answers each with one line.
//
//   region      a region without a clause: the size of its team
//   clause N    one with num_threads(N)
//   strict N    one with num_threads(strict: N), on a runtime that has it
//   alone N     num_threads(N) and an `if` that is false, then a region without a clause: its size
//   other       the same in a thread of its own
//   loop N      a loop over N numbers: size of the team and sum
//   many        a region with more arguments than there are registers: their sum
//   nested      a region in a region: size of the outer and of the largest inner team
//   nest N      how many regions may be active within each other, from now on
//   exit        a thread that leaves by pthread_exit after a region
//   cancel      a thread that is cancelled while it waits, after a region
//   library F N loads the library F, and unloads it: the sizes of a region without a clause and of one with N
//   fork        forks; the child answers with the size of its own region
//   max         omp_get_max_threads(), after it and within a region
//   set N       omp_set_num_threads(N)
//   wait        kmp_get_blocktime()
//   await N     kmp_set_blocktime(N)
//   own         a region of the runtime itself, on a runtime that has one to call
#include "kmpc.h"

#include <dlfcn.h>
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <string>

#ifdef KEEPS_THREAD_DATA
static thread_local int kept = 1;
#endif

#ifdef RUNTIME_KEEPS_DATA
static int kept = 1;
static void **cache;
#endif

#ifdef TARGET_TASKS
void *volatile tasks = reinterpret_cast<void *>(__kmpc_omp_target_task_alloc);
#endif

#ifdef STRICT
static int strict(int number)
{
    __kmpc_push_num_threads_strict(&here, __kmpc_global_thread_num(&here), number, 1, "too few");
    return region();
}
extern "C" int fake_own_region(int);
#endif

static void loop_body(int *, int *, long *numbers, int *size, std::atomic<long> *sum)
{
    int threads = omp_get_num_threads();
    if (omp_get_thread_num() == 0)
        *size = threads;
    for (long i = omp_get_thread_num(); i < *numbers; i += threads)
        *sum += i;
}

static void many_body(int *, int *, int *a, int *b, int *c, int *d, int *e, int *f, int *g, int *h, int *sum)
{
    if (omp_get_thread_num() == 0)
        *sum = *a + *b + *c + *d + *e + *f + *g + *h;
}

static void told_body(int *, int *, int *told)
{
    if (omp_get_thread_num() == 0)
        *told = omp_get_max_threads();
}

static void nested_body(int *, int *, int *outer, std::atomic<int> *inner)
{
    if (omp_get_thread_num() == 0)
        *outer = omp_get_num_threads();
    int size = region();
    int before = *inner;
    while (size > before && !inner->compare_exchange_weak(before, size)) {
    }
}

static void *other(void *size)
{
    *static_cast<int *>(size) = region();
    return nullptr;
}

static void *leave(void *)
{
    region();
    pthread_exit(nullptr);
}

static void *cancelled(void *started)
{
    region();
    static_cast<std::atomic<bool> *>(started)->store(true);
    for (;;)
        pause();
}

static void in_thread(void *(*work)(void *), bool cancel)
{
    std::atomic<bool> started{false};
    pthread_t thread;
    pthread_create(&thread, nullptr, work, &started);
    if (cancel) {
        while (!started)
            usleep(100);
        pthread_cancel(thread);
    }
    void *result = nullptr;
    pthread_join(thread, &result);
    printf("%s\n", cancel == (result == PTHREAD_CANCELED) ? "joined" : "wrong");
}

static void library(const char *file, int threads)
{
    void *handle = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    if (!handle) {
        printf("%s\n", dlerror());
        return;
    }
    auto open = reinterpret_cast<int (*)()>(dlsym(handle, "leave_open"));
    auto demand = reinterpret_cast<int (*)(int)>(dlsym(handle, "demand"));
    printf("%d %d\n", open(), demand(threads));
    dlclose(handle);
}

int main()
{
    char line[4096];
    while (fgets(line, sizeof line, stdin)) {
        char name[32];
        char file[4000];
        int number = 0;
        if (sscanf(line, "%31s %d", name, &number) < 1)
            continue;
        std::string command = name;
#ifdef KEEPS_THREAD_DATA
        kept++;
#endif
#ifdef RUNTIME_KEEPS_DATA
        int own = __kmpc_global_thread_num(&here);
        ++*static_cast<int *>(__kmpc_threadprivate_cached(&here, own, &kept, sizeof kept, &cache));
#endif
        if (command == "region") {
            printf("%d\n", region());
        } else if (command == "clause") {
            printf("%d\n", region(number));
        } else if (command == "alone") {
            int thread = __kmpc_global_thread_num(&here);
            __kmpc_push_num_threads(&here, thread, number);
            __kmpc_serialized_parallel(&here, thread);
            __kmpc_end_serialized_parallel(&here, thread);
            printf("%d\n", region());
        } else if (command == "other") {
            int size = 0;
            pthread_t thread;
            pthread_create(&thread, nullptr, other, &size);
            pthread_join(thread, nullptr);
            printf("%d\n", size);
        } else if (command == "loop") {
            long numbers = number;
            int size = 0;
            std::atomic<long> sum{0};
            __kmpc_fork_call(&here, 3, reinterpret_cast<Body>(loop_body), &numbers, &size, &sum);
            printf("%d %ld\n", size, sum.load());
        } else if (command == "many") {
            int n[] = {1, 2, 3, 4, 5, 6, 7, 8};
            int sum = 0;
            __kmpc_fork_call(&here, 9, reinterpret_cast<Body>(many_body), &n[0], &n[1], &n[2], &n[3], &n[4],
                             &n[5], &n[6], &n[7], &sum);
            printf("%d\n", sum);
        } else if (command == "nested") {
            int outer = 0;
            std::atomic<int> inner{0};
            __kmpc_fork_call(&here, 2, reinterpret_cast<Body>(nested_body), &outer, &inner);
            printf("%d %d\n", outer, inner.load());
        } else if (command == "nest") {
            omp_set_max_active_levels(number);
            printf("%d\n", omp_get_max_active_levels());
        } else if (command == "exit") {
            in_thread(leave, false);
        } else if (command == "cancel") {
            in_thread(cancelled, true);
        } else if (command == "library" && sscanf(line, "%*s %3999s %d", file, &number) == 2) {
            library(file, number);
        } else if (command == "fork") {
            // Before its parent has made a team, whose threads a child would miss.
            fflush(stdout);
            pid_t child = fork();
            if (child == 0) {
                printf("%d\n", region());
                fflush(stdout);
                _exit(0);
            }
            waitpid(child, nullptr, 0);
        } else if (command == "max") {
            int told = 0;
            __kmpc_fork_call(&here, 1, reinterpret_cast<Body>(told_body), &told);
            printf("%d %d\n", omp_get_max_threads(), told);
        } else if (command == "set") {
            omp_set_num_threads(number);
            printf("%d\n", omp_get_max_threads());
        } else if (command == "wait") {
            printf("%d\n", kmp_get_blocktime());
        } else if (command == "await") {
            kmp_set_blocktime(number);
            printf("%d\n", kmp_get_blocktime());
#ifdef STRICT
        } else if (command == "strict") {
            printf("%d\n", strict(number));
        } else if (command == "own") {
            printf("%d\n", fake_own_region(number));
#endif
        }
        fflush(stdout);
    }
    return 0;
}
