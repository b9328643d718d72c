// corewise.hpp - follow what this program may use of the machine, in C++17
//
// Header only, over corewise.h (read its first page: no manager, threads, fork). Link with -lcorewise.
// Works with any OpenMP runtime, and does not need one: a program built without OpenMP compiles and runs.
//
//     corewise::Claim claim;
//     claim.invade(corewise::CPUQuantity(1, 8), corewise::NUMA(corewise::scatter));
//     #pragma omp parallel for
//     for (int i = 0; i < n; i++) c[i] = a[i] + b[i];
//     claim.retreat(1);
//
// The interface is that of invasive OpenMP (Hollmann and Gerndt, "Invasive Computing: An Application
// Assisted Resource Management Approach", 2012, listing 1.1); invasive_computing.h takes its names out of
// the namespace, so that the listing compiles as it is printed.
//
// OPENMP AND A CLAIM THAT CHANGES
//     The number of threads of OpenMP's next region is kept for each thread of the program
//     (omp_set_num_threads sets it for its caller only), so nobody can change it from outside. Claim
//     sets it for the calling thread when it is made, in invade(), retreat() and sync(). A claim changes
//     at other times, too. So the rule is: before a region, on the thread that opens it, call sync(), or
//     give the region its number directly:
//
//         #pragma omp parallel for num_threads(claim.sync())
//
//     sync() costs about a nanosecond while nothing has changed. A region without it has the number of
//     the last invade(), retreat() or sync(): right, but late. Where the threads run follows at once.
//     OMP_NUM_THREADS is the user's word: no region gets more threads than that from here.
//
//     With the adapters linked before the OpenMP runtime (pkg-config corewise-openmp), follow_openmp()
//     does without sync(): every region of the program follows, on whichever thread it begins.
#ifndef COREWISE_HPP
#define COREWISE_HPP

#include "corewise.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include <dlfcn.h>

namespace corewise {

namespace detail {

// libgomp's, LLVM's or another runtime's, if there is one; a name of our own for it, so that <omp.h> and
// this header do not get into each other's way.
extern "C" {
static void linked_omp_set_num_threads(int) __attribute__((weakref("omp_set_num_threads")));
static int linked_omp_get_max_threads(void) __attribute__((weakref("omp_get_max_threads")));
}

using SetThreads = void (*)(int);

// The runtime that the program links, else one that is loaded now (a library brought it).
inline SetThreads omp_set_num_threads_of_runtime() noexcept
{
    if (linked_omp_set_num_threads)
        return linked_omp_set_num_threads;
    static std::atomic<SetThreads> loaded{nullptr};
    SetThreads found = loaded.load(std::memory_order_relaxed);
    if (!found) {
        found = reinterpret_cast<SetThreads>(dlsym(RTLD_DEFAULT, "omp_set_num_threads"));
        loaded.store(found, std::memory_order_relaxed);
    }
    return found;
}

// What the next region of the calling thread would have; 0: nobody knows.
inline int omp_max_threads_of_runtime() noexcept
{
    if (linked_omp_get_max_threads)
        return linked_omp_get_max_threads();
    const auto get = reinterpret_cast<int (*)()>(dlsym(RTLD_DEFAULT, "omp_get_max_threads"));
    return get ? get() : 0;
}

// The most threads that the user allows a region: the first number of OMP_NUM_THREADS.
inline unsigned users_limit() noexcept
{
    static const unsigned limit = [] {
        const char *text = std::getenv("OMP_NUM_THREADS");
        const unsigned long given = text ? std::strtoul(text, nullptr, 10) : 0;
        constexpr unsigned most = std::numeric_limits<int>::max();
        return given == 0 || given > most ? most : static_cast<unsigned>(given);
    }();
    return limit;
}

// The errno value of a C function as an exception. Only what the system refuses comes here: ranges are
// checked before.
inline int checked(int result, const char *what)
{
    if (result == -ENOMEM)
        throw std::bad_alloc();
    if (result < 0)
        throw std::system_error(-result, std::generic_category(), what);
    return result;
}

} // namespace detail

// Where the CPUs of a claim should be.
enum Placement {
    anywhere = COREWISE_ANY,   // wherever there is room
    compact = COREWISE_COMPACT, // close together
    scatter = COREWISE_SCATTER  // spread over NUMA nodes and caches
};

// A constraint of invade(): how many CPUs.
class CPUQuantity {
  public:
    // Exactly `count` CPUs, at least 1.
    explicit CPUQuantity(unsigned count) : CPUQuantity(count, count) {}

    // `min` to `max` CPUs, 1 <= min <= max; throws std::invalid_argument.
    CPUQuantity(unsigned min, unsigned max) : min_(min), max_(max)
    {
        if (min == 0 || min > max)
            throw std::invalid_argument("corewise::CPUQuantity: 1 <= min <= max is needed");
    }

