/* The headers alone. */
#include "corewise.h"

int main(void)
{
    return corewise_threads_fast() == corewise_threads() ? 0 : 1;
}
