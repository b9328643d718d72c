// Small programs, each named for what it does; the first word says what is to be found:
// "race_..." has one data race at least, "fine_..." has none.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <threads.h>
#include <time.h>
#include <unistd.h>

static int shared, other, result;
static int table[4096];
static char bytes[64];
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER, second = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t condition = PTHREAD_COND_INITIALIZER;
static pthread_rwlock_t rwlock = PTHREAD_RWLOCK_INITIALIZER;
static pthread_spinlock_t spin;
static pthread_barrier_t barrier;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_key_t key;
static sem_t semaphore, semaphore2;
static mtx_t c11;
static cnd_t c11_condition;
static once_flag c11_once = ONCE_FLAG_INIT;
static atomic_int flag, count;
static volatile int ready;
static int *pointer;

typedef void *(*Body)(void *);

static void *with(void *thread) { return thread; }

static void both(Body one, Body two) {
    pthread_t a, b;
    pthread_create(&a, NULL, one, (void *)1);
    pthread_create(&b, NULL, two, (void *)2);
    pthread_join(a, NULL);
    pthread_join(b, NULL);
}

static void nap(void) {
    struct timespec time = {0, 20000000};
    nanosleep(&time, NULL);
}

#define LOOP for (int i = 0; i < 100; i++)

// --- races ----------------------------------------------------------------------------------------

static void *adds(void *a) { LOOP shared++; return a; }
static void race_counter(void) { both(adds, adds); }

static void *writes(void *a) { shared = 1; return a; }
static void *reads(void *a) { result += shared; return a; }
static void race_write_and_read(void) { both(writes, reads); }

static void *one_lock(void *a) { LOOP { pthread_mutex_lock(&mutex); shared++; pthread_mutex_unlock(&mutex); } return a; }
static void *other_lock(void *a) { LOOP { pthread_mutex_lock(&second); shared++; pthread_mutex_unlock(&second); } return a; }
static void race_different_locks(void) { both(one_lock, other_lock); }
static void race_one_side_locks(void) { both(one_lock, adds); }

static void *under_read_lock(void *a) { LOOP { pthread_rwlock_rdlock(&rwlock); shared++; pthread_rwlock_unlock(&rwlock); } return a; }
static void race_writes_under_read_lock(void) { both(under_read_lock, under_read_lock); }

static void *byte_three(void *a) { LOOP bytes[3]++; return a; }
static void race_same_byte(void) { both(byte_three, byte_three); }

static void *whole_word(void *a) { *(long *)bytes = 7; return a; }
static void race_byte_and_word(void) { both(byte_three, whole_word); }

static void *sets_all(void *a) { memset(table, (int)(long)a, sizeof table); return a; }
static void *reads_last(void *a) { result += table[4095]; return a; }
static void race_memset(void) { both(sets_all, reads_last); }

static int taken[4096];
static volatile size_t taken_bytes = sizeof taken;
static void *copies(void *a) { memcpy(taken, table, taken_bytes); return a; }
static void *writes_middle(void *a) { table[2000] = 5; return a; }
static void race_memcpy(void) { both(copies, writes_middle); }

static void *frees(void *a) { free(pointer); return a; }
static void *uses(void *a) { *pointer = 3; return a; }
static void *uses_then_waits(void *a) { nap(); *pointer = 3; return a; }
static void race_free_and_use(void) { pointer = malloc(64); both(frees, uses_then_waits); }
static void race_heap(void) { pointer = malloc(64); both(uses, uses); free(pointer); }

/* One thread uses the end of a large block, which another frees. */
static void *uses_far(void *a) { pointer[20000] = 1; atomic_store_explicit(&flag, 1, memory_order_relaxed); return a; }
static void *frees_used(void *a) {
    while (!atomic_load_explicit(&flag, memory_order_relaxed)) usleep(100);
    free(pointer);
    return a;
}
static void race_freed_far(void) { pointer = malloc(100000); both(uses_far, frees_used); }

