// The barrier of compiler-rt's tests for ThreadSanitizer, for programs that run without that: it has accesses
// come in a certain order, and tells no tool of it. Its word is only touched by locked instructions and
// by the kernel.
#include <limits.h>
#include <linux/futex.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <unistd.h>

static unsigned look(unsigned *barrier) { return __sync_fetch_and_add(barrier, 0); }

// The lower half counts who came, the upper half says how many have to.
static unsigned round_of(unsigned state) { return (state & 0xffff) / (state >> 16); }

void __tsan_testonly_barrier_init(unsigned *barrier, unsigned count) {
    __sync_fetch_and_and(barrier, 0);
    __sync_fetch_and_add(barrier, count << 16);
}

void __tsan_testonly_barrier_wait(unsigned *barrier) {
    unsigned before = __sync_fetch_and_add(barrier, 1);
    if (round_of(before) != round_of(before + 1)) {
        syscall(SYS_futex, barrier, FUTEX_WAKE, INT_MAX);
        return;
    }
    for (unsigned now = look(barrier); round_of(now) == round_of(before); now = look(barrier))
        syscall(SYS_futex, barrier, FUTEX_WAIT, now, NULL);
}
