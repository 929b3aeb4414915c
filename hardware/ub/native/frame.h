// Frames of a connection between two ranks of different hosts: a header, a payload, and the payload's CRC32C.
//
// The header has a CRC of its own, so it can be trusted before the payload is stored; the payload is sent and stored in
// pieces that stay in the cache. A frame that is damaged, repeated, skipped, or of other ranks ends the connection.
#pragma once
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

namespace cm::ub {

constexpr uint32_t kFrameMagic = 0x32464d43;  // "CMF2", and little-endian

enum class FrameKind : uint16_t {
    kBeat = 0,    // no word: the sender lives
    kAsk = 1,     // entries, numbers of the rows that these name, rows
    kAnswer = 2,  // results, in order of the ask's entries; none with a hello
};

struct FrameHeader {
    uint32_t magic;
    FrameKind kind;
    uint8_t from, to;  // ranks
    uint32_t number;   // of the frame on this connection in this direction, from 0
    uint32_t rows;
    uint64_t bytes;    // of the payload
    uint64_t word;     // epoch, step, round and number of entries; see announcement.h
    uint64_t phase, map;  // the sender's progress; see window.h
    uint64_t reserved;    // 0
    uint32_t half;        // number of the sender's or the asker's micro-batch: the session; 0 without one
    uint32_t crc;         // of all fields before it
};
static_assert(sizeof(FrameHeader) == 64 && offsetof(FrameHeader, crc) == 60, "no padding");

namespace detail {

inline uint32_t crc32c_by_table(uint32_t crc, const unsigned char* at, size_t bytes) {
    static const auto table = [] {
        std::array<uint32_t, 256> made{};
        for (uint32_t i = 0; i < 256; ++i) {
            uint32_t value = i;
            for (int bit = 0; bit < 8; ++bit) value = value & 1 ? value >> 1 ^ 0x82f63b78u : value >> 1;
            made[i] = value;
        }
        return made;
    }();
    for (; bytes; --bytes) crc = crc >> 8 ^ table[(crc ^ *at++) & 0xff];
    return crc;
}

#if defined(__x86_64__)
constexpr size_t kLane = 256;  // an instruction takes three cycles, and three lanes hide that

__attribute__((target("sse4.2"))) inline uint32_t crc32c_of_lane(uint32_t crc, const unsigned char* at, size_t bytes) {
    uint64_t wide = crc;
    for (; bytes >= 8; bytes -= 8, at += 8) {
        uint64_t next;
        std::memcpy(&next, at, 8);
        wide = _mm_crc32_u64(wide, next);
    }
    crc = static_cast<uint32_t>(wide);
    for (; bytes; --bytes) crc = _mm_crc32_u8(crc, *at++);
    return crc;
}

__attribute__((target("sse4.2"))) inline uint32_t crc32c_by_instruction(uint32_t crc, const unsigned char* at,
                                                                        size_t bytes, unsigned char* to) {
    using Table = std::array<std::array<uint32_t, 256>, 4>;
    static const Table behind_lane = [] {  // [byte][value]: a CRC with that byte alone, after a lane of zeros
        const std::array<unsigned char, kLane> zeros{};
        Table made;
        for (uint32_t byte = 0; byte < 4; ++byte)
            for (uint32_t value = 0; value < 256; ++value)
                made[byte][value] = crc32c_of_lane(value << 8 * byte, zeros.data(), kLane);
        return made;
    }();
    const auto behind = [](uint64_t one) {
        return behind_lane[0][one & 0xff] ^ behind_lane[1][one >> 8 & 0xff] ^ behind_lane[2][one >> 16 & 0xff] ^
               behind_lane[3][one >> 24 & 0xff];
    };
    for (; bytes >= 3 * kLane; bytes -= 3 * kLane, at += 3 * kLane) {
        if (to) to = static_cast<unsigned char*>(std::memcpy(to, at, 3 * kLane)) + 3 * kLane;
        uint64_t lanes[3] = {crc, 0, 0};
        for (size_t i = 0; i < kLane; i += 8) {
            uint64_t next[3];
            for (size_t lane = 0; lane < 3; ++lane) std::memcpy(&next[lane], at + lane * kLane + i, 8);
            lanes[0] = _mm_crc32_u64(lanes[0], next[0]);
            lanes[1] = _mm_crc32_u64(lanes[1], next[1]);
            lanes[2] = _mm_crc32_u64(lanes[2], next[2]);
        }
        crc = behind(behind(lanes[0]) ^ lanes[1]) ^ static_cast<uint32_t>(lanes[2]);
    }
    if (to) std::memcpy(to, at, bytes);
    return crc32c_of_lane(crc, at, bytes);
}
#endif

}  // namespace detail

// CRC32C of `data` after that of what precedes it, 0 at the start; and a copy of the data, if `to` is not null.
inline uint32_t crc32c(uint32_t before, const void* data, size_t bytes, void* to = nullptr) {
    const auto* at = static_cast<const unsigned char*>(data);
#if defined(__x86_64__)
    static const bool fast = __builtin_cpu_supports("sse4.2");
    if (fast) return ~detail::crc32c_by_instruction(~before, at, bytes, static_cast<unsigned char*>(to));
#endif
    if (to) std::memcpy(to, data, bytes);
    return ~detail::crc32c_by_table(~before, at, bytes);
}

inline uint32_t crc_of(const FrameHeader& header) { return crc32c(0, &header, offsetof(FrameHeader, crc)); }

constexpr size_t kPieceBytes = 128 << 10;  // of 16 KiB to 256 KiB, among the fastest over loopback

// Whether a call on a socket that failed found the other end closed.
inline bool peer_has_closed() { return errno == EPIPE || errno == ECONNRESET; }

// Sends frames on a socket with a timeout for sending. A frame that fits into a piece costs one system call.
class FrameSender {
  public:
    explicit FrameSender(int socket) : socket_(socket), piece_(kPieceBytes) {}

