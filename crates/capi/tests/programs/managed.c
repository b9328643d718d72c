/* Does what it is told on standard input, and says what it sees; see interface.rs. */
#define _GNU_SOURCE
#include "corewise.h"

#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static int calls;

static void changed(void *data)
{
    __atomic_fetch_add((int *)data, 1, __ATOMIC_RELEASE);
}

static int answer(int request, void *data)
{
    return *(int *)data == 42 && request == COREWISE_SHRINK;
}

static void look(const char *who)
{
    cpu_set_t set;
    corewise_cpus(&set, sizeof set);
    printf("%smanaged %d\n", who, corewise_is_managed());
    printf("%sthreads %u %u\n", who, corewise_threads(), corewise_threads_fast());
    printf("%scpus ", who);
    const char *separator = "";
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (CPU_ISSET(cpu, &set)) {
            printf("%s%d", separator, cpu);
            separator = ",";
        }
    }
    printf("\n");
}

/* Each part waits until as many are at work as there should be, so that they all are. */
static unsigned expected, at_work;

static void meet(size_t from, size_t to, void *data)
{
    (void)from;
    (void)to;
    unsigned *most = data;
    const unsigned now = __atomic_add_fetch(&at_work, 1, __ATOMIC_ACQ_REL);
    unsigned seen = __atomic_load_n(most, __ATOMIC_RELAXED);
    while (now > seen && !__atomic_compare_exchange_n(most, &seen, now, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
    }
    for (int i = 0; i < 60000 && __atomic_load_n(most, __ATOMIC_RELAXED) < expected; i++)
        usleep(1000);
    __atomic_sub_fetch(&at_work, 1, __ATOMIC_ACQ_REL);
}

static void in_child(int joins)
{
    fflush(stdout);
    const pid_t child = fork();
    if (child == 0) {
        int code = corewise_event_fd() < 0 ? 0 : 1;
        if (joins) {
            code = corewise_join("child") == 1 && corewise_threads_fast() == 1 ? 0 : 1;
        } else {
            look("child ");
            unsigned most = 0;
            expected = 1;
            code |= corewise_parallel_for(0, 3, 1, meet, &most) != 0 || most != 1;
        }
        fflush(stdout);
        _exit(code);
    }
    int status = -1;
    if (waitpid(child, &status, 0) != child || status != 0) {
        printf("the child failed: %d\n", status);
        exit(1);
    }
}

int main(void)
{
    int data = 42;
    char order[32];
    if (corewise_join("caf\xc3\xa9") != 1 || corewise_on_change(changed, &calls) <= 0 ||
        corewise_set_answer(answer, &data) != 0)
        return 1;
    struct pollfd event = {.fd = corewise_event_fd(), .events = POLLIN};
    while (fgets(order, sizeof order, stdin)) {
        uint64_t count;
        if (strcmp(order, "event\n") == 0) {
            /* The change of the last order may still be on its way: until it is the one meant. */
            for (int i = 0; i < 600 && corewise_threads() != 3; i++)
                poll(&event, 1, 100);
            while (poll(&event, 1, 60000) == 1 && read(event.fd, &count, sizeof count) < 0) {
            }
            for (int i = 0; i < 60000 && !__atomic_load_n(&calls, __ATOMIC_ACQUIRE); i++)
                usleep(1000);
            printf("called %s\n", calls > 0 ? "yes" : "no");
            look("");
        } else if (strcmp(order, "work\n") == 0) {
            unsigned most = 0;
            expected = corewise_threads();
            if (corewise_parallel_for(0, 30, 1, meet, &most) != 0)
                return 1;
            printf("workers %u\n", most);
        } else if (strcmp(order, "fork\n") == 0) {
            in_child(0);
        } else if (strcmp(order, "join\n") == 0) {
            in_child(1);
        } else {
            look("");
        }
        printf("end\n");
        fflush(stdout);
    }
    return 0;
}
