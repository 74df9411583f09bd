// Load for one HTTP/1.1 server from one thread: keep-alive connections, in a closed loop or at a given rate.
//
//     load --port 8080 --path /embed --bodies bodies.jsonl --connections 32 --seconds 5
//
// In a closed loop every connection sends its next request when the last one is answered. With --rate requests are due
// at fixed times, and a latency begins when its request was due, not when a connection became free for it: a server
// that stalls is not spared the requests that it kept waiting (no coordinated omission). Idle connections send nothing;
// slow ones send a request and read its answer a few bytes at a time. Prints one JSON object. Linux only (epoll).

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <map>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;  // CLOCK_MONOTONIC, as the timer below
using Time = Clock::time_point;
using Seconds = std::chrono::duration<double>;

constexpr auto kTick = std::chrono::milliseconds(200);  // of slow connections, and before a failed one is reopened
constexpr std::size_t kSlowBytes[2] = {1, 64};          // sent, and read, per tick
constexpr std::size_t kBuffer = 1 << 18;
constexpr int kOn = 1;

struct Options {
    std::string host = "127.0.0.1", path = "/", bodies, header;
    double port = 0, connections = 1, idle = 0, slow = 0, seconds = 1, warmup = 0, rate = 0, drain = 10;
};

Clock::duration duration(double seconds) { return std::chrono::duration_cast<Clock::duration>(Seconds(seconds)); }

class Descriptor {
public:
    explicit Descriptor(int value = -1) : value_(value) {}
    Descriptor(Descriptor&& other) noexcept : value_(std::exchange(other.value_, -1)) {}
    Descriptor& operator=(Descriptor&& other) noexcept { return std::swap(value_, other.value_), *this; }
    ~Descriptor() { close(value_); }
    int get() const { return value_; }

private:
    int value_;
};

// One answer as its bytes arrive, with a Content-Length or chunked. Requests are not pipelined, so all bytes until its
// end belong to it.
class Answer {
public:
    bool feed(std::string_view bytes) {
        if (!in_body_) {
            head_.append(bytes);
            const std::size_t end = head_.find("\r\n\r\n");
            if (end == std::string::npos) return false;
            tail_.assign(head_, end + 2);  // with the end of the head, for an empty chunked body
            bytes = std::string_view(tail_).substr(2);
            head_.resize(end + 2);
            read_head();
        } else if (chunked_) {
            tail_.append(bytes);
        }
        remaining_ -= std::min(remaining_, bytes.size());
        if (!chunked_) return remaining_ == 0;
        // The last chunk. JSON has no raw line breaks, so that no data looks like it.
        constexpr std::string_view last = "\r\n0\r\n\r\n";
        if (tail_.size() > last.size()) tail_.erase(0, tail_.size() - last.size());
        return tail_ == last;
    }
    bool closes() const { return closes_; }
    int status() const { return status_; }

private:
    void read_head() {
        in_body_ = true;
        std::transform(head_.begin(), head_.end(), head_.begin(), [](unsigned char c) { return std::tolower(c); });
        if (head_.size() > 12) status_ = std::atoi(head_.data() + 9);  // after "http/1.1 "
        chunked_ = head_.find("\r\ntransfer-encoding: chunked\r\n") != std::string::npos;
        closes_ = head_.find("\r\nconnection: close\r\n") != std::string::npos;
        constexpr std::string_view name = "\r\ncontent-length: ";
        const std::size_t length = head_.find(name);
        if (length != std::string::npos) remaining_ = std::strtoul(head_.data() + length + name.size(), nullptr, 10);
    }

    std::string head_, tail_;
    std::size_t remaining_ = 0;
    bool in_body_ = false, chunked_ = false, closes_ = false;
    int status_ = 0;
};

enum class Role { load, idle, slow };

struct Connection {
    Role role = Role::load;
    Descriptor socket;
    Answer answer;
    std::string_view unsent;
    Time due;            // of the request in flight
    bool busy = false;   // a request is in flight
    bool broken = true;  // to be opened
};

