/* A gang of its own: its workers compute until standard input ends, in pieces of a millisecond or so. */
#include "corewise.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>

static void piece(size_t begin, size_t end, void *data)
{
    (void)data;
    volatile unsigned sum = 0;
    for (size_t i = begin; i < end; i++)
        for (unsigned n = 0; n < 300000; n++)
            sum += n;
}

int main(int count, char **arguments)
{
    unsigned threads = (unsigned)atoi(arguments[count - 1]);
    corewise_join("gang");
    if (corewise_coschedule("", 100) != 0 || corewise_invade(threads, threads, COREWISE_ANY) < 1)
        return 1;
    struct pollfd end = {.fd = 0, .events = POLLIN};
    while (poll(&end, 1, 0) == 0)
        corewise_parallel_for(0, 64, 1, piece, NULL);
    return 0;
}
