#include <algorithm>
#include <utility>

#include <absl/strings/str_cat.h>

#include "tests/conformance/conformance_case.h"
#include "tests/support/judge.h"

namespace longshore {

std::vector<CaseStep> UsualSteps() {
  return {{StepKind::kAppend, 570}, {StepKind::kPrefill, 70}, {StepKind::kDecode, 1, 36}};
}

std::vector<std::tuple<std::string, ConformanceCase>> OnBackends(
    const std::vector<ConformanceCase>& cases) {
  std::vector<std::tuple<std::string, ConformanceCase>> all;
  for (const std::string& backend : TestBackends()) {
    for (const ConformanceCase& test : cases) {
      all.emplace_back(backend, test);
      if (backend == "cuda" && test.model.kv_dtype == DType::kF32) {
        ConformanceCase stored = test;
        stored.name += "StoredAsBf16";
        stored.model.kv_dtype = DType::kBf16;
        stored.logit_size *= 4.0;  // a few elements go the other way in the longest of these
        all.emplace_back(backend, stored);
      }
    }
  }
  return all;
}

std::string ConformanceName(const ::testing::TestParamInfo<ConformanceTest::ParamType>& info) {
  return absl::StrCat(std::get<0>(info.param), "_", std::get<1>(info.param).name);
}

TEST(GpuTest, ConformanceRunsOnCuda) {
  const std::vector<std::string> backends = TestBackends();
  if (std::find(backends.begin(), backends.end(), "cuda") == backends.end()) {
    GTEST_SKIP() << "SKIPPED: no CUDA backend or no GPU: no conformance case ran on a GPU";
  }
}

TEST_P(ConformanceTest, MatchesTheOracle) {
  const auto& [backend, test] = GetParam();
  const auto engine = MakeTestEngine(backend);
  int64_t tokens = 0;
  for (const CaseStep& step : test.steps) {
    tokens += step.rows * step.calls;
  }
  Strictness strictness = StrictnessOf(test.model, test.logit_size);
  strictness.score = test.exact_selection ? 0.0 : strictness.score;
  Judge judge(engine.get(), TestSpec(test.model, test.policy, tokens), strictness);
  Random random;
  std::vector<TokenRows> rows;
  rows.reserve(static_cast<size_t>(test.model.num_layers));
  for (int32_t layer = 0; layer < test.model.num_layers; ++layer) {
    rows.push_back(RandomTokens(test.model, tokens, test.values, &random));
  }
  int64_t position = 0;
  for (const CaseStep& step : test.steps) {
    for (int32_t call = 0; call < step.calls && !HasFailure(); ++call, position += step.rows) {
      for (int32_t layer = 0; layer < test.model.num_layers; ++layer) {
        const TokenRows part =
            Slice(test.model, rows[static_cast<size_t>(layer)], position, position + step.rows);
        switch (step.kind) {
          case StepKind::kAppend: judge.Append(part, layer); break;
          case StepKind::kPrefill: judge.Prefill(part, layer, test.options); break;
          case StepKind::kDecode: judge.Decode(part, layer, test.options); break;
        }
      }
    }
  }
  EXPECT_TRUE(HasFailure() || !test.prunes || judge.judged_prunings() > 0)
      << "no stage had to choose: the case tests nothing";
}

}  // namespace longshore
