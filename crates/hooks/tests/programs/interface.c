// Calls of which no compiler tells, by corewise_profile.h.
#include "corewise_profile.h"

const int interpreted = 0;

__attribute__((no_instrument_function)) int main(void) {
    for (int turn = 0; turn < 5; turn++) {
        corewise_profile_begin(&interpreted);
        corewise_profile_allocation(40);
        corewise_profile_end(&interpreted);
    }
    return 0;
}
