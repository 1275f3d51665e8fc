// Kernels of scores and of plain rows against loops in double.

#include <array>
#include <cmath>

#include "tests/engine/cpu/tile_kernels_test.h"

namespace longshore::cpu {
namespace {

using ScoreKernels = TileKernelTest;
LONGSHORE_FOR_EVERY_TARGET(ScoreKernels);

TEST_P(ScoreKernels, ExponentialIsAccurate) {
  constexpr int32_t kCount = 64;
  double worst = 0.0;
  for (int32_t step = 0; step < 7700; ++step) {
    const float s = -0.0113F * static_cast<float>(step);
    Tile tile(1, kCount);
    std::vector<float> scores(kCount);
    for (size_t key = 0; key < kCount; ++key) {
      scores[key] = std::max(s - static_cast<float>(key) * 0.00017F, -87.0F);
    }
    tile.Fill(scores);
    float max = 0.0F;
    float sum = 0.0F;
    float rescale = 0.0F;
    SoftmaxTile(tile.View(), nullptr, {.max = &max, .sum = &sum, .rescale = &rescale});
    ASSERT_EQ(rescale, 1.0F);
    for (int32_t key = 0; key < kCount; ++key) {
      const double expected = std::exp(static_cast<double>(scores[static_cast<size_t>(key)]));
      worst = std::max(worst, std::abs(static_cast<double>(tile.At(0, key)) / expected - 1.0));
    }
  }
  EXPECT_LT(worst, 1.3e-7);
  RecordProperty("worst_relative_error", std::to_string(worst));
}

TEST_P(ScoreKernels, ScaleTileScalesAndCaps) {
  for (const float cap : {0.0F, 30.0F, 1.5F}) {
    for (const int32_t keys : kKeys) {
      Tile tile(3, keys);
      const std::vector<float> before = Gaussian(3 * keys, 40.0F);
      tile.Fill(before);
      ScaleTile(tile.View(), 0.3F, cap);
      EXPECT_TRUE(tile.GapsAreIntact());
      for (int32_t i = 0; i < 3 * keys; ++i) {
        const double scaled =
            static_cast<double>(before[static_cast<size_t>(i)]) * static_cast<double>(0.3F);
        const double expected = cap > 0.0F ? cap * std::tanh(scaled / cap) : scaled;
        ASSERT_NEAR(static_cast<double>(tile.At(i / keys, i % keys)), expected,
                    std::abs(expected) * 4e-7);
      }
    }
  }
}

/// A running softmax, and per row all that it has seen.
struct RunningSoftmax {
  explicit RunningSoftmax(int32_t count)
      : max(static_cast<size_t>(count), -kInfinity),
        sum(max.size()),
        rescale(max.size()),
        seen(max.size()) {}

  /// Shows row `row` the first `visible` keys of a tile, whose probabilities it checks.
  void Check(int32_t row, const float* scores, int32_t visible, Tile* tile, float old_max) {
    const auto r = static_cast<size_t>(row);
    seen[r].insert(seen[r].end(), scores, scores + visible);
    const float largest =
        seen[r].empty() ? -kInfinity : *std::max_element(seen[r].begin(), seen[r].end());
    ASSERT_EQ(max[r], largest);
    ASSERT_NEAR(rescale[r], largest == old_max ? 1.0F : std::exp(old_max - largest), 1e-6F);
    double expected = 0.0;
    for (const float score : seen[r]) {
      expected += std::isinf(score)
                      ? 0.0
                      : std::exp(static_cast<double>(score) - static_cast<double>(largest));
    }
    ASSERT_NEAR(static_cast<double>(sum[r]), expected, expected * 1e-6);
    for (int32_t key = 0; key < tile->keys; ++key) {
      const bool counts = key < visible && !std::isinf(scores[key]);
      ASSERT_NEAR(tile->At(row, key), counts ? std::exp(scores[key] - largest) : 0.0F, 1e-6F)
          << "row " << row << " key " << key;
    }
  }

