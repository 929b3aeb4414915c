// Random expert work, done by one process alone and by ranks together: what the tests compare bit for bit.
#pragma once
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "dispatch.h"
#include "service.h"

namespace cm::ub::test {

constexpr int kHidden = 52, kTopK = 3, kMaxRows = 9, kExperts = 11, kLayers = 2;

inline WindowShape shape_for(uint32_t ranks) {
    return {ranks, kMaxRows, kTopK, kHidden * sizeof(float), kHidden * sizeof(float)};
}

// Of a rank in a group with these sources and ranks with experts.
inline Role role_in(RankSet sources, RankSet experts, uint32_t rank) {
    return static_cast<Role>((has(sources, rank) ? 1 : 0) + (has(experts, rank) ? 2 : 0));
}

using Vector = std::array<float, kHidden>;

// An expert: any function will do whose bits depend on all of the row.
inline void expert(int id, const float* x, float* y) {
    const float own = 0.3f + 0.1f * static_cast<float>(id);
    for (int i = 0; i < kHidden; ++i) y[i] = x[i] * own + x[(i + id) % kHidden] * 0.7f;
}

// What one rank's rows are and where they go, in one step; the same whenever it is drawn.
struct Batch {
    Batch(uint32_t rank, uint32_t step, bool idle) {
        std::mt19937 bits(1000 * step + rank + 1);
        std::uniform_real_distribution<float> any(-1.0f, 1.0f);
        rows = idle ? 0 : static_cast<int>(bits() % (kMaxRows + 1));
        layers = 1 + static_cast<int>(bits() % kLayers);
        for (int row = 0; row < rows; ++row) {
            for (float& value : x[row]) value = any(bits);
            for (int layer = 0; layer < kLayers; ++layer) {
                for (int choice = 0; choice < kTopK;) {
                    const int id = static_cast<int>(bits() % kExperts);
                    bool taken = false;
                    for (int other = 0; other < choice; ++other) taken |= ids[layer][row][other] == id;
                    if (taken) continue;
                    weights[layer][row][choice] = any(bits);
                    ids[layer][row][choice++] = id;
                }
            }
        }
    }

    int rows, layers;  // ranks have steps of different lengths
    std::array<Vector, kMaxRows> x{};
    int32_t ids[kLayers][kMaxRows][kTopK]{};
    float weights[kLayers][kMaxRows][kTopK]{};
};

// The step by one process: all experts at hand, each row's added in order of their ids.
inline std::array<Vector, kMaxRows> alone(const Batch& batch) {
    std::array<Vector, kMaxRows> x = batch.x;
    for (int layer = 0; layer < batch.layers; ++layer) {
        for (int row = 0; row < batch.rows; ++row) {
            Vector sum = x[row], y;
            for (int id = 0; id < kExperts; ++id) {
                for (int choice = 0; choice < kTopK; ++choice) {
                    if (batch.ids[layer][row][choice] != id) continue;
                    expert(id, x[row].data(), y.data());
                    const float weight = batch.weights[layer][row][choice];
                    for (int i = 0; i < kHidden; ++i) sum[i] = std::fma(weight, y[i], sum[i]);
                }
            }
            x[row] = sum;
        }
    }
    return x;
}

// Experts are dealt out to their ranks in turns.
struct Map {
    explicit Map(RankSet experts) {
        Exchange::for_each(experts, [this](uint32_t rank) { ranks.push_back(rank); });
    }
    uint32_t rank_of(int id) const { return ranks[static_cast<size_t>(id) % ranks.size()]; }
    uint32_t slot_of(int id) const { return static_cast<uint32_t>(static_cast<size_t>(id) / ranks.size()); }
    int id_of(uint32_t rank, uint32_t slot) const {
        size_t place = 0;
        while (ranks[place] != rank) ++place;
        return static_cast<int>(slot * ranks.size() + place);
    }
    std::vector<uint32_t> ranks;
};

inline void send_rows(Dispatch& dispatch, const Map& map, const Batch& batch, const std::array<Vector, kMaxRows>& x,
                      int layer, int first, int end) {
    for (int row = first; row < end; ++row) {
        CM_EXCHANGE_POINT("stage");
        std::memcpy(dispatch.stage(row), x[row].data(), sizeof(Vector));
        for (int choice = 0; choice < kTopK; ++choice) {
            const int id = batch.ids[layer][row][choice];
            dispatch.send(map.rank_of(id), row, choice, map.slot_of(id));
        }
    }
}

// Serve all who have asked, those with few rows first.
inline Outcome serve(Exchange& exchange, const Map& map) {
    for (const uint32_t most : {2u * kTopK, kAnyCount}) {
        Service service(exchange, most);
        if (const Outcome outcome = service.check(); !outcome) return outcome;
        service.each_source([&](Service::Source source) {
            for (uint32_t i = 0; i < service.count(source); ++i) {
                const Entry entry = service.entries(source)[i];
                Vector x;
                CM_EXCHANGE_POINT("gather");
                std::memcpy(x.data(), service.row(source, entry), sizeof x);
                CM_EXCHANGE_POINT("write");
                expert(map.id_of(exchange.self(), entry.slot), x.data(), service.result(source, entry));
            }
        });
        service.answer();
    }
    return {};
}

// A step of this rank, in two micro-batches if its number is odd and `halves`; `x` is the result if all went well.
inline Outcome run_step(Exchange& exchange, RankSet experts, const Batch& batch, Deadline deadline,
                        std::array<Vector, kMaxRows>& x, bool halves = true) {
    x = batch.x;
    if (const Outcome outcome = exchange.begin_step(deadline); !outcome) return outcome;
    const Map map(experts & exchange.members());
    for (int layer = 0; layer < batch.layers; ++layer) {
        const int middle = halves && exchange.self() % 2 ? batch.rows / 2 : 0, parts = middle ? 2 : 1;
        Dispatch dispatch(exchange, 0), second(exchange, 1);
        send_rows(dispatch, map, batch, x, layer, middle, batch.rows);
        dispatch.ask();
        if (middle) {
            send_rows(second, map, batch, x, layer, 0, middle);
            second.ask();
        }
        const std::chrono::microseconds most(exchange.self() % 3 * 200);
        exchange.gather({most, most, 2 * kTopK});
        if (exchange.asked())
            if (const Outcome outcome = serve(exchange, map); !outcome) return outcome;
        for (int half = 0; half < parts; ++half) {
            while (!exchange.answered(half)) {
                if (const Outcome outcome = exchange.await(deadline, half); !outcome) return outcome;
                if (!exchange.asked()) continue;
                if (const Outcome outcome = serve(exchange, map); !outcome) return outcome;
            }
        }
        for (int row = 0; row < batch.rows; ++row) {
            CM_EXCHANGE_POINT("sum");
            dispatch.add(row, batch.ids[layer][row], batch.weights[layer][row], 0, kHidden, x[row].data());
        }
        exchange.end_round();
    }
    exchange.end_rounds();
    return {};
}

// Serve others until `over()`, which the bell wakes for.
template <class Over>
Outcome serve_until(Exchange& exchange, RankSet experts, Over&& over) {
    while (!over()) {
        const Outcome outcome = exchange.await_ask(Clock::now() + std::chrono::milliseconds(20), over);
        if (outcome.ending == Ending::kLate) continue;
        if (!outcome) return outcome;
        if (!exchange.asked()) continue;
        if (const Outcome served = serve(exchange, Map(experts & exchange.members())); !served) return served;
    }
    return {};
}

}  // namespace cm::ub::test