    unsigned min() const noexcept { return min_; }
    unsigned max() const noexcept { return max_; }

  private:
    unsigned min_, max_;
};

// A constraint of invade(): where on the NUMA nodes.
class NUMA {
  public:
    explicit NUMA(Placement placement) noexcept : placement_(placement) {}
    Placement placement() const noexcept { return placement_; }

  private:
    Placement placement_;
};

// The process's claim. There is one claim a process: objects of this class are handles of it, and when
// the last one ends the claim retreats to one thread. Every member may be called by every thread; what
// it sets of OpenMP it sets for the calling thread. Members throw std::system_error or std::bad_alloc
// where the system has no more threads, memory or descriptors, and only then.
class Claim {
  public:
    // Joins the manager, if there is one: until invade() the claim is one thread then, and the calling
    // thread's regions have one. Without a manager nothing changes. `name` is for people; empty: the
    // executable's.
    explicit Claim(const std::string &name = std::string())
    {
        const int managed = detail::checked(corewise_join(name.c_str()), "corewise::Claim");
        handles().fetch_add(1, std::memory_order_relaxed);
        if (managed)
            apply();
    }

    Claim(const Claim &) = delete;
    Claim &operator=(const Claim &) = delete;

    ~Claim()
    {
        if (handles().fetch_sub(1, std::memory_order_acq_rel) == 1 && invaded().load()) {
            corewise_retreat(1);
            corewise_pin(0);
            pinning().store(false);
        }
    }

    // Asks for CPUs, waits for the manager's decision, pins the process's threads to the claim's CPUs,
    // and sets the number of threads of the calling thread's regions. Gives the number of threads: fewer
    // than the maximum where others need the rest, never 0. Without a manager: the effective CPUs,
    // within `cpus`; nothing is pinned.
    unsigned invade(CPUQuantity cpus, NUMA numa = NUMA(anywhere))
    {
        const unsigned limit = detail::users_limit();
        const auto placement = static_cast<corewise_placement>(numa.placement());
        const unsigned min = std::min(cpus.min(), limit), max = std::min(cpus.max(), limit);
        detail::checked(corewise_invade(min, max, placement), "corewise::Claim::invade");
        invaded().store(true);
        pinning().store(true);
        return apply();
    }

    unsigned invade(NUMA numa, CPUQuantity cpus) { return invade(cpus, numa); }

    // Gives back all but `threads` CPUs. At 1 the process is as it was before invade(): its threads are
    // no longer pinned. Gives the number of threads.
    unsigned retreat(unsigned threads = 1)
    {
        threads = std::max(threads, 1u);
        detail::checked(corewise_retreat(threads), "corewise::Claim::retreat");
        invaded().store(true);
        if (threads == 1 && pinning().exchange(false))
            corewise_pin(0);
        return apply();
    }

    // Makes the calling thread's next regions as large as the claim is now, if it has changed since this
    // thread last looked; gives the number of threads, for num_threads(). About a nanosecond if not.
    unsigned sync() noexcept
    {
        const std::uint64_t word = corewise_word();
        Seen &seen = seen_here();
        return static_cast<std::uint32_t>(word) != 0 && word == seen.word ? seen.threads : apply();
    }

    // Has all of the program's OpenMP regions follow the claim, without sync() or a clause, until the
    // process ends. Whether they do: false where the adapters are not linked before the OpenMP runtime;
    // see corewise_follow_openmp. From then on nothing here sets OpenMP's own number, and where it was
    // set, it is put back: at once for the calling thread, for others when they next call sync().
    bool follow_openmp()
    {
        if (detail::checked(corewise_follow_openmp(), "corewise::Claim::follow_openmp") == 0)
            return false;
        following().store(true);
        apply();
        return true;
    }

    // Threads that the program may run now.
    unsigned threads() const noexcept { return corewise_threads_fast(); }

    // Which grant it is: for equality only.
    std::uint64_t generation() const noexcept { return corewise_generation(); }

    // Whether a manager keeps it.
    bool managed() const noexcept { return corewise_is_managed() > 0; }

    // Its CPUs, ascending.
    std::vector<unsigned> cpus() const
    {
        constexpr unsigned bits = std::numeric_limits<unsigned long>::digits;
        std::vector<unsigned long> set(4096 / bits);
        const std::size_t size = set.size() * sizeof(unsigned long);
        detail::checked(corewise_cpus(set.data(), size), "corewise::Claim::cpus");
        std::vector<unsigned> cpus;
        for (unsigned cpu = 0; cpu < set.size() * bits; cpu++)
            if (set[cpu / bits] >> cpu % bits & 1)
                cpus.push_back(cpu);
        return cpus;
    }

