// A library that is loaded and unloaded while its program runs.
#include "kmpc.h"

#include <atomic>

extern "C" int demand(int threads)
{
    return region(threads);
}

extern "C" int leave_open()
{
    return region();
}

static void arrive(int *, int *, std::atomic<bool> *seen)
{
    seen[omp_get_thread_num() % 64] = true;
}

// The size of a team, and how many different numbers its threads have: fewer, if the region and the
// questions within it went to different copies of the runtime.
extern "C" int team(int *numbers)
{
    std::atomic<bool> seen[64] = {};
    __kmpc_fork_call(&here, 1, reinterpret_cast<Body>(arrive), seen);
    *numbers = 0;
    for (auto &one : seen)
        *numbers += one;
    return region();
}