/* One thread uses a block, lives on and does nothing more; the other frees it, and its memory is allocated again. */
static int times;
static memory_order orders = memory_order_relaxed;
static void *uses_then_lives_on(void *a) {
    *pointer = 1;
    atomic_store_explicit(&flag, 1, orders);
    while (!atomic_load_explicit(&count, memory_order_relaxed)) usleep(100);
    return a;
}
static void *allocates_again(void *a) {
    while (!atomic_load_explicit(&flag, orders)) usleep(100);
    int *mine = pointer;
    for (int i = 0; i < times; i++) {
        *mine = 2;
        free(mine);
        mine = malloc(64);
    }
    free(mine);
    return a;
}
static void block_allocated_again(void) {
    pthread_t user, other;
    pointer = malloc(64);
    pthread_create(&user, NULL, uses_then_lives_on, NULL);
    pthread_create(&other, NULL, allocates_again, NULL);
    pthread_join(other, NULL);
    atomic_store_explicit(&count, 1, memory_order_relaxed);
    pthread_join(user, NULL);
}
static void race_block_allocated_again(void) { times = 3; block_allocated_again(); }
static void race_block_allocated_again_often(void) { times = 10; block_allocated_again(); }
static void fine_block_allocated_again(void) { times = 10; orders = memory_order_seq_cst; block_allocated_again(); }

static void *plain_flag_sets(void *a) { shared = 42; ready = 1; return a; }
static void *plain_flag_waits(void *a) { for (int i = 0; i < 1000000 && !ready; i++) sched_yield(); result = shared; return a; }
static void race_volatile_flag(void) { both(plain_flag_sets, plain_flag_waits); }

static void *relaxed_sets(void *a) { shared = 42; atomic_store_explicit(&flag, 1, memory_order_relaxed); return a; }
static void *relaxed_waits(void *a) { while (!atomic_load_explicit(&flag, memory_order_relaxed)) sched_yield(); result = shared; return a; }
static void race_relaxed_flag(void) { both(relaxed_sets, relaxed_waits); }

static void *atomic_adds(void *a) { LOOP atomic_fetch_add(&count, 1); return a; }
static void *plain_reads_atomic(void *a) { result = *(int *)&count; return a; }
static void race_atomic_and_plain(void) { both(atomic_adds, plain_reads_atomic); }

static void *double_checked(void *a) {
    if (!pointer) {
        pthread_mutex_lock(&mutex);
        if (!pointer) pointer = calloc(1, 64);
        pthread_mutex_unlock(&mutex);
    }
    return (void *)(long)*pointer;
}
static void race_double_checked(void) { both(double_checked, double_checked); }

static void race_main_too(void) { pthread_t t; pthread_create(&t, NULL, writes, NULL); shared = 2; pthread_join(t, NULL); }

static void race_detached_one_after_the_other(void) {
    // Nothing of these threads' own orders them but time.
    pthread_attr_t attributes;
    pthread_t t;
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_create(&t, &attributes, adds, NULL);
    nap();
    pthread_create(&t, &attributes, adds, NULL);
    nap();
}

static void *before_barrier(void *a) { shared = (int)(long)a; pthread_barrier_wait(&barrier); return a; }
static void race_before_barrier(void) { pthread_barrier_init(&barrier, NULL, 2); both(before_barrier, before_barrier); }

static void *signals_without_lock(void *a) { pthread_mutex_lock(&mutex); pthread_mutex_unlock(&mutex); shared = 1; return a; }
static void *waits_then_reads(void *a) { pthread_mutex_lock(&mutex); pthread_mutex_unlock(&mutex); result = shared; nap(); return a; }
static void race_behind_the_lock(void) { both(signals_without_lock, waits_then_reads); }

static void *posts_then_writes(void *a) { sem_post(&semaphore); shared = 1; return a; }
static void *waits_then_writes(void *a) { sem_wait(&semaphore); shared = 2; return a; }
static void race_semaphore_too_early(void) { sem_init(&semaphore, 0, 0); both(posts_then_writes, waits_then_writes); }

