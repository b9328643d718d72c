/*
 * corewise_defer.h - calls that are stored now and executed later, in C
 *
 * A program that watches itself makes many small calls whose results it does not need. An environment stores
 * such calls in a buffer of the calling thread, in a few nanoseconds, without a lock and without a system
 * call; whole buffers are executed later by whoever has a CPU to spare.
 *
 *     static void visited(void *data, const uint64_t *words) { ... }
 *
 *     corewise_defer *calls = corewise_defer_create(NULL);
 *     int visit = corewise_defer_declare(calls, visited, NULL, 2, data);
 *     corewise_defer_call(calls, visit, (uint64_t[]){page, bytes}, 2);
 *     corewise_defer_finish(calls);
 *
 * THREADS
 *     Functions that are declared run on any thread, several at once, each with its own arguments: what they
 *     share they guard themselves. They must not throw, longjmp, or end their thread. All calls of one
 *     buffer are executed in order; buffers of one thread in order only with COREWISE_DEFER_SYNCHRONOUS.
 *     Declare before other threads call. A thread's end submits its buffer.
 *
 * ERRORS
 *     As in corewise.h: a negative errno value, or 0.
 *
 * A forked child must not use its parent's environments; a signal handler must not defer calls.
 */
#ifndef COREWISE_DEFER_H
#define COREWISE_DEFER_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* An environment. */
typedef struct corewise_defer corewise_defer;

/* A deferred function: the pointer that it was declared with, and its arguments. */
typedef void (*corewise_defer_function)(void *data, const uint64_t *words);

/* Who executes full buffers. */
enum corewise_defer_strategy {
    COREWISE_DEFER_ADAPTIVE = 0,    /* threads where CPUs are free, or else the caller */
    COREWISE_DEFER_SYNCHRONOUS = 1, /* the caller */
    COREWISE_DEFER_POOL = 2         /* a fixed number of threads; callers wait for room */
};

/* Settings; 0 is the usual everywhere. `size` is sizeof(struct corewise_defer_settings). */
struct corewise_defer_settings {
    size_t size;
    int strategy;
    uint32_t capacity; /* calls in a buffer; 0: COREWISE_DEFER_CAPACITY, or found while running */
    uint32_t queue;    /* buffers that may wait; 0: 16 */
    uint32_t threads;  /* of a pool; 0: one for each CPU */
};

/* Makes an environment; settings may be NULL. NULL: the settings make no sense. */
corewise_defer *corewise_defer_create(const struct corewise_defer_settings *settings);

/* Declares a function with up to 6 arguments. `thrown_away` (may be NULL) gets the arguments of calls that are
   not executed, to free what they own. Gives the call's number, or -EINVAL. */
int corewise_defer_declare(corewise_defer *calls, corewise_defer_function body,
                           corewise_defer_function thrown_away, unsigned words, void *data);

/* Stores a call: its number, and as many arguments as were declared. 0, or -EINVAL. */
int corewise_defer_call(corewise_defer *calls, int call, const uint64_t *words, unsigned count);

/* Submits the calling thread's buffer, however full it is. */
int corewise_defer_process_current(corewise_defer *calls);

/* Waits until all calls that this thread made are executed; helps meanwhile. */
int corewise_defer_wait(corewise_defer *calls);

/* Executes all calls that were made on any thread, and waits for those that others execute. */
int corewise_defer_finish(corewise_defer *calls);

/* From now on, what is stored in any environment is executed before this process dies by a signal. The thread
   that dies waits for that, but no longer than so many milliseconds; then it dies by the same signal. Signals
   that the program handles or ignores are left to it, but for faults, whose handlers are called afterwards.
   0, or -errno: no thread, descriptors or handlers could be had. */
int corewise_defer_save_on_fatal_signals(unsigned milliseconds);

/* Finishes the environment and frees it. No other thread may use it any more. NULL is allowed. */
void corewise_defer_destroy(corewise_defer *calls);

#ifdef __cplusplus
}
#endif
#endif
