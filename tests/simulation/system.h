#pragma once

#include <memory>
#include <span>
#include <thread>
#include <vector>

#include "service/device_queue.h"
#include "service/metrics.h"
#include "service/session_registry.h"
#include "service/step_runner.h"
#include "tests/simulation/operation.h"
#include "tests/simulation/world.h"
#include "tests/support/fake_backend.h"

namespace longshore::simulation {

/// What is simulated: an engine on a LedgerBackend behind a DeviceQueue, driven as the service
/// does it. Steps go through StepRunner from their messages on; session calls do here what
/// SessionService does around them.
class System {
 public:
  explicit System(const World& world);
  ~System();

  /// What becomes of a line of operations that have come while the queue was busy.
  enum class End : uint8_t { kServe, kDrain };

  /// Sends the operations, in this order, while the queue's thread is held; then lets it go on (or
  /// drains without letting it, so that they never begin) and waits for every answer.
  std::vector<Outcome> Run(std::span<Operation> operations, End end = End::kServe);

  /// From now on Allocate answers HOST_MEMORY, or works again.
  void StarveDevice(bool starve);
  /// Stops as a daemon does; false if something still ran at the end of the limit.
  bool Drain();
  /// Declared bytes of a session's tables; what open sessions hold must add up to it.
  static int64_t TableBytesOf(const World& world, const Operation& open);

 private:
  class Round;

  void Send(Operation* operation, Round* round, size_t index);
  void SendSessionCall(const Operation& operation, Round* round, size_t index);
  absl::Status RunSessionCall(const Operation& operation, Engine* engine, Outcome* outcome);
  absl::Status Open(const Operation& operation, Engine* engine, Outcome* outcome);
  Job JobFor(const Operation& operation, Round* round, size_t index);
  void ReadUsage(const Engine& engine);

  const World& world_;
  FakeDevice device_;
  Metrics metrics_;
  SessionRegistry registry_;
  EngineUsage usage_;  // after the last job; the queue's thread alone
  int64_t turns_ = 0;  // the same
  std::thread::id queue_thread_;
  DeviceQueue queue_;
  StepRunner runner_;
};

}  // namespace longshore::simulation
