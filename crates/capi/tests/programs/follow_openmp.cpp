// A C++ program whose regions follow the claim that it holds itself, with no word in any of them.
#include "corewise.hpp"

#include "regions.h"

int main()
{
    corewise::Claim claim;
    const unsigned threads = claim.invade(corewise::CPUQuantity(1, 8));
    std::printf("claim %u\nfollows %d\nend\n", threads, claim.follow_openmp());
    std::fflush(stdout);
    tell_regions();
    return 0;
}
