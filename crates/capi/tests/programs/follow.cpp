// Follows a claim that others change: after each line on standard input it says what a region has that
// asks first, and whether OpenMP itself was told.
#include "corewise.hpp"

#include "look.hpp"

#include <iostream>
#include <omp.h>

int main()
{
    corewise::Claim claim("follow");
    claim.invade(corewise::CPUQuantity(1, 8));
    std::atomic<int> changes{0};
    const corewise::OnChange counting([&] { changes++; });
    std::uint64_t seen = claim.generation();
    std::printf("ready\n");
    std::fflush(stdout);
    std::string line;
    while (std::getline(std::cin, line)) {
        if (!claim.wait_change(seen, std::chrono::seconds(60)))
            std::printf("nothing has changed\n");
        seen = claim.generation();
        int inside = 0;
        #pragma omp parallel num_threads(claim.sync()) reduction(+ : inside)
        inside += 1;
        std::printf("clause %d\n", inside);
        std::printf("icv %d\n", omp_get_max_threads());
        std::printf("claim %u\n", claim.threads());
        std::printf("managed %d\n", claim.managed());
        std::string cpus;
        for (unsigned cpu : claim.cpus())
            cpus += (cpus.empty() ? "" : ",") + std::to_string(cpu);
        std::printf("set %s\n", cpus.c_str());
        look("region");
        std::printf("end\n");
        std::fflush(stdout);
    }
    // Every change was told, at the latest soon after it was seen.
    for (int i = 0; changes == 0 && i < 3000; i++)
        claim.wait_change(claim.generation(), std::chrono::milliseconds(10));
    return changes > 0 ? 0 : 1;
}
