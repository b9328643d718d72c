// Plays oneTBB: looks for the permit manager as oneTBB does, and asks it for permits. The same file is the
// library that plays (whose name says who it is) and, with -DHOST, a program that loads it.
//
// Reads commands, one a line, and answers each with one line; I is the number of an arena:
//
//   connect          the answer of tcmConnect
//   new I            a permit for later, as an arena asks for it when it begins
//   want I MIN MAX   asks: the answer, the number given and the state
//   want2 I MIN MAX  the same from another thread
//   off I            has no work any more: the answer
//   get I            the number given and the state
//   until I N        waits until a callback about I has read N: "yes", or "no" after a long time
//   slow I           callbacks about I take their time from now on
//   entered I        waits until such a callback has begun
//   release I        the answer, and how many callbacks about I are running when it is back
//   quit I           callbacks about I release it
//   on I / leave     this thread begins to work for I / ends its latest work
//   wrong            the answers to calls that make no sense
//   version          what tcmGetVersionInfo says
//   fork I MIN MAX   a child connects, and asks for a permit of its own, as "want" does
//   bye              the answer of tcmDisconnect
#ifdef HOST
#include <dlfcn.h>
#include <stdio.h>

int main(int count, char **arguments)
{
    void *library = count > 1 ? dlopen(arguments[1], RTLD_NOW | RTLD_LOCAL) : NULL;
    int (*play)(void) = library ? (int (*)(void))dlsym(library, "play") : NULL;
    if (!play) {
        printf("%s\n", dlerror());
        return 1;
    }
    return play();
}
#else
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

// The interface, as far as it is played with.
struct answer {
    uint32_t *numbers;
    void **masks;
    uint32_t size;
    uint8_t state;
    uint32_t flags;
};
struct wish {
    int32_t min, max;
    void *constraints;
    uint32_t size;
    int32_t priority;
    uint32_t flags;
    char reserved[4];
};
typedef int callback(void *, void *, uint32_t);
static int (*connect_)(callback *, uint64_t *);
static int (*disconnect_)(uint64_t);
static int (*request)(uint64_t, struct wish, void *, void **, struct answer *);
static int (*get)(void *, struct answer *);
static int (*release)(void *), (*deactivate)(void *), (*idle)(void *), (*activate)(void *), (*on)(void *);
static int (*leave)(void), (*version)(char *, uint32_t);

enum { ARENAS = 8, LATER = 1 << 3, PATIENCE = 20 * 1000 };
static struct arena {
    void *permit;
    atomic_int seen, running, slow, quit, left;
} arenas[ARENAS];
static uint64_t client;

static int look_up(void)
{
    void *manager = dlopen("libtcm.so.1", RTLD_LAZY | RTLD_GLOBAL | RTLD_NOLOAD);
    if (!manager)
        manager = dlopen("libtcm.so.1", RTLD_NOW | RTLD_GLOBAL);
    if (!manager)
        return 0;
    struct {
        const char *name;
        void *function;
    } all[] = {
        {"tcmConnect", &connect_},      {"tcmDisconnect", &disconnect_},  {"tcmRequestPermit", &request},
        {"tcmGetPermitData", &get},     {"tcmReleasePermit", &release},   {"tcmIdlePermit", &idle},
        {"tcmDeactivatePermit", &deactivate}, {"tcmActivatePermit", &activate}, {"tcmRegisterThread", &on},
        {"tcmUnregisterThread", &leave}, {"tcmGetVersionInfo", &version},
    };
    for (unsigned i = 0; i < sizeof all / sizeof *all; i++) {
        void *found = dlsym(manager, all[i].name);
        if (!found)
            return 0;
        memcpy(all[i].function, &found, sizeof found);
    }
    return 1;
}

static int read_permit(struct arena *arena, int *state)
{
    uint32_t number = 99;
    struct answer answer = {&number, NULL, 1, 0, 0};
    int failed = get(arena->permit, &answer);
    *state = failed ? -1 : answer.state;
    return (int)number;
}

static int changed(void *permit, void *argument, uint32_t why)
{
    struct arena *arena = argument;
    int state;
    arena->running++;
    if (permit != arena->permit || why == 0)
        printf("wrong callback\n");
    int number = read_permit(arena, &state);
    for (int i = 0; arena->slow && i < 200; i++)
        usleep(1000);
    if (arena->quit && !arena->left) {
        arena->left = 1;
        release(permit);
    }
    arena->running--;
    arena->seen = number;
    return 0;
}

