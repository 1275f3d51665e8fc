#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <grpcpp/grpcpp.h>

#include "longshore/v1/attention.grpc.pb.h"

namespace longshore {

/// The model whose steps are sent.
inline constexpr int32_t kLoadHeads = 32;
inline constexpr int32_t kLoadKvHeads = 2;
inline constexpr int32_t kLoadHeadDim = 64;
inline constexpr int32_t kLoadSessions = 160;

using LoadClock = std::chrono::steady_clock;

/// kFull: QUEUE_FULL with RetryInfo. kLate: the deadline passed. kOther: what should not be.
enum class Answer : uint8_t { kServed, kFull, kLate, kOther };

/// What became of calls. Its members are safe to use from several threads.
class Counts {
 public:
  void Count(Answer answer, LoadClock::duration elapsed);
  void CountSent(bool sent) { ++(sent ? sent_ : not_sent_); }

  int64_t of(Answer answer) const { return answers_[static_cast<size_t>(answer)]; }
  int64_t sent() const { return sent_; }
  /// Calls that were due when every session had one out.
  int64_t not_sent() const { return not_sent_; }
  /// Within how many milliseconds so large a share of the served ones was answered.
  double ServedMs(double share);

 private:
  std::array<std::atomic<int64_t>, 4> answers_ = {};  // by Answer
  std::atomic<int64_t> sent_ = 0;
  std::atomic<int64_t> not_sent_ = 0;
  std::mutex mutex_;
  std::vector<double> served_ms_;  // guarded by mutex_
};

/// Decode steps of kLoadSessions sessions, each with a connection, at most one of each at a time. A
/// step that was refused or late is sent again when the session's turn comes.
class LoadGenerator {
 public:
  /// Opens the sessions and gives each `context` tokens. Ends the process if that fails.
  LoadGenerator(const std::string& target, int32_t context);
  ~LoadGenerator() { AwaitIdle(); }

  /// Keeps `clients` calls out for a time. Returns how many were served a second.
  double RunClosed(int32_t clients, LoadClock::duration time);
  /// Sends so many calls a second for a time, whatever is answered. Answers may still come then.
  void RunOpen(double calls_per_second, LoadClock::duration time, Counts* counts);
  /// Until no call is out.
  void AwaitIdle();

 private:
  struct Client {
    std::unique_ptr<v1::Attention::Stub> stub;
    v1::DecodeStepRequest request;
    v1::DecodeStepResponse response;
    std::unique_ptr<grpc::ClientContext> context;
    LoadClock::time_point sent;
  };

  bool Send(Counts* counts);
  void Answered(Client* client, const grpc::Status& status, Counts* counts);

  std::vector<std::unique_ptr<Client>> clients_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Client*> idle_;  // have no call out
};

/// A session with so many tokens. Ends the process if there is none.
uint64_t BeginSession(const std::string& target, int32_t tokens);
/// Sends the same piece of a prompt, at `position`, again and again: until the connection breaks or
/// `stop`.
void RunPrefills(const std::string& target,
                 uint64_t session,
                 int32_t position,
                 const std::atomic<bool>& stop);

}  // namespace longshore
