#include "engine/rope_table.h"

#include <cmath>
#include <vector>

#include "engine/core/math.h"

namespace longshore {
namespace {

// cos and sin of id * inv_freq * scale, for ids 0, step, 2 step, ...: [rows, pairs] each.
void FillAngles(const RopeSpec& spec, int64_t rows, int64_t step, float* cosines, float* sines) {
  const size_t pairs = spec.inv_freq.size();
  for (int64_t row = 0; row < rows; ++row) {
    for (size_t pair = 0; pair < pairs; ++pair) {
      const double angle = static_cast<double>(row * step) * spec.inv_freq[pair];
      const size_t index = static_cast<size_t>(row) * pairs + pair;
      cosines[index] = static_cast<float>(std::cos(angle));
      sines[index] = static_cast<float>(std::sin(angle));
    }
  }
}

}  // namespace

RopeTable::RopeTable(const RopeSpec& spec, int64_t max_ids, Buffer storage)
    : pairing_(spec.pairing),
      pairs_(static_cast<int32_t>(spec.inv_freq.size())),
      attention_scaling_(spec.attention_scaling),
      trained_tokens_(spec.trained_tokens),
      max_ids_(max_ids),
      storage_(std::move(storage)) {}

absl::StatusOr<RopeTable> RopeTable::Create(const RopeSpec& spec,
                                            int64_t max_ids,
                                            Backend* backend) {
  const auto pairs = static_cast<int64_t>(spec.inv_freq.size());
  const int64_t coarse_ids = CeilDiv(max_ids, kFineIds);
  std::vector<float> angles(static_cast<size_t>(2 * (kFineIds + coarse_ids) * pairs));
  float* fine = angles.data();
  float* coarse = fine + 2 * kFineIds * pairs;
  FillAngles(spec, kFineIds, 1, fine, fine + kFineIds * pairs);
  FillAngles(spec, coarse_ids, kFineIds, coarse, coarse + coarse_ids * pairs);
  for (int64_t index = 0; index < 2 * kFineIds * pairs; ++index) {
    fine[index] *= spec.attention_scaling;
  }
  const auto bytes = static_cast<int64_t>(angles.size() * sizeof(float));
  ASSIGN_OR_RETURN(Buffer storage, backend->Allocate(MemorySpace::kDevice, bytes));
  RETURN_IF_ERROR(backend->Copy(storage.data(), angles.data(), bytes));
  ASSIGN_OR_RETURN(const Fence copied, backend->Mark());
  RETURN_IF_ERROR(backend->Wait(copied));  // `angles` ends here
  return RopeTable(spec, max_ids, std::move(storage));
}

RopeRows RopeTable::rows() const {
  const auto* fine = reinterpret_cast<const float*>(storage_.data());
  const int64_t fine_floats = int64_t{kFineIds} * pairs_;
  const int64_t coarse_floats = CeilDiv(max_ids_, kFineIds) * pairs_;
  return RopeRows{.fine_cos = fine,
                  .fine_sin = fine + fine_floats,
                  .coarse_cos = fine + 2 * fine_floats,
                  .coarse_sin = fine + 2 * fine_floats + coarse_floats,
                  .pairs = pairs_,
                  .pairing = pairing_,
                  .attention_scaling = attention_scaling_,
                  .trained_tokens = trained_tokens_};
}

}  // namespace longshore