  std::vector<float> max, sum, rescale;
  std::vector<std::vector<float>> seen;
};

TEST_P(ScoreKernels, SoftmaxTileRunsOverTiles) {
  constexpr int32_t kCount = 21;
  RunningSoftmax softmax(kCount);
  for (const int32_t keys : {7, 64, 1, 63, 8, 16}) {
    std::vector<float> scores = Gaussian(kCount * keys, 5.0F);
    scores[0] = -kInfinity;
    Tile tile(kCount, keys);
    tile.Fill(scores);
    std::vector<int32_t> visible(kCount);
    std::generate(visible.begin(), visible.end(),
                  [&] { return static_cast<int32_t>(random_() % static_cast<size_t>(keys + 1)); });
    visible[1] = 0;         // sees nothing
    visible[2] = keys + 5;  // sees everything
    const bool masked = keys != 64;
    const std::vector<float> old_max = softmax.max;
    SoftmaxTile(
        tile.View(), masked ? visible.data() : nullptr,
        {.max = softmax.max.data(), .sum = softmax.sum.data(), .rescale = softmax.rescale.data()});
    EXPECT_TRUE(tile.GapsAreIntact());
    for (int32_t row = 0; row < kCount; ++row) {
      const auto r = static_cast<size_t>(row);
      softmax.Check(row, &scores[IndexOf(row, keys, 0)], masked ? std::min(visible[r], keys) : keys,
                    &tile, old_max[r]);
    }
  }
}

TEST_P(ScoreKernels, SoftmaxTileSurvivesInfinity) {
  Tile tile(2, 20);
  tile.Fill(std::vector<float>(40, -kInfinity));
  std::array<float, 2> max = {-kInfinity, 2.0F};
  std::array<float, 2> sum = {0.0F, 3.0F};
  std::array<float, 2> rescale = {};
  SoftmaxTile(tile.View(), nullptr,
              {.max = max.data(), .sum = sum.data(), .rescale = rescale.data()});
  EXPECT_EQ(max, (std::array{-kInfinity, 2.0F}));
  EXPECT_EQ(sum, (std::array{0.0F, 3.0F}));
  EXPECT_EQ(rescale, (std::array{1.0F, 1.0F}));
  for (int32_t i = 0; i < 40; ++i) {
    EXPECT_EQ(tile.At(i / 20, i % 20), 0.0F);
  }
}

TEST_P(ScoreKernels, SplitSignsGivesUpperBounds) {
  for (const DType dtype : kDTypes) {
    for (const int32_t depth : kDepths) {
      const Matrix summaries(Integers(5 * 2 * depth), 5, 2 * depth, dtype);
      const std::vector<float> queries = Integers(3 * depth);
      std::vector<float> split(static_cast<size_t>(3 * 2 * depth));
      SplitSigns(queries.data(), 3, depth, split.data());
      Tile bounds(3, 5);
      DotTile(split.data(), summaries.Source(), 2 * depth, bounds.View());
      for (int32_t i = 0; i < 15; ++i) {
        float expected = 0.0F;
        for (int32_t dim = 0; dim < depth; ++dim) {
          const float q = queries[IndexOf(i / 5, depth, dim)];
          expected +=
              q > 0.0F ? q * summaries.At(i % 5, dim) : q * summaries.At(i % 5, depth + dim);
        }
        ASSERT_EQ(bounds.At(i / 5, i % 5), expected);
      }
    }
  }
}

TEST_P(ScoreKernels, MinMaxRowsFindsBoth) {
  for (const int32_t depth : kDepths) {
    for (const int32_t rows : {1, 2, 63, 64}) {
      const Matrix x(Gaussian(rows * depth), rows, depth, DType::kF32);
      std::vector<float> max(static_cast<size_t>(depth)), min(static_cast<size_t>(depth));
      MinMaxRows(x.values.data(), rows, depth, max.data(), min.data());
      for (int32_t dim = 0; dim < depth; ++dim) {
        float expected_max = -kInfinity;
        float expected_min = kInfinity;
        for (int32_t row = 0; row < rows; ++row) {
          expected_max = std::max(expected_max, x.At(row, dim));
          expected_min = std::min(expected_min, x.At(row, dim));
        }
        ASSERT_EQ(max[static_cast<size_t>(dim)], expected_max);
        ASSERT_EQ(min[static_cast<size_t>(dim)], expected_min);
      }
    }
  }
}

TEST_P(ScoreKernels, ChunkMaxTileFindsEachChunk) {
  for (const int32_t width : {1, 2, 4, 8, 16, 32, 64}) {
    for (const int32_t chunks : {1, 2, 3, 9, 40}) {
      Tile scores(3, chunks * width);
      scores.Fill(Gaussian(3 * chunks * width));
      Tile maxima(3, chunks);
      ChunkMaxTile(scores.View(), width, maxima.values.data(), maxima.stride);
      EXPECT_TRUE(maxima.GapsAreIntact());
      for (int32_t i = 0; i < 3 * chunks; ++i) {
        float expected = -kInfinity;
        for (int32_t key = 0; key < width; ++key) {
          expected = std::max(expected, scores.At(i / chunks, i % chunks * width + key));
        }
        ASSERT_EQ(maxima.At(i / chunks, i % chunks), expected)
            << width << " " << chunks << " " << i;
      }
    }
  }
}

TEST_P(ScoreKernels, LogSumExpMatchesDouble) {
  EXPECT_EQ(LogSumExp(nullptr, 0), -kInfinity);
  for (const int64_t count : {1, 3, 16, 63, 64, 65, 200, 131072}) {
    std::vector<float> values = Gaussian(count, 6.0F);
    values[0] = count == 3 ? -kInfinity : values[0];
    const double max = static_cast<double>(*std::max_element(values.begin(), values.end()));
    double sum = 0.0;
    for (const float value : values) {
      sum += std::exp(static_cast<double>(value) - max);
    }
    EXPECT_NEAR(static_cast<double>(LogSumExp(values.data(), count)), max + std::log(sum), 4e-6)
        << count;
    std::fill(values.begin(), values.end(), -kInfinity);
    EXPECT_EQ(LogSumExp(values.data(), count), -kInfinity);
    values.back() = kInfinity;
    EXPECT_EQ(LogSumExp(values.data(), count), kInfinity);
  }
}

TEST_P(ScoreKernels, MaxOfShiftedKeepsTheLarger) {
  for (const int64_t count : {0, 1, 15, 16, 17, 100}) {
    const std::vector<float> from = Gaussian(count);
    const std::vector<float> before = Gaussian(count);
    std::vector<float> to = before;
    to.push_back(kSentinel);
    MaxOfShifted(from.data(), -kInfinity, count, to.data());
    EXPECT_TRUE(std::equal(before.begin(), before.end(), to.begin()));
    MaxOfShifted(from.data(), 0.5F, count, to.data());
    for (size_t i = 0; i < from.size(); ++i) {
      ASSERT_EQ(to[i], std::max(before[i], from[i] - 0.5F));
    }
    EXPECT_EQ(to.back(), kSentinel);
  }
}

/// The element after `value`, away from zero.
float Next(float value, DType dtype) {
  switch (dtype) {
    case DType::kBf16: return ToFloat(Bf16{static_cast<uint16_t>(ToBf16(value).bits + 1)});
    case DType::kF16: return ToFloat(F16{static_cast<uint16_t>(ToF16(value).bits + 1)});
    default: return std::nextafter(value, kInfinity);
  }
}

TEST_P(ScoreKernels, FirstAboveFindsTheFirst) {
  for (const DType dtype : kDTypes) {
    for (const int32_t count : {1, 5, 256, 511, 512, 5000}) {
      Matrix x(Gaussian(count), 1, count, dtype);
      const auto put = [&](int32_t index, float value) {
        x.values[static_cast<size_t>(index)] = value;
        x.Store(0, index);
      };
      const auto first_above = [&](float limit) {
        return FirstAbove(x.stored.data(), dtype, count, limit);
      };
      EXPECT_EQ(FirstAbove(x.stored.data(), dtype, 0, 0.0F), -1);
      EXPECT_EQ(first_above(0.0F), 0);
      // The largest of all, and a number of every type in the middle of the range.
      for (const float limit : {LargestOf(dtype), 96.0F}) {
        put(0, -limit);
        EXPECT_EQ(first_above(limit), -1);
        for (const float bad : {Next(limit, dtype), -Next(limit, dtype), kInfinity, -kInfinity,
                                std::nanf(""), -std::nanf("")}) {
          const int32_t first = static_cast<int32_t>(random_() % static_cast<size_t>(count));
          put(count - 1, bad);
          put(first, bad);
          ASSERT_EQ(first_above(limit), first) << NameOf(dtype) << " " << bad;
          put(count - 1, 1.0F);
          put(first, 1.0F);
        }
      }
    }
  }
}

TEST_P(ScoreKernels, FirstAboveRoundsItsLimitDown) {
  for (const DType dtype : kDTypes) {
    for (const float limit : {1e-6F, 0.4998F, 1.0F / 3.0F, 20000.1F, 65503.9F, 65520.0F, 1e30F}) {
      const float rounded = Rounded(limit, dtype);
      for (const float value : {rounded, Next(rounded, dtype), -rounded}) {
        Matrix x({value}, 1, 1, dtype);
        const bool within = std::abs(x.At(0, 0)) <= std::min(limit, LargestOf(dtype));
        ASSERT_EQ(FirstAbove(x.stored.data(), dtype, 1, limit), within ? -1 : 0)
            << NameOf(dtype) << " " << value << " beside " << limit;
      }
    }
  }
}

}  // namespace
}  // namespace longshore::cpu
