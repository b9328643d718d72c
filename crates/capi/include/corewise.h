/*
 * corewise.h - follow what this program may use of the machine, in C
 *
 * A corewise manager grants each program a claim: a number of threads, and the CPUs that they should run
 * on. The claim changes while the program runs: other programs come and go. A program that links
 * libcorewise reads its claim whenever it is about to use threads, asks for more (corewise_invade) or
 * gives back (corewise_retreat), or lets the library's own workers follow it (corewise_parallel_for).
 *
 *     cc program.c -lcorewise
 *
 * NO MANAGER
 *     Nothing fails. Where no manager runs, where it refuses, or once it has died, the claim is the
 *     effective CPUs: affinity, cpusets and CPU quotas considered, within what the program asked for. The
 *     library tries again to join from time to time.
 *
 * ERRORS
 *     Functions that return int return a negative errno value on failure, else 0 or what they say:
 *     -EINVAL  an argument is outside of its stated range;
 *     -EAGAIN, -ENOMEM, -EMFILE, ...  what the system said;
 *     -ENOTRECOVERABLE  an error inside of the library (it is said on standard error). The program may
 *         go on; it should not use the function that failed.
 *     No function touches errno on purpose, none ends the process, none raises a signal.
 *
 * THREADS
 *     Every function may be called by every thread at any time, if nothing else is said. In a signal
 *     handler only corewise_threads_fast() is allowed, after it was called once outside of one.
 *     Once the program has joined the library has one or two threads of its own (corewise and
 *     corewise-claim), with all signals blocked, and workers (corewise-N; their stacks have 2 MiB) once
 *     there is work for them. Callbacks run on the library's threads. The environment is only read by
 *     the thread that makes the first call.
 *
 * FORK
 *     A forked child has no claim: it is unmanaged, its claim is the effective CPUs, until it calls
 *     corewise_join() itself. Until then corewise_parallel_for() runs on the caller alone, and what
 *     is about callbacks and descriptors gives -ECHILD.
 *
 * OWNERSHIP
 *     The library keeps no pointer of yours when a function returns, but for `data` of callbacks. What
 *     it gives you (a file descriptor) stays the library's.
 *
 * COSTS are of one call on a machine of 2025, in the usual case.
 */
#ifndef COREWISE_H
#define COREWISE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Where the CPUs of a claim should be. */
enum corewise_placement {
    COREWISE_ANY = 0,     /* wherever there is room */
    COREWISE_COMPACT = 1, /* close together: caches and NUMA nodes shared by as many as possible */
    COREWISE_SCATTER = 2  /* spread over NUMA nodes and caches */
};

/* What a manager asks of a program; see corewise_set_answer(). */
enum corewise_request {
    COREWISE_EXPAND = 0, /* run one thread more */
    COREWISE_SHRINK = 1  /* run one thread less */
};

/*
 * Joins the manager, with `name` for people (UTF-8; NULL or empty: the name of the executable). Until
 * the program asks for more its claim is one thread under a manager. The functions below join by
 * themselves, under the executable's name; only the first join of a process has a name to give.
 * Returns 1 under a manager, 0 without one. -EINVAL: `name` is not UTF-8.
 * Costs 0.5 ms the first time, two seconds at most if a manager does not answer; then nothing.
 */
int corewise_join(const char *name);

/* Whether a manager keeps this program's claim now: 1 or 0. Costs nanoseconds. */
int corewise_is_managed(void);

/*
 * Threads that the program may run now, at least 1. It changes at any time: read it before each piece
 * of parallel work, not once. Costs 3 ns; corewise_threads_fast() is the same within the caller.
 */
unsigned corewise_threads(void);

/*
 * Which grant the claim is. Any change of the claim changes it, also the loss of the manager. It is not
 * a count: compare for equality only.
 */
uint64_t corewise_generation(void);

