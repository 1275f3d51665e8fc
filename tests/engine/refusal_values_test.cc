// Values that are refused change nothing.

#include <cmath>
#include <limits>

#include "tests/engine/refusal_test.h"

namespace longshore {
namespace {

// NaN and infinity in every input, and a value that KV storage cannot hold.
std::vector<Refusal> SpoiltValues() {
  struct Input {
    std::string name;
    std::vector<double> SpoiltCall::*values;
    int64_t heads;
  };
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  std::vector<Refusal> refusals;
  for (const Input& of : {Input{"q", &SpoiltCall::q, 4}, Input{"k", &SpoiltCall::k, 2},
                          Input{"v", &SpoiltCall::v, 2}}) {
    for (const double value : {std::nan(""), kInfinity, -kInfinity, 7e4}) {
      refusals.push_back(
          {.name = of.name + " holds " + std::to_string(value),
           .spoil_values =
               [=](SpoiltCall* spoilt) {
                 // Row 1, last head, element 5.
                 const auto index = static_cast<size_t>((2 * of.heads - 1) * 64 + 5);
                 (spoilt->*of.values)[index] = value;
               },
           .reason = "NON_FINITE",
           .field = of.name,
           .message = "at position 501, head " + std::to_string(of.heads - 1) + ", element 5"});
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
