// A barrier for the threads of one parallel region. OpenMP's threads spin for milliseconds, so that those of two processes
// on the same cores take turns in spinning. Here a thread spins for a few microseconds, offers its core to others for a
// millisecond, and sleeps then; a virtual machine's core that falls asleep at once may need as long to wake up.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace fastbert {

class Barrier {
public:
    // Wait until `threads` threads have called this, meanwhile calling `idle()`, a step of other work that returns false
    // when there is none left.
    template <typename Idle>
    void wait(int threads, Idle&& idle) {
        const std::uint32_t generation = generation_.load(std::memory_order_acquire);
        if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == static_cast<std::uint32_t>(threads)) {
            arrived_.store(0, std::memory_order_relaxed);
            // Not only release: `notify_all` must not look for sleeping threads before the others can see this.
            generation_.store(generation + 1, std::memory_order_seq_cst);
            generation_.notify_all();
            return;
        }
        const auto released = [&] { return generation_.load(std::memory_order_acquire) != generation; };
        while (!released() && idle()) {
        }
        const auto begin = std::chrono::steady_clock::now();
        while (!released()) {
            for (int i = 0; i < kPauses && !released(); ++i) pause();
            const auto waited = std::chrono::steady_clock::now() - begin;
            if (waited > kSpin) break;
            // Another process that has the core of the thread that is late gets this one, too.
            if (waited > kPolite) std::this_thread::yield();
        }
        while (!released()) generation_.wait(generation, std::memory_order_acquire);
    }

    void wait(int threads) {
        wait(threads, [] { return false; });
    }

private:
    static constexpr int kPauses = 32;
    static constexpr std::chrono::microseconds kPolite{5}, kSpin{1000};

    static void pause() {
#if defined(__x86_64__)
        _mm_pause();
#elif defined(__aarch64__)
        asm volatile("yield");
#endif
    }

    alignas(64) std::atomic<std::uint32_t> arrived_{0};
    alignas(64) std::atomic<std::uint32_t> generation_{0};
};

}  // namespace fastbert
