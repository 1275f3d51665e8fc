#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "engine/core/half.h"
#include "engine/cpu/tile_kernels.h"
#include "engine/cpu/tile_kernels_targets.h"

namespace longshore::cpu {

inline constexpr float kInfinity = std::numeric_limits<float>::infinity();
inline constexpr float kSentinel = 12345.0F;
inline constexpr DType kDTypes[] = {DType::kF32, DType::kBf16, DType::kF16};
inline constexpr int32_t kDepths[] = {64, 80, 96, 128, 192, 256};
inline constexpr int32_t kRows[] = {1, 2, 3, 4, 5, 16, 17, 63, 64, 65, 256};
inline constexpr int32_t kKeys[] = {1, 7, 8, 63, 64, 70};
inline constexpr RopePairing kPairings[] = {RopePairing::kHalf, RopePairing::kInterleaved};

/// Where [row, column] of a matrix is.
inline size_t IndexOf(int32_t row, int32_t columns, int32_t column) {
  return static_cast<size_t>(row) * static_cast<size_t>(columns) + static_cast<size_t>(column);
}

inline float Rounded(float value, DType dtype) {
  switch (dtype) {
    case DType::kBf16: return ToFloat(ToBf16(value));
    case DType::kF16: return ToFloat(ToF16(value));
    default: return value;
  }
}

/// A matrix of fp32 and the same in storage dtype, some bytes apart between rows as in a page.
struct Matrix {
  Matrix(std::vector<float> data, int32_t row_count, int32_t row_depth, DType type)
      : values(std::move(data)),
        rows(row_count),
        depth(row_depth),
        dtype(type) {
    stride = (depth + 16) * SizeOf(dtype);
    stored.resize(static_cast<size_t>((rows - 1) * stride + depth * SizeOf(dtype)));
    for (int32_t row = 0; row < rows; ++row) {
      for (int32_t dim = 0; dim < depth; ++dim) {
        Store(row, dim);
      }
    }
  }
  void Store(int32_t row, int32_t dim) {
    float& value = values[IndexOf(row, depth, dim)];
    std::byte* at = stored.data() + row * stride + dim * SizeOf(dtype);
    const uint16_t half = dtype == DType::kBf16 ? ToBf16(value).bits : ToF16(value).bits;
    std::memcpy(at,
                dtype == DType::kF32 ? static_cast<void*>(&value) : const_cast<uint16_t*>(&half),
                static_cast<size_t>(SizeOf(dtype)));
    value = Rounded(value, dtype);
  }
  float At(int32_t row, int32_t dim) const { return values[IndexOf(row, depth, dim)]; }
  RowSource Source() const {
    return {.first = stored.data(), .stride_bytes = stride, .dtype = dtype, .next = stored.data()};
  }

  std::vector<float> values;
  int32_t rows;
  int32_t depth;
  DType dtype;
  int64_t stride = 0;
  std::vector<std::byte> stored;
};

/// A tile with room between its rows that nothing may write to.
struct Tile {
  Tile(int32_t row_count, int32_t key_count)
      : rows(row_count),
        keys(key_count),
        stride(key_count + 3),
        values(static_cast<size_t>(rows * stride), kSentinel) {}
  ScoreTile View() { return {.data = values.data(), .stride = stride, .rows = rows, .keys = keys}; }
  float& At(int32_t row, int32_t key) { return values[IndexOf(row, stride, key)]; }
  void Fill(const std::vector<float>& from) {
    for (int32_t i = 0; i < rows * keys; ++i) {
      At(i / keys, i % keys) = from[static_cast<size_t>(i)];
    }
  }
  bool GapsAreIntact() {
    for (int32_t row = 0; row < rows; ++row) {
      for (int32_t key = keys; key < stride; ++key) {
        if (At(row, key) != kSentinel) {
          return false;
        }
      }
    }
    return true;
  }

  int32_t rows;
  int32_t keys;
  int32_t stride;
  std::vector<float> values;
};

/// Runs a test with one instruction set.
class TileKernelTest : public testing::TestWithParam<int64_t> {
 protected:
  void SetUp() override {
    hwy::SetSupportedTargetsForTest(GetParam());
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  }
  void TearDown() override {
    hwy::SetSupportedTargetsForTest(0);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  }

  std::vector<float> Integers(int64_t count) {
    std::vector<float> values(static_cast<size_t>(count));
    std::generate(values.begin(), values.end(),
                  [this] { return static_cast<float>(static_cast<int>(random_() % 9U) - 4); });
    return values;
  }
  std::vector<float> Gaussian(int64_t count, float deviation = 1.0F) {
    std::normal_distribution<float> normal(0.0F, deviation);
    std::vector<float> values(static_cast<size_t>(count));
    std::generate(values.begin(), values.end(), [&] { return normal(random_); });
    return values;
  }

  std::mt19937 random_{20260726};
};

/// Every test of `suite` with every instruction set that this machine can run.
#define LONGSHORE_FOR_EVERY_TARGET(suite)                                     \
  INSTANTIATE_TEST_SUITE_P(                                                   \
      Targets, suite, testing::ValuesIn(hwy::SupportedAndGeneratedTargets()), \
      [](const auto& info) { return std::string(hwy::TargetName(info.param)); })

}  // namespace longshore::cpu
