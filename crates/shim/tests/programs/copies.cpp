// A program without OpenMP of its own, which loads libraries. Reads commands, one a line, and answers each
// with one line.
//
//   open F      loads the file F for itself
//   share F     loads the file F for everybody
//   close       unloads what was loaded last
//   team F      runs a region in F, which is loaded: size of the team, and how many numbers its threads had
#include <dlfcn.h>

#include <cstdio>
#include <cstring>

int main()
{
    char line[4200];
    void *last = nullptr;
    while (fgets(line, sizeof line, stdin)) {
        char command[16];
        char file[4096] = "";
        if (sscanf(line, "%15s %4095s", command, file) < 1)
            continue;
        if (!strcmp(command, "close")) {
            printf("%d\n", dlclose(last));
        } else if (!strcmp(command, "team")) {
            void *handle = dlopen(file, RTLD_NOW | RTLD_NOLOAD);
            auto team = reinterpret_cast<int (*)(int *)>(dlsym(handle, "team"));
            int numbers = 0;
            int size = team(&numbers);
            printf("%d %d\n", size, numbers);
            dlclose(handle);
        } else {
            last = dlopen(file, RTLD_NOW | (strcmp(command, "share") ? RTLD_LOCAL : RTLD_GLOBAL));
            printf("%s\n", last ? "loaded" : dlerror());
        }
        fflush(stdout);
    }
    return 0;
}
