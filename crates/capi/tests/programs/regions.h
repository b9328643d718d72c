/* What a region has, on the main thread and on another one: after each line on standard input it says
 * `main N` and `other N`, then `end`. */
#ifndef REGIONS_H
#define REGIONS_H

#include <omp.h>
#include <pthread.h>
#include <stdio.h>

static int region(void)
{
    int inside = 0;
    #pragma omp parallel reduction(+ : inside)
    inside += 1;
    return inside;
}

static void *other(void *result)
{
    *(int *)result = region();
    return NULL;
}

static void tell_regions(void)
{
    for (int c; (c = getchar()) != EOF;) {
        if (c != '\n')
            continue;
        int result = 0;
        pthread_t thread;
        printf("main %d\n", region());
        if (pthread_create(&thread, NULL, other, &result) == 0)
            pthread_join(thread, NULL);
        printf("other %d\n", result);
        printf("max %d\n", omp_get_max_threads());
        printf("end\n");
        fflush(stdout);
    }
}

#endif
