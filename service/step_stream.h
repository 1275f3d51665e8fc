#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>

#include <grpcpp/grpcpp.h>

#include "longshore/v1/attention.pb.h"
#include "service/mutex.h"
#include "service/step_runner.h"

namespace longshore {

/// One StreamSteps call. Reads ahead while the engine computes, up to a bound, and answers in the
/// order of the requests, whatever order the engine finished them in. At the bound it stops
/// reading, which holds the client back through HTTP/2's flow control.
///
/// Deletes itself when gRPC is done with it, which is after every step of it is.
class StepStream final : public grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  StepStream(int32_t max_steps_in_flight,
             grpc::CallbackServerContext* context,
             StepRunner* runner,
             Metrics* metrics);

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnCancel() override { cancelled_ = true; }
  void OnDone() override { delete this; }

 private:
  // One step, from its reading to its answer's writing.
  struct Step {
    grpc::ByteBuffer received;
    v1::StreamStepsRequest request;
    v1::StreamStepsResponse answer;
    grpc::ByteBuffer to_send;
    bool done = false;
  };

  void StartStep(Step* step);
  void StepDone(Step* step, const absl::Status& status);
  // Starts what can be started: the next read, the next write, or the end.
  void Advance() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const int32_t max_steps_in_flight_;
  const std::chrono::system_clock::time_point deadline_;
  const std::string caller_;
  StepRunner* runner_;
  Metrics* metrics_;
  std::atomic<bool> cancelled_ = false;

  Mutex mutex_;
  std::deque<std::unique_ptr<Step>> steps_ ABSL_GUARDED_BY(mutex_);  // in the order of arrival
  std::unique_ptr<Step> next_ ABSL_GUARDED_BY(mutex_);               // what is being read
  bool reading_ ABSL_GUARDED_BY(mutex_) = false;  // until what was read has been queued
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;  // the front's answer
  bool reads_ended_ ABSL_GUARDED_BY(mutex_) = false;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace longshore
