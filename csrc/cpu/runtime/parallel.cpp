#include "cpu/runtime/parallel.h"

#include <dlfcn.h>
#include <pthread.h>

#include <exception>

#include "cpu/runtime/barrier.h"

// The OpenMP runtime is looked up among the loaded libraries, not linked: torch ships its own under names that differ
// between builds, and a second one would compete for the cores. Its entry points (libgomp's, also provided by LLVM's
// and Intel's) need no compiler flag.
namespace fastbert {
namespace {

struct Runtime {
    using Parallel = void (*)(void (*)(void*), void*, unsigned, unsigned);
    Parallel parallel = nullptr;
    int (*thread)() = nullptr;
    int (*running)() = nullptr;
    int (*most)() = nullptr;
    int (*inside)() = nullptr;
};

// After fork, the child has one thread, the copy of the one that forked, but libgomp still waits for the threads which
// that one led. Such a thread therefore runs serially in the child; threads started in the child may lead threads of
// their own.
thread_local bool led = false;
thread_local bool alone = false;

template <typename Function>
void find(void* library, const char* name, Function& function) {
    function = reinterpret_cast<Function>(dlsym(library, name));
}

bool take(Runtime& runtime, void* library) {
    Runtime symbols;
    find(library, "GOMP_parallel", symbols.parallel);
    find(library, "omp_get_thread_num", symbols.thread);
    find(library, "omp_get_num_threads", symbols.running);
    find(library, "omp_get_max_threads", symbols.most);
    find(library, "omp_in_parallel", symbols.inside);
    if (!symbols.parallel || !symbols.thread || !symbols.running || !symbols.most || !symbols.inside) return false;
    runtime = symbols;
    return true;
}

Runtime look_up() {
    pthread_atfork(nullptr, nullptr, [] { alone = led; });
    Runtime runtime;
    if (take(runtime, RTLD_DEFAULT)) return runtime;
    for (const char* name : {"libgomp.so.1", "libiomp5.so", "libomp.so", "libomp.so.5", "libomp.dylib"}) {
        // Never closed: threads may be running in it until the process exits.
        if (void* library = dlopen(name, RTLD_LAZY | RTLD_NOLOAD); library && take(runtime, library)) return runtime;
    }
    if (void* library = dlopen("libgomp.so.1", RTLD_LAZY)) take(runtime, library);
    return runtime;
}

// Looked up lazily: when the first kernel runs, torch is loaded.
const Runtime& runtime() {
    static const Runtime symbols = look_up();
    return symbols;
}

// The threads of a session. The first one leads: each of its regions is a job, which begins and ends with a barrier.
class Team {
public:
    // Run `body` on thread 0, the jobs of its regions on all. Called by every thread of a region of the runtime.
    template <typename Body>
    void enter(int thread, int running, Body&& body) {
        if (running == 1) return body();
        if (thread == 0) {
            threads_ = running;
            team = this;
            body();
            team = nullptr;
            job_ = {};
            barrier_.wait(running);
        } else {
            serve(thread, running);
        }
    }

    int threads() const { return threads_; }

    // Run a job on the first `threads` threads, on the one that leads.
    void run(int threads, void (*body)(void*, int, int), void* context) {
        job_ = {body, context, std::min(threads, threads_)};
        team = nullptr;  // a region inside of a job is serial
        barrier_.wait(threads_);
        call(0);
        barrier_.wait(threads_);
        team = this;
    }

    // The team that this thread leads, outside of its jobs.
    static thread_local Team* team;

private:
    // An exception would leave the other threads waiting.
    void call(int thread) noexcept { job_.body(job_.context, thread, job_.threads); }

    void serve(int thread, int running) {
        for (;;) {
            barrier_.wait(running);
            if (!job_.body) return;
            if (thread < job_.threads) call(thread);
            barrier_.wait(running);
        }
    }

    struct Job {
        void (*body)(void*, int, int) = nullptr;
        void* context = nullptr;
        int threads = 0;
    };

    int threads_ = 1;
    Job job_;
    Barrier barrier_;
};

thread_local Team* Team::team = nullptr;

}  // namespace

int parallel_threads() {
    if (Team::team) return Team::team->threads();
    const Runtime& openmp = runtime();
    return !openmp.parallel || alone || openmp.inside() ? 1 : std::max(1, openmp.most());
}

void parallel_run(int threads, void (*body)(void*, int, int), void* context) {
    if (threads > 1 && Team::team) return Team::team->run(threads, body, context);
    if (threads <= 1 || alone || !runtime().parallel) return body(context, 0, 1);
    led = true;
    struct Call {
        void (*body)(void*, int, int);
        void* context;
    } call{body, context};
    runtime().parallel(
        [](void* data) {
            const Call& call = *static_cast<Call*>(data);
            call.body(call.context, runtime().thread(), runtime().running());
        },
        &call, static_cast<unsigned>(threads), 0);
}

void parallel_session_run(int threads, void (*body)(void*), void* context) {
    if (threads <= 1 || Team::team) return body(context);
    Team team;
    std::exception_ptr error;
    parallel(threads, [&](int thread, int running) {
        team.enter(thread, running, [&] {
            try {
                body(context);
            } catch (...) {  // none may leave the runtime's region
                error = std::current_exception();
            }
        });
    });
    if (error) std::rethrow_exception(error);
}

}  // namespace fastbert
