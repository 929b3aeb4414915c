// Carrier: joins a rank to a peer on another host by one connection. The rank has a *mirror*, a window in its own memory
// that stands for the peer's; at the other end the peer has a mirror of this rank.
//
//   rank r, host A                                 peer p, host B
//   posts an ask into mirror(p)      -- ask -->    rows and list into mirror(r), then the word into the window of p
//   results into the window of r    <-- answer --  p wrote results and its word into mirror(r)
//
// So ranks see windows only. A frame names its session, a micro-batch of the rank that asks; each has words and lists of
// its own, and a hello holds for both. Two threads: one sleeps at the mirror's bell and sends what its rank posts there,
// one receives. Either end sends a beat if it has nothing else to send; a rank whose peer is silent for too long, sends a
// frame that cannot be, or closes the connection, counts that peer as lost, until this object ends. Nothing of a lost
// peer is stored any more: the end of the connection fences it.
//
// The order of frames does most of the exchange's work: an ask follows the hello or the answer that allowed it, so that
// no payload is stored where it may still be read. What is left: the rank stages rows in a new epoch once all have said
// hello, while an ask of the old one may still be on its way out. A hello is therefore posted behind such an ask.
// tests/hardware/ub/carrier_model.py runs these rules through every order.
#pragma once
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "announcement.h"
#include "bell.h"
#include "frame.h"
#include "patience.h"
#include "window.h"

namespace cm::ub {

struct CarrierTimes {
    std::chrono::nanoseconds beat{250000000};      // longest time between two frames
    std::chrono::nanoseconds silence{1000000000};  // after which the peer is lost
};

class Carrier {
  public:
    // own: the rank's window; mirror: formatted as the peer's, with its role and rows, used by this rank only. Both must
    // outlive this object.
    Carrier(const Window& own, const Window& mirror, const CarrierTimes& times)
        : own_(own), mirror_(mirror), times_(times), self_(own.header().owner), peer_(mirror.header().owner) {
        own_.membership().lost.fetch_and(~just(peer_));  // that of a predecessor
        marked_.resize(own.shape().max_rows);
    }
    ~Carrier() { close(); }
    Carrier(const Carrier&) = delete;
    Carrier& operator=(const Carrier&) = delete;

    // Start with a connection to the peer's carrier, which this object closes. Once, by the thread that may call `lose`.
    void start(int socket) {
        socket_ = socket;
        set_timeout(SO_RCVTIMEO, times_.silence);
        set_timeout(SO_SNDTIMEO, times_.silence);
        sending_ = std::thread([this] { send(); });
        receiving_ = std::thread([this] { receive(); });
    }

    // Count the peer as lost, for this reason; before `start` if there is no connection.
    void lose(const char* why) {
        end(why);
        if (!sending_.joinable()) sending_ = std::thread([this] { send(); });  // which goes on reporting
    }

    // Why the peer is lost; empty while it is not.
    std::string lost() const {
        const std::lock_guard<std::mutex> guard(lock_);
        return why_;
    }

    uint64_t sent_bytes() const { return sent_bytes_.load(std::memory_order_relaxed); }

  private:
    void close() {
        stopping_.store(true);
        if (socket_ >= 0) ::shutdown(socket_, SHUT_RDWR);
        wake_sleeper(mirror_.bell());
        if (receiving_.joinable()) receiving_.join();
        if (sending_.joinable()) sending_.join();
        if (socket_ >= 0) ::close(socket_);
    }

    void set_timeout(int which, std::chrono::nanoseconds time) {
        const auto us = std::chrono::duration_cast<std::chrono::microseconds>(time).count();
        const timeval value{static_cast<time_t>(us / 1000000), static_cast<suseconds_t>(us % 1000000)};
        ::setsockopt(socket_, SOL_SOCKET, which, &value, sizeof value);
    }

