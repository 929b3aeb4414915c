// Ranks of two hosts, joined by carriers. Built plainly and with sanitizers.
//
//   carrier_selftest exact STEPS     threads over socket pairs: bits as of one process; also rows here, experts there
//   carrier_selftest loss            a closed and a silent connection; the others go on, and take the rank in again
//   carrier_selftest refusals        frames that end the connection
//   carrier_selftest speed ROWS ROW_BYTES TOP_K ROUNDS     a session over TCP and a ping-pong of its bytes, in turns:
//                                    times [ns] of the median turn, its ratio, and those of the quarters
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>

#include "carrier.h"
#include "exchange_case.h"

namespace {

using namespace cm::ub;
using namespace cm::ub::test;
using std::chrono::milliseconds;
using std::chrono::seconds;

void require(bool good, const char* text) {
    if (good) return;
    std::printf("failed: %s\n", text);
    std::fflush(stdout);
    std::_Exit(1);
}

bool soon(const std::function<bool()>& seen) {
    const auto limit = Clock::now() + seconds(60);
    while (!seen() && Clock::now() < limit) std::this_thread::sleep_for(milliseconds(1));
    return seen();
}

struct Free {
    void operator()(void* memory) const { std::free(memory); }
};

class Memory {
  public:
    Window window(WindowShape shape, uint32_t owner, Role role = Role::kBoth) {
        if (!asks(role)) shape.max_rows = 1;
        void* bytes = nullptr;
        if (posix_memalign(&bytes, kLine, WindowLayout(shape).bytes)) std::abort();
        kept_.emplace_back(bytes);
        return Window::format(bytes, shape, owner, role, 1, all_of(shape.ranks));
    }

  private:
    std::vector<std::unique_ptr<void, Free>> kept_;
};

constexpr CarrierTimes patient{milliseconds(50), seconds(60)};  // however slow this machine is

// Ranks with their hosts; rank r sees windows of its host, and mirrors of its own of all others.
struct Hosts {
    explicit Hosts(std::vector<int> of, const CarrierTimes& times = patient, const std::vector<Role>& roles = {})
        : hosts(std::move(of)), shape(shape_for(static_cast<uint32_t>(hosts.size()))), times(times), roles(roles) {
        this->roles.resize(shape.ranks, Role::kBoth);
        for (uint32_t rank = 0; rank < shape.ranks; ++rank)
            own.push_back(memory.window(shape, rank, this->roles[rank]));
        seen.assign(shape.ranks, own);
        for (uint32_t a = 0; a < shape.ranks; ++a)
            for (uint32_t b = a + 1; b < shape.ranks; ++b)
                if (hosts[a] != hosts[b] && (this->roles[a] != this->roles[b] || this->roles[a] == Role::kBoth)) join(a, b);
    }

    void join(uint32_t a, uint32_t b) {
        int ends[2];
        require(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0, "a socket pair");
        carry(a, b, ends[0]);
        carry(b, a, ends[1]);
    }

    void carry(uint32_t rank, uint32_t peer, int socket) {
        seen[rank][peer] = memory.window(shape, peer, roles[peer]);
        carriers[{rank, peer}].reset();
        carriers[{rank, peer}] = std::make_unique<Carrier>(own[rank], seen[rank][peer], times);
        carriers[{rank, peer}]->start(socket);
    }

