#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <absl/status/statusor.h>
#include <absl/time/time.h>

#include "longshore/client/call_options.h"
#include "longshore/client/model_shape.h"
#include "longshore/client/tensor.h"

namespace longshore::client {

struct SessionState;

/// What is asked for when a session is opened.
struct SessionOptions {
  Policy policy = {};
  int64_t max_tokens = 0;   ///< the longest that any layer may become; its memory is reserved now
  bool overcommit = false;  ///< reserve nothing: a full pool then shows in the steps
  std::string name = {};    ///< a label for people, at most 64 bytes
  /// The daemon closes a session that no call has named for so long. 0: its default.
  absl::Duration lease = absl::ZeroDuration();
};

/// A session as the daemon sees it.
struct SessionInfo {
  uint64_t id = 0;
  std::string name;
  ModelShape model;  ///< not of Client::List()
  int64_t max_tokens = 0;
  bool overcommit = false;
  std::vector<int64_t> layer_tokens;  ///< [num_layers]
  int64_t page_bytes_used = 0;
  int64_t page_bytes_reserved = 0;  ///< of pages promised and not yet in use
  absl::Status failure;             ///< not OK: without a certain state since
  absl::Duration lease;
  absl::Duration idle;  ///< since the last call on it ended; 0 while another waits or runs
  std::string owner;
};

/// How one step is to be done.
struct StepOptions {
  /// Of the first row; absent: the layer's end as counted here. Giving it is a check.
  std::optional<int64_t> position = std::nullopt;
  /// Identifies this step among repeats of it. 0: random bits, so that only this library repeats
  /// it. Of rows that are sent in pieces each piece has its own: append_id, append_id + 1, ...
  uint64_t append_id = 0;
  bool log_sum_exp = false;          ///< return it
  bool exclude_sink_logits = false;  ///< leave learned sinks out of the output, to merge it
  CallOptions call = {};             ///< of each piece; not of a stream
};

/// What attention gives.
struct Attended {
  Tensor out;  ///< [rows, num_heads, head_dim] of query_dtype
  /// [rows, num_heads] natural logarithm of the denominator of `out`; empty unless asked for.
  std::vector<float> log_sum_exp;
};

/// The keys and values of one sequence; closed in the daemon when this goes. Movable; one thread at
/// a time. q, k and v are those before rotary embedding:
///
///   q     [rows, num_heads, head_dim]     of query_dtype
///   k, v  [rows, num_kv_heads, head_dim]  of kv_dtype or query_dtype
///
/// Layers have independent lengths. A step appends at the layer's length. One that fails has
/// changed nothing, unless MayHaveBeenApplied(): then Truncate() to where it began makes it
/// certain, or Sync() adopts what the daemon has.
class Session {
 public:
  Session(Session&& other) noexcept = default;
  /// Closes what was held before.
  Session& operator=(Session&& other) noexcept;
  /// Closes, waits at most 5 seconds for that, and drops the status; the lease does the rest.
  ~Session();

  uint64_t id() const;
  const ModelShape& model() const;
  /// The policy in full, as the daemon applies it, in protobuf text format.
  std::string PolicyText() const;
  /// As granted.
  absl::Duration lease() const;
  /// Tokens that a layer holds, as counted here; 0 for a layer that is not there.
  int64_t tokens(int32_t layer) const;

  /// Keeps keys and values without attending. More rows than the daemon takes at once are sent in
  /// pieces; an error leaves the pieces before it applied, as tokens() tells.
  absl::Status Append(int32_t layer, Values k, Values v, const StepOptions& options = {});
  /// Appends a piece of a prompt and attends causally. In pieces like Append(), cut where that does
  /// not change a bit of the result: at multiples of the policy's query blocks.
  absl::StatusOr<Attended> Prefill(int32_t layer,
                                   Values q,
                                   Values k,
                                   Values v,
                                   const StepOptions& options = {});
  /// Appends the next token, or a few, and attends; the cached selection serves where it is fresh.
  absl::StatusOr<Attended> Decode(int32_t layer,
                                  Values q,
                                  Values k,
                                  Values v,
                                  const StepOptions& options = {});

  /// Forgets all tokens at and past `position`, in every layer that reaches it.
  absl::Status Truncate(int64_t position, const CallOptions& call = {});
  /// The session as the daemon sees it; renews the lease.
  absl::StatusOr<SessionInfo> Describe(const CallOptions& call = {}) const;
  /// Describe(), and tokens() become what the daemon says.
  absl::Status Sync(const CallOptions& call = {});

  /// Frees the keys and values. OK where the session is gone already.
  absl::Status Close(const CallOptions& call = {});
  /// Leaves the session to its lease, or to whom Attach()es to it; returns its id. This object is
  /// of no use afterwards.
  uint64_t Release();

 private:
  friend class Client;
  friend class StepStream;
  explicit Session(std::shared_ptr<SessionState> state);

  std::shared_ptr<SessionState> state_;  // null once moved from, closed or released
};

}  // namespace longshore::client
