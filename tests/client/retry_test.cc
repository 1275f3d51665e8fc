// What is sent again by itself, and what is not: a server that passes calls on to a daemon and
// loses the answers of some.

#include <atomic>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "client/cpp/src/connection.h"
#include "client/cpp/src/status.h"
#include "tests/service/test_server.h"

namespace longshore::client {
namespace {

using absl::Milliseconds;

// Loses the answers to the first `losses` calls, which the daemon has applied.
class LossyProxy final : public v1::Attention::Service, public v1::Sessions::Service {
 public:
  LossyProxy(TestServer* to, int losses) : to_(to), losses_(losses) {}

  grpc::Status DecodeStep(grpc::ServerContext* /*context*/,
                          const v1::DecodeStepRequest* request,
                          v1::DecodeStepResponse* response) override {
    append_ids.push_back(request->items(0).append_id());
    return Lose(to_->Decode(*request, response));
  }
  grpc::Status OpenSession(grpc::ServerContext* /*context*/,
                           const v1::OpenSessionRequest* request,
                           v1::OpenSessionResponse* response) override {
    open_ids.push_back(request->open_id());
    grpc::ClientContext context;
    return Lose(to_->sessions().OpenSession(&context, *request, response));
  }
  grpc::Status CloseSession(grpc::ServerContext* /*context*/,
                            const v1::CloseSessionRequest* request,
                            v1::CloseSessionResponse* response) override {
    grpc::ClientContext context;
    return Lose(to_->sessions().CloseSession(&context, *request, response));
  }

  void LoseNext(int losses) { losses_ = losses; }
  std::vector<uint64_t> append_ids;
  std::vector<uint64_t> open_ids;

 private:
  grpc::Status Lose(const grpc::Status& status) {
    return losses_-- > 0 ? grpc::Status(grpc::StatusCode::UNAVAILABLE, "Socket closed") : status;
  }

  TestServer* to_;
  std::atomic<int> losses_;
};

// Answers GetServerInfo, which Connect and Open ask for, with LOADING at first.
class InfoService final : public v1::Server::Service {
 public:
  explicit InfoService(int loading) : loading_(loading) {}
  grpc::Status GetServerInfo(grpc::ServerContext* /*context*/,
                             const v1::GetServerInfoRequest* /*request*/,
                             v1::GetServerInfoResponse* response) override {
    if (loading_-- > 0) {
      return {grpc::StatusCode::UNAVAILABLE, "the daemon is starting",
              Details(absl::StatusCode::kUnavailable, "LOADING", 10).SerializeAsString()};
    }
    response->mutable_limits()->set_max_message_bytes(1 << 26);
    response->mutable_limits()->set_max_rows_per_prefill(4096);
    return grpc::Status::OK;
  }
  static google::rpc::Status Details(absl::StatusCode code, const char* reason, int retry_ms) {
    google::rpc::Status details;
    details.set_code(static_cast<int>(code));
    google::rpc::ErrorInfo info;
    info.set_reason(reason);
    details.add_details()->PackFrom(info);
    if (retry_ms > 0) {
      google::rpc::RetryInfo retry;
      retry.mutable_retry_delay()->set_nanos(retry_ms * 1000000);
      details.add_details()->PackFrom(retry);
    }
    return details;
  }

 private:
  std::atomic<int> loading_;
};

// A daemon behind a proxy, and a client of the proxy.
struct Behind {
  explicit Behind(int losses = 0, int loading = 0, const RetryPolicy& retry = {})
      : proxy(&daemon, losses),
        info(loading) {
    static int count = 0;
    const std::string target =
        "unix:" + (TempDirectory::Get() / absl::StrCat("proxy", count++, ".sock"));
    grpc::ServerBuilder builder;
    builder.AddListeningPort(target, grpc::InsecureServerCredentials());
    builder.RegisterService(static_cast<v1::Attention::Service*>(&proxy));
    builder.RegisterService(static_cast<v1::Sessions::Service*>(&proxy));
    builder.RegisterService(&info);
    server = builder.BuildAndStart();
    client = Client::Connect(target, {.retry = retry});
  }

