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
