/* A program for tests: `regions FILE` begins one OpenMP region after the other until FILE is there, and prints
 * how many threads a region has whenever that changes. */
#include <omp.h>
#include <stdio.h>
#include <unistd.h>

int main(int argc, char **argv) {
    char folder[4096];
    int last = 0;
    if (argc < 2) return 2;
    /* Nor does it outlive the folder it runs in, whatever became of its test. */
    while (access(argv[1], F_OK) && getcwd(folder, sizeof folder)) {
        int size = 0;
#pragma omp parallel
#pragma omp single
        size = omp_get_num_threads();
        if (size != last) {
            printf("%d\n", size);
            fflush(stdout);
            last = size;
        }
        usleep(1000);
    }
    return 0;
}
