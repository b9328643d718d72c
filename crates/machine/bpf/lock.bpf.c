// SPDX-License-Identifier: GPL-2.0-only OR MIT
//
// Watches the threads of one program from inside the kernel:
// - how long each was blocked on a futex, from the moment it left the CPU to the moment it was
//   woken (what follows is waiting for a CPU, not for a lock);
// - how often each was switched away and migrated, which /proc tells at thirty times the cost;
// - what each had used when it ended, because /proc forgets that at once;
// - which processes belong to the program, because a daemon leaves its parent behind.
//
// Only threads of processes in `watched` are looked at. User space puts the root there before the
// program starts; forks add the rest. Built by scripts/build-bpf; the object lies beside this file.

#include <linux/types.h>

#define SEC(name) __attribute__((section(name), used))
#define __uint(name, val) int(*name)[val]
#define __type(name, val) typeof(val) *name
#define CORE __attribute__((preserve_access_index))

#define BPF_MAP_TYPE_HASH 1
#define BPF_MAP_TYPE_ARRAY 2
#define BPF_MAP_TYPE_RINGBUF 27
#define BPF_F_NO_PREALLOC 1
#define BPF_NOEXIST 1

static void *(*const bpf_map_lookup_elem)(void *map, const void *key) = (void *)1;
static long (*const bpf_map_update_elem)(void *map, const void *key, const void *value,
					 __u64 flags) = (void *)2;
static long (*const bpf_map_delete_elem)(void *map, const void *key) = (void *)3;
static __u64 (*const bpf_ktime_get_ns)(void) = (void *)5;
static long (*const bpf_ringbuf_output)(void *ringbuf, void *data, __u64 size,
					__u64 flags) = (void *)130;
static long (*const bpf_probe_read_kernel)(void *dst, __u32 size, const void *src) = (void *)113;
static long (*const bpf_task_pt_regs)(void *task) = (void *)175;

// The kernel's structures, as far as they are used: the loader finds where the fields really are.

struct sched_info {
	unsigned long long run_delay;
} CORE;

struct sched_entity {
	__u64 sum_exec_runtime;
	__u64 nr_migrations;
} CORE;

struct task_struct {
	int pid;
	int tgid;
	__u64 utime;
	__u64 stime;
	unsigned long nvcsw;
	unsigned long nivcsw;
	struct sched_entity se;
	struct sched_info sched_info;
} CORE;

#if defined(__TARGET_ARCH_x86)
struct pt_regs {
	unsigned long orig_ax;
} CORE;
#define SYS_FUTEX 202
#elif defined(__TARGET_ARCH_arm64)
struct pt_regs {
	int syscallno;
} CORE;
#define SYS_FUTEX 98
#else
#error "which register holds the system call's number?"
#endif
#define SYS_FUTEX_WAITV 449
#define SYS_FUTEX_WAIT 455

#define TASK_INTERRUPTIBLE 1
#define TASK_UNINTERRUPTIBLE 2
#define TASK_DEAD 0x80

// One living thread that has left a CPU since it is watched.
struct thread {
	__u64 lock_ns;	// in waits for futexes that have ended
	__u64 since_ns; // start of the present wait, or 0
	// As they were when it left the CPU last.
	__u64 voluntary;
	__u64 involuntary;
	__u64 migrations;
	__u64 run_ns;
	__u64 utime;
	__u64 stime;
};

// One thread that has ended, with all that it used.
struct ended {
	__s32 tgid;
	__s32 tid;
	__u64 run_ns;
	__u64 cpu_wait_ns;
	__u64 utime;
	__u64 stime;
	__u64 voluntary;
	__u64 involuntary;
	__u64 migrations;
	__u64 lock_ns;
};

// How many processes were started, and how many records found no room and what they held in sum.
struct totals {
	__u64 processes;
	__u64 lost;
	struct ended sum;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 65536);
	__type(key, __s32);
	__type(value, struct thread);
} threads SEC(".maps");

// Processes of the program, with the number of their threads.
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 65536);
	__type(key, __s32);
	__type(value, __s64);
} watched SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 20);
} ends SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct totals);
} totals SEC(".maps");

static __always_inline int in_futex(struct task_struct *task)
{
	struct pt_regs *regs = (struct pt_regs *)bpf_task_pt_regs(task);
	__u64 call = 0;

#if defined(__TARGET_ARCH_x86)
	if (bpf_probe_read_kernel(&call, sizeof(call),
				  __builtin_preserve_access_index(&regs->orig_ax)))
		return 0;
#else
	__s32 number = 0;
	if (bpf_probe_read_kernel(&number, sizeof(number),
				  __builtin_preserve_access_index(&regs->syscallno)))
		return 0;
	call = number;
#endif
	return call == SYS_FUTEX || call == SYS_FUTEX_WAIT || call == SYS_FUTEX_WAITV;
}

static __always_inline void stop_wait(__s32 tid)
{
	struct thread *thread = bpf_map_lookup_elem(&threads, &tid);

	if (thread && thread->since_ns) {
		thread->lock_ns += bpf_ktime_get_ns() - thread->since_ns;
		thread->since_ns = 0;
	}
}

