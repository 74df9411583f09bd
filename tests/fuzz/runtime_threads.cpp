// The threads of the runtime under ThreadSanitizer: parallel regions and sessions, the barrier, the caching allocator,
// arenas and search. runtime_threads SEED ROUNDS
//
// The runtime looks OpenMP up among what is loaded. Here it finds the one below, of plain threads, in place of libgomp,
// which is compiled without the sanitizer: its barriers would be invisible, and every region a false report. So nothing
// is suppressed.
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <numeric>
#include <random>
#include <stdexcept>
#include <thread>
#include <vector>

#include "cpu/runtime/arena.h"
#include "cpu/runtime/barrier.h"
#include "cpu/runtime/caching_allocator.h"
#include "cpu/runtime/parallel.h"
#include "cpu/search/search.h"

namespace {

thread_local int region_thread = 0, region_size = 1;
thread_local bool nested = false;
constexpr int kMost = 4;

}  // namespace

extern "C" {
void GOMP_parallel(void (*body)(void*), void* data, unsigned threads, unsigned) {
    if (region_size > 1) threads = 1;  // as OpenMP, which nests no regions unless it is told to
    const auto run = [&](int thread) {
        const int thread_before = region_thread, size_before = region_size;
        const bool nested_before = nested;
        nested = threads == 1;
        if (threads > 1) region_thread = thread, region_size = static_cast<int>(threads);
        else region_thread = 0;
        body(data);
        region_thread = thread_before, region_size = size_before, nested = nested_before;
    };
    std::vector<std::thread> others;
    for (unsigned thread = 1; thread < threads; ++thread) others.emplace_back(run, static_cast<int>(thread));
    run(0);
    for (std::thread& other : others) other.join();
}
int omp_get_thread_num() { return region_thread; }
int omp_get_num_threads() { return nested ? 1 : region_size; }
int omp_get_max_threads() { return kMost; }
int omp_in_parallel() { return region_size > 1; }
}

