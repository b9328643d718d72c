// A library that is loaded and unloaded while its program runs.
#include <omp.h>

extern "C" int demand(int threads)
{
    int size = 0;
#pragma omp parallel num_threads(threads)
#pragma omp single
    size = omp_get_num_threads();
    return size;
}

extern "C" int leave_open()
{
    int size = 0;
#pragma omp parallel
#pragma omp single
    size = omp_get_num_threads();
    return size;
}

// The size of a team, and how many different numbers its threads have: fewer, if the region and the
// questions within it went to different copies of the runtime.
extern "C" int team(int *numbers)
{
    int size = 0;
    bool seen[64] = {};
#pragma omp parallel
    {
#pragma omp critical
        seen[omp_get_thread_num() % 64] = true;
#pragma omp critical
        size++;
    }
    *numbers = 0;
    for (bool one : seen)
        *numbers += one;
    return size;
}
