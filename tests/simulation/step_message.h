#pragma once

#include "longshore/v1/attention.pb.h"
#include "service/convert_step.h"
#include "tests/simulation/operation.h"
#include "tests/simulation/world.h"

namespace longshore::simulation {

/// A step as it goes over the wire, and its answer.
class StepOnWire {
 public:
  /// Rows whose keys begin with the operation's words, with its flaw and fault in them.
  StepOnWire(const World& world, const Operation& operation);

  int64_t request_bytes() const { return static_cast<int64_t>(request_.ByteSizeLong()); }
  /// Points into this object.
  StepMessage message();
  /// Reads what the engine answered.
  void ReadAnswer(Outcome* outcome) const;

 private:
  const Operation& operation_;
  int64_t rows_ = 0;
  v1::StreamStepsRequest request_;
  v1::StreamStepsResponse answer_;
};

}  // namespace longshore::simulation
