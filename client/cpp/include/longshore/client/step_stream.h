#pragma once

#include <cstdint>
#include <memory>

#include <absl/status/statusor.h>
#include <absl/time/time.h>

#include "longshore/client/session.h"
#include "longshore/client/tensor.h"

namespace longshore::client {

class Connection;

/// Steps on one connection: sent without waiting for the answers to those before, applied and
/// answered in the order of sending.
///
///     StepStream stream = client.StreamSteps();
///     auto a = stream.Decode(session_a, layer, q_a, k_a, v_a);
///     auto b = stream.Decode(session_b, layer, q_b, k_b, v_b);  // while the daemon computes a
///     auto out_a = stream.Wait(*a), out_b = stream.Wait(*b);
///
/// A thread of its own takes answers off the connection, so that sending never waits for Wait().
/// A refused step does not end the stream; those sent after it to the same layer leave a gap and
/// are refused, too. If the connection breaks, every step without an answer fails, though it may
/// have been applied, and so does every later one: open another stream, Sync() the sessions.
///
/// One thread may send while another waits; the steps of one session are one thread's. Nothing is
/// repeated by itself.
class StepStream {
 public:
  /// Names a step that was sent.
  using Tag = uint64_t;

  StepStream(StepStream&& other) noexcept;
  StepStream& operator=(StepStream&& other) noexcept;
  /// Cancels: steps without an answer may or may not be applied.
  ~StepStream();

  /// As Session's, but never cut in pieces. INVALID_ARGUMENT, or the error that broke the stream.
  /// Blocks while the daemon reads no further: at most Limits.max_steps_in_flight wait there.
  absl::StatusOr<Tag> Append(Session& session,
                             int32_t layer,
                             Values k,
                             Values v,
                             const StepOptions& options = {});
  absl::StatusOr<Tag> Prefill(Session& session,
                              int32_t layer,
                              Values q,
                              Values k,
                              Values v,
                              const StepOptions& options = {});
  absl::StatusOr<Tag> Decode(Session& session,
                             int32_t layer,
                             Values q,
                             Values k,
                             Values v,
                             const StepOptions& options = {});

  /// The answer to a step, once; of Append an empty one. After `timeout` DEADLINE_EXCEEDED, and the
  /// answer can still be waited for. NOT_FOUND for a tag that was not given or was waited for.
  absl::StatusOr<Attended> Wait(Tag tag, absl::Duration timeout = absl::InfiniteDuration());

  /// No more steps: waits until the daemon has answered all, keeps the answers for Wait(), and says
  /// how the stream ended.
  absl::Status Finish();

 private:
  friend class Client;
  struct Impl;
  StepStream(std::shared_ptr<Connection> connection, const CallOptions& call);

  std::unique_ptr<Impl> impl_;
};

}  // namespace longshore::client
