// Cases whose ranking is exact, so that selections must be the oracle's, ties included.
//
// Integers in [-4, 4] make every dot product and bound exact in fp32, in any order; IdentityRope
// turns nothing; the scale is a power of two. With one head and one scored row, a chunk's rank is
// its score less one number for all, and distinct scores stay distinct.

#include <absl/strings/str_cat.h>

#include "tests/conformance/conformance_case.h"

namespace longshore {
namespace {

ModelShape ExactModel(int64_t trained_tokens = kNeverBeyond) {
  ModelShape model = TestModel(1, 1);
  model.softmax_scale = 0.125F;
  model.rope_tables = {IdentityRope(64, trained_tokens)};
  return model;
}

ModelShape ExactModelIn(DType query, DType kv) {
  ModelShape model = ExactModel();
  model.query_dtype = query;
  model.kv_dtype = kv;
  return model;
}

ModelShape ManyHeads(const RopeSpec& rope) {
  ModelShape model = TestModel(4, 2);
  model.rope_tables = {rope};
  return model;
}

AttentionPolicy LastRowScores(AttentionPolicy policy) {
  policy.query_stride = 64;
  return policy;
}

ConformanceCase Exact(const std::string& name, const ModelShape& model, AttentionPolicy policy) {
  return {.name = name,
          .model = model,
          .policy = LastRowScores(std::move(policy)),
          .values = ValueKind::kIntegers,
          .logit_size = 7.0,  // sqrt of the mean square of an integer, twice
          .exact_selection = true};
}

std::vector<ConformanceCase> Integers() {
  std::vector<ConformanceCase> cases = {
      Exact("Standard", ExactModel(), SmallStandard()),
      Exact("AcrossTheTrainedLength", ExactModel(600), SmallStandard()),
      Exact("ManyCandidates", ExactModel(), OneStage(1, 64, 2)),
      Exact("ManySummaries", ExactModel(), SmallStandard()),
  };
  cases[2].steps = {{StepKind::kAppend, 2300}, {StepKind::kDecode, 1, 4}};
  cases[3].steps = {{StepKind::kAppend, 4900}, {StepKind::kDecode, 1, 4}};
  for (const int32_t chunk : {1, 2, 4, 8, 16, 32, 64}) {
    cases.push_back(Exact(absl::StrCat("ChunksOf", chunk), ExactModel(), OneStage(chunk, 128, 4)));
  }
  for (const DType query : {DType::kF32, DType::kBf16, DType::kF16}) {
    for (const DType kv : {DType::kF32, DType::kBf16, DType::kF16}) {
      cases.push_back(Exact(absl::StrCat("Query_", NameOf(query), "_Kv_", NameOf(kv)),
                            ExactModelIn(query, kv), SmallStandard()));
    }
  }
  return cases;
}

// Every chunk scores the same, whatever the query: the lowest tokens must win.
std::vector<ConformanceCase> EqualKeys() {
  std::vector<ConformanceCase> cases = {
      {.name = "Standard", .model = ManyHeads(IdentityRope(64))},
      {.name = "Relative", .model = ManyHeads(TestRope(64, 1))},
      {.name = "ChunksOf1", .model = ManyHeads(IdentityRope(64)), .policy = OneStage(1, 64, 4)},
      {.name = "ManyCandidates",
       .model = ManyHeads(IdentityRope(64)),
       .policy = OneStage(1, 64, 2),
       .steps = {{StepKind::kAppend, 2300}, {StepKind::kDecode, 1, 4}}},
  };
  for (ConformanceCase& test : cases) {
    test.values = ValueKind::kEqualKeys;
    test.exact_selection = true;
  }
  return cases;
}

LONGSHORE_CONFORMANCE_CASES(Integers, Integers());
LONGSHORE_CONFORMANCE_CASES(EqualKeys, EqualKeys());

}  // namespace
}  // namespace longshore
