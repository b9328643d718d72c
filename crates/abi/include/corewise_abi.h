/*
 * corewise_abi.h - the two pages of memory that a corewise manager shares with a program
 *
 * The same layout in C11 and C++ that the crate corewise-abi has in Rust; a test compares every offset.
 * Programs want corewise.h or corewise.hpp instead. This file is for those who map the pages
 * themselves: runtimes, adapters, readers in other languages.
 *
 * The claim page (down): written by the manager, mapped read-only by the program. It says how many
 * threads the program may run now, and on which CPUs. The progress page (up): written by the program,
 * read by the manager, which believes nothing in it that matters to others.
 *
 * Both are one page of COREWISE_PAGE_BYTES in a memfd whose size is sealed: reading one can never fault,
 * whatever the other side does. The program gets the two descriptors with the manager's welcome, the
 * claim page's first (SCM_RIGHTS). All numbers are in the machine's own byte order: pages never leave it.
 *
 * Growth: within a version fields keep their offsets and meanings, and new ones come at the end.
 * `size` says how much of the page its writer knows; what is beyond reads as zero.
 *
 * Access: every field is read and written with atomic operations of its size. The functions below do so
 * (GCC's and Clang's __atomic built-ins). Fields are declared plain so that C and C++ agree.
 */
#ifndef COREWISE_ABI_H
#define COREWISE_ABI_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#define COREWISE_ASSERT_(what) static_assert(what, #what)
#else
#define COREWISE_ASSERT_(what) _Static_assert(what, #what)
#endif

#define COREWISE_VERSION 1
#define COREWISE_PAGE_BYTES 4096
/* CPUs that a claim page can name: 0 to this, exclusive. */
#define COREWISE_MAX_CPUS 4096
#define COREWISE_CPU_WORDS (COREWISE_MAX_CPUS / 64)
/* Windows of one turn, at most. */
#define COREWISE_MOST_WINDOWS 8
/* `size` of a claim page at least. */
#define COREWISE_CLAIM_BYTES 704

/* `magic`: the characters CWcl and CWpr, read as a little-endian number. */
#define COREWISE_CLAIM_MAGIC UINT32_C(0x6c635743)
#define COREWISE_PROGRESS_MAGIC UINT32_C(0x72705743)

/* How every page begins. */
struct corewise_page_header {
    uint32_t magic;    /*  0  which kind of page; written last */
    uint16_t version;  /*  4  COREWISE_VERSION of the writer */
    uint16_t size;     /*  6  bytes of the page that the writer knows */
    uint64_t features; /*  8  the writer's feature bits; none are defined yet */
};

/* `state` of a claim page: who stands behind it. */
enum corewise_state {
    COREWISE_WAITING = 0, /* nothing has been granted yet */
    COREWISE_MANAGED = 1, /* a manager keeps the claim */
    COREWISE_ENDED = 2    /* the manager has ended in good order: the claim no longer binds */
};

/* The claim page. */
struct corewise_claim_page {
    struct corewise_page_header header;
    int32_t manager_pid;        /*  16  as the manager's own PID namespace numbers it */
    uint32_t state;             /*  20  enum corewise_state */
    uint32_t keeper[10];        /*  24  a robust mutex, held by who keeps the page; zero: by other means */
    uint64_t word;              /*  64  generation in the upper half, threads in the lower */
    uint32_t wake;              /*  72  the generation again: the futex word (shared, not private) */
    uint32_t reserved_line[13]; /*  76  zero */
    uint32_t sequence;          /* 128  odd while the fields below are being written */
    uint32_t cpus_generation;   /* 132  which grant the set below belongs to */
    uint32_t words;             /* 136  how many of `cpus` may be other than zero */
    uint32_t reserved_cpus;     /* 140  zero */
    uint64_t cpus[COREWISE_CPU_WORDS]; /* 144  CPU n is bit n % 64 of word n / 64 */
    uint32_t turn_sequence;     /* 656  odd while the fields below are being written */
    uint32_t turn_windows;      /* 660  windows of the turn; 0: the program runs always */
    uint64_t turn_epoch_ns;     /* 664  CLOCK_MONOTONIC; until then everything stays as it is */
    uint64_t turn_period_ns;    /* 672  the windows come again so often */
    uint64_t turn_window[COREWISE_MOST_WINDOWS][2]; /* 680  begin and end within the period */
    uint64_t reserved_end[3];   /* 808  zero; the page so far ends at 832, and before turns at 704 */
};

/* The progress page. Its writer is the program, which writes fields with relaxed atomic stores. */
struct corewise_progress_page {
    struct corewise_page_header header;
    uint64_t reserved[6];     /* 16  zero */
    uint64_t progress;        /* 64  pieces of work done so far, in the program's own unit */
    uint32_t team;            /* 72  workers that the program runs now */
    uint32_t could_use;       /* 76  threads that it could use now; 0: it does not say */
    uint32_t seen_generation; /* 80  the last generation of the claim that it follows */
    uint32_t blocked;         /* 84  workers that are blocked outside of their work */
    uint64_t reserved_end[5]; /* 88  zero; the page so far ends at 128 */
};

