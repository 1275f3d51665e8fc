// Values that are refused change nothing.

#include <cmath>
#include <limits>

#include <absl/strings/str_cat.h>

#include "tests/engine/refusal_test.h"

namespace longshore {
namespace {

// NaN, infinity and values that are too large for fp16 storage, in every input; k and q turn.
std::vector<Refusal> SpoiltValues() {
  struct Input {
    std::string name;
    std::vector<double> SpoiltCall::*values;
    int64_t heads;
    float limit;
  };
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  std::vector<Refusal> refusals;
  for (const Input& of :
       {Input{"q", &SpoiltCall::q, 4, 32752.0F}, Input{"k", &SpoiltCall::k, 2, 32752.0F},
        Input{"v", &SpoiltCall::v, 2, 65504.0F}}) {
    for (const double value : {std::nan(""), kInfinity, -kInfinity, 7e4, -3e38}) {
      refusals.push_back(
          {.name = of.name + " holds " + std::to_string(value),
           .spoil_values =
               [=](SpoiltCall* spoilt) {
                 // Row 1, last head, element 5.
                 const auto index = static_cast<size_t>((2 * of.heads - 1) * 64 + 5);
                 (spoilt->*of.values)[index] = value;
               },
           .reason = std::isfinite(value) ? "OUT_OF_RANGE_VALUE" : "NON_FINITE",
           .field = of.name,
           .message = absl::StrCat(of.name, " holds ", static_cast<float>(value),
                                   " in row 1 at position 501, head ", of.heads - 1,
                                   ", element 5; the largest magnitude may be ", of.limit)});
    }
  }
  return refusals;
}

TEST_F(RefusalTest, OfValuesChangesNothing) {
  for (const Refusal& refusal : SpoiltValues()) {
    Expect(refusal);
  }
  ExpectNothingChanged();
}

}  // namespace
}  // namespace longshore
