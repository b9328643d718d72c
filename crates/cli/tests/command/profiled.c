/* A few calls of known numbers, what is printed, and an exit code. */
#include <stdio.h>
#include <stdlib.h>

__attribute__((noinline)) static int leaf(int value) {
    __asm__ volatile("");
    return value + 1;
}

__attribute__((noinline)) static int branch(void) {
    int sum = 0;
    for (int turn = 0; turn < 10; turn++) sum += leaf(turn);
    void *volatile memory = malloc(1000);
    free(memory);
    return sum;
}

int main(int count, char **words) {
    int sum = 0;
    for (int turn = 0; turn < 3; turn++) sum += branch();
    printf("%d\n", sum);
    return count > 1 ? atoi(words[1]) : 0;
}
