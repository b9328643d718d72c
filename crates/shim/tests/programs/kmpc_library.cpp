// A library that is loaded and unloaded while its program runs.
#include "kmpc.h"

extern "C" int demand(int threads)
{
    return region(threads);
}

extern "C" int leave_open()
{
    return region();
}
