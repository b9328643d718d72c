// Uses OpenMP's constructs in turn, as many times as its argument says, and prints a number made of all
// results: the same with every number of threads. Ends with 1 and says why if a promise is broken. With
// FORKS, children begin regions, too: only LLVM's runtime lets them after their parent has.
#include <omp.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <vector>

using Number = unsigned long;

static Number all = 0;

static Number mixed(Number x)
{
    x ^= x >> 33;
    x *= 0xff51afd7ed558ccd;
    return x ^ x >> 29;
}

static void add(Number result)
{
    all = mixed(all + result);
}

static void expect(bool holds, const char *what)
{
    if (holds)
        return;
    printf("broken: %s\n", what);
    exit(1);
}

struct Sum {
    Number value = 0;
};
#pragma omp declare reduction(merge : Sum : omp_out.value += omp_in.value)

static void loops(int round)
{
    static std::vector<Number> numbers(5000);
    int count = static_cast<int>(numbers.size());
#pragma omp parallel for schedule(static)
    for (int i = 0; i < count; i++)
        numbers[i] = mixed(i + round);
    Number sum = 0;
#pragma omp parallel for schedule(dynamic, 64) reduction(+ : sum)
    for (int i = 0; i < count; i++)
        sum += numbers[i] * i;
    add(sum);
    sum = 0;
#pragma omp parallel for schedule(guided) reduction(^ : sum)
    for (int i = 0; i < count; i++)
        sum ^= numbers[i] + i;
    add(sum);
    Sum own;
#pragma omp parallel for schedule(runtime) reduction(merge : own)
    for (int i = 0; i < count; i++)
        own.value += mixed(numbers[i]);
    add(own.value);
    std::vector<int> order;
#pragma omp parallel for ordered schedule(dynamic, 1)
    for (int i = 0; i < 40; i++) {
#pragma omp ordered
        order.push_back(i);
    }
    for (int i = 0; i < 40; i++)
        expect(order[i] == i, "ordered");
}

static int fibonacci(int n)
{
    if (n < 2)
        return n;
    int one = 0, two = 0;
#pragma omp task shared(one) if (n > 8)
    one = fibonacci(n - 1);
#pragma omp task shared(two) if (n > 8)
    two = fibonacci(n - 2);
#pragma omp taskwait
    return one + two;
}

static void tasks()
{
    int result = 0;
    int chain[40] = {};
    std::atomic<int> count{0};
#pragma omp parallel
#pragma omp single
    {
        result = fibonacci(14);
        for (int i = 1; i < 40; i++) {
#pragma omp task shared(chain) depend(in : chain[i - 1]) depend(out : chain[i])
            chain[i] = chain[i - 1] + i;
        }
#pragma omp taskloop grainsize(10) shared(count)
        for (int i = 0; i < 100; i++)
            count += i;
    }
    add(result + chain[39] + count);
}

static void teams()
{
    expect(omp_get_max_threads() == 4, "the program's own number");
    int a = 0, b = 0;
#pragma omp parallel sections
    {
#pragma omp section
        a = 1;
#pragma omp section
        b = 2;
    }
    add(a + b);
    std::atomic<int> arrived{0};
    std::atomic<bool> early{false};
    int size = 0;
#pragma omp parallel
    {
        arrived++;
#pragma omp barrier
        if (arrived != omp_get_num_threads())
            early = true;
        int told = 0;
#pragma omp single copyprivate(told)
        told = 42;
        if (told != 42)
            early = true;
#pragma omp master
        size = omp_get_num_threads();
    }
    expect(!early, "barrier");
    expect(size >= 1 && size <= 4, "never more than its own");
#pragma omp parallel num_threads(3)
#pragma omp single
    size = omp_get_num_threads();
    expect(size == 3, "num_threads");
#pragma omp parallel num_threads(2) if (size < 0)
    size = omp_get_num_threads();
    expect(size == 1, "if");
    Number sum = 0;
#pragma omp teams num_teams(2) reduction(+ : sum)
#pragma omp distribute parallel for reduction(+ : sum)
    for (int i = 0; i < 100; i++)
        sum += i;
    add(sum);
}

static void ways_out()
{
    bool found = false;
#pragma omp parallel
    {
#pragma omp for
        for (int i = 0; i < 1000; i++) {
            if (i == 500) {
#pragma omp atomic write
                found = true;
            }
#pragma omp cancel for if (i == 500)
        }
    }
    add(found);
    int caught = 0;
#pragma omp parallel for reduction(+ : caught)
    for (int i = 0; i < 16; i++) {
        try {
            throw std::runtime_error("one for each");
        } catch (const std::exception &) {
            caught++;
        }
    }
    add(caught);
}

static void nested(int levels)
{
    omp_set_max_active_levels(levels);
    Number sum = 0;
#pragma omp parallel for reduction(+ : sum)
    for (int i = 0; i < 6; i++) {
        Number inner = 0;
#pragma omp parallel for reduction(+ : inner)
        for (int j = 0; j < 50; j++)
            inner += j * i;
        sum += inner;
    }
    omp_set_max_active_levels(1);
    add(sum);
}

#ifdef FORKS
static void child()
{
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        int sum = 0;
#pragma omp parallel for reduction(+ : sum)
        for (int i = 0; i < 100; i++)
            sum += i;
        _exit(sum == 4950 ? 0 : 1);
    }
    int status = 1;
    waitpid(child, &status, 0);
    expect(status == 0, "a forked child");
}
#endif

int main(int argc, char **argv)
{
    int rounds = argc > 1 ? atoi(argv[1]) : 1;
    for (int round = 0; round < rounds; round++) {
        loops(round);
        tasks();
        teams();
        ways_out();
        nested(round % 3);
#ifdef FORKS
        if (round % 20 == 0)
            child();
#endif
    }
    printf("%lx\n", all);
    return 0;
}