static int *stack_place;
static void *points(void *a) { int mine = 5; stack_place = &mine; atomic_store(&flag, 1); while (atomic_load(&flag) != 2) sched_yield(); return (void *)(long)(mine + (a != NULL)); }
static void *writes_others_stack(void *a) { while (atomic_load(&flag) != 1) sched_yield(); *stack_place = 6; atomic_store_explicit(&flag, 2, memory_order_relaxed); return a; }
static void race_on_a_stack(void) { both(points, writes_others_stack); }

static struct { unsigned low : 4, high : 4; } bits;
static void *low_bits(void *a) { LOOP bits.low++; return a; }
static void *high_bits(void *a) { LOOP bits.high++; return a; }
static void race_bit_fields(void) { both(low_bits, high_bits); }

static void *trylock_ignored(void *a) { LOOP { int got = pthread_mutex_trylock(&mutex) == 0; shared++; if (got) pthread_mutex_unlock(&mutex); sched_yield(); } return a; }
static void race_trylock_ignored(void) { pthread_mutex_lock(&mutex); both(trylock_ignored, trylock_ignored); pthread_mutex_unlock(&mutex); }

// Comes after, and is not ordered by it.
static void goes_first(void) { atomic_store_explicit(&flag, 1, memory_order_relaxed); }
static void goes_second(void) { while (!atomic_load_explicit(&flag, memory_order_relaxed)) sched_yield(); }

static int ends[2];
static void sends(int to) { if (write(to, bytes, 8) != 8) abort(); }
static void receives(int from) { char got[8]; if (read(from, got, 8) != 8) abort(); }
static void *sends_too_early(void *a) { sends(ends[1]); shared = 1; return a; }
static void *receives_and_writes(void *a) { receives(ends[0]); shared++; return a; }
static void race_sends_too_early(void) { if (pipe(ends)) abort(); both(sends_too_early, receives_and_writes); }

static void *reads_into(void *a) { if (read(ends[0], bytes, 8) != 8) abort(); return a; }
static void race_read_into(void) { ends[0] = open("/dev/zero", O_RDONLY); both(reads_into, byte_three); }

static void *uses_descriptor(void *a) { receives(ends[0]); goes_first(); return a; }
static void *closes_descriptor(void *a) { goes_second(); close(ends[0]); return a; }
static void race_close(void) { ends[0] = open("/dev/zero", O_RDONLY); both(uses_descriptor, closes_descriptor); }

static void *compares(void *a) { result = memcmp(bytes, table, sizeof bytes - (size_t)(long)a); return a; }
static void race_memcmp(void) { both(compares, byte_three); }

static void *locks_once(void *a) { pthread_mutex_lock(&second); other++; pthread_mutex_unlock(&second); goes_first(); return a; }
static void *destroys_lock(void *a) { goes_second(); pthread_mutex_destroy(&second); return a; }
static void race_lock_destroyed(void) { both(locks_once, destroys_lock); }

// --- no races -------------------------------------------------------------------------------------

static void fine_one_lock(void) { both(one_lock, one_lock); }
static void fine_nothing(void) { both(with, with); }

static void *byte_four(void *a) { LOOP bytes[4]++; return a; }
static void fine_neighbouring_bytes(void) { both(byte_three, byte_four); }

static void *reads_only(void *a) { return (void *)(long)shared; }
static void fine_reads(void) { shared = 5; both(reads_only, reads_only); }

static void fine_create_and_join(void) {
    for (int i = 0; i < 20; i++) {
        pthread_t t;
        shared++;
        pthread_create(&t, NULL, adds, NULL);
        pthread_join(t, NULL);
        shared++;
    }
}

static void *write_locked(void *a) { LOOP { pthread_rwlock_wrlock(&rwlock); shared++; pthread_rwlock_unlock(&rwlock); } return a; }
static void *read_locked(void *a) { int sum = 0; LOOP { pthread_rwlock_rdlock(&rwlock); sum += shared; pthread_rwlock_unlock(&rwlock); } return (void *)(long)sum; }
static void fine_rwlock(void) { both(write_locked, read_locked); }
static void fine_rwlock_writers(void) { both(write_locked, write_locked); }