    void end(const char* why) {
        {
            const std::lock_guard<std::mutex> guard(lock_);
            if (lost_.load()) return;
            why_ = why;
            lost_.store(true);
        }
        if (socket_ >= 0) ::shutdown(socket_, SHUT_RDWR);
        report();
        wake_sleeper(mirror_.bell());
    }

    // To the rank, as the shell reports a loss.
    void report() {
        if (stopping_.load()) return;
        own_.membership().lost.fetch_or(just(peer_), std::memory_order_seq_cst);
        ring(own_.bell());
    }

    // ---- from the rank to the peer

    void send() {
        FrameSender sender(socket_);
        Patience patience;
        patience.yield = std::chrono::nanoseconds(0);
        patience.slice = times_.beat;
        Clock::time_point beat = Clock::now();
        while (!stopping_.load()) {
            const auto seen = [&] { return stopping_.load() || (!lost_.load() && anything_new()); };
            const bool due = !wait_at(mirror_.bell(), patience, beat, {just(self_), 0, true}, seen, [] { return false; });
            if (lost_.load()) {
                report();  // anew: who raises an epoch takes losses back
                beat = Clock::now() + times_.beat;
                continue;
            }
            bool sent = true;
            for (uint32_t half = 0; sent && half < kMicroBatches; ++half)
                sent = send_answer(sender, half) && send_ask(sender, half);
            sent = sent && (!(due || went_away()) || send_beat(sender));
            sent_bytes_.store(sender.bytes(), std::memory_order_relaxed);
            if (!sent) end(peer_has_closed() ? "the connection was closed" : "it takes no more data");
            beat = Clock::now() + times_.beat;
        }
    }

    uint64_t posted(Kind kind, uint32_t half) const {
        return mirror_.word(kind, self_, half).load(std::memory_order_seq_cst);
    }

    bool anything_new() const {
        bool found = went_away();
        for (uint32_t half = 0; half < kMicroBatches; ++half)
            found = found || posted(Kind::kAnswer, half) != sessions_[half].answer || may_ask(half);
        return found;
    }

    // No more asks come in the rank's step: the peer need not wait for them. Other phases travel with other frames.
    bool went_away() const {
        const uint64_t phase = own_.progress().phase.load(std::memory_order_seq_cst);
        return phase != shown_ && static_cast<Phase>(phase & 3) == Phase::kAway;
    }

    // An ask of an epoch in which the peer has said no hello is of an older one: its rows may be written again.
    bool may_ask(uint32_t half) const {
        const uint64_t word = posted(Kind::kAsk, half);
        return word != sessions_[half].ask && same_epoch(unpack(word), unpack(hello_.load()));
    }

    FrameHeader header(FrameKind kind, uint64_t word, uint32_t half) {
        FrameHeader made{};
        made.kind = kind;
        made.half = half;
        made.from = static_cast<uint8_t>(self_);
        made.to = static_cast<uint8_t>(peer_);
        made.word = word;
        made.phase = shown_ = own_.progress().phase.load(std::memory_order_seq_cst);
        made.map = own_.progress().map.load(std::memory_order_acquire);
        return made;
    }

    bool send_beat(FrameSender& sender) {
        sender.begin(header(FrameKind::kBeat, 0, 0));
        return sender.end();
    }

    bool send_answer(FrameSender& sender, uint32_t half) {
        Session& session = sessions_[half];
        const uint64_t word = posted(Kind::kAnswer, half);
        if (word == session.answer) return true;
        session.answer = word;
        const Announcement said = unpack(word);
        const uint32_t entries = said.round ? std::min(said.count, mirror_.shape().max_entries()) : 0;
        FrameHeader made = header(FrameKind::kAnswer, word, half);
        const size_t result_bytes = own_.shape().result_bytes;
        made.bytes = entries * result_bytes;
        sender.begin(made);
        for (const Entry *one = mirror_.list(self_, half), *end = one + entries; one != end; ++one)
            sender.add(mirror_.result<char>(one->row, one->choice), result_bytes);
        session.answered.store(word);  // before the peer can see it and ask again
        return sender.end();
    }