std::vector<std::string> requests_of(const Options& options) {
    const bool post = !options.bodies.empty();
    std::string head = (post ? "POST " : "GET ") + options.path + " HTTP/1.1\r\nHost: " + options.host + "\r\n";
    if (!options.header.empty()) head += options.header + "\r\n";
    if (!post) return {head + "\r\n"};
    std::ifstream file(options.bodies);
    std::vector<std::string> requests;
    for (std::string body; std::getline(file, body);) {
        if (body.empty()) continue;
        const std::string length = "Content-Length: " + std::to_string(body.size());
        requests.push_back(head + "Content-Type: application/json\r\n" + length + "\r\n\r\n" + body);
    }
    if (requests.empty()) throw std::runtime_error("--bodies " + options.bodies + ": no such file, or no line in it");
    return requests;
}

double processor_seconds() { return double(std::clock()) / CLOCKS_PER_SEC; }

class Load {
public:
    explicit Load(const Options& options)
        : options_(options), requests_(requests_of(options)), poll_(epoll_create1(0)),
          timer_(timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK)), buffer_(kBuffer) {
        address_.sin_family = AF_INET;
        address_.sin_port = htons(static_cast<std::uint16_t>(options.port));
        if (inet_pton(AF_INET, options.host.c_str(), &address_.sin_addr) != 1)
            throw std::runtime_error("--host " + options.host + " must be an IPv4 address");
        watch(timer_.get(), EPOLLIN, UINT64_MAX);
        const double counts[] = {options.connections, options.idle, options.slow};
        for (const Role role : {Role::load, Role::idle, Role::slow})
            for (int i = 0; i < counts[int(role)]; ++i) connections_.emplace_back().role = role;
    }

    void run() {
        begin_ = Clock::now();
        counted_from_ = begin_ + duration(options_.warmup);
        stop_ = counted_from_ + duration(options_.seconds);
        next_tick_ = begin_;
        std::array<epoll_event, 256> events;
        for (Time now = begin_; now < stop_ || (busy_ > 0 && now < stop_ + duration(options_.drain));
             now = Clock::now()) {
            if (processor_ < 0 && now >= counted_from_) processor_ = processor_seconds();
            if (now >= next_tick_) tick(now);
            send_due(now);
            set_timer(now);
            const int count = epoll_wait(poll_.get(), events.data(), int(events.size()), -1);
            for (int i = 0; i < count; ++i)
                if (events[i].data.u64 != UINT64_MAX) ready(events[i].data.u64, events[i].events);
        }
    }

    void print() {
        std::sort(latencies_.begin(), latencies_.end());
        std::uint64_t answered = 0;
        std::string statuses, percentiles;
        for (const auto& [status, count] : statuses_) {
            answered += count;
            statuses += (statuses.empty() ? "\"" : ", \"") + status + "\": " + std::to_string(count);
        }
        for (const auto& [name, share] :
             {std::pair{"p50", 0.5}, {"p90", 0.9}, {"p99", 0.99}, {"p99.9", 0.999}, {"max", 1.0}}) {
            percentiles += (percentiles.empty() ? "\"" : ", \"") + std::string(name) + "\": ";
            percentiles += latencies_.empty() ? "null" : std::to_string(percentile(share) * 1e3);
        }
        const std::pair<const char*, std::uint64_t> counts[] = {
            {"requests", answered}, {"unanswered", busy_}, {"unsent", unsent()}, {"bytes_read", bytes_},
            {"idle_closed", closed_[1]}, {"slow_answered", slow_answered_}, {"slow_closed", closed_[2]}};
        std::printf("{\"statuses\": {%s}, \"latency_ms\": {%s}", statuses.c_str(), percentiles.c_str());
        for (const auto& [name, count] : counts) std::printf(", \"%s\": %ju", name, std::uintmax_t{count});
        std::printf(", \"seconds\": %.6g, \"requests_per_second\": %.6g, \"processor_seconds\": %.6g}\n",
                    options_.seconds, double(completed_) / options_.seconds, processor_seconds() - processor_);
    }

