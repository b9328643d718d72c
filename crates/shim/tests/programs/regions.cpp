// A program that nobody changed, as far as the adapters are concerned. Reads commands, one a line, and
// answers each with one line.
//
//   region      a region without a clause: the size of its team
//   clause N    one with num_threads(N)
//   loop N      a parallel loop with a static schedule over N numbers: size of the team and sum
//   dynamic N   N pieces of a dynamic loop, with a stop in the middle: see below
//   nested      a region in a region: size of the outer and of the largest inner team
//   throw       throws an exception in a region of one thread, catches it outside of the region's call
//   exit        a thread that leaves by pthread_exit after a region
//   cancel      a thread that is cancelled while it waits, after a region
//   library F N loads the library F, and unloads it: the sizes of a region without a clause and of one with N
//   fork        forks; the child answers with the size of its own region
//   max         omp_get_max_threads()
#include <dlfcn.h>
#include <omp.h>
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstring>
#include <string>

#ifdef KEEPS_THREAD_DATA
static int kept;
#pragma omp threadprivate(kept)
#endif

static int region()
{
    int size = 0;
#pragma omp parallel
    {
#pragma omp single
        size = omp_get_num_threads();
#ifdef KEEPS_THREAD_DATA
        kept++;
#endif
    }
    return size;
}

// The pieces that each thread took after the claim had become `limit` threads small.
static void dynamic(int pieces)
{
    long sum = 0;
    int size = 0;
    std::atomic<int> late{0};
    std::atomic<bool> told{false};
#pragma omp parallel reduction(+ : sum)
    {
#pragma omp single
        size = omp_get_num_threads();
#pragma omp for schedule(dynamic, 1)
        for (int i = 0; i < pieces; i++) {
            if (omp_get_thread_num() == 0 && !told) {
                // The test makes the claim smaller, and answers.
                printf("started\n");
                fflush(stdout);
                char line[64];
                if (!fgets(line, sizeof line, stdin))
                    _exit(1);
                told = true;
            } else if (told && omp_get_thread_num() > 0) {
                // One piece may have been taken before the claim became smaller.
                late++;
            }
            sum += i;
            usleep(200);
        }
    }
    printf("%d %ld %d\n", size, sum, late.load());
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

static void nested()
{
    int outer = 0;
    std::atomic<int> inner{0};
    omp_set_max_active_levels(2);
#pragma omp parallel
    {
#pragma omp single
        outer = omp_get_num_threads();
#pragma omp parallel
        {
            int size = omp_get_num_threads();
            int before = inner;
            while (size > before && !inner.compare_exchange_weak(before, size)) {
            }
        }
    }
    omp_set_max_active_levels(1);
    printf("%d %d\n", outer, inner.load());
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
        if (command == "region") {
            printf("%d\n", region());
        } else if (command == "clause") {
            int size = 0;
#pragma omp parallel num_threads(number)
#pragma omp single
            size = omp_get_num_threads();
            printf("%d\n", size);
        } else if (command == "loop") {
            long sum = 0;
            int size = 0;
#pragma omp parallel for schedule(static) reduction(+ : sum)
            for (int i = 0; i < number; i++) {
                if (i == 0)
                    size = omp_get_num_threads();
                sum += i;
            }
            printf("%d %ld\n", size, sum);
        } else if (command == "dynamic") {
            dynamic(number);
        } else if (command == "nested") {
            nested();
        } else if (command == "throw") {
            try {
#pragma omp parallel num_threads(1)
                {
                    try {
                        throw number;
                    } catch (int thrown) {
                        number = thrown + 1;
                    }
                }
                throw std::string("caught");
            } catch (const std::string &what) {
                printf("%s %d\n", what.c_str(), number);
            }
        } else if (command == "exit") {
            in_thread(leave, false);
        } else if (command == "library" && sscanf(line, "%*s %3999s %d", file, &number) == 2) {
            library(file, number);
        } else if (command == "cancel") {
            in_thread(cancelled, true);
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
            printf("%d\n", omp_get_max_threads());
        }
        fflush(stdout);
    }
    return 0;
}
