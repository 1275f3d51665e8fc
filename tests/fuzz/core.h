#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "engine/engine.h"
#include "service/device_queue.h"
#include "service/metrics.h"
#include "service/session_registry.h"
#include "service/step_runner.h"

namespace longshore::fuzz {

/// Sessions that every Core begins with, by id from 1: what calls can be about. Their models and
/// policies differ; see core.cc.
inline constexpr uint64_t kNumSessions = 4;
const SessionSpec& SpecOf(uint64_t session);
/// Tokens of a session's layer 0; of further layers none.
int64_t TokensOf(uint64_t session);
/// append_id of the last call of each layer 0, a DecodeStep of one row.
inline constexpr uint64_t kLastAppendId = 7;

/// Limits that messages are checked against: small, so that what passes is quick to run.
const EngineOptions& CoreLimits();

/// What calls may change of an engine.
struct EngineState {
  struct Layer {
    int64_t tokens = 0;
    MaskState mask;
    std::vector<std::vector<int32_t>> stages;
    bool operator==(const Layer&) const = default;
  };
  struct OfSession {
    uint64_t id = 0;
    int64_t used_bytes = 0;
    int64_t reserved_bytes = 0;
    std::vector<Layer> layers;
    bool operator==(const OfSession&) const = default;
  };
  std::vector<OfSession> sessions;
  int64_t used_bytes = 0;
  int64_t free_bytes = 0;
  int64_t table_bytes = 0;
  bool operator==(const EngineState&) const = default;
};

/// A daemon's inside: an engine on the CPU backend behind its queue and its step runner, with
/// kNumSessions sessions in it.
class Core {
 public:
  /// One that is as it was made. The same object until somebody calls Spoil().
  static Core& Get();
  /// Something was applied: the next Get() makes a new one.
  static void Spoil();

  Core();

  /// A step from its message on.
  absl::Status Run(const StepMessage& message, int64_t request_bytes);
  /// A session call: `work` on the queue's thread.
  absl::Status Run(const std::function<absl::Status(Engine&)>& work);

  const EngineState& initial_state() const { return initial_state_; }
  EngineState State();
  /// That a refused call left everything as it was.
  void RequireUnchanged(const absl::Status& refusal);

 private:
  Metrics metrics_;
  SessionRegistry registry_;
  DeviceQueue queue_;
  StepRunner runner_;
  EngineState initial_state_;
};

}  // namespace longshore::fuzz