    Memory memory;
    std::vector<int> hosts;
    WindowShape shape;
    CarrierTimes times;
    std::vector<Role> roles;
    std::vector<Window> own;
    std::vector<std::vector<Window>> seen;  // [rank][of rank]
    std::map<std::pair<uint32_t, uint32_t>, std::unique_ptr<Carrier>> carriers;
};

Patience patience_of(uint32_t rank) {
    Patience patience = Patience::of(9, 2);
    if (rank % 2) patience.pause = std::chrono::nanoseconds(0);
    patience.slice = patience.doze = seconds(3600);  // a sleeper that is not woken is late
    return patience;
}

bool same(const Batch& batch, const std::array<Vector, kMaxRows>& x) {
    const auto want = alone(batch);
    return std::memcmp(x.data(), want.data(), sizeof(Vector) * static_cast<size_t>(batch.rows)) == 0;
}

void exact_with(const std::vector<int>& hosts, RankSet sources, RankSet experts, uint32_t steps, bool roles = false) {
    std::vector<Role> of;
    for (uint32_t rank = 0; roles && rank < hosts.size(); ++rank)
        of.push_back(has(sources, rank) ? Role::kAttention : Role::kExperts);
    Hosts all(hosts, patient, of);
    std::atomic<RankSet> finished{0};
    std::vector<std::thread> threads;
    for (uint32_t rank = 0; rank < all.shape.ranks; ++rank) {
        threads.emplace_back([&, rank] {
            Watch watch;
            Exchange exchange(rank, all.seen[rank], watch, patience_of(rank));
            for (uint32_t step = 0; has(sources, rank) && step < steps; ++step) {
                const Batch batch(rank, step, false);
                std::array<Vector, kMaxRows> x;
                const Outcome outcome = run_step(exchange, experts, batch, Clock::now() + seconds(60), x);
                require(static_cast<bool>(outcome), name(outcome.ending));
                require(same(batch, x), "bits as of one process");
                exchange.use_map(step + 1);
            }
            finished |= just(rank);
            const auto over = [&] { return finished.load() == exchange.members(); };
            const Outcome outcome = serve_until(exchange, experts, over);
            require(static_cast<bool>(outcome), name(outcome.ending));
        });
    }
    for (std::thread& thread : threads) thread.join();
    for (const auto& [ranks, carrier] : all.carriers) {
        require(carrier->lost().empty(), "nobody is lost");
        const auto& map = all.seen[ranks.first][ranks.second].progress().map;
        const uint64_t used = has(sources, ranks.second) ? steps : 0;
        require(soon([&] { return map.load() == used; }), "the map in use has arrived, by a beat at last");
    }
}

void exact(uint32_t steps) {
    exact_with({0, 1}, all_of(2), all_of(2), steps);
    exact_with({0, 0, 1}, all_of(3), all_of(3), steps);
    exact_with({0, 1}, just(0), just(1), steps);
    exact_with({0, 0, 1, 1}, just(0) | just(2), just(1) | just(3), steps);
    exact_with({0, 1, 1, 0}, just(0) | just(1), just(2) | just(3), steps, true);
    exact_with({0, 1, 0}, just(0) | just(1), just(2), steps, true);
}

// Ranks 0 and 1 of one host with rank 2 of another, which ends at some step, or whose carriers fall silent.
void lose_rank(bool silent) {
    Hosts all({0, 0, 1}, silent ? CarrierTimes{milliseconds(50), milliseconds(300)} : patient);
    std::atomic<bool> ends{false};
    std::atomic<int> interrupted{0}, done{0};
    std::atomic<RankSet> lost_for{0};
    int ends_of[2][2];
    if (silent) {  // the test holds the other ends, and reads and writes nothing
        for (uint32_t rank = 0; rank < 2; ++rank) {
            require(socketpair(AF_UNIX, SOCK_STREAM, 0, ends_of[rank]) == 0, "a socket pair");
            all.carry(rank, 2, ends_of[rank][0]);
        }
    }
    const Clock::time_point begun = Clock::now();
    std::vector<std::thread> threads;
    for (uint32_t rank = 0; rank < 2; ++rank) {
        threads.emplace_back([&, rank] {
            Watch watch;
            Exchange exchange(rank, all.seen[rank], watch, patience_of(rank));
            const auto over = [&] { return done.load() == 2; };
            uint32_t step = 0;
            while (!over()) {
                const Batch batch(rank, step, false);
                std::array<Vector, kMaxRows> x;
                const auto end = Clock::now() + seconds(60);
                const Outcome outcome = step < 40 ? run_step(exchange, all_of(3), batch, end, x)
                                                  : serve_until(exchange, all_of(3), over);
                if (outcome && step < 40) {
                    require(same(batch, x), "bits as of one process, with the lost rank and without it");
                    if (++step == 40) ++done;
                    if (step == 20) ends.store(true);
                }
                if (outcome) continue;
                require(outcome.ending == Ending::kPeerLost || outcome.ending == Ending::kEpochChanged, "only the loss");
                if (outcome.ending == Ending::kPeerLost) require(outcome.rank == 2, "of that rank");
                ++interrupted;
                lost_for |= just(rank);
                require(static_cast<bool>(exchange.await_epoch(Clock::now() + seconds(60))), "a new epoch");
                exchange.enter();
            }
        });
    }
    std::thread other([&] {
        if (silent) return;
        Watch watch;
        Exchange exchange(2, all.seen[2], watch, Patience::of(9, 2));
        const auto over = [&] { return ends.load(); };
        serve_until(exchange, all_of(3), over);
        all.carriers[{2, 0}].reset();
        all.carriers[{2, 1}].reset();
    });
    while (lost_for.load() == 0) std::this_thread::sleep_for(milliseconds(1));
    require(Clock::now() - begun < seconds(20), "soon");
    for (uint32_t rank = 0; rank < 2; ++rank) {
        require(soon([&] { return !all.carriers[{rank, 2}]->lost().empty(); }), "the loss is known");
        all.own[rank].membership().lost.store(0);  // as a shell that is half-way
        require(soon([&] { return all.own[rank].membership().lost.load() == just(2); }), "and is reported anew");
        require(all.carriers[{rank, 2}]->lost() == (silent ? "no sign of life" : "the connection was closed"), "and why");
    }
    for (uint32_t rank = 0; rank < 2; ++rank) raise_epoch(all.own[rank], 2, all_of(2));
    for (std::thread& thread : threads) thread.join();
    other.join();
    all.carriers.clear();
    if (silent)
        for (auto& pair : ends_of) ::close(pair[1]);
}

void never_connected() {
    Memory memory;
    const Window own = memory.window(shape_for(2), 0), mirror = memory.window(shape_for(2), 1);
    own.membership().lost.store(just(1));
    Carrier carrier(own, mirror, {milliseconds(10), milliseconds(100)});
    require(own.membership().lost.load() == 0, "a new carrier forgets the loss of its predecessor");
    carrier.lose("no connection in time");
    own.membership().lost.store(0);
    require(soon([&] { return own.membership().lost.load() == just(1); }), "is reported anew");
    require(carrier.lost() == "no connection in time", "and why");
}

void loss() {
    lose_rank(false);
    lose_rank(true);
    never_connected();
}

// A peer in the test's hand: rank 1 of two, which sends what it likes.
struct Peer {
    explicit Peer(Role role) : own(memory.window(shape_for(2), 0, role)), mirror(memory.window(shape_for(2), 1)), carrier(own, mirror, patient) {
        int ends[2];
        require(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0, "a socket pair");
        socket = ends[1];
        carrier.start(ends[0]);
    }
    ~Peer() { ::close(socket); }