    // Sleeps until the generation is another than `seen`; whether it is within `timeout`.
    template <class Rep, class Period>
    bool wait_change(std::uint64_t seen, std::chrono::duration<Rep, Period> timeout) const
    {
        const auto ns = std::chrono::duration_cast<std::chrono::nanoseconds>(timeout).count();
        return corewise_wait_change(seen, std::max<std::int64_t>(ns, 0)) > 0;
    }

  private:
    // What a thread last saw, and whether its regions have had their number from here.
    struct Seen {
        std::uint64_t word;
        unsigned threads;
        bool told;
        // The runtime's own number before that; 0: it is not known, or has been put back.
        int before;
    };

    static Seen &seen_here() noexcept
    {
        static thread_local Seen seen{0, 0, false, 0};
        return seen;
    }

    static std::atomic<int> &handles() noexcept
    {
        static std::atomic<int> handles{0};
        return handles;
    }

    // Whether the program has ever asked for more than it had: until then OpenMP is left alone where
    // there is no manager.
    static std::atomic<bool> &invaded() noexcept
    {
        static std::atomic<bool> invaded{false};
        return invaded;
    }

    // Whether regions follow by themselves.
    static std::atomic<bool> &following() noexcept
    {
        static std::atomic<bool> following{false};
        return following;
    }

    // Whether the process's threads are kept on the claim's CPUs.
    static std::atomic<bool> &pinning() noexcept
    {
        static std::atomic<bool> pinning{false};
        return pinning;
    }

    unsigned apply() noexcept
    {
        // The word before the number: if it changes between, the next look sees that.
        const std::uint64_t word = corewise_word();
        const unsigned threads = std::min(corewise_threads(), detail::users_limit());
        Seen &seen = seen_here();
        const auto set = detail::omp_set_num_threads_of_runtime();
        if (following().load(std::memory_order_relaxed)) {
            if (set && seen.before > 0)
                set(seen.before);
            seen.before = 0;
        } else {
            const bool first = !seen.told;
            seen.told = seen.told || managed() || invaded().load(std::memory_order_relaxed);
            if (set && seen.told) {
                if (first)
                    seen.before = detail::omp_max_threads_of_runtime();
                set(static_cast<int>(threads));
            }
        }
        // The library moves threads soon after a change; here it has been done before the next region.
        if (pinning().load(std::memory_order_relaxed))
            corewise_pin(1);
        seen.word = word;
        seen.threads = threads;
        return threads;
    }
};

// Calls a function after each change of the claim, on the library's thread (the rules are those of
// corewise_on_change), for as long as this object lives. The function must not throw.
class OnChange {
  public:
    explicit OnChange(std::function<void()> changed)
        : changed_(std::make_unique<std::function<void()>>(std::move(changed)))
    {
        const auto call = [](void *data) { (*static_cast<std::function<void()> *>(data))(); };
        number_ = detail::checked(corewise_on_change(call, changed_.get()), "corewise::OnChange");
    }

    OnChange(const OnChange &) = delete;
    OnChange &operator=(const OnChange &) = delete;

    // Waits for a call that is running.
    ~OnChange() { corewise_forget_change(number_); }

  private:
    std::unique_ptr<std::function<void()>> changed_;
    int number_ = 0;
};

// While it lives, another worker has this worker's place: around what blocks within parallel_for().
class Blocking {
  public:
    Blocking() noexcept { corewise_blocking_begin(); }
    ~Blocking() { corewise_blocking_end(); }
    Blocking(const Blocking &) = delete;
    Blocking &operator=(const Blocking &) = delete;
};

// Calls `work(from, to)` for parts of [begin, end) at most `grain` long (0: chosen by the library), on as
// many workers as the claim allows; see corewise_parallel_for. An exception of `work` comes out here when
// the parts that had begun are done; the others are left out, and so are all exceptions but the first.
template <class Work>
void parallel_for(std::size_t begin, std::size_t end, std::size_t grain, Work &&work)
{
    struct Call {
        std::remove_reference_t<Work> *work;
        std::atomic<bool> failed{false};
        std::mutex lock;
        std::exception_ptr why;
    } call;
    call.work = std::addressof(work);
    const auto part = [](std::size_t from, std::size_t to, void *data) {
        auto &of = *static_cast<Call *>(data);
        if (of.failed.load(std::memory_order_relaxed))
            return;
        try {
            (*of.work)(from, to);
        } catch (...) {
            const std::lock_guard<std::mutex> guard(of.lock);
            if (!of.failed.exchange(true))
                of.why = std::current_exception();
        }
    };
    detail::checked(corewise_parallel_for(begin, end, grain, part, &call), "corewise::parallel_for");
    if (call.why)
        std::rethrow_exception(call.why);
}

} // namespace corewise

#endif