static void *spins(void *a) { LOOP { pthread_spin_lock(&spin); shared++; pthread_spin_unlock(&spin); } return a; }
static void fine_spin_lock(void) { pthread_spin_init(&spin, 0); both(spins, spins); }

static void *tries(void *a) { LOOP { while (pthread_mutex_trylock(&mutex)) sched_yield(); shared++; pthread_mutex_unlock(&mutex); } return a; }
static void fine_trylock(void) { both(tries, one_lock); }

static void *produces(void *a) { LOOP { pthread_mutex_lock(&mutex); while (ready) pthread_cond_wait(&condition, &mutex); shared = i; ready = 1; pthread_cond_broadcast(&condition); pthread_mutex_unlock(&mutex); } return a; }
static void *consumes(void *a) { LOOP { pthread_mutex_lock(&mutex); while (!ready) pthread_cond_wait(&condition, &mutex); result += shared; ready = 0; pthread_cond_broadcast(&condition); pthread_mutex_unlock(&mutex); } return a; }
static void fine_condition(void) { both(produces, consumes); }

static void *phase_one(void *a) { LOOP { shared++; pthread_barrier_wait(&barrier); pthread_barrier_wait(&barrier); } return a; }
static void *phase_two(void *a) { LOOP { pthread_barrier_wait(&barrier); shared++; pthread_barrier_wait(&barrier); } return a; }
static void fine_barrier(void) { pthread_barrier_init(&barrier, NULL, 2); both(phase_one, phase_two); }

static void *posts(void *a) { shared = 1; sem_post(&semaphore); return a; }
static void *waits(void *a) { sem_wait(&semaphore); shared++; return a; }
static void fine_semaphore(void) { sem_init(&semaphore, 0, 0); both(posts, waits); }
static void *tries_semaphore(void *a) { while (sem_trywait(&semaphore)) sched_yield(); shared++; return a; }
static void fine_semaphore_try(void) { sem_init(&semaphore, 0, 0); both(posts, tries_semaphore); }

static void makes(void) { pointer = calloc(1, 64); *pointer = 9; }
static void *makes_once(void *a) { pthread_once(&once, makes); return (void *)(long)*pointer; }
static void fine_once(void) { both(makes_once, makes_once); }
static void *makes_c11_once(void *a) { call_once(&c11_once, makes); return (void *)(long)*pointer; }
static void fine_c11_once(void) { both(makes_c11_once, makes_c11_once); }

static void *releases(void *a) { shared = 42; atomic_store_explicit(&flag, 1, memory_order_release); return a; }
static void *acquires(void *a) { while (!atomic_load_explicit(&flag, memory_order_acquire)) sched_yield(); result = shared; return a; }
static void fine_release_acquire(void) { both(releases, acquires); }

static void *fence_releases(void *a) { shared = 42; atomic_thread_fence(memory_order_release); atomic_store_explicit(&flag, 1, memory_order_relaxed); return a; }
static void *fence_acquires(void *a) { while (!atomic_load_explicit(&flag, memory_order_relaxed)) sched_yield(); atomic_thread_fence(memory_order_acquire); result = shared; return a; }
static void fine_fences(void) { both(fence_releases, fence_acquires); }

static void fine_atomic_counter(void) { both(atomic_adds, atomic_adds); }

static void *exchange_lock(void *a) { LOOP { while (atomic_exchange(&flag, 1)) sched_yield(); shared++; atomic_store(&flag, 0); } return a; }
static void fine_lock_of_atomics(void) { both(exchange_lock, exchange_lock); }

static void *compare_lock(void *a) { LOOP { int no = 0; while (!atomic_compare_exchange_weak(&flag, &no, 1)) { no = 0; sched_yield(); } shared++; atomic_store_explicit(&flag, 0, memory_order_release); } return a; }
static void fine_lock_of_compare_exchange(void) { both(compare_lock, compare_lock); }

