// Random expert work, done by one process alone and by ranks together: what the tests compare bit for bit.
#pragma once
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "combine.h"
#include "dispatch.h"

namespace cm::ub::test {

constexpr int kHidden = 52, kTopK = 3, kMaxRows = 9, kExperts = 11, kLayers = 2;

inline WindowShape shape_for(uint32_t ranks) {
    return {ranks, kMaxRows, kTopK, kHidden * sizeof(float), kHidden * sizeof(float)};
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

    int rows;
    std::array<Vector, kMaxRows> x{};
    int32_t ids[kLayers][kMaxRows][kTopK]{};
    float weights[kLayers][kMaxRows][kTopK]{};
};

// The step by one process: all experts at hand, each row's added in order of their ids.
inline std::array<Vector, kMaxRows> alone(const Batch& batch) {
    std::array<Vector, kMaxRows> x = batch.x;
    for (int layer = 0; layer < kLayers; ++layer) {
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
                      int layer) {
    for (int row = 0; row < batch.rows; ++row) {
        CM_EXCHANGE_POINT("stage");
        std::memcpy(dispatch.stage(row), x[row].data(), sizeof(Vector));
        for (int choice = 0; choice < kTopK; ++choice) {
            const int id = batch.ids[layer][row][choice];
            dispatch.send(map.rank_of(id), row, choice, map.slot_of(id));
        }
    }
}

inline void serve(const Exchange& exchange, const Dispatch& dispatch, const Combine& combine, const Map& map) {
    Exchange::for_each(dispatch.sources(), [&](uint32_t source) {
        for (uint32_t i = 0; i < dispatch.count(source); ++i) {
            const Entry entry = dispatch.entries(source)[i];
            Vector x;
            CM_EXCHANGE_POINT("gather");
            std::memcpy(x.data(), dispatch.row(source, entry), sizeof x);
            CM_EXCHANGE_POINT("write");
            expert(map.id_of(exchange.self(), entry.slot), x.data(), combine.result(source, entry));
        }
    });
}

// The step by ranks together. `x` is the result if all went well. A rank that has no more work announces 0 and serves
// on; `over` if that is so of all.
inline Outcome together(Exchange& exchange, RankSet sources, RankSet experts, const Batch& batch, bool work,
                        Deadline deadline, std::array<Vector, kMaxRows>& x, bool& over) {
    x = batch.x;
    const uint32_t said = work ? static_cast<uint32_t>(batch.rows) + 1 : 0;
    if (const Outcome outcome = exchange.begin_step(said, deadline); !outcome) return outcome;
    over = true;
    Exchange::for_each(exchange.members(), [&](uint32_t rank) { over = over && exchange.count_from(rank) == 0; });
    if (over) return {};
    const Map map(experts & exchange.members());
    for (int layer = 0; layer < kLayers; ++layer) {
        Dispatch dispatch(exchange, sources, experts);
        Combine combine(exchange, sources, experts);
        send_rows(dispatch, map, batch, x, layer);
        dispatch.announce();
        if (const Outcome outcome = dispatch.await(deadline); !outcome) return outcome;
        serve(exchange, dispatch, combine, map);
        combine.announce();
        if (const Outcome outcome = combine.await(deadline); !outcome) return outcome;
        for (int row = 0; row < batch.rows; ++row) {
            CM_EXCHANGE_POINT("sum");
            combine.add(row, batch.ids[layer][row], batch.weights[layer][row], 0, kHidden, x[row].data());
        }
    }
    Dispatch last(exchange, sources, experts);
    last.announce_no_more();
    const Outcome outcome = last.await(deadline);
    if (outcome && !last.over() && has(experts, exchange.self())) return exchange.mismatch(exchange.self());
    return outcome;
}

}  // namespace cm::ub::test