    bool send_ask(FrameSender& sender, uint32_t half) {
        {
            const std::lock_guard<std::mutex> guard(lock_);
            if (!may_ask(half)) return true;
            sessions_[half].ask = posted(Kind::kAsk, half);
            reading_ = true;
        }
        const bool sent = send_rows(sender, half);
        const std::lock_guard<std::mutex> guard(lock_);
        reading_ = false;
        if (held_hello_) post_hello(held_hello_);
        held_hello_ = 0;
        return sent;
    }

    bool send_rows(FrameSender& sender, uint32_t half) {
        const WindowShape& shape = own_.shape();
        Session& session = sessions_[half];
        const uint32_t count = unpack(session.ask).count;
        const Entry* listed = own_.list(peer_, half);
        list_.assign(listed, listed + std::min(count, shape.max_entries()));
        rows_.clear();
        for (const Entry& one : list_) {
            if (one.row >= shape.max_rows || marked_[one.row]) continue;
            marked_[one.row] = true;
            rows_.push_back(one.row);
        }
        for (const uint32_t row : rows_) marked_[row] = false;
        session.awaited.store(session.ask);
        FrameHeader made = header(FrameKind::kAsk, session.ask, half);
        made.rows = static_cast<uint32_t>(rows_.size());
        made.bytes = ask_bytes(list_.size(), rows_.size());
        sender.begin(made);
        sender.add(list_.data(), list_.size() * sizeof(Entry));
        sender.add(rows_.data(), rows_.size() * sizeof(uint32_t));
        for (const uint32_t row : rows_) sender.add(own_.row(row), shape.row_bytes);
        return sender.end();
    }

    uint64_t ask_bytes(uint64_t entries, uint64_t rows) const {
        return entries * sizeof(Entry) + rows * (sizeof(uint32_t) + own_.shape().row_bytes);
    }

    // ---- from the peer to the rank

    void receive() {
        FrameReceiver receiver(socket_);
        FrameHeader header;
        while (!stopping_.load()) {
            const char* wrong = receiver.begin(header);
            if (!wrong && (header.from != peer_ || header.to != self_)) wrong = "a frame of other ranks";
            if (!wrong && header.half >= kMicroBatches) wrong = "a frame of a session that cannot be";
            if (!wrong) wrong = deliver(receiver, header);
            if (wrong) return end(wrong);
            mirror_.progress().phase.store(header.phase, std::memory_order_seq_cst);
            mirror_.progress().map.store(header.map, std::memory_order_release);
        }
    }

    // Null, or what is wrong with the frame.
    const char* deliver(FrameReceiver& receiver, const FrameHeader& header) {
        switch (header.kind) {
            case FrameKind::kBeat: return header.bytes || header.word || header.half ? "a beat with contents" : receiver.end();
            case FrameKind::kAsk: return deliver_ask(receiver, header);
            case FrameKind::kAnswer: return deliver_answer(receiver, header);
        }
        return "a frame of an unknown kind";
    }

