// Prints what a parallel region has: `NAME threads N` and for each thread `NAME cpus LIST`, sorted.
#ifndef LOOK_HPP
#define LOOK_HPP

#include <algorithm>
#include <cstdio>
#include <sched.h>
#include <string>
#include <vector>

inline std::string cpus_of_this_thread()
{
    cpu_set_t set;
    CPU_ZERO(&set);
    sched_getaffinity(0, sizeof set, &set);
    std::string list;
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, &set))
            list += (list.empty() ? "" : ",") + std::to_string(cpu);
    return list;
}

inline void look(const char *name)
{
    std::vector<std::string> seen;
    #pragma omp parallel
    {
        const std::string cpus = cpus_of_this_thread();
        #pragma omp critical
        seen.push_back(cpus);
    }
    std::printf("%s threads %zu\n", name, seen.size());
    std::sort(seen.begin(), seen.end());
    for (const std::string &cpus : seen)
        std::printf("%s cpus %s\n", name, cpus.c_str());
    std::fflush(stdout);
}

#endif
