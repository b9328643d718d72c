// A library with a race, and with PROGRAM the program that loads it, has two threads call it, and unloads it.
#ifdef PROGRAM
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>

static void *(*in_library)(void *);

static void *calls(void *argument) { return in_library(argument); }

int main(int argc, char **argv) {
    void *library = dlopen(argc > 1 ? argv[1] : "", RTLD_NOW);
    if (!library) return puts(dlerror()), 1;
    in_library = dlsym(library, "in_library");
    pthread_t a, b;
    pthread_create(&a, NULL, calls, NULL);
    pthread_create(&b, NULL, calls, NULL);
    pthread_join(a, NULL);
    pthread_join(b, NULL);
    return dlclose(library);
}
#else
static int of_library;

void *in_library(void *argument) {
    for (int i = 0; i < 100; i++) of_library++;
    return argument;
}
#endif
