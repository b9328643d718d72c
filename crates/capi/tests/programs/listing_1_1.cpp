// Listing 1.1 of Hollmann and Gerndt, "Invasive Computing: An Application Assisted Resource Management
// Approach" (2012), as it is printed, with what the test looks at between its lines.
#include "invasive_computing.h"

#include "look.hpp"

int main() {
    Claim claim;
    double a[1024], b[1024], c[1024];
    for (int i = 0; i < 1024; i++) {
        a[i] = i;
        b[i] = 2 * i;
    }
    look("start");
    /* acquire resources according to the given constraints */
    claim.invade(CPUQuantity(1,8), NUMA(scatter));
    /* executing a parallel for loop on the given resources */
    #pragma omp parallel for
    for(int i=0; i < 1024; i++)
        c[i] = a[i] + b[i];
    look("invaded");
    /* free resources, delete pinning after parallel region */
    claim.retreat(1);
    /* continue application in with one thread */
    look("retreated");
    for (int i = 0; i < 1024; i++)
        if (c[i] != 3 * i)
            return 1;
    std::printf("managed %d\n", claim.managed());
    return 0;
}
