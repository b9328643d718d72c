// Runs a command, and writes to a file how long it took, in seconds, and the most memory that it, or a process
// that it waited for, had at a time, in KiB. Usage: peak FILE COMMAND...
//
// Linux counts towards a process's peak the memory of what it was before it executed the command. So this is
// small, and forks a process for that: what the command's peak can be taken for at most is this program's own.
#include <stdio.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

int main(int count, char **words) {
    if (count < 3)
        return 125;
    double began = now();
    pid_t child = fork();
    if (child == 0) {
        execvp(words[2], words + 2);
        _exit(127);
    }
    int status = 0;
    struct rusage usage;
    if (child < 0 || wait4(child, &status, 0, &usage) != child)
        return 125;
    double seconds = now() - began;
    FILE *file = fopen(words[1], "w");
    if (!file || fprintf(file, "%.6f %ld\n", seconds, usage.ru_maxrss) < 0 || fclose(file))
        return 125;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
