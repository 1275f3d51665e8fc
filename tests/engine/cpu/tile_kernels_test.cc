// Every kernel against plain loops in double. See also tile_kernels_softmax_test.cc.

#include "tests/engine/cpu/tile_kernels_test.h"

#include <array>
#include <bit>
#include <cmath>
#include <iterator>

namespace longshore::cpu {
namespace {

using TileKernels = TileKernelTest;
LONGSHORE_FOR_EVERY_TARGET(TileKernels);

double Dot(const float* a, const Matrix& keys, int32_t key) {
  double sum = 0.0;
  for (int32_t dim = 0; dim < keys.depth; ++dim) {
    sum += static_cast<double>(a[dim]) * static_cast<double>(keys.At(key, dim));
  }
  return sum;
}

TEST_P(TileKernels, LoadRowsIsExactForEveryHalf) {
  for (const DType dtype : {DType::kBf16, DType::kF16}) {
    std::vector<uint16_t> bits(1U << 16U);
    for (size_t i = 0; i < bits.size(); ++i) {
      bits[i] = static_cast<uint16_t>(i);
    }
    std::vector<float> out(bits.size());
    LoadRows({.first = bits.data(), .stride_bytes = 512, .dtype = dtype}, 256, 256, out.data());
    for (size_t i = 0; i < bits.size(); ++i) {
      const float expected = dtype == DType::kBf16 ? ToFloat(Bf16{bits[i]}) : ToFloat(F16{bits[i]});
      if (std::isnan(expected)) {
        ASSERT_TRUE(std::isnan(out[i])) << NameOf(dtype) << " " << i;
      } else {
        ASSERT_EQ(std::bit_cast<uint32_t>(out[i]), std::bit_cast<uint32_t>(expected)) << i;
      }
    }
  }
}

TEST_P(TileKernels, StoreRowsRoundsAsHalfHeaderDoes) {
  constexpr size_t kCount = 300'003;
  std::vector<float> values(kCount);
  for (size_t i = 0; i < kCount; ++i) {  // every fourth one a tie or next to one
    auto bits = static_cast<uint32_t>(random_());
    if (i % 4 == 0) {
      const uint32_t last = i % 8 == 0 ? 16 : 13;
      bits = (bits >> last << last) + (1U << (last - 1)) + static_cast<uint32_t>(random_() % 3) - 1;
    } else if (i % 4 == 1) {
      bits = (bits & 0x80ffffffU) | 0x33000000U;  // the range of fp16's subnormals
    }
    values[i] = std::bit_cast<float>(bits);
  }
  std::vector<uint16_t> bf16(kCount);
  std::vector<uint16_t> f16(kCount);
  std::vector<float> f32(kCount);
  StoreRows(values.data(), kCount, DType::kBf16, bf16.data());
  StoreRows(values.data(), kCount, DType::kF16, f16.data());
  StoreRows(values.data(), kCount, DType::kF32, f32.data());
  for (size_t i = 0; i < kCount; ++i) {
    ASSERT_EQ(std::bit_cast<uint32_t>(f32[i]), std::bit_cast<uint32_t>(values[i]));
  }
  for (size_t i = 0; i < kCount; ++i) {
    if (std::isnan(values[i])) {
      ASSERT_TRUE(std::isnan(ToFloat(Bf16{bf16[i]})) && std::isnan(ToFloat(F16{f16[i]})));
    } else {
      ASSERT_EQ(bf16[i], ToBf16(values[i]).bits) << values[i];
      ASSERT_EQ(f16[i], ToF16(values[i]).bits) << values[i];
    }
  }
}

/// The definition of a turned row, in double.
std::vector<double> Turned(const Matrix& x, int32_t row, const TileRotation& rotation) {
  std::vector<double> out(static_cast<size_t>(x.depth));
  for (int32_t dim = 0; dim < x.depth; ++dim) {
    out[static_cast<size_t>(dim)] = static_cast<double>(x.At(row, dim));
  }
  const bool half = rotation.pairing == RopePairing::kHalf;
  const int64_t angles = rotation.shared_angle ? 0 : int64_t{row} * rotation.pairs;
  for (int32_t i = 0; i < rotation.pairs; ++i) {
    const double cos = static_cast<double>(rotation.angles.cos[angles + i]);
    const double sin = static_cast<double>(rotation.angles.sin[angles + i]);
    double& first = out[static_cast<size_t>(half ? i : 2 * i)];
    double& second = out[static_cast<size_t>(half ? i + rotation.pairs : 2 * i + 1)];
    const double x1 = first;
    first = x1 * cos - second * sin;
    second = second * cos + x1 * sin;
  }
  return out;
}

/// Every value is representable in `round_to` and as near as that allows.
void ExpectRotatedRows(const Matrix& x, const TileRotation& rotation, DType round_to) {
  std::vector<float> out(x.values.size() + 1, kSentinel);
  LoadRotatedRows(x.Source(), x.rows, x.depth, rotation, round_to, out.data());
  EXPECT_EQ(out.back(), kSentinel);
  const double half_ulp = round_to == DType::kF32   ? 0.0
                          : round_to == DType::kF16 ? 0x1p-11
                                                    : 0x1p-8;
  for (int32_t row = 0; row < x.rows; ++row) {
    const std::vector<double> expected = Turned(x, row, rotation);
    for (int32_t dim = 0; dim < x.depth; ++dim) {
      const float value = out[IndexOf(row, x.depth, dim)];
      const double exact = expected[static_cast<size_t>(dim)];
      ASSERT_EQ(value, Rounded(value, round_to));
      ASSERT_NEAR(static_cast<double>(value), exact, std::abs(exact) * half_ulp + 1e-6)
          << NameOf(x.dtype) << " to " << NameOf(round_to) << " dim " << dim << " of " << x.depth
          << " pairs " << rotation.pairs;
    }
  }
}

TEST_P(TileKernels, LoadRotatedRowsTurnsAndRounds) {
  constexpr int32_t kCount = 5;
  for (const DType dtype : kDTypes) {
    for (const int32_t depth : kDepths) {
      const Matrix x(Gaussian(kCount * depth), kCount, depth, dtype);
      for (const int32_t pairs : {depth / 2, 16, 5, 0}) {
        const std::vector<float> cos = Gaussian(kCount * pairs, 0.5F);
        const std::vector<float> sin = Gaussian(kCount * pairs, 0.5F);
        TileRotation rotation = {.angles = {.cos = cos.data(), .sin = sin.data()},
                                 .pairs = pairs,
                                 .pairing = RopePairing::kHalf,
                                 .shared_angle = depth == 96};
        for (const DType round_to : kDTypes) {
          ExpectRotatedRows(x, rotation, round_to);
        }
        rotation.pairing = RopePairing::kInterleaved;
        ExpectRotatedRows(x, rotation, dtype);
      }
    }
  }
}

/// Quarter turns: rotated integers are integers.
struct QuarterTurns {
  QuarterTurns(int32_t rows, int32_t pairs) {
    for (int32_t i = 0; i < rows * pairs; ++i) {
      cos.push_back(std::array{1.0F, 0.0F, -1.0F, 0.0F}[static_cast<size_t>(i * 7 % 4)]);
      sin.push_back(std::array{0.0F, 1.0F, 0.0F, -1.0F}[static_cast<size_t>(i * 7 % 4)]);
    }
  }
  std::vector<float> cos, sin;
};

TEST_P(TileKernels, ComposeAnglesAddsAngles) {
  constexpr int32_t kCount = 3;
  for (const int32_t pairs : {1, 8, 20, 64}) {
    std::vector<float> coarse[2], fine[2], out[2];
    for (int32_t i = 0; i < kCount * pairs; ++i) {
      const double angle = 0.37 * i;
      fine[0].push_back(static_cast<float>(std::cos(angle)));
      fine[1].push_back(static_cast<float>(std::sin(angle)));
      coarse[0].push_back(static_cast<float>(std::cos(100.0 + angle)));
      coarse[1].push_back(static_cast<float>(std::sin(100.0 + angle)));
    }
    out[0].resize(fine[0].size());
    out[1].resize(fine[0].size());
    ComposeAngles({.cos = coarse[0].data(), .sin = coarse[1].data()},
                  {.cos = fine[0].data(), .sin = fine[1].data()}, kCount, pairs, out[0].data(),
                  out[1].data());
    for (int32_t i = 0; i < kCount * pairs; ++i) {
      const double angle = 100.0 + 0.37 * (i + i % pairs);
      ASSERT_NEAR(static_cast<double>(out[0][static_cast<size_t>(i)]), std::cos(angle), 3e-7);
      ASSERT_NEAR(static_cast<double>(out[1][static_cast<size_t>(i)]), std::sin(angle), 3e-7);
    }
  }
}

/// Integers: whatever the order of summation, every score is exact.
void ExpectExactScores(const std::vector<float>& queries, const Matrix& keys, int32_t rows) {
  Tile scores(rows, keys.rows);
  DotTile(queries.data(), keys.Source(), keys.depth, scores.View());
  EXPECT_TRUE(scores.GapsAreIntact());
  for (int32_t row = 0; row < rows; ++row) {
    for (int32_t key = 0; key < keys.rows; ++key) {
      ASSERT_EQ(static_cast<double>(scores.At(row, key)),
                Dot(queries.data() + row * keys.depth, keys, key))
          << NameOf(keys.dtype) << " row " << row << " of " << rows << " key " << key << " of "
          << keys.rows << " depth " << keys.depth;
    }
  }
}

TEST_P(TileKernels, DotTileIsExactForIntegers) {
  for (const DType dtype : kDTypes) {
    for (const int32_t rows : kRows) {
      for (const int32_t keys : kKeys) {
        const Matrix matrix(Integers(keys * 80), keys, 80, dtype);
        ExpectExactScores(Integers(rows * 80), matrix, rows);
      }
    }
    for (const int32_t depth : {64, 96, 128, 192, 256, 512}) {
      for (const int32_t rows : {1, 4, 7, 18}) {
        ExpectExactScores(Integers(rows * depth), Matrix(Integers(9 * depth), 9, depth, dtype),
                          rows);
      }
    }
  }
}

TEST_P(TileKernels, DotTileScoresDoNotDependOnNeighbours) {
  const Matrix keys(Gaussian(70 * 128), 70, 128, DType::kBf16);
  const std::vector<float> queries = Gaussian(16 * 128);
  Tile all(16, 70);
  DotTile(queries.data(), keys.Source(), 128, all.View());
  for (const int32_t rows : {1, 2, 3, 6}) {
    for (const int32_t key : {0, 1, 5, 64}) {
      Tile part(rows, 5);
      RowSource source = keys.Source();
      source.first = static_cast<const std::byte*>(source.first) + key * source.stride_bytes;
      DotTile(queries.data() + 128, source, 128, part.View());
      for (int32_t i = 0; i < rows * 5; ++i) {
        ASSERT_EQ(part.At(i / 5, i % 5), all.At(1 + i / 5, key + i % 5));
      }
    }
  }
}

/// Integers and quarter turns: exact.
void ExpectRotatedScores(const std::vector<float>& queries,
                         const Matrix& x,
                         const TileRotation& rotation) {
  std::vector<float> turned;
  for (int32_t key = 0; key < x.rows; ++key) {
    const std::vector<double> row = Turned(x, key, rotation);
    std::transform(row.begin(), row.end(), std::back_inserter(turned),
                   [](double value) { return static_cast<float>(value); });
  }
  const Matrix expected(turned, x.rows, x.depth, DType::kF32);
  const auto rows = static_cast<int32_t>(queries.size()) / x.depth;
  Tile scores(rows, x.rows);
  DotRotatedTile(queries.data(), x.Source(), rotation, x.depth, scores.View());
  EXPECT_TRUE(scores.GapsAreIntact());
  for (int32_t i = 0; i < rows * x.rows; ++i) {
    ASSERT_EQ(static_cast<double>(scores.At(i / x.rows, i % x.rows)),
              Dot(queries.data() + i / x.rows * x.depth, expected, i % x.rows))
        << NameOf(x.dtype) << " rows " << rows << " depth " << x.depth << " at " << i;
  }
}

TEST_P(TileKernels, DotRotatedTileIsExactForQuarterTurns) {
  for (const DType dtype : kDTypes) {
    for (const int32_t depth : kDepths) {
      for (const int32_t rows : {1, 2, 3, 4, 5, 16, 17, 64}) {
        const int32_t keys = rows % 2 == 0 ? 67 : 18;
        const int32_t pairs = rows == 3 ? depth / 2 - 16 : depth / 2;
        const QuarterTurns turns(keys, pairs);
        TileRotation rotation = {.angles = {.cos = turns.cos.data(), .sin = turns.sin.data()},
                                 .pairs = pairs,
                                 .pairing = RopePairing::kHalf,
                                 .shared_angle = rows == 2};
        const Matrix x(Integers(keys * depth), keys, depth, dtype);
        const std::vector<float> queries = Integers(rows * depth);
        ExpectRotatedScores(queries, x, rotation);
        rotation.pairing = RopePairing::kInterleaved;
        ExpectRotatedScores(queries, x, rotation);
      }
    }
  }
}

TEST_P(TileKernels, DotRotatedTileRoundsKeys) {
  for (const DType dtype : kDTypes) {
    for (const RopePairing pairing : kPairings) {
      constexpr int32_t kDepth = 128;
      constexpr int32_t kCount = 64;
      const Matrix x(Gaussian(kCount * kDepth), kCount, kDepth, dtype);
      const std::vector<float> cos = Gaussian(kCount * kDepth / 2, 0.5F);
      const std::vector<float> sin = Gaussian(kCount * kDepth / 2, 0.5F);
      const TileRotation rotation = {.angles = {.cos = cos.data(), .sin = sin.data()},
                                     .pairs = kDepth / 2,
                                     .pairing = pairing};
      std::vector<float> turned(kCount * kDepth);
      LoadRotatedRows(x.Source(), kCount, kDepth, rotation, dtype, turned.data());
      const Matrix rounded(turned, kCount, kDepth, DType::kF32);
      const std::vector<float> queries = Gaussian(4 * kDepth);
      Tile scores(4, kCount);
      DotRotatedTile(queries.data(), x.Source(), rotation, kDepth, scores.View());
      for (int32_t i = 0; i < 4 * kCount; ++i) {
        ASSERT_NEAR(static_cast<double>(scores.At(i / kCount, i % kCount)),
                    Dot(queries.data() + i / kCount * kDepth, rounded, i % kCount), 3e-5);
      }
    }
  }
}

TEST_P(TileKernels, AccumulateTileIsExactForIntegers) {
  for (const DType dtype : kDTypes) {
    for (const int32_t rows : kRows) {
      for (const int32_t keys : kKeys) {
        const int32_t depth = kDepths[static_cast<size_t>(rows + keys) % std::size(kDepths)];
        const Matrix values(Integers(keys * depth), keys, depth, dtype);
        Tile probabilities(rows, keys);
        probabilities.Fill(Integers(rows * keys));
        const std::vector<float> rescale = Integers(rows);
        const std::vector<float> before = Integers(rows * depth);
        std::vector<float> acc = before;
        acc.push_back(kSentinel);
        AccumulateTile(probabilities.View(), rescale.data(), values.Source(), depth, acc.data());
        EXPECT_EQ(acc.back(), kSentinel);
        for (int32_t i = 0; i < rows * depth; ++i) {
          float expected = before[static_cast<size_t>(i)] * rescale[static_cast<size_t>(i / depth)];
          for (int32_t key = 0; key < keys; ++key) {
            expected += probabilities.At(i / depth, key) * values.At(key, i % depth);
          }
          ASSERT_EQ(acc[static_cast<size_t>(i)], expected)
              << NameOf(dtype) << " rows " << rows << " keys " << keys << " depth " << depth;
        }
      }
    }
  }
}

}  // namespace
}  // namespace longshore::cpu
