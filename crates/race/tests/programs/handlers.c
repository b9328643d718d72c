// Signal handlers of all kinds: what the program sees of them is printed, and is the same however it runs.
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

static volatile sig_atomic_t calls, told, late, jumped;
static sigjmp_buf back;
static int table[1 << 16];
static char *page;

static void plain(int signal) { (void)signal; calls++; }
static void other(int signal) { (void)signal; calls += 10; }
static void informed(int signal, siginfo_t *info, void *context) {
    (void)signal;
    if (info->si_value.sival_int != told || !context)
        late++;
    told++;
    calls++;
}
static void jumps(int signal) { (void)signal; siglongjmp(back, 1); }
static void mends(int signal, siginfo_t *info, void *context) {
    (void)signal, (void)context;
    jumped += info->si_addr == page;
    mprotect(page, 4096, PROT_READ | PROT_WRITE);
}

static void says(const char *what, struct sigaction *was) {
    printf("%s: %s, flags %x, blocks USR2: %d\n", what,
           was->sa_handler == plain ? "plain" : was->sa_handler == other ? "other" :
           was->sa_sigaction == informed ? "informed" : was->sa_handler == SIG_DFL ? "default" :
           was->sa_handler == SIG_IGN ? "ignored" : "unknown",
           was->sa_flags & ~0x4000000, sigismember(&was->sa_mask, SIGUSR2));
}

static void set_and_seen(void) {
    struct sigaction action = {.sa_handler = plain, .sa_flags = SA_RESTART | SA_NODEFER}, was;
    sigaddset(&action.sa_mask, SIGUSR2);
    sigaction(SIGUSR1, &action, &was), says("at first", &was);
    sigaction(SIGUSR1, NULL, &was), says("looked at", &was);
    sigaction(SIGUSR1, &(struct sigaction){.sa_sigaction = informed, .sa_flags = SA_SIGINFO | SA_RESETHAND}, &was);
    says("replaced", &was);
    sigaction(SIGUSR1, &(struct sigaction){.sa_handler = SIG_IGN}, &was), says("ignored", &was);
    sigaction(SIGUSR1, &action, &was), says("again", &was);
    sigaction(SIGUSR1, &was, &action), says("put back", &action);
    printf("signal: %d", signal(SIGUSR1, plain) == SIG_IGN);
    printf(" %d", signal(SIGUSR1, other) == plain);
    printf(" %d\n", sigset(SIGUSR1, plain) == other);
    raise(SIGUSR1);
    printf("signal again: %d, %d calls\n", signal(SIGUSR1, SIG_DFL) == plain, calls);
    errno = 0;
    printf("no such: %d", sigaction(SIGKILL, &action, NULL));
    printf(" %d, %d %d", errno, signal(1000, plain) == SIG_ERR, sigaction(-1, NULL, &was));
    printf(" %d\n", errno);
}

static void once(void) {
    for (int old = 0; old < 2; old++) {
        pid_t child = fork();
        if (!child) {
            if (old)
                sysv_signal(SIGTERM, plain);
            else
                sigaction(SIGTERM, &(struct sigaction){.sa_handler = plain, .sa_flags = SA_RESETHAND}, NULL);
            raise(SIGTERM);
            struct sigaction now;
            sigaction(SIGTERM, NULL, &now);
            if (now.sa_handler == SIG_DFL)
                raise(SIGTERM);
            _exit(3);
        }
        int status;
        waitpid(child, &status, 0);
        printf("once: %d %d\n", WIFSIGNALED(status), WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
    }
}

static void *sends(void *a) {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, NULL);
    for (int i = 0; i < 400;) {
        union sigval value = {.sival_int = i};
        i += sigqueue(getpid(), SIGRTMIN, value) == 0;
    }
    return a;
}

static void in_order(void) {
    sigset_t all, none;
    pthread_t sender;
    calls = told = late = 0;
    sigaction(SIGRTMIN, &(struct sigaction){.sa_sigaction = informed, .sa_flags = SA_SIGINFO}, NULL);
    sigfillset(&all), sigemptyset(&none);
    pthread_sigmask(SIG_SETMASK, &all, NULL);
    pthread_create(&sender, NULL, sends, NULL);
    pthread_sigmask(SIG_SETMASK, &none, NULL);
    for (unsigned i = 0; calls < 400; i++)
        table[i * 37 % (1 << 16)]++;
    pthread_join(sender, NULL);
    printf("in order: %d calls, %d out of order\n", calls, late);
}

static void back_again(void) {
    sigset_t now;
    signal(SIGUSR1, jumps);
    for (volatile int i = 0; i < 300; i++) {
        if (!sigsetjmp(back, 1)) {
            raise(SIGUSR1);
            printf("not reached\n");
        }
    }
    pthread_sigmask(SIG_SETMASK, NULL, &now);
    printf("back again: blocked %d\n", sigismember(&now, SIGUSR1));
    page = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    sigaction(SIGSEGV, &(struct sigaction){.sa_sigaction = mends, .sa_flags = SA_SIGINFO}, NULL);
    *page = 1;
    printf("mended: %d %d\n", jumped, *page);
}

int main(void) {
    setvbuf(stdout, NULL, _IONBF, 0);
    set_and_seen();
    once();
    in_order();
    back_again();
    return 0;
}
