// C++'s own threads, locks and atomics. Without an argument nothing races; with one, `raced` does.
#include <atomic>
#include <condition_variable>
#include <cstdio>
#include <future>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <thread>
#include <vector>

static int counter, raced, made_once;
static std::mutex mutex;
static std::shared_mutex shared;
static std::condition_variable condition;
static std::once_flag once;

static const std::string &name() {
    static const std::string made = "a name that is long enough to be allocated";
    return made;
}

static int work() {
    int sum = 0;
    for (int i = 0; i < 200; i++) {
        {
            std::lock_guard<std::mutex> guard(mutex);
            counter++;
        }
        {
            std::shared_lock<std::shared_mutex> guard(shared);
            sum += (int)name().size();
        }
        std::call_once(once, [] { made_once++; });
    }
    return sum;
}

int main(int argc, char **) {
    std::vector<std::thread> threads;
    auto block = std::make_shared<std::vector<int>>(100, 1);
    for (int i = 0; i < 3; i++)
        threads.emplace_back([=] {
            // Before anything that could order it.
            if (argc > 1)
                raced++;
            std::unique_lock<std::shared_mutex> guard(shared);
            (*block)[(size_t)i] = i;
            guard.unlock();
            work();
        });
    block.reset();
    auto later = std::async(std::launch::async, [] { return work(); });
    bool ready = false;
    std::thread waits([&] {
        std::unique_lock<std::mutex> guard(mutex);
        condition.wait(guard, [&] { return ready; });
        counter++;
    });
    {
        std::lock_guard<std::mutex> guard(mutex);
        ready = true;
    }
    condition.notify_one();
    waits.join();
    for (auto &thread : threads)
        thread.join();
    // Arguments come in any order: it has to have ended before the counter is read.
    int sum = later.get();
    std::printf("%d %d\n", sum, counter);
}
