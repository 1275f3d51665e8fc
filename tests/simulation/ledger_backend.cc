#include "tests/simulation/ledger_backend.h"

#include <algorithm>
#include <cstring>
#include <new>

#include "engine/core/error.h"
#include "tests/simulation/world.h"

namespace longshore::simulation {
namespace {

uint64_t WordAt(const void* data) {
  uint64_t word = 0;
  std::memcpy(&word, data, sizeof(word));
  return word;
}

const std::byte* RowOf(const TensorRef& tensor, int64_t row) {
  return static_cast<const std::byte*>(tensor.data) + row * (tensor.Bytes() / tensor.shape[0]);
}

uint64_t WeightOf(const KvView& kv, int64_t token) {
  return Weight(token, WordAt(kv.Keys(token)), WordAt(kv.Values(token)));
}

}  // namespace

absl::Status LedgerBackend::Append(const AppendArgs& args) {
  const uint64_t fault = WordAt(RowOf(args.k, 0) + sizeof(uint64_t));
  starves_attend_ = fault == FaultWord(Fault::kStarvedAttend);
  RETURN_IF_ERROR(fake_.Append(args));
  if (fault == FaultWord(Fault::kDeviceFails)) {
    return absl::UnavailableError("burnt");
  }
  if (fault == FaultWord(Fault::kNonFinite)) {
    return MakeError(absl::StatusCode::kInvalidArgument, "k at some position is not finite",
                     {.reason = "NON_FINITE", .field = "k", .metadata = {}});
  }
  for (const AppendItem& item : args.items) {
    for (int32_t row = 0; !item.replay && row < item.rows; ++row) {
      const int64_t token = item.position + row;
      std::memcpy(item.kv.Keys(token), RowOf(args.k, item.first_row + row), sizeof(uint64_t));
      std::memcpy(item.kv.Values(token), RowOf(args.v, item.first_row + row), sizeof(uint64_t));
    }
  }
  if (fault == FaultWord(Fault::kStarvedAppend)) {
    throw std::bad_alloc();
  }
  return absl::OkStatus();
}

absl::Status LedgerBackend::Attend(const AttendArgs& args) {
  if (starves_attend_) {
    throw std::bad_alloc();
  }
  RETURN_IF_ERROR(fake_.Attend(args));
  for (const AttendBlock& attend : args.blocks) {
    const QueryBlock& block = attend.block;
    const int64_t window = attend.sliding_window_tokens;
    const auto oldest = [&](int64_t position) {
      return window == 0 ? int64_t{0} : std::max(int64_t{0}, position - window + 1);
    };
    uint64_t sum = 0;
    int64_t first = oldest(block.first_position);
    for (int64_t token = first; token < block.first_position; ++token) {
      sum += WeightOf(block.kv, token);
    }
    for (int32_t row = 0; row < block.rows; ++row) {
      const int64_t position = block.first_position + row;
      sum += WeightOf(block.kv, position);
      for (; first < oldest(position); ++first) {
        sum -= WeightOf(block.kv, first);
      }
      std::memcpy(const_cast<std::byte*>(RowOf(args.out, block.first_row + row)), &sum,
                  sizeof(sum));
    }
  }
  return absl::OkStatus();
}

}  // namespace longshore::simulation
