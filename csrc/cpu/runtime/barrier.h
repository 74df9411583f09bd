// A barrier for the threads of one parallel region. OpenMP's lets threads spin for milliseconds, so that two processes on
// the same cores take turns in spinning; here a thread spins for as long as falling asleep and being woken would take, and
// sleeps then.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
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
            generation_.store(generation + 1, std::memory_order_release);
            generation_.notify_all();
            return;
        }
        const auto released = [&] { return generation_.load(std::memory_order_acquire) != generation; };
        while (!released() && idle()) {
        }
        const auto begin = std::chrono::steady_clock::now();
        while (!released()) {
            for (int i = 0; i < kPauses && !released(); ++i) pause();
            if (std::chrono::steady_clock::now() - begin > kSpin) break;
        }
        while (!released()) generation_.wait(generation, std::memory_order_acquire);
    }

    void wait(int threads) {
        wait(threads, [] { return false; });
    }

private:
    static constexpr int kPauses = 32;
    static constexpr std::chrono::microseconds kSpin{50};

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