namespace {

using Random = std::mt19937_64;

void require(bool holds, const char* what) {
    if (!holds) std::fprintf(stderr, "%s\n", what), std::abort();
}

// Plain memory that regions write and others read: a region that ends too early is a race.
void regions(Random& random) {
    std::vector<long> values(1 + random() % 500, 0);
    for (int round = 0; round < 3; ++round) {
        fastbert::parallel_ranges(values.size(), 1 + random() % 50, [&](std::size_t first, std::size_t last) {
            for (std::size_t i = first; i < last; ++i) values[i] += static_cast<long>(i);
        });
    }
    for (std::size_t i = 0; i < values.size(); ++i) require(values[i] == 3 * static_cast<long>(i), "a part of a region is missing");
}

void session(Random& random) {
    std::vector<int> counts(kMost, 0);
    const int threads = 1 + static_cast<int>(random() % kMost), jobs = static_cast<int>(random() % 6);
    const bool fails = random() % 4 == 0;
    long total = 0;
    bool failed = false;
    try {
        fastbert::parallel_session(threads, [&] {
            for (int job = 0; job < jobs; ++job) {
                const int wanted = 1 + (job * 7 + threads) % kMost;
                fastbert::parallel(wanted, [&](int thread, int) { ++counts[static_cast<std::size_t>(thread)]; });
                total += std::accumulate(counts.begin(), counts.end(), 0L);
                // A region inside of a job is serial.
                fastbert::parallel(wanted, [&](int thread, int together) {
                    if (together > 1) fastbert::parallel(2, [&](int, int running) { counts[static_cast<std::size_t>(thread)] += running - 1; });
                });
            }
            if (fails) throw std::runtime_error("of the body");
        });
    } catch (const std::runtime_error&) {
        failed = true;
    }
    require(failed == fails, "an exception is lost");
    require(jobs == 0 || total > 0, "no thread has counted");
}

void barrier(Random& random) {
    const int threads = 2 + static_cast<int>(random() % 4), rounds = 20;
    fastbert::Barrier meeting;
    std::vector<int> written(static_cast<std::size_t>(threads), 0);
    std::vector<std::thread> all;
    for (int thread = 0; thread < threads; ++thread) {
        all.emplace_back([&, thread] {
            for (int round = 1; round <= rounds; ++round) {
                written[static_cast<std::size_t>(thread)] = round;
                int steps = thread * 5;
                meeting.wait(threads, [&] { return --steps > 0; });
                for (const int other : written) require(other == round, "a thread has not arrived");
                meeting.wait(threads);
            }
        });
    }
    for (std::thread& thread : all) thread.join();
}

// Blocks are filled by one thread, and checked and freed by another.
void allocator(Random& random) {
    std::mutex mutex;
    std::deque<std::pair<fastbert::AllocatorBlock, std::size_t>> blocks;
    std::vector<std::thread> all;
    for (int thread = 0; thread < 4; ++thread) {
        all.emplace_back([&, draw = Random(random())]() mutable {
            for (int step = 0; step < 30; ++step) {
                const std::size_t size = 1 + draw() % (draw() % 8 == 0 ? 3'000'000 : 20'000);
                fastbert::AllocatorBlock block(size, draw() % 3 == 0 ? fastbert::Pool::weights : fastbert::Pool::steps);
                const std::size_t used = std::min<std::size_t>(size, 512);
                std::memset(block.data(), static_cast<int>(size & 0xFF), used);
                std::pair<fastbert::AllocatorBlock, std::size_t> other;
                {
                    const std::lock_guard lock(mutex);
                    blocks.emplace_back(std::move(block), size);
                    if (blocks.size() > 5) other = std::move(blocks.front()), blocks.pop_front();
                }
                if (other.second > 0) {
                    const auto expected = static_cast<std::byte>(other.second & 0xFF);
                    require(std::all_of(other.first.data(), other.first.data() + std::min<std::size_t>(other.second, 512),
                                        [&](std::byte byte) { return byte == expected; }), "a block is not its own");
                }
                if (draw() % 16 == 0) fastbert::release_free_pages();
                if (draw() % 16 == 0) fastbert::reset_allocator_peak();
                require(fastbert::allocator_statistics().blocks < 1000, "blocks are counted wrongly");
                std::byte* const memory = fastbert::arena(1 + draw() % 5000);
                memory[0] = std::byte{1};
                fastbert::release_large_arena();
            }
        });
    }
    for (std::thread& thread : all) thread.join();
}

void search(Random& random) {
    const std::size_t count = 1 + random() % 3000, width = 1 + random() % 40, best = std::min<std::size_t>(count, 5);
    std::vector<float> rows(count * width), queries(3 * width);
    for (float& value : rows) value = static_cast<float>(static_cast<int>(random() % 17) - 8);
    for (float& value : queries) value = static_cast<float>(static_cast<int>(random() % 17) - 8);
    std::vector<std::pair<float, std::int64_t>> scores;
    for (std::size_t row = 0; row < count; ++row) {
        float sum = 0;
        for (std::size_t i = 0; i < width; ++i) sum += rows[row * width + i] * queries[i];
        scores.emplace_back(-sum, static_cast<std::int64_t>(row));
    }
    std::sort(scores.begin(), scores.end());
    std::vector<std::thread> callers;
    for (int caller = 0; caller < 3; ++caller) {
        callers.emplace_back([&] {
            std::vector<float> found(3 * best);
            std::vector<std::int64_t> indices(3 * best);
            fastbert::SearchCall call;
            call.rows = rows.data(), call.count = count, call.width = width;
            call.queries = queries.data(), call.query_count = 3, call.best = best;
            call.scores = found.data(), call.indices = indices.data();
            require(!fastbert::search_rows(call).has_value(), "a score is not finite");
            for (std::size_t i = 0; i < best; ++i) {
                require(found[i] == -scores[i].first && indices[i] == scores[i].second, "another row is the best");
            }
        });
    }
    for (std::thread& caller : callers) caller.join();
}

}  // namespace

int main(int count, char** arguments) {
    if (count != 3) return std::fputs("usage: runtime_threads SEED ROUNDS\n", stderr), 2;
    Random random(std::strtoull(arguments[1], nullptr, 10));
    const unsigned long rounds = std::strtoul(arguments[2], nullptr, 10);
    for (unsigned long round = 0; round < rounds; ++round) {
        regions(random);
        session(random);
        barrier(random);
        allocator(random);
        search(random);
    }
    std::printf("%lu rounds, no difference\n", rounds);
    return 0;
}