static void *last_one_frees(void *a) { pointer[(long)a] = 1; if (atomic_fetch_sub_explicit(&count, 1, memory_order_acq_rel) == 1) { result = pointer[1] + pointer[2]; free(pointer); } return a; }
static void fine_reference_count(void) { pointer = calloc(4, 4); atomic_store(&count, 2); both(last_one_frees, last_one_frees); }

static void *reuses(void *a) { long sum = 0; for (int i = 0; i < 2000; i++) { int *mine = malloc(48); mine[0] = i; mine[11] = i; sum += mine[0]; free(mine); } return (void *)sum; }
static void fine_memory_reuse(void) { both(reuses, reuses); }

static void *hands_block(void *a) { LOOP { int *block = malloc(64); *block = i; pthread_mutex_lock(&mutex); while (pointer) pthread_cond_wait(&condition, &mutex); pointer = block; pthread_cond_broadcast(&condition); pthread_mutex_unlock(&mutex); } return a; }
static void *takes_block(void *a) { LOOP { pthread_mutex_lock(&mutex); while (!pointer) pthread_cond_wait(&condition, &mutex); int *block = pointer; pointer = NULL; pthread_cond_broadcast(&condition); pthread_mutex_unlock(&mutex); ++*block; free(block); } return a; }
static void fine_hand_over(void) { both(hands_block, takes_block); }

static void *deep(void *a) { int mine[256]; for (int i = 0; i < 256; i++) mine[i] = i + (int)(long)a; volatile int *place = mine; return (void *)(long)place[17]; }
static void fine_stack_reuse(void) {
    for (int i = 0; i < 5; i++) {
        pthread_attr_t attributes;
        pthread_t t;
        pthread_attr_init(&attributes);
        pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
        pthread_create(&t, &attributes, deep, NULL);
        nap();
    }
}

static void *recursive(void *a) { LOOP { pthread_mutex_lock(&second); pthread_mutex_lock(&second); shared++; pthread_mutex_unlock(&second); shared++; pthread_mutex_unlock(&second); } return a; }
static void fine_recursive_lock(void) {
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_settype(&attributes, PTHREAD_MUTEX_RECURSIVE);
    pthread_mutex_init(&second, &attributes);
    both(recursive, recursive);
}

static int c11_adds(void *a) { LOOP { mtx_lock(&c11); shared++; mtx_unlock(&c11); } (void)a; return 0; }
static void fine_c11_threads(void) { thrd_t a, b; mtx_init(&c11, mtx_plain); thrd_create(&a, c11_adds, NULL); thrd_create(&b, c11_adds, NULL); thrd_join(a, NULL); thrd_join(b, NULL); result = shared; }
static int c11_waits(void *a) { mtx_lock(&c11); while (!ready) cnd_wait(&c11_condition, &c11); shared++; mtx_unlock(&c11); (void)a; return 0; }
static void fine_c11_condition(void) { thrd_t a; mtx_init(&c11, mtx_plain); cnd_init(&c11_condition); thrd_create(&a, c11_waits, NULL); shared = 1; mtx_lock(&c11); ready = 1; cnd_signal(&c11_condition); mtx_unlock(&c11); thrd_join(a, NULL); }

static void destroys(void *a) { shared = (int)(long)a; }
static void *has_key(void *a) { pthread_setspecific(key, a); return a; }
static void fine_key_destructor(void) { pthread_key_create(&key, destroys); pthread_t t; pthread_create(&t, NULL, has_key, (void *)7); pthread_join(t, NULL); result = shared; }

static void *exits(void *a) { shared = 8; pthread_exit(a); }
static void fine_thread_exit(void) { pthread_t t; pthread_create(&t, NULL, exits, NULL); pthread_join(t, NULL); result = shared; }

