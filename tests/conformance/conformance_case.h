#pragma once

#include <cstdint>
#include <ostream>
#include <string>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/engine_session.h"
#include "tests/support/test_model.h"

namespace longshore {

/// Calls of one kind, one after the other: `calls` times `rows` rows, in every layer.
struct CaseStep {
  StepKind kind = StepKind::kDecode;
  int64_t rows = 1;
  int32_t calls = 1;
};

/// A context of 640 tokens, of which the last 70 are prefilled (so that a block is split), then
/// decode steps past two refreshes of the coarsest stage.
std::vector<CaseStep> UsualSteps();

/// A session that every backend must run as the oracle does.
struct ConformanceCase {
  std::string name;
  ModelShape model = TestModel();
  AttentionPolicy policy = SmallStandard();
  std::vector<CaseStep> steps = UsualSteps();
  ValueKind values = ValueKind::kGaussian;
  CallOptions options = {};
  double logit_size = 1.0;       ///< how much larger than unit size logits get; see StrictnessOf
  bool exact_selection = false;  ///< ranking is exact: selections are the oracle's, ties included
  bool prunes = true;            ///< some stage must have more candidates than it may keep
};

inline void PrintTo(const ConformanceCase& test, std::ostream* out) { *out << test.name; }

/// Backend and case.
class ConformanceTest : public ::testing::TestWithParam<std::tuple<std::string, ConformanceCase>> {
};

/// "cpu_CaseName".
std::string ConformanceName(const ::testing::TestParamInfo<ConformanceTest::ParamType>& info);

/// `cases` on every backend; on those that have faster kernels for 16-bit storage once more with
/// keys and values in bf16, where a case's are in fp32.
std::vector<std::tuple<std::string, ConformanceCase>> OnBackends(
    const std::vector<ConformanceCase>& cases);

#define LONGSHORE_CONFORMANCE_CASES(table, cases)                                          \
  INSTANTIATE_TEST_SUITE_P(table, ConformanceTest, ::testing::ValuesIn(OnBackends(cases)), \
                           ConformanceName)

/// Runs `cases` with guarded device memory as well: tables that differ in what the engine, not the
/// backend, has to do.
#define LONGSHORE_GUARDED_CASES(table, cases)                                       \
  INSTANTIATE_TEST_SUITE_P(                                                         \
      Guarded##table, ConformanceTest,                                              \
      ::testing::Combine(::testing::Values("guarded"), ::testing::ValuesIn(cases)), \
      ConformanceName)

}  // namespace longshore
