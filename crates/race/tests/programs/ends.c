// A race of two threads that is over, and then an end: of the kind that is named.
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static int counter;

static void *adds(void *argument) {
    for (int i = 0; i < 1000; i++)
        counter++;
    return argument;
}

static void race(void) {
    pthread_t a, b;
    pthread_create(&a, NULL, adds, NULL);
    pthread_create(&b, NULL, adds, NULL);
    pthread_join(a, NULL);
    pthread_join(b, NULL);
}

static void *kills(void *argument) {
    for (int i = 0; i < 1000; i++)
        counter++;
    kill(getpid(), SIGKILL);
    return argument;
}

static void handles(int number) { counter += number != 0; }

int main(int argc, char **argv) {
    const char *how = argc > 1 ? argv[1] : "exit";
    printf("before\n");
    fflush(stdout);
    if (!strcmp(how, "fork")) {
        int status = 0;
        for (int i = 0; i < 2; i++) {
            pid_t child = fork();
            if (child == 0) {
                race();
                _exit(3);
            }
            waitpid(child, &status, 0);
        }
        return WEXITSTATUS(status);
    }
    if (!strcmp(how, "signals")) {
        signal(SIGALRM, handles);
        ualarm(100, 100);
        for (int i = 0; i < 20; i++)
            race();
        ualarm(0, 0);
        return 0;
    }
    if (!strcmp(how, "killed in a thread")) {
        pthread_t a, b;
        pthread_create(&a, NULL, adds, NULL);
        usleep(50000);
        pthread_create(&b, NULL, kills, NULL);
        pthread_join(b, NULL);
    }
    race();
    printf("after\n");
    fflush(stdout);
    if (!strcmp(how, "_exit"))
        _exit(7);
    if (!strcmp(how, "abort"))
        abort();
    if (!strcmp(how, "kill"))
        kill(getpid(), SIGKILL);
    return 5;
}