static void want(struct arena *arena, int min, int max)
{
    struct wish wish = {min, max, NULL, 0, 0, 0, {0}};
    int failed = request(client, wish, arena, &arena->permit, NULL), state;
    int number = read_permit(arena, &state);
    printf("%d %d %d\n", failed, number, state);
}

struct task {
    struct arena *arena;
    int min, max;
};

static void *want_elsewhere(void *task_)
{
    struct task *task = task_;
    want(task->arena, task->min, task->max);
    return NULL;
}

static int soon(atomic_int *what, int value)
{
    for (int i = 0; i < PATIENCE && *what != value; i++)
        usleep(1000);
    return *what == value;
}

int play(void)
{
    char line[256];
    if (!look_up()) {
        printf("no permit manager\n");
        return 1;
    }
    while (fgets(line, sizeof line, stdin)) {
        char name[32];
        int i = 0, a = 0, b = 0, state;
        if (sscanf(line, "%31s %d %d %d", name, &i, &a, &b) < 1 || i < 0 || i >= ARENAS)
            continue;
        struct arena *arena = &arenas[i];
        if (!strcmp(name, "connect")) {
            printf("%d\n", connect_(changed, &client));
        } else if (!strcmp(name, "new")) {
            struct wish wish = {0, 0, NULL, 0, 0, LATER, {0}};
            printf("%d\n", request(client, wish, arena, &arena->permit, NULL));
        } else if (!strcmp(name, "want")) {
            want(arena, a, b);
        } else if (!strcmp(name, "want2")) {
            pthread_t thread;
            struct task task = {arena, a, b};
            pthread_create(&thread, NULL, want_elsewhere, &task);
            pthread_join(thread, NULL);
        } else if (!strcmp(name, "off")) {
            printf("%d\n", deactivate(arena->permit));
        } else if (!strcmp(name, "get")) {
            a = read_permit(arena, &state);
            printf("%d %d\n", a, state);
        } else if (!strcmp(name, "until")) {
            printf("%s\n", soon(&arena->seen, a) ? "yes" : "no");
        } else if (!strcmp(name, "slow")) {
            arena->slow = 1;
            printf("yes\n");
        } else if (!strcmp(name, "entered")) {
            printf("%s\n", soon(&arena->running, 1) ? "yes" : "no");
        } else if (!strcmp(name, "release")) {
            a = release(arena->permit);
            printf("%d %d\n", a, arena->running);
        } else if (!strcmp(name, "quit")) {
            arena->quit = 1;
            printf("yes\n");
        } else if (!strcmp(name, "on")) {
            printf("%d\n", on(arena->permit));
        } else if (!strcmp(name, "leave")) {
            printf("%d\n", leave());
        } else if (!strcmp(name, "wrong")) {
            struct wish wish = {3, 2, NULL, 0, 0, 0, {0}};
            void *none = NULL, *unknown = (void *)(uintptr_t)4711;
            uint64_t nobody = 4711;
            int more_than_most = request(client, wish, arena, &none, NULL);
            wish = (struct wish){0, 2, NULL, 5, 0, 0, {0}};
            int no_constraints = request(client, wish, arena, &none, NULL);
            wish = (struct wish){0, 2, NULL, 0, 0, 0, {0}};
            int stranger = request(nobody, wish, arena, &none, NULL);
            int nowhere = request(client, wish, arena, NULL, NULL);
            printf("%d %d %d %d %d %d %d %d %d %d\n", !!more_than_most, !!no_constraints, !!stranger, !!nowhere,
                   !!release(unknown), !!release(NULL), !!get(unknown, NULL), !!idle(unknown),
                   !!activate(unknown), !!disconnect_(nobody));
        } else if (!strcmp(name, "version")) {
            char text[64] = "";
            a = version(text, sizeof text);
            printf("%d %s", a, text);
        } else if (!strcmp(name, "fork")) {
            fflush(stdout);
            pid_t child = fork();
            if (child == 0) {
                arena->permit = NULL;
                if (connect_(changed, &client) == 0)
                    want(arena, a, b);
                fflush(stdout);
                _exit(0);
            }
            waitpid(child, NULL, 0);
        } else if (!strcmp(name, "bye")) {
            printf("%d\n", disconnect_(client));
        }
        fflush(stdout);
    }
    return 0;
}
#endif