private:
    // The nearest rank, of sorted latencies.
    double percentile(double share) const {
        return latencies_[std::size_t(std::max(std::ceil(share * double(latencies_.size())), 1.0)) - 1];
    }

    std::uint64_t unsent() const {
        const auto planned = std::uint64_t((options_.warmup + options_.seconds) * options_.rate);
        return planned - std::min(planned, sent_);
    }

    void watch(int descriptor, std::uint32_t what, std::uint64_t index) {
        epoll_event event{what, {.u64 = index}};
        epoll_ctl(poll_.get(), EPOLL_CTL_ADD, descriptor, &event);
    }

    void open(std::size_t index) {
        Connection& connection = connections_[index];
        connection.socket = Descriptor(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0));
        if (connection.socket.get() < 0) throw std::runtime_error("socket failed: raise the limit of open files");
        setsockopt(connection.socket.get(), IPPROTO_TCP, TCP_NODELAY, &kOn, sizeof kOn);
        connection.broken = connection.busy = false;
        connection.answer = Answer();
        connection.unsent = {};
        watch(connection.socket.get(), EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, index);
        connect(connection.socket.get(), reinterpret_cast<const sockaddr*>(&address_), sizeof address_);
        if (connection.role == Role::load) free_.push_back(index);
    }

    // Connections that failed are opened here, so that a server that is down is not asked in a busy loop.
    void tick(Time now) {
        next_tick_ = now + kTick;
        for (std::size_t index = 0; index < connections_.size(); ++index) {
            Connection& connection = connections_[index];
            if (connection.broken && now < stop_) open(index);
            if (connection.role == Role::slow && !connection.broken) trickle(index);
        }
    }

    void trickle(std::size_t index) {
        Connection& connection = connections_[index];
        if (!std::exchange(connection.busy, true)) connection.unsent = next_request();
        if (!connection.unsent.empty()) {
            const ssize_t sent = send(connection.socket.get(), connection.unsent.data(), kSlowBytes[0], MSG_NOSIGNAL);
            if (sent > 0) connection.unsent.remove_prefix(std::size_t(sent));
            if (sent < 0 && errno != EAGAIN) return fail(index);
        }
        read(index, kSlowBytes[1], false);
    }

    std::string_view next_request() { return requests_[next_body_++ % requests_.size()]; }

    Time due_time() const { return begin_ + duration(double(sent_) / options_.rate); }

    void send_due(Time now) {
        while (!free_.empty()) {
            const Time due = options_.rate > 0 ? due_time() : now;
            if (due > now || due >= stop_) return;
            const std::size_t index = free_.back();
            free_.pop_back();
            Connection& connection = connections_[index];
            if (connection.broken) continue;
            connection.busy = true;
            connection.due = due;
            connection.unsent = next_request();
            ++busy_;
            ++sent_;
            flush(index);
        }
    }

    void flush(std::size_t index) {
        Connection& connection = connections_[index];
        while (!connection.unsent.empty()) {
            const std::string_view data = connection.unsent;
            const ssize_t sent = send(connection.socket.get(), data.data(), data.size(), MSG_NOSIGNAL);
            if (sent < 0) {
                if (errno != EAGAIN) fail(index);  // EAGAIN: full, or not yet connected
                return;
            }
            connection.unsent.remove_prefix(std::size_t(sent));
        }
    }

    void ready(std::size_t index, std::uint32_t events) {
        Connection& connection = connections_[index];
        if (connection.broken) return;
        if (connection.role == Role::slow) return;  // read at its own pace
        const bool ended = (events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0;
        if (!connection.unsent.empty()) flush(index);
        if ((events & EPOLLIN) || ended) read(index, kBuffer, ended);
    }

    void read(std::size_t index, std::size_t most, bool ended) {
        Connection& connection = connections_[index];
        while (!connection.broken) {
            const ssize_t got = recv(connection.socket.get(), buffer_.data(), most, 0);
            if (got < 0 && errno == EAGAIN) return;
            if (got <= 0) return fail(index);
            bytes_ += std::uint64_t(got);
            if (connection.answer.feed({buffer_.data(), std::size_t(got)})) return complete(index);
            // A short read took all there was; what comes later is a new event.
            if (connection.role == Role::slow || (std::size_t(got) < most && !ended)) return;
        }
    }

    void complete(std::size_t index) {
        Connection& connection = connections_[index];
        const Answer answer = std::exchange(connection.answer, Answer());
        const bool requested = std::exchange(connection.busy, false);
        if (connection.role == Role::load && requested) {
            const Time now = Clock::now();
            --busy_;
            if (now >= counted_from_ && now < stop_) ++completed_;
            if (connection.due >= counted_from_) {
                ++statuses_[std::to_string(answer.status())];
                if (answer.status() / 100 == 2) latencies_.push_back(Seconds(now - connection.due).count());
            }
        } else if (connection.role == Role::slow) {
            ++slow_answered_;
        }
        if (answer.closes() || !connection.unsent.empty()) {
            connection.broken = true;
            if (connection.role == Role::load && Clock::now() < stop_) open(index);
        } else if (connection.role == Role::load) {
            free_.push_back(index);
        }
    }

    void fail(std::size_t index) {
        Connection& connection = connections_[index];
        connection.broken = true;
        ++closed_[std::size_t(connection.role)];
        std::erase(free_, index);
        if (connection.role == Role::load && std::exchange(connection.busy, false)) {
            --busy_;
            if (connection.due >= counted_from_) ++statuses_["closed"];
        }
    }

    void set_timer(Time now) {
        Time next = std::min(next_tick_, now < stop_ ? stop_ : stop_ + duration(options_.drain));
        if (options_.rate > 0 && !free_.empty()) next = std::min(next, std::max(due_time(), now));
        if (next == timer_set_ && next > now) return;
        timer_set_ = next;
        const std::int64_t since = std::chrono::nanoseconds(next.time_since_epoch()).count();
        const itimerspec when{{0, 0}, {since / 1'000'000'000, since % 1'000'000'000}};
        timerfd_settime(timer_.get(), TFD_TIMER_ABSTIME, &when, nullptr);
    }

    const Options& options_;
    std::vector<std::string> requests_;
    sockaddr_in address_{};
    Descriptor poll_, timer_;
    std::vector<char> buffer_;
    std::vector<Connection> connections_;
    std::vector<std::size_t> free_;
    Time begin_, counted_from_, stop_, next_tick_, timer_set_;
    std::vector<double> latencies_;  // seconds, of answers with a status 2xx
    std::map<std::string, std::uint64_t> statuses_;
    std::uint64_t sent_ = 0, next_body_ = 0, completed_ = 0, busy_ = 0, bytes_ = 0, slow_answered_ = 0;
    std::array<std::uint64_t, 3> closed_{};  // by role
    double processor_ = -1;  // seconds used before answers are counted
};

