// Without a manager, and without asking for anything, OpenMP is as the program has set it; and what a
// thread asks for sets its own regions, not those of other threads.
#include "corewise.hpp"

#include <cstdio>
#include <omp.h>
#include <thread>

int main()
{
    corewise::Claim claim;
    omp_set_num_threads(7);
    const unsigned effective = claim.sync();
    std::printf("sync %u\n", effective);
    std::printf("untouched %d\n", omp_get_max_threads());
    claim.invade(corewise::CPUQuantity(3), corewise::NUMA(corewise::scatter));
    std::printf("asked %d\n", omp_get_max_threads());
    std::thread([&claim] {
        omp_set_num_threads(5);
        std::printf("other %d\n", omp_get_max_threads());
        claim.sync();
        std::printf("synced %d\n", omp_get_max_threads());
    }).join();
    {
        const corewise::Claim another;
        std::printf("another %u\n", another.threads());
    }
    std::printf("kept %u\n", claim.threads());
    return 0;
}