COREWISE_ASSERT_(offsetof(struct corewise_page_header, magic) == 0);
COREWISE_ASSERT_(offsetof(struct corewise_page_header, version) == 4);
COREWISE_ASSERT_(offsetof(struct corewise_page_header, size) == 6);
COREWISE_ASSERT_(offsetof(struct corewise_page_header, features) == 8);
COREWISE_ASSERT_(offsetof(struct corewise_claim_page, manager_pid) == 16);
COREWISE_ASSERT_(offsetof(struct corewise_claim_page, state) == 20);
COREWISE_ASSERT_(offsetof(struct corewise_claim_page, keeper) == 24);
COREWISE_ASSERT_(offsetof(struct corewise_claim_page, word) == 64);
COREWISE_ASSERT_(offsetof(struct corewise_claim_page, wake) == 72);
COREWISE_ASSERT_(offsetof(struct corewise_claim_page, sequence) == 128);
COREWISE_ASSERT_(offsetof(struct corewise_claim_page, cpus_generation) == 132);
COREWISE_ASSERT_(offsetof(struct corewise_claim_page, words) == 136);
COREWISE_ASSERT_(offsetof(struct corewise_claim_page, cpus) == 144);
COREWISE_ASSERT_(offsetof(struct corewise_claim_page, turn_sequence) == 656);
COREWISE_ASSERT_(offsetof(struct corewise_claim_page, turn_windows) == 660);
COREWISE_ASSERT_(offsetof(struct corewise_claim_page, turn_epoch_ns) == 664);
COREWISE_ASSERT_(offsetof(struct corewise_claim_page, turn_period_ns) == 672);
COREWISE_ASSERT_(offsetof(struct corewise_claim_page, turn_window) == 680);
COREWISE_ASSERT_(sizeof(struct corewise_claim_page) == 832);
COREWISE_ASSERT_(offsetof(struct corewise_progress_page, progress) == 64);
COREWISE_ASSERT_(offsetof(struct corewise_progress_page, team) == 72);
COREWISE_ASSERT_(offsetof(struct corewise_progress_page, could_use) == 76);
COREWISE_ASSERT_(offsetof(struct corewise_progress_page, seen_generation) == 80);
COREWISE_ASSERT_(offsetof(struct corewise_progress_page, blocked) == 84);
COREWISE_ASSERT_(sizeof(struct corewise_progress_page) == 128);

/* Whether `page` is a claim page that this file can read. */
static inline int corewise_abi_is_claim(const struct corewise_claim_page *page)
{
    if (__atomic_load_n(&page->header.magic, __ATOMIC_ACQUIRE) != COREWISE_CLAIM_MAGIC)
        return 0;
    return __atomic_load_n(&page->header.version, __ATOMIC_RELAXED) >= 1 &&
           __atomic_load_n(&page->header.size, __ATOMIC_RELAXED) >= COREWISE_CLAIM_BYTES;
}

/* The claim word: one load, about a nanosecond. Generations wrap around: compare for equality only.
 * Generation 0: nothing was granted yet, and the number of threads means nothing. */
static inline uint64_t corewise_abi_word(const struct corewise_claim_page *page)
{
    return __atomic_load_n(&page->word, __ATOMIC_ACQUIRE);
}

/* The generation of a claim word. */
static inline uint32_t corewise_abi_generation(uint64_t word)
{
    return (uint32_t)(word >> 32);
}

/* The number of threads of a claim word, at least 1 once something was granted. */
static inline uint32_t corewise_abi_threads(uint64_t word)
{
    return (uint32_t)word;
}

/* enum corewise_state of the page. */
static inline uint32_t corewise_abi_state(const struct corewise_claim_page *page)
{
    return __atomic_load_n(&page->state, __ATOMIC_ACQUIRE);
}

/* Copies the CPU set into `into`, `words` words of 64 CPUs (what does not fit is left out), and the
 * generation that it belongs to into `*generation`. 1: done. 0: no consistent set could be read, as when
 * the manager was killed while it wrote; then the claim does not bind. A few nanoseconds; never waits
 * for longer than a thousand attempts. */
static inline int corewise_abi_cpus(const struct corewise_claim_page *page, uint64_t *into, size_t words,
                                    uint32_t *generation)
{
    for (int tries = 0; tries < 1000; tries++) {
        uint32_t before = __atomic_load_n(&page->sequence, __ATOMIC_ACQUIRE);
        if (before & 1)
            continue;
        uint32_t used = __atomic_load_n(&page->words, __ATOMIC_RELAXED);
        if (used > COREWISE_CPU_WORDS)
            used = COREWISE_CPU_WORDS;
        for (size_t i = 0; i < words; i++)
            into[i] = i < used ? __atomic_load_n(&page->cpus[i], __ATOMIC_RELAXED) : 0;
        uint32_t of = __atomic_load_n(&page->cpus_generation, __ATOMIC_RELAXED);
        __atomic_thread_fence(__ATOMIC_ACQUIRE);
        if (__atomic_load_n(&page->sequence, __ATOMIC_RELAXED) == before) {
            *generation = of;
            return 1;
        }
    }
    return 0;
}

#ifdef __cplusplus
}
#endif

#endif
