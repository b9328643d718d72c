// What compilers call in LLVM's and Intel's OpenMP, declared by hand: gcc makes no such calls.
#pragma once

struct Location {
    int reserved1, flags, reserved2, reserved3;
    const char *source;
};
using Body = void (*)(int *global, int *bound, ...);

extern "C" {
int __kmpc_global_thread_num(Location *);
void __kmpc_push_num_threads(Location *, int thread, int number);
void __kmpc_push_num_threads_strict(Location *, int thread, int number, int severity, const char *message);
void __kmpc_fork_call(Location *, int arguments, Body, ...);
void __kmpc_serialized_parallel(Location *, int thread);
void __kmpc_end_serialized_parallel(Location *, int thread);
void *__kmpc_threadprivate_cached(Location *, int thread, void *data, unsigned long size, void ***cache);
void *__kmpc_omp_target_task_alloc(Location *, int thread, int flags, unsigned long task, unsigned long shared,
                                   void *body, long device);
int omp_get_max_threads();
int omp_get_num_threads();
int omp_get_thread_num();
int omp_get_active_level();
int omp_get_max_active_levels();
void omp_set_num_threads(int);
void omp_set_max_active_levels(int);
int kmp_get_blocktime();
void kmp_set_blocktime(int);
}

static Location here = {0, 2, 0, 0, ";unknown;unknown;0;0;;"};

static inline void team_size(int *, int *, int *size)
{
    if (omp_get_thread_num() == 0)
        *size = omp_get_num_threads();
}

// A region without a clause: the size of its team.
static inline int region()
{
    int size = 0;
    __kmpc_fork_call(&here, 1, reinterpret_cast<Body>(team_size), &size);
    return size;
}

// One with `num_threads(number)`.
static inline int region(int number)
{
    __kmpc_push_num_threads(&here, __kmpc_global_thread_num(&here), number);
    return region();
}