    const char* deliver_ask(FrameReceiver& receiver, const FrameHeader& header) {
        Session& session = sessions_[header.half];
        const Announcement said = unpack(header.word), last = unpack(session.asked_by_peer.load());
        const WindowShape& shape = mirror_.shape();
        if (!asks(mirror_.header().role) || !answers(own_.header().role)) return "an ask that ranks of these roles never send";
        if (said.epoch == 0 || said.round == 0) return "an ask of no epoch or round";
        if (same_epoch(said, last) && (rounds_ahead(said, last) <= 0 || session.answered.load() != session.asked_by_peer.load()))
            return "an ask before the answer to the last";
        if (said.count == 0 || said.count > shape.max_entries() || header.rows > shape.max_rows ||
            header.bytes != ask_bytes(said.count, header.rows))
            return "an ask of another size than it says";
        asks_.resize(said.count);
        numbers_.resize(header.rows);
        if (const char* wrong = receiver.take(asks_.data(), asks_.size() * sizeof(Entry))) return wrong;
        for (const Entry& one : asks_)
            if (one.row >= shape.max_rows || one.choice >= shape.top_k) return "an ask with entries outside of its window";
        if (const char* wrong = receiver.take(numbers_.data(), numbers_.size() * sizeof(uint32_t))) return wrong;
        for (const uint32_t row : numbers_) {
            if (row >= shape.max_rows) return "an ask with rows outside of its window";
            if (const char* wrong = receiver.take(mirror_.row(row), shape.row_bytes)) return wrong;
        }
        if (const char* wrong = receiver.end()) return wrong;
        std::copy(asks_.begin(), asks_.end(), mirror_.list(self_, header.half));
        session.asked_by_peer.store(header.word);
        post(Kind::kAsk, header.half, header.word);
        return nullptr;
    }

    const char* deliver_answer(FrameReceiver& receiver, const FrameHeader& header) {
        const Announcement said = unpack(header.word);
        Session& session = sessions_[header.half];
        if (said.round == 0)
            return said.epoch == 0 || header.bytes || header.half ? "a hello of no epoch" : deliver_hello(receiver, header);
        if (header.word != session.awaited.load()) return "an answer that nobody awaits";
        const size_t result_bytes = own_.shape().result_bytes;
        if (header.bytes != said.count * result_bytes) return "an answer of another size than it says";
        for (const Entry *one = own_.list(peer_, header.half), *end = one + said.count; one != end; ++one)
            if (const char* wrong = receiver.take(own_.result<char>(one->row, one->choice), result_bytes)) return wrong;
        if (const char* wrong = receiver.end()) return wrong;
        session.awaited.store(0);
        post(Kind::kAnswer, header.half, header.word);
        return nullptr;
    }

    const char* deliver_hello(FrameReceiver& receiver, const FrameHeader& header) {
        if (const char* wrong = receiver.end()) return wrong;
        const std::lock_guard<std::mutex> guard(lock_);
        if (reading_) {
            held_hello_ = header.word;
        } else {
            post_hello(header.word);
        }
        return nullptr;
    }

    // Asks of this epoch may be sent.
    void post_hello(uint64_t word) {
        hello_.store(word);
        post(Kind::kAnswer, 0, word);
    }

    void post(Kind kind, uint32_t half, uint64_t word) {
        own_.word(kind, peer_, half).store(word, std::memory_order_seq_cst);
        ring_as(own_.bell(), kind, peer_);
    }

    const Window own_, mirror_;
    const CarrierTimes times_;
    const uint32_t self_, peer_;
    int socket_ = -1;
    std::thread sending_, receiving_;
    std::atomic<bool> stopping_{false}, lost_{false};
    std::atomic<uint64_t> sent_bytes_{0};
    std::atomic<uint64_t> hello_{0};  // last of the peer

    // By number of the micro-batch: this rank's asks of the peer, and the peer's of this rank.
    struct Session {
        std::atomic<uint64_t> awaited{0};        // ask of this rank without an answer
        std::atomic<uint64_t> asked_by_peer{0};  // last
        std::atomic<uint64_t> answered{0};       // last of the peer's asks that was answered
        uint64_t ask = 0, answer = 0;            // sent last; of the sending thread
    };
    std::array<Session, kMicroBatches> sessions_;

    mutable std::mutex lock_;  // of the next three
    std::string why_;
    bool reading_ = false;      // the rank's rows or list
    uint64_t held_hello_ = 0;  // meanwhile

    // Of the sending thread.
    uint64_t shown_ = 0;  // sent last
    std::vector<Entry> list_;
    std::vector<uint32_t> rows_;
    std::vector<bool> marked_;

    // Of the receiving thread.
    std::vector<Entry> asks_;
    std::vector<uint32_t> numbers_;
};

}  // namespace cm::ub
