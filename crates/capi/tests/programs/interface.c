/* Every function of corewise.h, in its range and out of it, where no manager runs. Prints nothing if all is
 * well, else the line that is not. */
#define _GNU_SOURCE
#include "corewise.h"

#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(what)                                                                                         \
    do {                                                                                                    \
        if (!(what)) {                                                                                      \
            printf("interface.c:%d: %s\n", __LINE__, #what);                                                \
            exit(1);                                                                                        \
        }                                                                                                   \
    } while (0)

enum { COUNT = 10000 };
static unsigned char done[COUNT];
static long nested;

static void work(size_t from, size_t to, void *data)
{
    CHECK(data == done && from < to && to <= COUNT && to - from <= 16);
    for (size_t i = from; i < to; i++)
        __atomic_fetch_add(&done[i], 1, __ATOMIC_RELAXED);
    corewise_add_progress(to - from);
}

static void count(size_t from, size_t to, void *data)
{
    (void)data;
    __atomic_fetch_add(&nested, (long)(to - from), __ATOMIC_RELAXED);
}

static void outer(size_t from, size_t to, void *data)
{
    (void)data;
    CHECK(corewise_blocking_begin() == 0 && corewise_blocking_begin() == 0);
    CHECK(corewise_blocking_end() == 0 && corewise_blocking_end() == 0);
    for (size_t i = from; i < to; i++)
        CHECK(corewise_parallel_for(0, 10, 3, count, NULL) == 0);
}

/* With one thread granted, two parts can only be at work together if each gives its place away. */
static void meet(size_t from, size_t to, void *data)
{
    int *here = data;
    (void)from;
    (void)to;
    __atomic_fetch_add(here, 1, __ATOMIC_RELAXED);
    CHECK(corewise_blocking_begin() == 0);
    for (int i = 0; i < 60000 && __atomic_load_n(here, __ATOMIC_RELAXED) < 2; i++)
        usleep(1000);
    CHECK(__atomic_load_n(here, __ATOMIC_RELAXED) == 2);
    /* Not ended: that happens when the part does. */
}

static void changed(void *data)
{
    (void)data;
}

static int answer(int request, void *data)
{
    (void)data;
    return request == COREWISE_SHRINK;
}

int main(void)
{
    cpu_set_t before, after, claimed;
    char small[sizeof(unsigned long)];
    CHECK(sched_getaffinity(0, sizeof before, &before) == 0);
    const unsigned cpus = (unsigned)CPU_COUNT(&before);

    CHECK(corewise_join("caf\xe9") == -EINVAL);
    CHECK(corewise_join("interface") == 0);
    CHECK(corewise_join(NULL) == 0);
    CHECK(corewise_is_managed() == 0);

    /* The claim is the effective CPUs, which a quota may hold below the affinity. */
    const unsigned effective = corewise_threads();
    CHECK(effective >= 1 && effective <= cpus);
    CHECK(corewise_threads_fast() == effective && corewise_threads_fast() == effective);
    CHECK((unsigned)corewise_word() == effective && *corewise_page() != NULL);
    CHECK(corewise_cpus(&claimed, sizeof claimed) == CPU_COUNT(&claimed));
    CHECK(CPU_EQUAL(&claimed, &before));
    CHECK(corewise_cpus(small, sizeof small) == CPU_COUNT(&before));
    CHECK(corewise_cpus(NULL, sizeof claimed) == -EINVAL);
    CHECK(corewise_cpus(&claimed, 3) == -EINVAL);

    CHECK(corewise_invade(0, 1, COREWISE_ANY) == -EINVAL);
    CHECK(corewise_invade(2, 1, COREWISE_ANY) == -EINVAL);
    CHECK(corewise_invade(1, 1, (enum corewise_placement)3) == -EINVAL);
    CHECK(corewise_invade(1, 1, COREWISE_SCATTER) == 1);
    CHECK(corewise_threads() == 1 && corewise_threads_fast() == 1);
    CHECK(corewise_invade(1, 4096, COREWISE_COMPACT) == (int)effective);
    CHECK(corewise_threads_fast() == effective);

    /* Without a manager nobody is moved. */
    CHECK(corewise_pin(1) == 0 && corewise_pin(0) == 0);
    CHECK(sched_getaffinity(0, sizeof after, &after) == 0 && CPU_EQUAL(&before, &after));

    CHECK(corewise_coschedule("job/stage", 100) == 0 && corewise_coschedule(NULL, 0) == 0);
    CHECK(corewise_coschedule("", 0) == -EINVAL && corewise_coschedule("\xff", 1) == -EINVAL);

    CHECK(corewise_on_change(NULL, NULL) == -EINVAL);
    const int number = corewise_on_change(changed, NULL);
    CHECK(number > 0);
    CHECK(corewise_forget_change(number) == 0);
    CHECK(corewise_forget_change(number) == -ENOENT);
    CHECK(corewise_set_answer(answer, NULL) == 0 && corewise_set_answer(NULL, NULL) == 0);

    struct pollfd event = {.fd = corewise_event_fd(), .events = POLLIN};
    CHECK(event.fd >= 0 && corewise_event_fd() == event.fd);
    uint64_t read_from_it;
    while (read(event.fd, &read_from_it, sizeof read_from_it) > 0) {
    }
    const uint64_t generation = corewise_generation();
    CHECK(corewise_wait_change(generation, 0) == 0);
    CHECK(corewise_wait_change(generation, 1000000) == 0);
    CHECK(corewise_retreat(0) == -EINVAL);
    CHECK(corewise_retreat(1) == 1);
    if (effective > 1) {
        CHECK(corewise_wait_change(generation, -1) == 1);
        CHECK(corewise_generation() != generation);
        CHECK(poll(&event, 1, 10000) == 1);
    }
    CHECK(corewise_invade(1, 4096, COREWISE_ANY) == (int)effective);

    CHECK(corewise_parallel_for(0, COUNT, 16, work, done) == 0);
    for (int i = 0; i < COUNT; i++)
        CHECK(done[i] == 1);
    CHECK(corewise_parallel_for(5, 5, 0, work, done) == 0);
    CHECK(corewise_parallel_for(5, 4, 0, work, done) == -EINVAL);
    CHECK(corewise_parallel_for(0, 1, 0, NULL, done) == -EINVAL);
    CHECK(corewise_parallel_for(0, 20, 1, outer, NULL) == 0);
    CHECK(nested == 200);
    CHECK(corewise_blocking_begin() == 0 && corewise_blocking_end() == 0);
    CHECK(corewise_blocking_end() == -EINVAL);

    int here = 0;
    CHECK(corewise_retreat(1) == 1);
    CHECK(corewise_parallel_for(0, 2, 1, meet, &here) == 0);
    CHECK(corewise_blocking_end() == -EINVAL);

    /* A child has a claim of its own: the effective CPUs. */
    CHECK(corewise_retreat(1) == 1);
    const pid_t child = fork();
    if (child == 0)
        _exit(corewise_threads_fast() >= 1 && corewise_is_managed() == 0 ? 0 : 1);
    int status = -1;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    return 0;
}
