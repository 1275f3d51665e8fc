#pragma once

#include <cstdint>

#include <absl/time/time.h>

namespace longshore::client {

/// When a call that failed is sent once more by itself. Only calls that are safe to repeat are:
/// what reads; steps, which their append_id makes replays; opening, which has an open_id; truncate
/// and close. At most once holds for all of them.
///
///   lost connection (UNAVAILABLE without a reason)   all of these
///   UNAVAILABLE with a reason (LOADING, DRAINING)    reads and opening: a session is gone anyway
///   RESOURCE_EXHAUSTED with a delay (QUEUE_FULL, ...)  steps and opening, if `when_busy`
struct RetryPolicy {
  int32_t max_attempts = 4;                             ///< 1: never again
  absl::Duration first_pause = absl::Milliseconds(50);  ///< doubles; the daemon's word goes first
  absl::Duration max_pause = absl::Seconds(2);          ///< also of the daemon's word
  bool when_busy = false;  ///< wait where the daemon has no room now; else the caller decides
};

/// How long one call may take, repeats included.
struct CallOptions {
  /// DEADLINE_EXCEEDED afterwards; a step may have been applied all the same.
  absl::Duration timeout = absl::InfiniteDuration();
};

}  // namespace longshore::client
