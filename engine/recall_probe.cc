#include "engine/recall_probe.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "engine/core/math.h"

namespace longshore {
namespace {

constexpr int64_t kMaxQueryBytes = int64_t{1} << 20;  // of all rows; a model's largest is one
constexpr int64_t kMaxHeads = 1024;
constexpr int64_t kListChunks = 4096;  // of 64 tokens: more than a slice should ever have
constexpr double kNothing = -std::numeric_limits<double>::infinity();

// SplitMix64: consecutive numbers in, random ones out.
uint64_t Mix(uint64_t number) {
  number += 0x9E3779B97F4A7C15U;
  number = (number ^ (number >> 30)) * 0xBF58476D1CE4E5B9U;
  number = (number ^ (number >> 27)) * 0x94D049BB133111EBU;
  return number ^ (number >> 31);
}

double LogAddExp(double left, double right) {
  const double larger = std::max(left, right);
  return larger == kNothing ? kNothing
                            : larger + std::log1p(std::exp(std::min(left, right) - larger));
}

// One rule for all tokens, attended to or not. `streaming` numbers what is selected, and has no id
// for the rest.
RopeStyle StyleOfAllTokens(RopeStyle attention, bool beyond) {
  if (attention != RopeStyle::kStreaming) {
    return attention;
  }
  return beyond ? RopeStyle::kInfLlm : RopeStyle::kTruePositions;
}

}  // namespace

absl::StatusOr<RecallProbe> RecallProbe::Create(int32_t sample_every,
                                                int64_t max_block_products,
                                                Backend* backend) {
  RecallProbe probe;
  if (sample_every == 0) {
    return probe;
  }
  probe.sample_every_ = sample_every;
  probe.max_block_products_ = max_block_products;
  probe.backend_ = backend;
  const auto allocate = [backend](int64_t bytes) {
    return backend->Allocate(MemorySpace::kDevice, bytes);
  };
  ASSIGN_OR_RETURN(probe.queries_, allocate(kMaxQueryBytes));
  ASSIGN_OR_RETURN(probe.out_, allocate(kMaxQueryBytes));
  ASSIGN_OR_RETURN(probe.sums_out_, allocate(kMaxHeads * static_cast<int64_t>(sizeof(float))));
  ASSIGN_OR_RETURN(probe.kept_, allocate(kMaxKeptChunks * static_cast<int64_t>(sizeof(int32_t))));
  ASSIGN_OR_RETURN(probe.list_, allocate(kListChunks * static_cast<int64_t>(sizeof(int32_t))));
  probe.list_copied_.resize(kListChunks);
  return probe;
}

bool RecallProbe::Samples() {
  if (!enabled() || Mix(++blocks_) % static_cast<uint64_t>(sample_every_) != 0) {
    return false;
  }
  counts_.dropped_busy += state_ == State::kIdle ? 0 : 1;
  return state_ == State::kIdle;
}

absl::Status RecallProbe::Capture(const RecallLabels& labels,
                                  const AttentionShape& shape,
                                  const AttendBlock& attend,
                                  bool beyond,
                                  const TensorRef& q) {
  if (attend.num_selected > kMaxKeptChunks) {
    ++counts_.dropped_large;
    return absl::OkStatus();
  }
  labels_ = labels;
  shape_ = shape;
  query_dtype_ = q.dtype;
  block_ = attend;
  block_.rule.style = StyleOfAllTokens(attend.rule.style, beyond);
  block_.selected = reinterpret_cast<const int32_t*>(kept_.data());
  const int64_t row_bytes = int64_t{shape.num_heads} * shape.head_dim * SizeOf(q.dtype);
  PickRows(attend.block, row_bytes);
  for (size_t row = 0; row < num_rows_; ++row) {
    const int64_t packed = attend.block.first_row + rows_[row];
    RETURN_IF_ERROR(backend_->Copy(queries_.data() + static_cast<int64_t>(row) * row_bytes,
                                   static_cast<const std::byte*>(q.data) + packed * row_bytes,
                                   row_bytes));
  }
  if (attend.num_selected > 0) {
    RETURN_IF_ERROR(backend_->Copy(kept_.data(), attend.selected,
                                   attend.num_selected * static_cast<int64_t>(sizeof(int32_t))));
  }
  state_ = State::kCaptured;
  return absl::OkStatus();
}

// All of them, if they are not too much work or too large; else at equal distances from a random
// first one, so that every row is looked at as often.
void RecallProbe::PickRows(const QueryBlock& block, int64_t row_bytes) {
  const int64_t row_products =
      int64_t{shape_.num_heads} * shape_.head_dim * (block.first_position + block.rows);
  const int64_t affordable = Max(kFewestRows, max_block_products_ / row_products);
  const int64_t count = Min(Min(block.rows, kMaxRows), Min(affordable, kMaxQueryBytes / row_bytes));
  const auto first = static_cast<int64_t>(Mix(~blocks_) % static_cast<uint64_t>(block.rows));
  for (int64_t row = 0; row < count; ++row) {
    rows_[static_cast<size_t>(row)] = (first + row * block.rows / count) % block.rows;
  }
  num_rows_ = static_cast<size_t>(count);
}

void RecallProbe::Commit() {
  if (state_ == State::kCaptured) {
    state_ = State::kWaiting;
    row_ = 0;
    mass_kept_.clear();
  }
}

void RecallProbe::Abandon() {
  if (state_ == State::kCaptured) {
    DropGone();
  }
}

void RecallProbe::Forget(uint64_t session_id, int64_t position) {
  const int64_t end = block_.block.first_position + block_.block.rows;
  if (state_ != State::kIdle && labels_.session_id == session_id && position < end) {
    DropGone();
  }
}

void RecallProbe::DropGone() {
  state_ = State::kIdle;
  ++counts_.dropped_gone;
}

absl::StatusOr<RecallSlice> RecallProbe::Advance(int64_t max_products) {
  RecallSlice slice;
  if (state_ != State::kWaiting) {
    return slice;
  }
  const int64_t token_products = int64_t{shape_.num_heads} * shape_.head_dim;
  const int64_t max_tokens = Max(1, max_products / token_products);
  if (mass_kept_.empty()) {
    const auto heads = static_cast<size_t>(shape_.num_heads);
    middle_kept_.assign(heads, 0.0);
    StartRow();
    mass_kept_.assign(heads, 0.0);  // last: when there is no memory for it all, it starts again
  }
  for (int64_t tokens = 0; tokens < max_tokens && row_ < num_rows_;) {
    ASSIGN_OR_RETURN(const Piece piece, NextPiece(max_tokens - tokens));
    RETURN_IF_ERROR(AttendTo(piece));
    tokens += piece.tokens();
    slice.products += piece.tokens() * token_products;
    next_ += run_ == Run::kKept ? piece.count : piece.tokens();
    SkipFinishedRuns();
    if (run_ == Run::kDone) {
      FinishRow();
    }
  }
  if (row_ == num_rows_) {
    slice.sample = Finish();
  }
  return slice;
}

int64_t RecallProbe::RunBegin() const {
  switch (run_) {
    case Run::kWindow: return block_.block.regions.middle_end;
    case Run::kMiddle: return block_.block.regions.sink_end;
    default: return 0;
  }
}

int64_t RecallProbe::RunEnd() const {
  switch (run_) {
    case Run::kSink: return block_.block.regions.sink_end;
    case Run::kWindow: return position() + 1;
    case Run::kKept: return block_.num_selected;
    default: return block_.block.regions.middle_end;
  }
}

void RecallProbe::StartRow() {
  for (std::vector<double>& sum : sums_) {
    sum.assign(static_cast<size_t>(shape_.num_heads), kNothing);
  }
  run_ = Run::kSink;
  next_ = 0;
  SkipFinishedRuns();
}

void RecallProbe::SkipFinishedRuns() {
  while (run_ != Run::kDone && next_ >= RunEnd()) {
    run_ = static_cast<Run>(static_cast<uint8_t>(run_) + 1);
    next_ = RunBegin();
  }
}

// At most `max_tokens` tokens from next_ on, but a chunk or the part of a page at least.
absl::StatusOr<RecallProbe::Piece> RecallProbe::NextPiece(int64_t max_tokens) {
  const int64_t left = RunEnd() - next_;
  if (run_ == Run::kKept) {
    const int64_t count = Min(left, Max(1, max_tokens / block_.selected_chunk_tokens));
    return Piece{.chunks = block_.selected + next_,
                 .count = static_cast<int32_t>(count),
                 .chunk_tokens = block_.selected_chunk_tokens};
  }
  // A run is cut into chunks as stages have them, so that backends need to know nothing new: whole
  // pages, and single tokens where it begins or ends within one.
  const bool pages = next_ % kBlockTokens == 0 && left >= kBlockTokens;
  Piece piece{.chunks = reinterpret_cast<const int32_t*>(list_.data()),
              .chunk_tokens = pages ? kBlockTokens : 1};
  const int64_t most = pages ? Min(kListChunks, Max(1, max_tokens / kBlockTokens))
                             : kBlockTokens - next_ % kBlockTokens;
  piece.count = static_cast<int32_t>(Min(left / piece.chunk_tokens, most));
  for (int32_t chunk = 0; chunk < piece.count; ++chunk) {
    list_copied_[static_cast<size_t>(chunk)] =
        static_cast<int32_t>(next_) + chunk * piece.chunk_tokens;
  }
  RETURN_IF_ERROR(backend_->Copy(list_.data(), list_copied_.data(),
                                 piece.count * static_cast<int64_t>(sizeof(int32_t))));
  return piece;
}

// Adds the piece's tokens to the sum that its run counts to.
absl::Status RecallProbe::AttendTo(const Piece& piece) {
  const int64_t row_bytes = int64_t{shape_.num_heads} * shape_.head_dim * SizeOf(query_dtype_);
  const auto tensor = [this](std::byte* data) {
    return TensorRef{.data = data,
                     .dtype = query_dtype_,
                     .space = MemorySpace::kDevice,
                     .rank = 3,
                     .shape = {1, shape_.num_heads, shape_.head_dim, 0}};
  };
  // No sink, and a window that begins behind the row: what is selected is all there is.
  AttendBlock attend = block_;
  attend.block.first_position = position();
  attend.block.first_row = 0;
  attend.block.rows = 1;
  attend.block.regions = Regions{0, position() + 1};
  if (run_ == Run::kWindow && attend.rule.style == RopeStyle::kInfLlm) {
    attend.rule.style = RopeStyle::kTruePositions;  // which is what `infllm` gives a window's keys
  }
  attend.selected = piece.chunks;
  attend.num_selected = piece.count;
  attend.selected_chunk_tokens = piece.chunk_tokens;
  AttendArgs args;
  args.shape = shape_;
  args.blocks = {&attend, 1};
  args.q = tensor(queries_.data() + static_cast<int64_t>(row_) * row_bytes);
  args.out = tensor(out_.data());
  args.log_sum_exp = TensorRef{.data = sums_out_.data(),
                               .dtype = DType::kF32,
                               .space = MemorySpace::kDevice,
                               .rank = 2,
                               .shape = {1, shape_.num_heads, 0, 0}};
  RETURN_IF_ERROR(backend_->Attend(args));
  std::array<float, kMaxHeads> of_piece;  // of which [num_heads] are filled
  RETURN_IF_ERROR(backend_->Copy(of_piece.data(), sums_out_.data(),
                                 shape_.num_heads * static_cast<int64_t>(sizeof(float))));
  RETURN_IF_ERROR(backend_->WaitForAll());
  const Sum sum = run_ == Run::kKept ? kKept : run_ == Run::kMiddle ? kMiddle : kLocal;
  for (size_t head = 0; head < sums_[sum].size(); ++head) {
    sums_[sum][head] = LogAddExp(sums_[sum][head], of_piece[head]);
  }
  return absl::OkStatus();
}

void RecallProbe::FinishRow() {
  for (size_t head = 0; head < mass_kept_.size(); ++head) {
    const double kept = LogAddExp(sums_[kLocal][head], sums_[kKept][head]);
    const double all = LogAddExp(sums_[kLocal][head], sums_[kMiddle][head]);
    // Both are sums of fp32, and what keeps everything may seem to keep a little more.
    mass_kept_[head] += std::min(1.0, std::exp(kept - all));
    middle_kept_[head] += std::min(1.0, std::exp(sums_[kKept][head] - sums_[kMiddle][head]));
  }
  ++row_;
  if (row_ < num_rows_) {
    StartRow();
  }
}

RecallSample RecallProbe::Finish() {
  RecallSample sample{
      .labels = labels_, .positions = {}, .mass_kept = mass_kept_, .middle_kept = middle_kept_};
  for (size_t row = 0; row < num_rows_; ++row) {
    sample.positions.push_back(block_.block.first_position + rows_[row]);
  }
  for (std::vector<double>* shares : {&sample.mass_kept, &sample.middle_kept}) {
    for (double& share : *shares) {
      share /= static_cast<double>(num_rows_);
    }
  }
  ++counts_.measured;
  state_ = State::kIdle;
  return sample;
}

}  // namespace longshore
