// A library that comes and goes.
static __attribute__((noinline)) int hidden(int value) {
    __asm__ volatile("");
    return value + 1;
}
int in_library(int value) { return hidden(value) + hidden(value); }