    void begin(FrameHeader header) {
        header.magic = kFrameMagic;
        header.number = number_++;
        header.crc = crc_of(header);
        std::memcpy(piece_.data(), &header, sizeof header);
        used_ = sizeof header;
        crc_ = 0;
        good_ = true;
    }

    void add(const void* data, size_t bytes) {
        const char* at = static_cast<const char*>(data);
        while (good_ && bytes) {
            const size_t some = std::min(bytes, piece_.size() - used_);
            crc_ = crc32c(crc_, at, some, piece_.data() + used_);
            used_ += some;
            at += some;
            bytes -= some;
            if (used_ == piece_.size()) flush();
        }
    }

    // False if the frame could not be sent whole: the connection has ended, or nothing was taken in time.
    bool end() {
        if (piece_.size() - used_ < sizeof crc_) flush();
        std::memcpy(piece_.data() + used_, &crc_, sizeof crc_);
        used_ += sizeof crc_;
        flush();
        return good_;
    }

    uint64_t bytes() const { return bytes_; }

  private:
    void flush() {
        for (size_t sent = 0; good_ && sent < used_;) {
            const ssize_t some = ::send(socket_, piece_.data() + sent, used_ - sent, MSG_NOSIGNAL);
            if (some < 0 && errno == EINTR) continue;
            good_ = some > 0;
            if (good_) sent += static_cast<size_t>(some);
        }
        bytes_ += used_;
        used_ = 0;
    }

    int socket_;
    std::vector<char> piece_;
    size_t used_ = 0;
    uint32_t number_ = 0, crc_ = 0;
    bool good_ = true;
    uint64_t bytes_ = 0;
};

// Receives frames from a socket with a timeout for receiving.
class FrameReceiver {
  public:
    explicit FrameReceiver(int socket) : socket_(socket), piece_(kPieceBytes) {}

    // The next header; null, or why the connection must end.
    const char* begin(FrameHeader& header) {
        if (const char* wrong = receive(&header, sizeof header)) return wrong;
        if (header.magic != kFrameMagic || header.crc != crc_of(header)) return "a damaged frame";
        if (header.number != number_++) return "a frame that is repeated or was skipped";
        left_ = header.bytes;
        there_ = taken_ = 0;
        crc_ = 0;
        return nullptr;
    }

    // The next bytes of the payload, of which there must be so many.
    const char* take(void* to, size_t bytes) {
        char* at = static_cast<char*>(to);
        while (bytes) {
            if (taken_ == there_)
                if (const char* wrong = refill()) return wrong;
            const size_t some = std::min(bytes, there_ - taken_);
            crc_ = crc32c(crc_, piece_.data() + taken_, some, at);
            taken_ += some;
            at += some;
            bytes -= some;
        }
        return nullptr;
    }

    // After all of the payload was taken.
    const char* end() {
        uint32_t said;
        if (left_ == 0 && there_ == 0) {
            if (const char* wrong = receive(&said, sizeof said)) return wrong;
        } else {
            std::memcpy(&said, piece_.data() + there_, sizeof said);
        }
        return said == crc_ ? nullptr : "a frame with a wrong checksum";
    }

  private:
    // The last piece is received together with the checksum behind it.
    const char* refill() {
        there_ = static_cast<size_t>(std::min<uint64_t>(left_, piece_.size() - sizeof(uint32_t)));
        if (there_ == 0) return "a frame that is too short";
        left_ -= there_;
        taken_ = 0;
        return receive(piece_.data(), there_ + (left_ ? 0 : sizeof(uint32_t)));
    }

    const char* receive(void* to, size_t bytes) {
        for (char* at = static_cast<char*>(to); bytes;) {
            const ssize_t some = ::recv(socket_, at, bytes, 0);
            if (some < 0 && errno == EINTR) continue;
            if (some == 0 || (some < 0 && peer_has_closed())) return "the connection was closed";
            if (some < 0) return errno == EAGAIN ? "no sign of life" : "the connection broke";
            at += some;
            bytes -= static_cast<size_t>(some);
        }
        return nullptr;
    }

    int socket_;
    std::vector<char> piece_;
    uint64_t left_ = 0;  // of the payload, not received yet
    size_t there_ = 0, taken_ = 0;
    uint32_t number_ = 0, crc_ = 0;
};

}  // namespace cm::ub
