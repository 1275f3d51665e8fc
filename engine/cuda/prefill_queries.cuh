#pragma once

#include <cstdint>

#include "engine/cuda/decode_queries.cuh"

namespace longshore::cuda {

// One query head of the packed tensor that a row of a tile is; head < 0: none, the row is zeros.
struct TileQuery {
  int64_t head = -1;
  int64_t id = 0;
};

// Rows [0, rows) of a tile by all threads: query_of(row) turned, rounded to Element, and handed to
// put(row, index, four values).
template <class Element, int32_t kDepth, class QueryOf, class Put>
__device__ void LoadTileQueries(const TensorRef& q,
                                const RopeRows& rope,
                                float angle_scale,
                                int32_t rows,
                                const QueryOf& query_of,
                                const Put& put) {
  constexpr int32_t kFours = kDepth / 8;
#pragma unroll 2
  for (auto at = static_cast<int32_t>(threadIdx.x); at < rows * kFours;
       at += static_cast<int32_t>(blockDim.x)) {
    const int32_t row = at / kFours;
    const TileQuery query = query_of(row);
    PairOfFours turned = TurnedPairs<kDepth>(q, rope, max(query.head, int64_t{0}) * kDepth,
                                             at % kFours, query.id, angle_scale);
    if (query.head < 0) {
      turned.x = {};
      turned.y = {};
    }
    const auto rounded = [](float4 v) {
      return float4{RoundTo<Element>(v.x), RoundTo<Element>(v.y), RoundTo<Element>(v.z),
                    RoundTo<Element>(v.w)};
    };
    put(row, turned.first, rounded(turned.x));
    put(row, turned.second, rounded(turned.y));
  }
}

// Four elements from `index` on of a row.
template <class Element, class Rows>
__device__ inline void StoreFourAt(Rows* rows, int32_t row, int32_t index, float4 value) {
  StoreFour(value, reinterpret_cast<Element*>(rows->At(row, index / 8)) + index % 8);
}

}  // namespace longshore::cuda
