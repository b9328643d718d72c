// What happens in programs, one mode for each: the calls of each are known.
#include <csetjmp>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <pthread.h>
#include <string>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

#define PLAIN __attribute__((no_instrument_function))

namespace shapes {
__attribute__((noinline)) int area(int side) {
    asm volatile("");
    return side * side;
}
__attribute__((noinline)) int sum(int count) {
    int all = 0;
    for (int side = 0; side < count; side++) all += area(side);
    return all;
}
} // namespace shapes

static jmp_buf away;

__attribute__((noinline)) static void leaps() { longjmp(away, 1); }
__attribute__((noinline)) static void middle() { leaps(); }
__attribute__((noinline)) static void throws() { throw 1; }
__attribute__((noinline)) static void between() { throws(); }
__attribute__((noinline)) static void after() { asm volatile(""); }
__attribute__((noinline)) static void handled(int) { shapes::area(1); }
__attribute__((noinline)) static void allocates() {
    void *volatile memory = malloc(100);
    memory = realloc(memory, 300);
    free(memory);
    char *volatile more = new char[50];
    delete[] more;
}
static void *calls(void *) {
    shapes::sum(1000);
    return nullptr;
}
__attribute__((noinline)) static int fall(int depth) {
    return depth == 0 ? 0 : fall(depth - 1) + 1;
}
PLAIN static void *cancelled(void *) {
    shapes::sum(10);
    for (;;) pause();
}

PLAIN __attribute__((noinline)) static void jumps() {
    for (volatile int turn = 0; turn < 3; turn = turn + 1) {
        if (setjmp(away) == 0) middle();
        after();
    }
}

int main(int argc, char **argv) {
    std::string mode = argc > 1 ? argv[1] : "plain";
    int count = argc > 2 ? atoi(argv[2]) : 1000;
    if (mode == "plain") printf("%d\n", shapes::sum(count));
    if (mode == "exit") shapes::sum(count), exit(3);
    if (mode == "_exit") shapes::sum(count), _exit(4);
    if (mode == "abort") shapes::sum(count), abort();
    if (mode == "segv") shapes::sum(count), raise(SIGSEGV);
    if (mode == "kill") shapes::sum(count), kill(getpid(), SIGKILL);
    if (mode == "threads") {
        pthread_t threads[4];
        for (auto &thread : threads) pthread_create(&thread, nullptr, calls, nullptr);
        for (auto &thread : threads) pthread_join(thread, nullptr);
    }
    if (mode == "cancel") {
        pthread_t thread;
        pthread_create(&thread, nullptr, cancelled, nullptr);
        usleep(20000);
        pthread_cancel(thread);
        pthread_join(thread, nullptr);
    }
    if (mode == "fork") {
        shapes::sum(10);
        for (int child = 0; child < 3; child++)
            if (fork() == 0) {
                shapes::sum(count);
                _exit(0);
            }
        while (wait(nullptr) > 0) {}
        shapes::sum(10);
    }
    if (mode == "exec") {
        shapes::sum(10);
        execl(argv[0], argv[0], "plain", "20", nullptr);
    }
    if (mode == "longjmp") jumps();
    if (mode == "throw") {
        for (int turn = 0; turn < 3; turn++) {
            try {
                between();
            } catch (int) {
            }
            after();
        }
    }
    if (mode == "allocate") for (int turn = 0; turn < 10; turn++) allocates();
    if (mode == "deep") printf("%d\n", fall(100000));
    if (mode == "signal") {
        signal(SIGALRM, handled);
        ualarm(200, 200);
        printf("%d\n", shapes::sum(count));
        ualarm(0, 0);
    }
    if (mode == "load") {
        for (int turn = 0; turn < 3; turn++) {
            void *library = dlopen(getenv("LIBRARY"), RTLD_NOW);
            if (!library) return fprintf(stderr, "%s\n", dlerror()), 9;
            ((int (*)(int))dlsym(library, "in_library"))(5);
            dlclose(library);
        }
    }
    return 0;
}