static void cleans(void *a) { shared++; (void)a; }
static void *is_cancelled(void *a) { pthread_cleanup_push(cleans, NULL); shared = 3; sem_post(&semaphore2); for (;;) sem_wait(&semaphore); pthread_cleanup_pop(0); return a; }
static void fine_cancelled(void) { sem_init(&semaphore, 0, 0); sem_init(&semaphore2, 0, 0); pthread_t t; pthread_create(&t, NULL, is_cancelled, NULL); sem_wait(&semaphore2); pthread_cancel(t); pthread_join(t, NULL); result = shared; }

static jmp_buf place;
static void falls(int depth) { if (depth == 0) longjmp(place, 1); shared++; falls(depth - 1); shared++; }
static void *jumps(void *a) { pthread_mutex_lock(&mutex); for (volatile int i = 0; i < 20; i++) if (!setjmp(place)) falls(20); pthread_mutex_unlock(&mutex); return a; }
static void fine_longjmp(void) { both(jumps, jumps); }

static __thread int own;
static void *own_only(void *a) { LOOP own++; return (void *)(long)own; }
static void fine_thread_local(void) { both(own_only, own_only); }

static void *disjoint(void *a) { for (int i = (int)(long)a - 1; i < 4096; i += 2) table[i] = i; return a; }
static void fine_disjoint(void) { both(disjoint, disjoint); result = table[5]; }

static void *two_locks(void *a) { LOOP { pthread_mutex_lock(&mutex); pthread_mutex_lock(&second); shared++; pthread_mutex_unlock(&second); other++; pthread_mutex_unlock(&mutex); } return a; }
static void fine_two_locks(void) { both(two_locks, two_locks); }

static void *sends_in_order(void *a) { shared = 1; sends(ends[1]); return a; }
static void fine_pipe(void) { if (pipe(ends)) abort(); both(sends_in_order, receives_and_writes); }
static void fine_after_vfork(void) {
    if (pipe(ends)) abort();
    pid_t child = vfork();
    if (child == 0) {
        close(ends[0]);
        close(ends[1]);
        _exit(0);
    }
    waitpid(child, NULL, 0);
    both(sends_in_order, receives_and_writes);
}
static void fine_socket_pair(void) { if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends)) abort(); both(sends_in_order, receives_and_writes); }
static void *tells_event(void *a) { shared = 1; eventfd_write(ends[0], 1); return a; }
static void fine_event_descriptor(void) { ends[0] = eventfd(0, 0); both(tells_event, receives_and_writes); }

static void *opens_and_closes(void *a) { LOOP { int mine = open("/dev/zero", O_RDONLY); receives(mine); close(mine); } return a; }
static void fine_descriptor_reuse(void) { both(opens_and_closes, opens_and_closes); }

static void *maps(void *a) { LOOP { int *mine = mmap(NULL, 65536, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0); *mine = i; munmap(mine, 65536); } return a; }
static void fine_mapped_again(void) { both(maps, maps); }

static void *many_blocks(void *a) { for (int i = 0; i < 70000; i++) { int *mine = malloc(200); mine[i & 31]++; free(mine); } return a; }
static void *few_descriptors(void *a) { for (int i = 0; i < 3000; i++) close(open("/dev/zero", O_RDONLY)); return a; }
static void fine_many_lives(void) { both(few_descriptors, few_descriptors); both(many_blocks, many_blocks); }

/* So many stacks that the C library gives some back, with what belongs to their threads. */
static void *creates_many(void *a) {
    pthread_t t[8];
    LOOP {
        if (i == 10) break;
        for (int k = 0; k < 8; k++) pthread_create(&t[k], NULL, with, NULL);
        for (int k = 0; k < 8; k++) pthread_join(t[k], NULL);
    }
    return a;
}
static void fine_threads_of_threads(void) { both(creates_many, creates_many); }

static void *small_block(void *a) { int *mine = calloc(1, 16); mine[0]++; free(mine); return a; }
static void fine_small_block_reuse(void) {
    for (int i = 0; i < 4; i++) {
        pthread_t t;
        pthread_create(&t, NULL, small_block, NULL);
        pthread_detach(t);
        nap();
    }
}

