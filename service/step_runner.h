#pragma once

#include <chrono>
#include <functional>
#include <string>

#include <absl/functional/any_invocable.h>

#include "service/convert_step.h"
#include "service/device_queue.h"
#include "service/metrics.h"
#include "service/session_registry.h"

namespace longshore {

/// Hides how a step's message becomes an engine call and its answer, whoever sent it: a unary call,
/// a stream, later a ring. Thread-safe.
class StepRunner {
 public:
  struct Caller {
    int64_t request_bytes = 0;  ///< that the step holds on to while it waits
    std::chrono::system_clock::time_point deadline;
    std::function<bool()> cancelled;
    std::string name;  ///< CallerOf()
  };
  using Done = absl::AnyInvocable<void(const absl::Status&)>;

  /// All must outlive the runner.
  StepRunner(const EngineOptions& limits,
             SessionRegistry* registry,
             DeviceQueue* queue,
             Metrics* metrics)
      : limits_(limits),
        registry_(registry),
        queue_(queue),
        metrics_(metrics) {}

  /// Checks the message and queues it. `done` is called exactly once, after the answer is filled or
  /// with the error; before Start() returns when the step is refused, else on the engine's thread.
  /// The messages must stay until then. Never blocks.
  void Start(const StepMessage& message, Caller caller, Done done);

 private:
  const EngineOptions& limits_;
  SessionRegistry* registry_;
  DeviceQueue* queue_;
  Metrics* metrics_;
};

}  // namespace longshore
