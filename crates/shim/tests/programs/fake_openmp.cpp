// A small runtime with the functions of LLVM's OpenMP that the adapter uses, for machines that have none.
// It follows the same protocol: a number that is pushed holds for the next region of that thread; a region
// of one thread begins by a call of __kmpc_serialized_parallel; settings belong to the task, and are
// inherited by the threads of a team. Teams are made anew for each region.
#include "kmpc.h"

#include <atomic>
#include <cstdarg>
#include <cstdlib>
#include <thread>
#include <vector>

struct Task {
    int threads;       // what omp_get_max_threads() tells
    int levels = 1;    // regions that may be active within each other
    int blocktime = 200;
    int size = 1, number = 0, active = 0;
};

static int threads_at_first()
{
    const char *set = getenv("OMP_NUM_THREADS");
    return set ? atoi(set) : 2;
}

static std::atomic<int> registered{0};
static thread_local int global = registered++;
static thread_local Task task = {threads_at_first()};
static thread_local int pushed = 0;

static void run(Body body, int count, void **a)
{
    int bound = task.number;
    if (count > 9)
        abort();
    // Those that the body does not take do no harm.
    body(&global, &bound, a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], a[8]);
}

extern "C" {

int __kmpc_global_thread_num(Location *)
{
    return global;
}

void __kmpc_push_num_threads(Location *, int thread, int number)
{
    if (thread != global)
        abort();
    if (number > 0)
        pushed = number;
}

void __kmpc_push_num_threads_strict(Location *here, int thread, int number, int, const char *)
{
    // Not by the function above, by which the adapter would see it.
    if (thread != global || !here)
        abort();
    pushed = number;
}

void __kmpc_serialized_parallel(Location *, int thread)
{
    if (thread != global)
        abort();
    pushed = 0;
}

void __kmpc_end_serialized_parallel(Location *, int)
{
}

void __kmpc_fork_call(Location *here, int count, Body body, ...)
{
    void *arguments[9] = {};
    va_list list;
    va_start(list, body);
    for (int i = 0; i < count && i < 9; i++)
        arguments[i] = va_arg(list, void *);
    va_end(list);
    int size = pushed ? pushed : task.threads;
    if (task.active >= task.levels)
        size = 1;
    pushed = 0;
    Task before = task;
    task.size = size;
    task.number = 0;
    if (size == 1) {
        __kmpc_serialized_parallel(here, global);
        run(body, count, arguments);
        task = before;
        return;
    }
    task.active++;
    std::vector<std::thread> others;
    for (int i = 1; i < size; i++)
        others.emplace_back([=, inherited = task] {
            task = inherited;
            task.number = i;
            run(body, count, const_cast<void **>(arguments));
        });
    run(body, count, arguments);
    for (auto &other : others)
        other.join();
    task = before;
}

void *__kmpc_threadprivate_cached(Location *, int, void *data, unsigned long, void ***)
{
    return data;
}

void *__kmpc_omp_target_task_alloc(Location *, int, int, unsigned long, unsigned long, void *, long)
{
    return nullptr;
}

int omp_get_max_threads()
{
    return task.threads;
}

int omp_get_num_threads()
{
    return task.size;
}

int omp_get_thread_num()
{
    return task.number;
}

int omp_get_active_level()
{
    return task.active;
}

int omp_get_max_active_levels()
{
    return task.levels;
}

void omp_set_num_threads(int number)
{
    task.threads = number;
}

void omp_set_max_active_levels(int levels)
{
    task.levels = levels;
}

int kmp_get_blocktime()
{
    return task.blocktime;
}

void kmp_set_blocktime(int time)
{
    task.blocktime = time;
}

// A region for the runtime's own threads, as libomp has one for its helpers.
int fake_own_region(int number)
{
    pushed = number;
    return region();
}
}
