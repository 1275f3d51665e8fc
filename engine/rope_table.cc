#include "engine/rope_table.h"

#include <cmath>
#include <vector>

#include "engine/core/math.h"

namespace longshore {
namespace {

// Rows of the coarse part that are made at a time.
constexpr int64_t kPieceRows = 256;

// cos and sin of some angles.
struct Turns {
  std::vector<double> cosines;
  std::vector<double> sines;
};

// Turns by id * inv_freq, for ids first, first + step, ...: [rows, pairs].
Turns ExactTurns(const RopeSpec& spec, int64_t first, int64_t rows, int64_t step) {
  Turns turns;
  for (int64_t row = 0; row < rows; ++row) {
    for (const double inv_freq : spec.inv_freq) {
      const double angle = static_cast<double>(first + row * step) * inv_freq;
      turns.cosines.push_back(std::cos(angle));
      turns.sines.push_back(std::sin(angle));
    }
  }
  return turns;
}

// Each row of `turns` turned further by `anchor` [pairs], rounded to fp32: cos and sin [rows,
// pairs]. A complex product in double precision, which is fifteen times cheaper than cos and sin
// and adds 2^-52: nothing that fp32 could hold.
void Compose(const Turns& anchor, const Turns& turns, int64_t rows, float* cosines, float* sines) {
  const size_t pairs = anchor.cosines.size();
  for (size_t row = 0; row < static_cast<size_t>(rows); ++row) {
    for (size_t pair = 0; pair < pairs; ++pair) {
      const size_t index = row * pairs + pair;
      const double cosine = turns.cosines[index];
      const double sine = turns.sines[index];
      cosines[index] =
          static_cast<float>(anchor.cosines[pair] * cosine - anchor.sines[pair] * sine);
      sines[index] = static_cast<float>(anchor.sines[pair] * cosine + anchor.cosines[pair] * sine);
    }
  }
}

// Writes the rows of a table in pieces, through the queue of its backend.
class Writer {
 public:
  Writer(Backend* backend, int64_t pairs)
      : backend_(backend),
        pairs_(pairs),
        angles_(static_cast<size_t>(2 * kPieceRows * pairs)) {}

  // [rows, pairs], rows at most kPieceRows, to be filled before Flush().
  float* cosines() { return angles_.data(); }
  float* sines() { return angles_.data() + kPieceRows * pairs_; }

  absl::Status Flush(int64_t rows, float* to_cosines, float* to_sines) {
    const auto bytes = rows * pairs_ * static_cast<int64_t>(sizeof(float));
    RETURN_IF_ERROR(backend_->Copy(to_cosines, cosines(), bytes));
    RETURN_IF_ERROR(backend_->Copy(to_sines, sines(), bytes));
    return backend_->WaitForAll();  // the next piece goes where this one was
  }

 private:
  Backend* backend_;
  int64_t pairs_;
  std::vector<float> angles_;
};

}  // namespace

RopeTable::RopeTable(const RopeSpec& spec, int64_t max_ids, Buffer storage)
    : pairing_(spec.pairing),
      pairs_(static_cast<int32_t>(spec.inv_freq.size())),
      attention_scaling_(spec.attention_scaling),
      trained_tokens_(spec.trained_tokens),
      max_ids_(max_ids),
      storage_(std::move(storage)) {}

int64_t RopeTable::BytesFor(int64_t pairs, int64_t max_ids) {
  return static_cast<int64_t>(sizeof(float)) * 2 * pairs * (kFineIds + CeilDiv(max_ids, kFineIds));
}

absl::StatusOr<RopeTable> RopeTable::Create(const RopeSpec& spec,
                                            int64_t max_ids,
                                            Backend* backend) {
  const auto pairs = static_cast<int64_t>(spec.inv_freq.size());
  const int64_t coarse_rows = CeilDiv(max_ids, kFineIds);
  ASSIGN_OR_RETURN(Buffer storage,
                   backend->Allocate(MemorySpace::kDevice, BytesFor(pairs, max_ids)));
  auto* fine = reinterpret_cast<float*>(storage.data());
  float* coarse = fine + 2 * kFineIds * pairs;
  Writer writer(backend, pairs);

  const Turns start = ExactTurns(spec, 0, 1, 1);
  Compose(start, ExactTurns(spec, 0, kFineIds, 1), kFineIds, writer.cosines(), writer.sines());
  for (int64_t index = 0; index < kFineIds * pairs; ++index) {
    writer.cosines()[index] *= spec.attention_scaling;
    writer.sines()[index] *= spec.attention_scaling;
  }
  RETURN_IF_ERROR(writer.Flush(kFineIds, fine, fine + kFineIds * pairs));

  const Turns turns = ExactTurns(spec, 0, Min(coarse_rows, kPieceRows), kFineIds);
  for (int64_t first = 0; first < coarse_rows; first += kPieceRows) {
    const int64_t rows = Min(kPieceRows, coarse_rows - first);
    const Turns anchor = ExactTurns(spec, first * kFineIds, 1, 1);
    Compose(anchor, turns, rows, writer.cosines(), writer.sines());
    RETURN_IF_ERROR(
        writer.Flush(rows, coarse + first * pairs, coarse + (coarse_rows + first) * pairs));
  }
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
