// oneTBB's tasks for the experiments about adapters.
//
//   tasks N    begins N tasks of a parallel loop, whose pieces do nothing much, in loops of 100,000; then as many
//              tasks of a group; prints nanoseconds for each task of either
#include <oneapi/tbb/blocked_range.h>
#include <oneapi/tbb/parallel_for.h>
#include <oneapi/tbb/task_group.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>

static const long PIECES = 100000;

static void piece()
{
    // Some 100 ns: a task that does nothing at all would measure who fights for the next one.
    volatile int turns = 0;
    while (turns < 60)
        turns = turns + 1;
}

static double nanoseconds_of(long tasks, void (*run)())
{
    auto began = std::chrono::steady_clock::now();
    for (long begun = 0; begun < tasks; begun += PIECES)
        run();
    auto time = std::chrono::steady_clock::now() - began;
    return std::chrono::duration<double, std::nano>(time).count() / tasks;
}

static void loop()
{
    using Range = oneapi::tbb::blocked_range<long>;
    auto body = [](const Range &) { piece(); };
    oneapi::tbb::parallel_for(Range(0, PIECES), body, oneapi::tbb::simple_partitioner());
}

static void group()
{
    oneapi::tbb::task_group tasks;
    for (long i = 0; i < PIECES; i++)
        tasks.run(piece);
    tasks.wait();
}

int main(int argc, char **argv)
{
    if (argc < 2)
        return 2;
    long tasks = atol(argv[1]);
    loop();
    group();
    double of_loop = nanoseconds_of(tasks, loop);
    printf("%.3f %.3f\n", of_loop, nanoseconds_of(tasks, group));
    return 0;
}