/*
 * The CPUs of the claim, as sched_getaffinity(2) gives CPUs: into `set`, a cpu_set_t of `size` bytes
 * (sizeof(cpu_set_t), or what CPU_ALLOC_SIZE says). Returns how many they are; CPUs that `set` cannot
 * hold are left out. All are of one grant. -EINVAL: `set` is NULL, or `size` is no multiple of
 * sizeof(unsigned long).
 * Costs a nanosecond for each 64 CPUs of `size`, and some.
 */
int corewise_cpus(void *set, size_t size);

/*
 * Asks for `min` to `max` threads (1 <= min <= max), placed as said, and waits for the manager's
 * decision, which takes some hundred microseconds (and is waited for at most 50 ms). Replaces what was
 * asked for before. Returns how many threads the claim has afterwards: at least 1; fewer than `max`
 * where others need the rest. The manager may give and take later, between `min` and `max`.
 * -EINVAL: the numbers, or `placement`, are out of range.
 */
int corewise_invade(unsigned min, unsigned max, enum corewise_placement placement);

/*
 * Gives back all but `threads` threads of the claim, at least 1. Returns how many it has afterwards.
 * -EINVAL: `threads` is 0.
 */
int corewise_retreat(unsigned threads);

/*
 * Keeps the process's threads on the claim's CPUs, as long as there is a manager and more than one thread
 * was asked for; moves them when the claim changes. Threads that are created later inherit the place of
 * the thread that creates them. With `pin` 0, when the claim retreats to 1, and when the manager is
 * gone, each thread has the CPUs again that it had before. A claim never adds to what a thread may use
 * (taskset, OMP_PROC_BIND): threads that would have no CPU left are left alone. Returns 0.
 * Costs some microseconds a thread.
 */
int corewise_pin(int pin);

/*
 * Says that the workers of corewise_parallel_for() need each other, as at barriers that spin: they run at
 * the same time, or not at all. Where CPUs are short the program takes turns with other gangs, under a manager
 * that knows gangs. Programs of a user with the same `name` are one gang, "" is one of its own, "job/stage" is
 * one within the gang "job". `weight` is its share of the time against other gangs, 1 to 10000; 100 is usual.
 * With `name` NULL it is a gang no longer. Turns are kept between the pieces of a range, which should be
 * short against 50 ms; the program's other threads run always. Returns 0.
 * -EINVAL: `name` is not UTF-8, or `weight` is 0.
 */
int corewise_coschedule(const char *name, unsigned weight);

/*
 * Calls `changed(data)` on the library's thread after each change of the claim, usually within 100
 * microseconds; several changes may be one call. It must return soon (others wait for it), must not
 * throw or end its thread, and must not call corewise_invade(), corewise_retreat(),
 * corewise_wait_change(), corewise_on_change(), corewise_forget_change(), corewise_set_answer() or
 * corewise_parallel_for(). Returns a number above 0, to be given to corewise_forget_change().
 * -EINVAL: `changed` is NULL. -ECHILD: in a forked child.
 */
int corewise_on_change(void (*changed)(void *data), void *data);

/*
 * Ends what corewise_on_change() began; waits for a call that is running. After it returned `data` is
 * used no more. -ENOENT: there is no such number. -ECHILD: in a forked child.
 */
int corewise_forget_change(int number);

/*
 * Sleeps until the claim's generation is another than `seen`, or `timeout_ns` nanoseconds have passed
 * (negative: however long it takes). Returns 1 if it is another, 0 if not.
 */
int corewise_wait_change(uint64_t seen, int64_t timeout_ns);

/*
 * A file descriptor for poll(2) and its kin, which becomes readable when the claim changes. Read 8
 * bytes from it (it does not block) to arm it again. The same one each time; it is closed on exec; do
 * not close it. -EMFILE, -ENFILE, -ENOMEM: as eventfd(2). -ECHILD: in a forked child.
 */
int corewise_event_fd(void);

/*
 * Who answers when the manager asks for a thread more or less (`request` is an enum corewise_request):
 * `answer(request, data)` runs on the library's thread, with the rules of corewise_on_change(), and
 * returns 1 if the program will do it, 0 if not. Without it the answer is yes within what the program
 * has asked for. NULL takes it away, and waits for a call that is running. -ECHILD: in a forked child.
 */