static __always_inline void end(struct task_struct *task, __s64 *count)
{
	__s32 tid = task->pid;
	__s32 tgid = task->tgid;
	struct thread *thread = bpf_map_lookup_elem(&threads, &tid);
	struct ended record = {
		.tgid = tgid,
		.tid = tid,
		.run_ns = task->se.sum_exec_runtime,
		.cpu_wait_ns = task->sched_info.run_delay,
		.utime = task->utime,
		.stime = task->stime,
		// This last switch is not one that the program made.
		.voluntary = task->nvcsw ? task->nvcsw - 1 : 0,
		.involuntary = task->nivcsw,
		.migrations = task->se.nr_migrations,
		.lock_ns = thread ? thread->lock_ns : 0,
	};

	if (bpf_ringbuf_output(&ends, &record, sizeof(record), 1 /* wake nobody */)) {
		__u32 zero = 0;
		struct totals *lost = bpf_map_lookup_elem(&totals, &zero);
		if (lost) {
			__sync_fetch_and_add(&lost->lost, 1);
			__sync_fetch_and_add(&lost->sum.run_ns, record.run_ns);
			__sync_fetch_and_add(&lost->sum.cpu_wait_ns, record.cpu_wait_ns);
			__sync_fetch_and_add(&lost->sum.utime, record.utime);
			__sync_fetch_and_add(&lost->sum.stime, record.stime);
			__sync_fetch_and_add(&lost->sum.voluntary, record.voluntary);
			__sync_fetch_and_add(&lost->sum.involuntary, record.involuntary);
			__sync_fetch_and_add(&lost->sum.migrations, record.migrations);
			__sync_fetch_and_add(&lost->sum.lock_ns, record.lock_ns);
		}
	}
	bpf_map_delete_elem(&threads, &tid);
	if (__sync_fetch_and_add(count, -1) <= 1)
		bpf_map_delete_elem(&watched, &tgid);
}

// (bool preempt, struct task_struct *prev, struct task_struct *next, unsigned int prev_state)
SEC("tp_btf/sched_switch")
int switched(__u64 *ctx)
{
	int preempt = ctx[0] & 1;
	struct task_struct *prev = (struct task_struct *)ctx[1];
	unsigned int state = ctx[3];
	__s32 tgid = prev->tgid;
	__s32 tid = prev->pid;
	__u64 since = 0;
	__s64 *count = bpf_map_lookup_elem(&watched, &tgid);
	struct thread *thread;

	if (!count)
		return 0;
	// A preempted thread is not blocked, whatever its state says.
	if (!preempt && state & TASK_DEAD) {
		end(prev, count);
		return 0;
	}
	if (!preempt && state & (TASK_INTERRUPTIBLE | TASK_UNINTERRUPTIBLE) && in_futex(prev))
		since = bpf_ktime_get_ns();
	thread = bpf_map_lookup_elem(&threads, &tid);
	if (thread) {
		thread->since_ns = since;
		thread->voluntary = prev->nvcsw;
		thread->involuntary = prev->nivcsw;
		thread->migrations = prev->se.nr_migrations;
		thread->run_ns = prev->se.sum_exec_runtime;
		thread->utime = prev->utime;
		thread->stime = prev->stime;
	} else {
		struct thread fresh = {
			.since_ns = since,
			.voluntary = prev->nvcsw,
			.involuntary = prev->nivcsw,
			.migrations = prev->se.nr_migrations,
			.run_ns = prev->se.sum_exec_runtime,
			.utime = prev->utime,
			.stime = prev->stime,
		};
		bpf_map_update_elem(&threads, &tid, &fresh, BPF_NOEXIST);
	}
	return 0;
}

// (struct task_struct *woken)
SEC("tp_btf/sched_wakeup")
int woken(__u64 *ctx)
{
	struct task_struct *task = (struct task_struct *)ctx[0];
	__s32 tgid = task->tgid;

	if (bpf_map_lookup_elem(&watched, &tgid))
		stop_wait(task->pid);
	return 0;
}

// (struct task_struct *parent, struct task_struct *child)
SEC("tp_btf/sched_process_fork")
int forked(__u64 *ctx)
{
	struct task_struct *parent = (struct task_struct *)ctx[0];
	struct task_struct *child = (struct task_struct *)ctx[1];
	__s32 from = parent->tgid;
	__s32 to = child->tgid;
	__s64 *count = bpf_map_lookup_elem(&watched, &from);

	if (!count)
		return 0;
	if (from == to) {
		__sync_fetch_and_add(count, 1);
	} else {
		__s64 one = 1;
		__u32 zero = 0;
		struct totals *started = bpf_map_lookup_elem(&totals, &zero);

		bpf_map_update_elem(&watched, &to, &one, 0);
		if (started)
			__sync_fetch_and_add(&started->processes, 1);
	}
	return 0;
}

// (struct task_struct *task, int old_pid, struct linux_binprm *bprm): a thread other than the
// first that starts a program takes over the first one's number.
SEC("tp_btf/sched_process_exec")
int executed(__u64 *ctx)
{
	struct task_struct *task = (struct task_struct *)ctx[0];
	__s32 old = (__s32)ctx[1];
	__s32 new = task->pid;
	__s32 tgid = task->tgid;
	struct thread *thread;

	if (old == new || !bpf_map_lookup_elem(&watched, &tgid))
		return 0;
	thread = bpf_map_lookup_elem(&threads, &old);
	if (thread) {
		struct thread moved = *thread;
		bpf_map_update_elem(&threads, &new, &moved, 0);
		bpf_map_delete_elem(&threads, &old);
	}
	return 0;
}

char _license[] SEC("license") = "Dual MIT/GPL";
