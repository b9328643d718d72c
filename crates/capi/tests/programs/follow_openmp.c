/* A C program whose regions follow the claim that it holds itself. */
#include "corewise.h"

#include "regions.h"

int main(void)
{
    int threads = corewise_invade(1, 8, COREWISE_ANY);
    int follows = corewise_follow_openmp();
    printf("claim %d\nfollows %d\nagain %d\nend\n", threads, follows, corewise_follow_openmp());
    fflush(stdout);
    tell_regions();
    return 0;
}