  TestServer daemon;
  LossyProxy proxy;
  InfoService info;
  std::unique_ptr<grpc::Server> server;
  absl::StatusOr<Client> client = absl::UnknownError("");
};

ModelShape OneHead() {
  return {.num_layers = 1,
          .num_heads = 1,
          .num_kv_heads = 1,
          .head_dim = 64,
          .rope_tables = {RopeTable::FromBase(10000.0, 64, 4096)}};
}

TEST(Retry, AStepWhoseAnswerIsLostIsReplayed) {
  Behind behind;
  ASSERT_TRUE(behind.client.ok()) << behind.client.status();
  absl::StatusOr<Session> session = behind.client->Open(OneHead(), {.max_tokens = 100});
  ASSERT_TRUE(session.ok()) << session.status();
  const std::vector<float> row(64, 1.0F);
  behind.proxy.LoseNext(2);
  const absl::StatusOr<Attended> attended = session->Decode(0, row, row, row);
  ASSERT_TRUE(attended.ok()) << attended.status();
  EXPECT_EQ(attended->out.ToFloats(), row);
  ASSERT_EQ(behind.proxy.append_ids.size(), 3U);
  EXPECT_EQ(behind.proxy.append_ids[0], behind.proxy.append_ids[1]);
  EXPECT_EQ(behind.proxy.append_ids[0], behind.proxy.append_ids[2]);
  EXPECT_NE(behind.proxy.append_ids[0], 0U);
  EXPECT_EQ(behind.daemon.Describe(session->id()).layer_tokens(0), 1) << "once, not three times";
  behind.proxy.LoseNext(1);
  EXPECT_TRUE(session->Close().ok()) << "closed by the call whose answer was lost";
}

TEST(Retry, IsBounded) {
  Behind behind(0, 0, {.max_attempts = 2, .first_pause = Milliseconds(1)});
  ASSERT_TRUE(behind.client.ok()) << behind.client.status();
  absl::StatusOr<Session> session = behind.client->Open(OneHead(), {.max_tokens = 100});
  ASSERT_TRUE(session.ok()) << session.status();
  const std::vector<float> row(64, 1.0F);
  behind.proxy.LoseNext(2);
  const absl::Status lost = session->Decode(0, row, row, row).status();
  EXPECT_EQ(lost.code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(MayHaveBeenApplied(lost));
  EXPECT_EQ(behind.proxy.append_ids.size(), 2U);
  EXPECT_EQ(session->tokens(0), 0);
  ASSERT_EQ(behind.daemon.Describe(session->id()).layer_tokens(0), 1);
}

TEST(Retry, OpeningKeepsItsId) {
  Behind behind(1);
  ASSERT_TRUE(behind.client.ok()) << behind.client.status();
  const absl::StatusOr<Session> session = behind.client->Open(OneHead(), {.max_tokens = 100});
  ASSERT_TRUE(session.ok()) << session.status();
  ASSERT_EQ(behind.proxy.open_ids.size(), 2U);
  EXPECT_EQ(behind.proxy.open_ids[0], behind.proxy.open_ids[1]);
  EXPECT_NE(behind.proxy.open_ids[0], 0U);
  grpc::ClientContext context;
  v1::ListSessionsResponse sessions;
  ASSERT_TRUE(behind.daemon.sessions().ListSessions(&context, {}, &sessions).ok());
  EXPECT_EQ(sessions.sessions_size(), 1) << "the first answer was lost, its session was not";
}

TEST(Retry, WaitsWhileTheDaemonLoads) {
  EXPECT_TRUE(Behind(0, 2).client.ok());
  const absl::Status impatient = Behind(0, 2, {.max_attempts = 1}).client.status();
  EXPECT_EQ(ReasonOf(impatient), "LOADING");
  EXPECT_FALSE(MayHaveBeenApplied(impatient));
}

TEST(Retry, WhatIsRepeatedAndWhen) {
  const auto status = [](absl::StatusCode code, const char* reason, int retry_ms) {
    return StatusFromRpc(InfoService::Details(code, reason, retry_ms));
  };
  const absl::Status lost = absl::UnavailableError("Socket closed");
  const absl::Status loading = status(absl::StatusCode::kUnavailable, "LOADING", 500);
  const absl::Status device_lost = status(absl::StatusCode::kUnavailable, "DEVICE_LOST", 0);
  const absl::Status queue_full = status(absl::StatusCode::kResourceExhausted, "QUEUE_FULL", 50);
  const absl::Status too_large = absl::ResourceExhaustedError("message larger than max");
  const absl::Status nobody = status(absl::StatusCode::kUnavailable, "NOT_RUNNING", 0);
  const RetryPolicy standard;
  const RetryPolicy waits{.when_busy = true};
  using Pause = std::optional<absl::Duration>;
  const Pause never = std::nullopt;
  for (const Repeat repeat : {Repeat::kRead, Repeat::kOpen, Repeat::kReplay}) {
    EXPECT_EQ(PauseBeforeRepeat(lost, repeat, standard, 1), Milliseconds(50));
    EXPECT_EQ(PauseBeforeRepeat(lost, repeat, standard, 2), Milliseconds(100));
    EXPECT_EQ(PauseBeforeRepeat(lost, repeat, standard, 4), never);
    EXPECT_EQ(PauseBeforeRepeat(device_lost, repeat, standard, 1), never);
    EXPECT_EQ(PauseBeforeRepeat(nobody, repeat, standard, 1), never);
    EXPECT_EQ(PauseBeforeRepeat(queue_full, repeat, standard, 1), never);
    EXPECT_EQ(PauseBeforeRepeat(too_large, repeat, waits, 1), never);
    EXPECT_EQ(PauseBeforeRepeat(absl::DeadlineExceededError(""), repeat, waits, 1), never);
  }
  EXPECT_EQ(PauseBeforeRepeat(loading, Repeat::kRead, standard, 1), Milliseconds(500));
  EXPECT_EQ(PauseBeforeRepeat(loading, Repeat::kReplay, standard, 1), never);
  EXPECT_EQ(PauseBeforeRepeat(queue_full, Repeat::kReplay, waits, 1), Milliseconds(50));
  EXPECT_EQ(PauseBeforeRepeat(queue_full, Repeat::kReplay, waits, 3), Milliseconds(200));
  const RetryPolicy brief{.max_pause = Milliseconds(70)};
  EXPECT_EQ(PauseBeforeRepeat(loading, Repeat::kOpen, brief, 1), Milliseconds(70));
}

}  // namespace
}  // namespace longshore::client
