// A program that waits in known ways and says how long. First argument: what it does. It starts
// when it reads a line, prints what it knows of itself, and ends when standard input ends.
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static long now(clockid_t clock)
{
	struct timespec t;
	clock_gettime(clock, &t);
	return t.tv_sec * 1000000000L + t.tv_nsec;
}

static void nap(long ms)
{
	struct timespec t = { ms / 1000, ms % 1000 * 1000000 };
	nanosleep(&t, NULL);
}

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static atomic_int stop;
static volatile int plain_stop;
static long waited;

static void *take_lock(void *unused)
{
	long start = now(CLOCK_MONOTONIC);
	pthread_mutex_lock(&mutex);
	waited += now(CLOCK_MONOTONIC) - start;
	pthread_mutex_unlock(&mutex);
	return unused;
}

// Five threads, one after the other, each blocked on a mutex for 60 ms; then they end.
static void lock(void)
{
	for (int i = 0; i < 5; i++) {
		pthread_t thread;
		pthread_mutex_lock(&mutex);
		pthread_create(&thread, NULL, take_lock, NULL);
		nap(60);
		pthread_mutex_unlock(&mutex);
		pthread_join(thread, NULL);
	}
}

static void *hint(void *unused)
{
	while (!atomic_load_explicit(&stop, memory_order_relaxed)) {
#if defined(__x86_64__)
		__builtin_ia32_pause();
#else
		__asm__ volatile("yield");
#endif
	}
	waited += now(CLOCK_THREAD_CPUTIME_ID);
	return unused;
}

static void *watch(void *unused)
{
	while (!plain_stop)
		;
	waited += now(CLOCK_THREAD_CPUTIME_ID);
	return unused;
}

static void *yielding(void *unused)
{
	while (!atomic_load_explicit(&stop, memory_order_relaxed))
		sched_yield();
	waited += now(CLOCK_THREAD_CPUTIME_ID);
	return unused;
}

static volatile unsigned result;

static void *work(void *unused)
{
	static unsigned table[4096];
	unsigned x = 1;
	while (!atomic_load_explicit(&stop, memory_order_relaxed))
		for (int i = 0; i < 4096; i++) {
			x = x * 1664525 + 1013904223;
			table[x >> 20] += i;
		}
	result = table[x & 4095];
	waited += now(CLOCK_THREAD_CPUTIME_ID);
	return unused;
}

static void run(void *(*body)(void *))
{
	pthread_t thread;
	pthread_create(&thread, NULL, body, NULL);
	nap(800);
	atomic_store(&stop, 1);
	plain_stop = 1;
	pthread_join(thread, NULL);
}

int main(int argc, char **argv)
{
	char line[16];
	const char *what = argc > 1 ? argv[1] : "";

	if (read(0, line, sizeof(line)) <= 0)
		return 1;
	if (!strcmp(what, "lock"))
		lock();
	else if (!strcmp(what, "hint"))
		run(hint);
	else if (!strcmp(what, "watch"))
		run(watch);
	else if (!strcmp(what, "yield"))
		run(yielding);
	else if (!strcmp(what, "work"))
		run(work);
	printf("%ld\n", waited);
	fflush(stdout);
	while (read(0, line, sizeof(line)) > 0)
		;
	return 0;
}
