#pragma once

#include <cstdint>

#include <absl/status/statusor.h>

#include "client/cpp/src/session_state.h"
#include "longshore/client/session.h"
#include "longshore/v1/attention.pb.h"

namespace longshore::client {

/// Rows of one layer of one session, before they become a message.
struct Step {
  SessionState* session = nullptr;
  int32_t layer = 0;
  Values q = {};  ///< [rows, num_heads, head_dim]; not used by AppendKV
  Values k = {};  ///< [rows, num_kv_heads, head_dim]
  Values v = {};  ///< as k
  int64_t rows = 0;
  int64_t position = 0;
  uint64_t append_id = 0;
  int64_t tokens_before = 0;  ///< of the layer, when the step was claimed
  bool attends = true;
  bool log_sum_exp = false;
  bool exclude_sink_logits = false;

  /// INVALID_ARGUMENT where sizes do not fit the session's model, each other, or its layers. What
  /// else may be wrong, element types among it, is the daemon's to say.
  static absl::StatusOr<Step> Make(SessionState* session,
                                   int32_t layer,
                                   bool attends,
                                   const Step& tensors,
                                   const StepOptions& options);

  /// Rows [begin, begin + count) as a step of their own, the `ordinal`-th of this one.
  Step Part(int64_t begin, int64_t count, uint64_t ordinal) const;

  /// Counts the rows as the layer's, as they will be when the step is applied.
  void Claim();
  /// Takes that back, and with it the steps claimed after it, which leave a gap now.
  void GiveBack() const;

  void FillTo(v1::AppendKVRequest* request) const;
  void FillTo(v1::PrefillRequest* request) const;
  void FillTo(v1::DecodeStepRequest* request) const;
};

/// Takes the tensors out of an answer.
Attended TakeAttended(v1::PrefillResponse* response);
Attended TakeAttended(v1::DecodeStepResponse* response);

/// Rows at whose absolute multiples a prompt can be cut without changing a bit: every query block
/// of every stage is whole then. Where so many are more than `max_rows`: what is attended together.
int64_t RowsToCutAt(const v1::AttentionPolicy& policy, int64_t max_rows);

/// Rows of the next piece of `rows` rows at `position`: at most max_rows, and up to a multiple of
/// `block` where one is reached.
int64_t NextPiece(int64_t position, int64_t rows, int64_t max_rows, int64_t block);

}  // namespace longshore::client
