#include "engine/rope_table.h"

#include <cmath>

#include <gtest/gtest.h>

#include "tests/support/device_memory.h"
#include "tests/support/engine_session.h"
#include "tests/support/test_model.h"

namespace longshore {
namespace {

// The rows of a table where a test can read them.
class HostRows {
 public:
  HostRows(const RopeTable& table, Backend* backend) : rows_(table.rows()) {
    const int64_t fine = 64 * int64_t{rows_.pairs};
    const int64_t coarse = (table.max_ids() + 63) / 64 * rows_.pairs;
    fine_cos_ = ReadDevice(backend, rows_.fine_cos, fine);
    fine_sin_ = ReadDevice(backend, rows_.fine_sin, fine);
    coarse_cos_ = ReadDevice(backend, rows_.coarse_cos, coarse);
    coarse_sin_ = ReadDevice(backend, rows_.coarse_sin, coarse);
    rows_.fine_cos = fine_cos_.data();
    rows_.fine_sin = fine_sin_.data();
    rows_.coarse_cos = coarse_cos_.data();
    rows_.coarse_sin = coarse_sin_.data();
  }
  const RopeRows& operator*() const { return rows_; }

 private:
  RopeRows rows_;
  std::vector<float> fine_cos_;
  std::vector<float> fine_sin_;
  std::vector<float> coarse_cos_;
  std::vector<float> coarse_sin_;
};

// The angle of an id as kernels compose it: coarse row id / 64, fine row id % 64, one complex
// product.
struct Turn {
  double cosine;
  double sine;
};

Turn Compose(const RopeRows& rows, int64_t id, int32_t pair) {
  const int64_t fine = (id % 64) * rows.pairs + pair;
  const int64_t coarse = (id / 64) * rows.pairs + pair;
  const double fc = double{rows.fine_cos[fine]};
  const double fs = double{rows.fine_sin[fine]};
  const double cc = double{rows.coarse_cos[coarse]};
  const double cs = double{rows.coarse_sin[coarse]};
  return {cc * fc - cs * fs, cs * fc + cc * fs};
}

TEST(RopeTable, AnglesAreThoseOfDoublePrecision) {
  const auto backend = MakeTestBackend();
  RopeSpec spec = TestRope(128, 4096);
  spec.attention_scaling = 1.5F;
  constexpr int64_t kIds = int64_t{1} << 20;
  const RopeTable table = *RopeTable::Create(spec, kIds, backend.get());
  const HostRows host(table, backend.get());
  const RopeRows& rows = *host;
  ASSERT_EQ(rows.pairs, 64);
  EXPECT_EQ(table.max_ids(), kIds);
  for (int64_t id = 0; id < kIds; id += (id < 200 ? 1 : 9973)) {
    for (int32_t pair = 0; pair < 64; ++pair) {
      const double angle = static_cast<double>(id) * spec.inv_freq[static_cast<size_t>(pair)];
      const Turn turn = Compose(rows, id, pair);
      // Four factors rounded to fp32, scaled by 1.5.
      ASSERT_NEAR(turn.cosine, 1.5 * std::cos(angle), 4e-7) << id << ", pair " << pair;
      ASSERT_NEAR(turn.sine, 1.5 * std::sin(angle), 4e-7) << id << ", pair " << pair;
    }
  }
}

// Every coarse row of a long table is cos and sin of its angle, rounded to fp32 once. Ids that are
// not computed but composed differ from the exact angle by what double precision makes of it.
TEST(RopeTable, ComposedRowsRoundOnce) {
  const auto backend = MakeTestBackend();
  const RopeSpec spec = TestRope(128, 4096);
  constexpr int64_t kIds = (int64_t{1} << 22) - 100;  // the last piece is not whole
  const RopeTable table = *RopeTable::Create(spec, kIds, backend.get());
  const HostRows host(table, backend.get());
  const RopeRows& rows = *host;
  int64_t exact = 0;
  const int64_t coarse_rows = (kIds + 63) / 64;
  for (int64_t row = 0; row < coarse_rows; row += (row < 600 ? 1 : 61)) {
    for (int32_t pair = 0; pair < 64; ++pair) {
      const double angle = static_cast<double>(row * 64) * spec.inv_freq[static_cast<size_t>(pair)];
      const auto index = row * 64 + pair;
      ASSERT_NEAR(double{rows.coarse_cos[index]}, std::cos(angle), 3.1e-8) << row << ", " << pair;
      ASSERT_NEAR(double{rows.coarse_sin[index]}, std::sin(angle), 3.1e-8) << row << ", " << pair;
      exact += rows.coarse_cos[index] == static_cast<float>(std::cos(angle)) ? 1 : 0;
    }
  }
  EXPECT_GT(exact, 64 * (600 + (coarse_rows - 600) / 61) * 98 / 100);
}

TEST(RopeTable, CarriesWhatKernelsNeed) {
  const auto backend = MakeTestBackend();
  RopeSpec spec = TestRope(6, 77);
  spec.pairing = RopePairing::kInterleaved;
  spec.attention_scaling = 0.5F;
  const RopeTable table = *RopeTable::Create(spec, 65, backend.get());
  const HostRows host(table, backend.get());
  const RopeRows& rows = *host;
  EXPECT_EQ(rows.pairs, 3);
  EXPECT_EQ(rows.pairing, RopePairing::kInterleaved);
  EXPECT_EQ(rows.attention_scaling, 0.5F);
  EXPECT_EQ(rows.trained_tokens, 77);
  // The last id there is lies in the second coarse row.
  EXPECT_NEAR(Compose(rows, 64, 0).cosine, 0.5 * std::cos(64.0), 1e-6);
}

TEST(RopeTable, FrequencyZeroTurnsNothingExactly) {
  const auto backend = MakeTestBackend();
  const RopeTable table = *RopeTable::Create(IdentityRope(64), 10000, backend.get());
  const HostRows rows(table, backend.get());
  for (int64_t id = 0; id < 10000; id += 37) {
    const Turn turn = Compose(*rows, id, 31);
    ASSERT_EQ(turn.cosine, 1.0);
    ASSERT_EQ(turn.sine, 0.0);
  }
}

}  // namespace
}  // namespace longshore
