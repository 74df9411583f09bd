// Executes AMX and AVX512_BF16 instructions in software on processors without them, so that production code runs there.
//
// Such an instruction raises #UD, which arrives as SIGILL; the handler does what the instruction would have done to the
// registers in the signal's frame, to memory and to this thread's tiles, and continues behind it. As long as the next
// instruction is again one of these, it goes on without returning: a signal costs more than most of them.
//
// Processors that have the instructions never raise the signal. This file is compiled without them, but with AVX-512.

#include <immintrin.h>
#include <signal.h>
#include <ucontext.h>

#include <atomic>
#include <cstdint>

#include "amx.h"
#include "avx512_bf16.h"
#include "decode.h"

namespace emulator {
namespace {

std::atomic<std::uint64_t> executed{0};
std::atomic<bool> declined{false};
struct sigaction previous;

Tiles& tiles() {
    static thread_local Tiles of_this_thread;
    return of_this_thread;
}

void execute(const Instruction& instruction, const ucontext_t& context) {
    // Denormals are zero in and out, rounding is to nearest even, nothing traps: whatever the program's MXCSR says.
    constexpr unsigned kMxcsr = 0x9fc0;
    const unsigned saved = _mm_getcsr();
    _mm_setcsr(kMxcsr);
    if (instruction.operation >= Operation::kConvertTwo) {
        execute_vector(instruction, VectorState(context));
    } else {
        tiles().execute(instruction);
    }
    _mm_setcsr(saved);
}

// Not ours: whoever handled the signal before gets it, by executing the instruction again. Python's faulthandler puts
// the handler that it found back, which may be this one: then the default action ends the process.
void decline(const siginfo_t& info) {
    struct sigaction next = previous;
    if (declined.exchange(true) || previous.sa_handler == SIG_IGN) {
        next = {};
        next.sa_handler = SIG_DFL;
    }
    sigaction(SIGILL, &next, nullptr);
    if (info.si_code <= 0) raise(SIGILL);  // sent by a process, not raised by an instruction
}

void handle(int, siginfo_t* info, void* frame) {
    auto* context = static_cast<ucontext_t*>(frame);
    if (info->si_code <= 0) return decline(*info);
    Instruction instruction = Decoder(*context).decode();
    if (instruction.operation == Operation::kNone) return decline(*info);
    std::uint64_t count = 0;
    do {
        execute(instruction, *context);
        context->uc_mcontext.gregs[REG_RIP] += instruction.length;
        ++count;
        instruction = Decoder(*context).decode();
    } while (instruction.operation != Operation::kNone);
    executed.fetch_add(count, std::memory_order_relaxed);
}

bool in_place() {
    struct sigaction current;
    return sigaction(SIGILL, nullptr, &current) == 0 && (current.sa_flags & SA_SIGINFO) != 0 &&
           current.sa_sigaction == handle;
}

}  // namespace
}  // namespace emulator

extern "C" {

// Returns 0, or -1 where the system refuses.
int emulator_install() {
    if (emulator::in_place()) return 0;
    struct sigaction action = {};
    action.sa_sigaction = emulator::handle;
    action.sa_flags = SA_SIGINFO;
    sigemptyset(&action.sa_mask);
    emulator::declined = false;
    return sigaction(SIGILL, &action, &emulator::previous);
}

int emulator_installed() { return emulator::in_place() ? 1 : 0; }

// Instructions executed in software so far, by all threads.
std::uint64_t emulator_executed() { return emulator::executed.load(); }

}  // extern "C"
