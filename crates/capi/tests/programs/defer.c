/* Every function of corewise_defer.h. */
#include "corewise_defer.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(what) \
    do { \
        if (!(what)) { \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #what); \
            exit(1); \
        } \
    } while (0)

static uint64_t sum;

static void add(void *data, const uint64_t *words) {
    __atomic_fetch_add((uint64_t *)data, words[0] * words[1], __ATOMIC_RELAXED);
}

static void freed(void *data, const uint64_t *words) {
    char *text = (char *)(uintptr_t)words[0];
    __atomic_fetch_add((uint64_t *)data, (uint64_t)text[0], __ATOMIC_RELAXED);
    free(text);
}

static corewise_defer *calls;
static int adding;

static void *many(void *unused) {
    (void)unused;
    for (uint64_t turn = 0; turn < 10000; turn++) {
        uint64_t words[] = {turn, 2};
        CHECK(corewise_defer_call(calls, adding, words, 2) == 0);
    }
    return NULL;
}

static int ends[2];

static void tell(void *data, const uint64_t *words) {
    (void)data;
    char said = (char)words[0];
    CHECK(write(ends[1], &said, 1) == 1);
}

static void what_is_stored_is_executed_before_a_fatal_signal(void) {
    CHECK(pipe(ends) == 0);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        corewise_defer *own = corewise_defer_create(NULL);
        int telling = corewise_defer_declare(own, tell, NULL, 1, NULL);
        CHECK(corewise_defer_save_on_fatal_signals(60000) == 0);
        CHECK(corewise_defer_call(own, telling, (uint64_t[]){'y'}, 1) == 0);
        abort();
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
    char said;
    CHECK(read(ends[0], &said, 1) == 1 && said == 'y');
}

int main(void) {
    what_is_stored_is_executed_before_a_fatal_signal();
    for (int strategy = COREWISE_DEFER_ADAPTIVE; strategy <= COREWISE_DEFER_POOL; strategy++) {
        struct corewise_defer_settings settings = {sizeof settings, strategy, 100, 2, 1};
        calls = corewise_defer_create(&settings);
        CHECK(calls);
        adding = corewise_defer_declare(calls, add, NULL, 2, &sum);
        int freeing = corewise_defer_declare(calls, freed, freed, 1, &sum);
        CHECK(adding >= 0 && freeing >= 0 && adding != freeing);
        CHECK(corewise_defer_declare(calls, add, NULL, 7, NULL) == -EINVAL);
        CHECK(corewise_defer_declare(calls, NULL, NULL, 1, NULL) == -EINVAL);
        sum = 0;
        pthread_t threads[3];
        for (int index = 0; index < 3; index++) CHECK(pthread_create(&threads[index], NULL, many, NULL) == 0);
        for (int index = 0; index < 3; index++) CHECK(pthread_join(threads[index], NULL) == 0);
        CHECK(corewise_defer_finish(calls) == 0);
        CHECK(sum == 3 * 2 * (9999ull * 10000 / 2));
        sum = 0;
        char *text = malloc(2);
        CHECK(text);
        text[0] = 'x';
        uint64_t words[] = {(uintptr_t)text, 0};
        CHECK(corewise_defer_call(calls, freeing, words, 2) == -EINVAL);
        CHECK(corewise_defer_call(calls, 99, words, 1) == -EINVAL);
        CHECK(corewise_defer_call(calls, -1, words, 1) == -EINVAL);
        CHECK(corewise_defer_call(calls, freeing, NULL, 1) == -EINVAL);
        CHECK(corewise_defer_call(calls, freeing, words, 1) == 0);
        CHECK(corewise_defer_process_current(calls) == 0);
        CHECK(corewise_defer_wait(calls) == 0);
        CHECK(sum == 'x');
        corewise_defer_destroy(calls);
    }
    struct corewise_defer_settings wrong = {sizeof wrong, 9, 0, 0, 0};
    CHECK(!corewise_defer_create(&wrong));
    CHECK(corewise_defer_finish(NULL) == -EINVAL);
    corewise_defer_destroy(NULL);
    corewise_defer *usual = corewise_defer_create(NULL);
    CHECK(usual);
    corewise_defer_destroy(usual);
    return 0;
}
