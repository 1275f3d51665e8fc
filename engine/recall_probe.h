#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "engine/backend.h"
#include "engine/policy.h"

namespace longshore {

/// Whose block a measurement is of.
struct RecallLabels {
  uint64_t session_id = 0;
  int32_t layer = 0;
  bool early = false;  ///< one of the policy's first_layers
  Phase phase = Phase::kDecode;
  int64_t age_steps = 0;  ///< how long before the block's last row its finest stage chose
};

/// How much of a query block's attention falls on what it attends to: the share of
/// sum over tokens t of exp(s_t), by head, averaged over the rows that were looked at.
struct RecallSample {
  RecallLabels labels;
  std::vector<int64_t> positions;   ///< [rows]
  std::vector<double> mass_kept;    ///< [num_heads] of all tokens: by sink, selected and window
  std::vector<double> middle_kept;  ///< [num_heads] of the middle's tokens: by the selected
};

/// What became of the blocks that were sampled, ever.
struct RecallCounts {
  int64_t measured = 0;
  int64_t dropped_busy = 0;   ///< another one was being measured
  int64_t dropped_gone = 0;   ///< their tokens went before they were measured
  int64_t dropped_large = 0;  ///< they keep more than kMaxKeptChunks
};

/// One slice of a measurement.
struct RecallSlice {
  int64_t products = 0;  ///< of an element of a query and one of a key; 0: nothing waits
  std::optional<RecallSample> sample = std::nullopt;  ///< of the block that it finished
};

/// Hides how the attention mass of a block is summed up in slices, long after its step is done.
///
/// Takes a sample of the query blocks that leave something of the middle out, and keeps of one at a
/// time what it needs: copies of query rows and of the selection. Keys stay where they are, so
/// whoever frees or replaces tokens says so first (Forget). Its memory is bounded and taken once.
/// Runs nothing but Attend and Copy; enqueues and waits.
class RecallProbe {
 public:
  static constexpr int64_t kMaxRows = kBlockTokens;
  static constexpr int64_t kFewestRows = 4;  ///< of a block that has as many
  static constexpr int64_t kMaxKeptChunks = int64_t{1} << 18;

  /// Samples nothing.
  RecallProbe() = default;
  /// Samples one block in `sample_every`, picked as if by lot, and the same ones each time; 0: none
  /// and takes no memory. Of a block it measures as many rows as `max_block_products` products of
  /// an element of a query and one of a key allow, but kFewestRows.
  static absl::StatusOr<RecallProbe> Create(int32_t sample_every,
                                            int64_t max_block_products,
                                            Backend* backend);

  bool enabled() const { return sample_every_ > 0; }
  /// Counts a block. True if it is to be captured.
  bool Samples();
  /// Enqueues copies of what a measurement of the block needs. `attend` is the block as its step
  /// attends to it, `q` its packed queries [rows, num_heads, head_dim]; `beyond`: at the styles for
  /// beyond the trained length.
  absl::Status Capture(const RecallLabels& labels,
                       const AttentionShape& shape,
                       const AttendBlock& attend,
                       bool beyond,
                       const TensorRef& q);
  /// The step of the captured block is done: it may be measured.
  void Commit();
  /// That step was undone.
  void Abandon();
  /// The session's tokens at and past `position` are about to go.
  void Forget(uint64_t session_id, int64_t position);

  /// Sums for about `max_products` products (a page of keys at least). Errors are the device's.
  absl::StatusOr<RecallSlice> Advance(int64_t max_products);
  const RecallCounts& counts() const { return counts_; }

 private:
  enum class State : uint8_t { kIdle, kCaptured, kWaiting };
  // What a row's tokens are summed into.
  enum Sum : uint8_t { kLocal, kKept, kMiddle };
  // Runs of tokens of a row, in the order in which they are summed.
  enum class Run : uint8_t { kSink, kWindow, kKept, kMiddle, kDone };
  // Some of a run's tokens: chunks in device memory.
  struct Piece {
    const int32_t* chunks = nullptr;  // [count] first tokens
    int32_t count = 0;
    int32_t chunk_tokens = 0;
    int64_t tokens() const { return int64_t{count} * chunk_tokens; }
  };

  int64_t position() const { return block_.block.first_position + rows_[row_]; }
  void PickRows(const QueryBlock& block, int64_t row_bytes);
  int64_t RunBegin() const;
  int64_t RunEnd() const;
  void StartRow();
  void SkipFinishedRuns();
  absl::StatusOr<Piece> NextPiece(int64_t max_tokens);
  absl::Status AttendTo(const Piece& piece);
  void FinishRow();
  RecallSample Finish();
  void DropGone();

  int32_t sample_every_ = 0;
  int64_t max_block_products_ = 0;
  Backend* backend_ = nullptr;
  uint64_t blocks_ = 0;  // that asked to be sampled
  RecallCounts counts_;
  Buffer queries_;                    // [num_rows_, num_heads, head_dim]
  Buffer out_;                        // [num_heads, head_dim], which nobody reads
  Buffer sums_out_;                   // [num_heads] f32
  Buffer kept_;                       // [num_selected] int32
  Buffer list_;                       // [kListChunks] int32
  std::vector<int32_t> list_copied_;  // [kListChunks] what is on its way to list_

  State state_ = State::kIdle;
  RecallLabels labels_;
  AttentionShape shape_;
  DType query_dtype_ = DType::kF32;
  AttendBlock block_;                        // as its step attended to it, but for the rule
  std::array<int64_t, kMaxRows> rows_ = {};  // [num_rows_] of the block
  size_t num_rows_ = 0;

  // Where the summing is.
  size_t row_ = 0;
  Run run_ = Run::kSink;
  int64_t next_ = 0;                         // token of the run; of the kept ones: chunk
  std::array<std::vector<double>, 3> sums_;  // by Sum, [num_heads] log-sum-exp of the row
  std::vector<double> mass_kept_;            // [num_heads], summed over rows
  std::vector<double> middle_kept_;          // [num_heads], summed over rows
};

}  // namespace longshore