int corewise_set_answer(int (*answer)(int request, void *data), void *data);

/*
 * Calls `work(from, to, data)` for parts of [begin, end) that are at most `grain` long (0: chosen by the
 * library), on as many workers of the library as the claim allows, the caller being one of them; returns
 * when all is done. Each index is in one part; parts run in any order and at the same time. The number
 * of workers follows the claim at the end of each part: a part should take 20 microseconds at least, and
 * as short a time as the claim should be followed in. (Of more than 2^31 parts some are put together.)
 * `work` must return: it must not throw, longjmp out, or end its thread. It may call
 * corewise_parallel_for() itself: the workers are shared.
 * -EINVAL: `work` is NULL, or end < begin. Costs some microseconds beyond the work.
 */
int corewise_parallel_for(size_t begin, size_t end, size_t grain,
                          void (*work)(size_t from, size_t to, void *data), void *data);

/*
 * Around something that blocks (input, a lock of somebody else) within `work` of
 * corewise_parallel_for(): while it blocks, another worker has its place. Elsewhere they do nothing.
 * Pairs may be nested; one that is open when `work` returns ends then. -EINVAL: an end without a begin
 * on this thread.
 */
int corewise_blocking_begin(void);
int corewise_blocking_end(void);

/*
 * Has the program's OpenMP regions follow the claim by themselves, from their next one on: each gets as
 * many threads as the claim has then, never more than it would have had. Loops with a dynamic schedule
 * shrink also while they run (libgomp). The program is to be linked with the adapters first in order, so
 * that its regions begin there:
 *
 *     cc -fopenmp program.c $(pkg-config --libs corewise-openmp)
 *
 * Returns 1 if they follow; 0 if not, because the adapters are not in the process, or come after the
 * OpenMP runtime: then all is as before. Without a manager regions have what OpenMP gives them. Left alone
 * are regions with a num_threads clause, and those of libraries (not the program itself) that keep
 * thread-local data. A claim of another size than the region before loses threadprivate variables' values.
 * Where it is under `corewise run`, the program's own claim counts. A forked child that joins follows its
 * own. Costs some microseconds; then some 20 ns a region.
 */
int corewise_follow_openmp(void);

/*
 * Says that `pieces` more pieces of work are done, in the program's own unit: policies that look at
 * progress compare it with itself only. Costs a few nanoseconds.
 */
void corewise_add_progress(uint64_t pieces);

/*
 * For corewise_word(): where the claim can be read without a call. What is returned stays the same until
 * the process ends. It points to a pointer (another one in a forked child that has joined) to the
 * address of a claim page (another one when a manager comes or goes), both to be loaded with acquire
 * ordering, never NULL. A page that was ever there is never unmapped; corewise_abi.h says what is on it.
 */
const void *const *const *corewise_page(void);

/*
 * The claim's word, without a call but for the first time: generation in the upper half, threads in the
 * lower half; 0 threads: nothing granted yet. Equal words allow equal numbers of threads. About a
 * nanosecond.
 */
static inline uint64_t corewise_word(void)
{
    enum { OFFSET_OF_WORD = 64 };
    static const void *const *const *known;
    const void *const *const *at = __atomic_load_n(&known, __ATOMIC_RELAXED);
    if (__builtin_expect(!at, 0)) {
        at = corewise_page();
        __atomic_store_n(&known, at, __ATOMIC_RELAXED);
    }
    const void *const *slot = __atomic_load_n(at, __ATOMIC_ACQUIRE);
    const char *page = (const char *)__atomic_load_n(slot, __ATOMIC_ACQUIRE);
    return __atomic_load_n((const uint64_t *)(const void *)(page + OFFSET_OF_WORD), __ATOMIC_ACQUIRE);
}

/* As corewise_threads(), without a call in the usual case: about a nanosecond. */
static inline unsigned corewise_threads_fast(void)
{
    unsigned threads = (unsigned)corewise_word();
    return __builtin_expect(threads != 0, 1) ? threads : corewise_threads();
}

#ifdef __cplusplus
}
#endif

#endif