static void at_exit(void) { result = shared; }
static void *announces(void *a) { shared = 4; atexit(at_exit); goes_first(); return a; }
static void fine_at_exit(void) { pthread_t t; pthread_create(&t, NULL, announces, NULL); pthread_detach(t); goes_second(); }

static void *destroys_after(void *a) { pthread_mutex_lock(&mutex); if (++other == 2) pthread_mutex_destroy(&second); pthread_mutex_unlock(&mutex); return a; }
static void *uses_lock(void *a) { pthread_mutex_lock(&second); shared++; pthread_mutex_unlock(&second); return destroys_after(a); }
static void fine_lock_destroyed(void) { both(uses_lock, uses_lock); }

static void handles(int signal) { result = shared; (void)signal; }
static void *signals_itself(void *a) { goes_second(); pthread_kill(pthread_self(), SIGUSR1); return a; }
static void fine_signal_handler(void) {
    pthread_t t;
    pthread_create(&t, NULL, signals_itself, NULL);
    shared = 6;
    sigaction(SIGUSR1, &(struct sigaction){.sa_handler = handles}, NULL);
    goes_first();
    pthread_join(t, NULL);
}

/* ThreadSanitizer's and ours; plainly built there are none. */
extern void AnnotateIgnoreSyncBegin(const char *, int) __attribute__((weak));
extern void AnnotateIgnoreSyncEnd(const char *, int) __attribute__((weak));
static void releases_in_handler(int signal) { shared = 42; atomic_store_explicit(&flag, 1, memory_order_release); (void)signal; }
static void *ignores_order(void *a) {
    if (AnnotateIgnoreSyncBegin) AnnotateIgnoreSyncBegin(__FILE__, __LINE__);
    pthread_kill(pthread_self(), SIGUSR1);
    if (AnnotateIgnoreSyncEnd) AnnotateIgnoreSyncEnd(__FILE__, __LINE__);
    return a;
}
static void fine_signal_where_order_is_ignored(void) {
    sigaction(SIGUSR1, &(struct sigaction){.sa_handler = releases_in_handler}, NULL);
    both(ignores_order, acquires);
}

static void only_reads(int signal) { (void)signal; if (other == 7) abort(); }
static void fine_signals_while_threads_begin(void) {
    sigaction(SIGPROF, &(struct sigaction){.sa_handler = only_reads}, NULL);
    setitimer(ITIMER_PROF, &(struct itimerval){{0, 10}, {0, 10}}, NULL);
    for (int i = 0; i < 3000; i++) {
        pthread_t t;
        pthread_create(&t, NULL, with, NULL);
        pthread_join(t, NULL);
    }
    setitimer(ITIMER_PROF, &(struct itimerval){{0, 0}, {0, 0}}, NULL);
}

/* Handlers that leave by a jump, whatever they interrupt. */
static sigjmp_buf jump_back;
static volatile sig_atomic_t may_jump, jumped;
static void jumps_back(int signal) { (void)signal; if (may_jump) { may_jump = 0; jumped++; siglongjmp(jump_back, 1); } }
static void *allocates(void *a) {
    for (int i = 0; i < 20000; i++) { free(malloc(i % 100 + 1)); pthread_mutex_lock(&mutex); shared++; pthread_mutex_unlock(&mutex); }
    return a;
}
static void fine_jumps_from_handlers(void) {
    pthread_t t;
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pthread_create(&t, NULL, allocates, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    sigaction(SIGALRM, &(struct sigaction){.sa_handler = jumps_back}, NULL);
    setitimer(ITIMER_REAL, &(struct itimerval){{0, 100}, {0, 100}}, NULL);
    sigsetjmp(jump_back, 1);
    while (jumped < 500) {
        may_jump = 1;
        for (int i = 0; i < 5000; i++) table[(i * 37 + jumped) % 4096]++;
        may_jump = 0;
    }
    setitimer(ITIMER_REAL, &(struct itimerval){{0, 0}, {0, 0}}, NULL);
    pthread_join(t, NULL);
}

static void writes_in_handler(int signal) { (void)signal; shared = 1; }
static void *is_signalled(void *a) { pthread_kill(pthread_self(), SIGUSR1); return a; }
static void race_in_handler(void) {
    sigaction(SIGUSR1, &(struct sigaction){.sa_handler = writes_in_handler}, NULL);
    both(is_signalled, reads);
}

/* Cancelled at any instruction, also of what its accesses are recorded by. */
static void *counts_for_ever(void *a) {
    pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, NULL);
    for (unsigned i = 0;; i++) table[i * 37 % 4096]++;
    return a;
}
static void fine_cancelled_anywhere(void) {
    for (int i = 0; i < 200; i++) {
        pthread_t t;
        void *end;
        pthread_create(&t, NULL, counts_for_ever, NULL);
        usleep(i % 20 * 20);
        pthread_cancel(t);
        pthread_join(t, &end);
        if (end != PTHREAD_CANCELED) abort();
    }
}