Options read_options(int count, char** words) {
    Options options;
    const std::map<std::string_view, std::string*> texts = {
        {"--host", &options.host}, {"--path", &options.path}, {"--bodies", &options.bodies},
        {"--header", &options.header}};
    const std::map<std::string_view, double*> numbers = {
        {"--port", &options.port}, {"--connections", &options.connections}, {"--idle", &options.idle},
        {"--slow", &options.slow}, {"--seconds", &options.seconds}, {"--warmup", &options.warmup},
        {"--rate", &options.rate}, {"--drain", &options.drain}};
    for (int i = 1; i < count; i += 2) {
        const std::string name = words[i], text = i + 1 < count ? words[i + 1] : "";
        char* end = nullptr;
        if (texts.contains(name)) *texts.at(name) = text;
        else if (!numbers.contains(name)) throw std::runtime_error("unknown option " + name);
        else if (*numbers.at(name) = std::strtod(text.c_str(), &end); text.empty() || *end || text[0] == '-')
            throw std::runtime_error(name + " '" + text + "' must be a number of at least 0");
    }
    if (options.port < 1 || options.port > 65535) throw std::runtime_error("--port must be from 1 to 65535");
    if (options.seconds <= 0) throw std::runtime_error("--seconds must be positive");
    return options;
}

}  // namespace

int main(int count, char** words) {
    try {
        const Options options = read_options(count, words);
        rlimit files{};
        getrlimit(RLIMIT_NOFILE, &files);
        files.rlim_cur = files.rlim_max;
        setrlimit(RLIMIT_NOFILE, &files);
        Load load(options);
        load.run();
        load.print();
    } catch (const std::exception& error) {
        std::fprintf(stderr, "load: %s\n", error.what());
        return 1;
    }
}
