// Without OpenMP: the header does not need it. An exception of a part comes out of parallel_for.
#include "corewise.hpp"

#include <cstdio>
#include <string>

int main()
{
    corewise::Claim claim;
    const unsigned threads = claim.invade(corewise::CPUQuantity(1, 2), corewise::NUMA(corewise::compact));
    if (threads < 1 || threads > 2)
        return 1;
    std::atomic<long> sum{0};
    corewise::parallel_for(0, 1000, 7, [&](std::size_t from, std::size_t to) {
        const corewise::Blocking blocking;
        for (std::size_t i = from; i < to; i++)
            sum += static_cast<long>(i);
    });
    if (sum != 499500)
        return 2;
    std::string caught;
    try {
        corewise::parallel_for(0, 1000, 1, [](std::size_t from, std::size_t) {
            if (from % 10 == 3)
                throw std::runtime_error("a part has failed");
        });
    } catch (const std::runtime_error &error) {
        caught = error.what();
    }
    if (caught != "a part has failed")
        return 3;
    try {
        corewise::CPUQuantity(3, 2);
        return 4;
    } catch (const std::invalid_argument &) {
    }
    claim.retreat();
    std::printf("threads %u\n", claim.threads());
    return 0;
}