static struct { const char *name; void (*run)(void); } all[] = {
#define CASE(name) { #name, name }
    CASE(race_counter), CASE(race_write_and_read), CASE(race_different_locks), CASE(race_one_side_locks),
    CASE(race_writes_under_read_lock), CASE(race_same_byte), CASE(race_byte_and_word), CASE(race_memset),
    CASE(race_memcpy), CASE(race_free_and_use), CASE(race_heap), CASE(race_volatile_flag),
    CASE(race_relaxed_flag), CASE(race_atomic_and_plain), CASE(race_double_checked), CASE(race_main_too),
    CASE(race_detached_one_after_the_other), CASE(race_before_barrier), CASE(race_behind_the_lock),
    CASE(race_semaphore_too_early), CASE(race_on_a_stack), CASE(race_bit_fields),
    CASE(race_trylock_ignored), CASE(race_sends_too_early), CASE(race_read_into), CASE(race_close),
    CASE(race_memcmp), CASE(race_lock_destroyed),
    CASE(race_freed_far), CASE(race_block_allocated_again), CASE(race_block_allocated_again_often),
    CASE(race_in_handler),
    CASE(fine_nothing), CASE(fine_one_lock), CASE(fine_neighbouring_bytes), CASE(fine_reads),
    CASE(fine_create_and_join), CASE(fine_rwlock), CASE(fine_rwlock_writers), CASE(fine_spin_lock),
    CASE(fine_trylock), CASE(fine_condition), CASE(fine_barrier), CASE(fine_semaphore),
    CASE(fine_semaphore_try), CASE(fine_once), CASE(fine_c11_once), CASE(fine_release_acquire),
    CASE(fine_fences), CASE(fine_atomic_counter), CASE(fine_lock_of_atomics),
    CASE(fine_lock_of_compare_exchange), CASE(fine_reference_count), CASE(fine_memory_reuse),
    CASE(fine_hand_over), CASE(fine_stack_reuse), CASE(fine_recursive_lock), CASE(fine_c11_threads),
    CASE(fine_c11_condition), CASE(fine_key_destructor), CASE(fine_thread_exit), CASE(fine_cancelled),
    CASE(fine_longjmp), CASE(fine_thread_local), CASE(fine_disjoint), CASE(fine_two_locks),
    CASE(fine_pipe), CASE(fine_socket_pair), CASE(fine_event_descriptor), CASE(fine_descriptor_reuse),
    CASE(fine_mapped_again), CASE(fine_small_block_reuse), CASE(fine_at_exit), CASE(fine_lock_destroyed),
    CASE(fine_signal_handler), CASE(fine_after_vfork), CASE(fine_many_lives),
    CASE(fine_signal_where_order_is_ignored), CASE(fine_threads_of_threads),
    CASE(fine_signals_while_threads_begin), CASE(fine_block_allocated_again),
    CASE(fine_jumps_from_handlers), CASE(fine_cancelled_anywhere),
};

int main(int argc, char **argv) {
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        if (argc < 2)
            puts(all[i].name);
        else if (!strcmp(argv[1], all[i].name))
            return all[i].run(), 0;
    }
    return argc < 2 ? 0 : 2;
}
