/* A program for tests that runs until it is told to end: `gate FILE [child]`. Its OpenMP threads work a
 * little, again and again, until FILE is there; then it prints the sum of their numbers, from 1 on.
 * With `child` it has a child process that waits for FILE, too. `gate exec PROGRAM [ARG...]` becomes
 * that program.
 */
#include <omp.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static volatile unsigned long sink;

static void wait_for(const char *file) {
    char folder[4096];
    /* Nor does it outlive the folder it runs in, whatever became of its test. */
    while (access(file, F_OK) && getcwd(folder, sizeof folder)) {
        unsigned long x = 1;
        for (int i = 0; i < 20000; i++) x = x * 6364136223846793005UL + 1442695040888963407UL;
        sink = x;
        usleep(5000);
    }
}

int main(int argc, char **argv) {
    if (argc < 2) return 2;
    if (argc > 2 && !strcmp(argv[1], "exec")) { execvp(argv[2], argv + 2); return 127; }
    pid_t child = 0;
    if (argc > 2 && !strcmp(argv[2], "child")) {
        child = fork();
        if (child == 0) { wait_for(argv[1]); _exit(0); }
    }
    int sum = 0;
#pragma omp parallel reduction(+ : sum)
    {
        wait_for(argv[1]);
        sum += omp_get_thread_num() + 1;
    }
    if (child > 0) waitpid(child, 0, 0);
    printf("%d\n", sum);
    return 0;
}