    static FrameHeader header(FrameKind kind, uint64_t word) {
        FrameHeader made{};
        made.magic = kFrameMagic;
        made.kind = kind;
        made.from = 1;
        made.to = 0;
        made.word = word;
        return made;
    }

    // The frame; spoil: bytes of it that are changed, from the first.
    void send(FrameHeader made, std::string payload, size_t spoil = ~size_t{0}, size_t cut = 0) {
        made.crc = crc_of(made);
        const uint32_t sum = crc32c(0, payload.data(), payload.size());
        std::string all(reinterpret_cast<const char*>(&made), sizeof made);
        all += payload + std::string(reinterpret_cast<const char*>(&sum), sizeof sum);
        if (spoil < all.size()) all[spoil] = static_cast<char>(all[spoil] ^ 1);
        all.resize(all.size() - cut);
        require(::send(socket, all.data(), all.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(all.size()), "sent");
        if (cut) ::shutdown(socket, SHUT_WR);
    }

    // An ask for one row with one expert.
    void ask(uint64_t word, Entry entry, uint32_t row, FrameHeader made = {}, size_t spoil = ~size_t{0}, size_t cut = 0) {
        if (made.magic == 0) made = header(FrameKind::kAsk, word);
        std::string payload(reinterpret_cast<const char*>(&entry), sizeof entry);
        payload += std::string(reinterpret_cast<const char*>(&row), sizeof row) + std::string(sizeof(Vector), 'x');
        if (made.rows == 0) made.rows = 1;
        if (made.bytes == 0) made.bytes = payload.size();
        send(made, payload, spoil, cut);
    }

    void ends_by(const std::string& why) {
        require(soon([&] { return !carrier.lost().empty(); }), "the connection ends");
        if (carrier.lost() != why) std::printf("'%s', not '%s': ", carrier.lost().c_str(), why.c_str());
        require(carrier.lost() == why, "why the connection ends");
        require(soon([&] { return own.membership().lost.load() == just(1); }), "and the peer is lost");
        require(own.word(Kind::kAsk, 1).load() == asked && own.word(Kind::kAnswer, 1).load() == 0, "nothing was posted");
    }

    uint64_t asked = 0;
    Memory memory;
    Window own, mirror;
    int socket;
    Carrier carrier;
};

void refuses(const std::string& why, const std::function<void(Peer&)>& act, Role role = Role::kBoth) {
    Peer peer(role);
    act(peer);
    peer.ends_by(why);
}

void refusals() {
    constexpr uint64_t word = pack({2, 0, 1, 1});
    using std::string;
    refuses("a damaged frame", [](Peer& p) { p.ask(word, {0, 0, 0}, 0, {}, 20); });
    refuses("a damaged frame", [](Peer& p) { p.ask(word, {0, 0, 0}, 0, {}, 0); });
    refuses("a frame with a wrong checksum", [](Peer& p) { p.ask(word, {0, 0, 0}, 0, {}, 64 + 100); });
    refuses("the connection was closed", [](Peer& p) { p.ask(word, {0, 0, 0}, 0, {}, ~size_t{0}, 1); });
    refuses("the connection was closed", [](Peer& p) { p.ask(word, {0, 0, 0}, 0, {}, ~size_t{0}, 200); });
    for (const int more : {-1, 1}) {
        refuses("an ask of another size than it says", [more](Peer& p) {
            FrameHeader made = Peer::header(FrameKind::kAsk, word);
            made.bytes = static_cast<uint64_t>(static_cast<int>(sizeof(Entry) + 4 + sizeof(Vector)) + more);
            p.ask(word, {0, 0, 0}, 0, made);
        });
    }
    refuses("an ask of another size than it says", [](Peer& p) { p.ask(pack({2, 0, 1, 2}), {0, 0, 0}, 0); });
    refuses("an ask of another size than it says", [](Peer& p) { p.ask(pack({2, 0, 1, kMaxRows * kTopK + 1}), {0, 0, 0}, 0); });
    refuses("an ask of no epoch or round", [](Peer& p) { p.ask(pack({0, 0, 1, 1}), {0, 0, 0}, 0); });
    refuses("an ask with entries outside of its window", [](Peer& p) { p.ask(word, {kMaxRows, 0, 0}, 0); });
    refuses("an ask with entries outside of its window", [](Peer& p) { p.ask(word, {0, kTopK, 0}, 0); });
    refuses("an ask with rows outside of its window", [](Peer& p) { p.ask(word, {0, 0, 0}, kMaxRows); });
    refuses("a frame that is repeated or was skipped", [](Peer& p) {
        p.ask(word, {0, 0, 0}, 0);
        p.ask(word, {0, 0, 0}, 0);
        p.asked = word;
    });
    refuses("an ask before the answer to the last", [](Peer& p) {
        p.ask(word, {0, 0, 0}, 0);
        FrameHeader made = Peer::header(FrameKind::kAsk, pack({2, 0, 2, 1}));
        made.number = 1;
        p.ask(made.word, {0, 0, 0}, 0, made);
        p.asked = word;
    });
    refuses("a frame of other ranks", [](Peer& p) {
        FrameHeader made = Peer::header(FrameKind::kAsk, word);
        made.from = 0;
        p.ask(word, {0, 0, 0}, 0, made);
    });
    refuses("an ask that ranks of these roles never send", [](Peer& p) { p.ask(word, {0, 0, 0}, 0); }, Role::kAttention);
    refuses("a frame of a session that cannot be", [](Peer& p) {
        FrameHeader made = Peer::header(FrameKind::kAsk, word);
        made.half = kMicroBatches;
        p.ask(word, {0, 0, 0}, 0, made);
    });
    refuses("an answer that nobody awaits", [](Peer& p) { p.send(Peer::header(FrameKind::kAnswer, word), ""); });
    refuses("a hello of no epoch", [](Peer& p) { p.send(Peer::header(FrameKind::kAnswer, 0), ""); });
    refuses("a beat with contents", [](Peer& p) { p.send(Peer::header(FrameKind::kBeat, word), ""); });
    refuses("a frame of an unknown kind", [](Peer& p) { p.send(Peer::header(static_cast<FrameKind>(3), word), ""); });
    const string known = "123456789", longer(7777, 'y');
    for (const string& text : {known, longer}) {
        const auto* bytes = reinterpret_cast<const unsigned char*>(text.data());
        require(crc32c(0, bytes, text.size()) == ~detail::crc32c_by_table(~0u, bytes, text.size()), "one checksum");
    }
    require(crc32c(0, known.data(), known.size()) == 0xe3069283u, "which is CRC32C");
}

// ---- speed

std::pair<int, int> tcp_pair() {
    const int listener = ::socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    require(::bind(listener, reinterpret_cast<sockaddr*>(&address), size) == 0 && ::listen(listener, 1) == 0, "bound");
    ::getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size);
    const int one = ::socket(AF_INET, SOCK_STREAM, 0);
    require(::connect(one, reinterpret_cast<sockaddr*>(&address), size) == 0, "connected");
    const int other = ::accept(listener, nullptr, nullptr);
    ::close(listener);
    const int on = 1;
    for (const int socket : {one, other}) ::setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    return {one, other};
}

void move_bytes(int socket, std::vector<char>& bytes, bool out) {
    for (size_t done = 0; done < bytes.size();) {
        const ssize_t some = out ? ::send(socket, bytes.data() + done, bytes.size() - done, 0)
                                 : ::recv(socket, bytes.data() + done, bytes.size() - done, 0);
        require(some > 0, "moved");
        done += static_cast<size_t>(some);
    }
}

int64_t time_of(uint32_t rounds, const std::function<void()>& one) {
    for (uint32_t i = 0; i < rounds / 10 + 1; ++i) one();
    const Clock::time_point begun = Clock::now();
    for (uint32_t i = 0; i < rounds; ++i) one();
    return std::chrono::nanoseconds(Clock::now() - begun).count() / rounds;
}

int64_t ping_pong(size_t there, size_t back, uint32_t rounds) {
    const auto [one, other] = tcp_pair();
    std::vector<char> sent(there), answer(back);
    std::thread peer([&, other = other] {
        std::vector<char> got(there), reply(back);
        for (uint32_t i = 0; i < rounds + rounds / 10 + 1; ++i) {
            move_bytes(other, got, false);
            move_bytes(other, reply, true);
        }
    });
    const int64_t ns = time_of(rounds, [&, one = one] {
        move_bytes(one, sent, true);
        move_bytes(one, answer, false);
    });
    peer.join();
    ::close(one);
    ::close(other);
    return ns;
}

// Rank 0 has rows, rank 1 the experts, which write zeros: the words and bytes alone.
int64_t session(const WindowShape& shape, uint32_t rows, uint32_t rounds, uint64_t& bytes) {
    Memory memory;
    const Window own0 = memory.window(shape, 0), own1 = memory.window(shape, 1);
    const Window mirror0 = memory.window(shape, 0), mirror1 = memory.window(shape, 1);
    const auto [one, other] = tcp_pair();
    Carrier carrier0(own0, mirror1, {}), carrier1(own1, mirror0, {});
    carrier0.start(one);
    carrier1.start(other);
    std::atomic<bool> over{false};
    const Patience patience = Patience::of(1, 2);
    std::thread peer([&] {
        Watch watch;
        Exchange exchange(1, {mirror0, own1}, watch, patience);
        const auto wants = [&] { return over.load(); };
        while (!over.load()) {
            exchange.await_ask(Clock::now() + seconds(1), wants);
            Service service(exchange);
            require(static_cast<bool>(service.check()), "a list");
            service.answer();
        }
    });
    Watch watch;
    Exchange exchange(0, {own0, mirror1}, watch, patience);
    uint32_t left = 0;
    const uint64_t before = carrier0.sent_bytes();
    const int64_t ns = time_of(rounds, [&] {
        if (left == 0) require(static_cast<bool>(exchange.begin_step(Clock::now() + seconds(10))), "begun");
        left = left ? left - 1 : 50;
        Dispatch dispatch(exchange);
        for (uint32_t row = 0; row < rows; ++row)
            for (uint32_t choice = 0; choice < shape.top_k; ++choice) dispatch.send(1, row, choice, 0);
        dispatch.ask();
        while (!exchange.answered()) require(static_cast<bool>(exchange.await(Clock::now() + seconds(10))), "answered");
        exchange.end_round();
    });
    bytes = (carrier0.sent_bytes() - before) / (rounds + rounds / 10 + 1);
    over.store(true);
    ring(own1.bell());
    peer.join();
    return ns;
}

void speed(char** numbers) {
    uint32_t given[4];
    for (int i = 0; i < 4; ++i) given[i] = static_cast<uint32_t>(std::atoi(numbers[i]));
    const uint32_t rows = given[0], rounds = given[3];
    const WindowShape shape{2, rows, given[2], given[1], given[1]};
    constexpr size_t kTurns = 15;
    std::vector<std::pair<double, std::pair<int64_t, int64_t>>> turns;
    uint64_t bytes = 0;
    for (size_t turn = 0; turn < kTurns; ++turn) {
        const int64_t carried = session(shape, rows, rounds, bytes);
        const int64_t bare = ping_pong(bytes, 68 + size_t{rows} * given[2] * given[1], rounds);
        turns.push_back({double(carried) / double(bare), {carried, bare}});
    }
    std::sort(turns.begin(), turns.end());
    const auto& [ratio, times] = turns[kTurns / 2];
    std::printf("session_ns %lld ping_pong_ns %lld bytes_out %llu ratio %.2f (%.2f to %.2f)\n",
                static_cast<long long>(times.first), static_cast<long long>(times.second),
                static_cast<unsigned long long>(bytes), ratio, turns[kTurns / 4].first, turns[kTurns * 3 / 4].first);
}

}  // namespace

int main(int count, char** arguments) {
    const std::string what = count > 1 ? arguments[1] : "";
    if (what == "exact") {
        exact(count > 2 ? static_cast<uint32_t>(std::atoi(arguments[2])) : 100);
    } else if (what == "loss") {
        loss();
    } else if (what == "refusals") {
        refusals();
    } else if (what == "speed" && count == 6) {
        speed(arguments + 2);
    } else {
        return 2;
    }
}
