// Every row of the error table in proto/README.md: each reason is provoked on every way that it can
// take, and reads the same on all of them.

#include <fstream>
#include <future>
#include <limits>
#include <regex>
#include <set>
#include <sstream>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "service/errors.h"
#include "tests/service/raw_call.h"
#include "tests/service/step_way.h"

namespace longshore {
namespace {

using std::chrono::milliseconds;

// Sends one decode step of `session`; what is wrong with it is the caller's doing.
WireError Decode(TestServer& server, Way way, const v1::DecodeStepRequest& request) {
  v1::DecodeStepResponse response;
  return SendStep(server, way, request, &response);
}

v1::DecodeStepRequest DecodeAt(uint64_t session, int64_t position) {
  return TestStep<v1::DecodeStepRequest>(session, position, 1);
}

WireError Open(TestServer& server, const v1::OpenSessionRequest& request) {
  grpc::ClientContext context;
  v1::OpenSessionResponse response;
  return ErrorOf(server.sessions().OpenSession(&context, request, &response));
}

WireError Truncate(TestServer& server, uint64_t session, int64_t position) {
  grpc::ClientContext context;
  v1::TruncateSessionRequest request;
  request.set_session_id(session);
  request.set_position(position);
  v1::TruncateSessionResponse response;
  return ErrorOf(server.sessions().TruncateSession(&context, request, &response));
}

void Prefill(TestServer& server, uint64_t session, int64_t position, int32_t rows) {
  v1::PrefillResponse response;
  const grpc::Status status =
      server.Prefill(TestStep<v1::PrefillRequest>(session, position, rows), &response);
  EXPECT_TRUE(status.ok()) << status.error_message();
}

// A step with another first element of `tensor`.
WireError DecodeWithValue(Way way, float value) {
  TestServer server;
  v1::DecodeStepRequest request = DecodeAt(server.Open(), 0);
  std::string* data = request.mutable_k()->mutable_inline_data();
  data->replace(0, sizeof(value), reinterpret_cast<const char*>(&value), sizeof(value));
  return Decode(server, way, request);
}

WireError InvalidFieldRow(Way way) {
  TestServer server;
  v1::DecodeStepRequest request = DecodeAt(server.Open(), 0);
  request.set_layer(kTestLayers);
  return Decode(server, way, request);
}

WireError MalformedMessageRow(Way way) {
  TestServer server;
  const std::string garbage = "\xff\xff\xff\xff garbage";
  std::string response;
  if (way == Way::kUnary) {
    return ErrorOf(
        CallRaw(server.channel(), "/longshore.v1.Attention/DecodeStep", garbage, &response));
  }
  v1::StreamStepsResponse answer;
  EXPECT_TRUE(answer.ParseFromString(
      RawExchange(server.channel(), "/longshore.v1.Attention/StreamSteps", garbage).Await()));
  return ErrorOf(answer.status());
}

WireError SessionNotFoundRow(Way way) {
  TestServer server;
  return Decode(server, way, DecodeAt(server.Open() + 1, 0));
}

WireError SessionExpiredRow(Way way) {
  TestServer server;
  v1::OpenSessionRequest open = TestOpenRequest();
  open.set_lease_seconds(0.001);
  const uint64_t session = server.Open(open);
  // Steps would renew the lease, lists do not.
  v1::ListSessionsResponse list;
  do {
    grpc::ClientContext context;
    EXPECT_TRUE(server.sessions().ListSessions(&context, v1::ListSessionsRequest(), &list).ok());
  } while (list.sessions_size() > 0);
  return Decode(server, way, DecodeAt(session, 0));
}

WireError InstanceChangedRow(Way way) {
  TestServer server;
  return Decode(server, way, DecodeAt(server.Open() ^ (uint64_t{1} << 61), 0));
}

WireError PositionConflictRow(Way way) {
  TestServer server;
  const uint64_t session = server.Open();
  Prefill(server, session, 0, 3);
  return Decode(server, way, DecodeAt(session, 2));
}

WireError PositionGapRow(Way way) {
  TestServer server;
  return Decode(server, way, DecodeAt(server.Open(), 1));
}

WireError MaxTokensRow(Way way) {
  TestServer server;
  v1::OpenSessionRequest open = TestOpenRequest();
  open.set_max_tokens(3);
  const uint64_t session = server.Open(open);
  Prefill(server, session, 0, 3);
  return Decode(server, way, DecodeAt(session, 3));
}

WireError TruncatePastEndRow(Way /*way*/) {
  TestServer server;
  return Truncate(server, server.Open(), 1);
}

WireError TokensExpiredRow(Way /*way*/) {
  TestServer server;
  v1::OpenSessionRequest open = TestOpenRequest();
  for (int layer = 0; layer < kTestLayers; ++layer) {
    open.mutable_model()->add_layer_sliding_window(64);
  }
  const uint64_t session = server.Open(open);
  for (int64_t position = 0; position < 512; position += 128) {
    Prefill(server, session, position, 128);
  }
  return Truncate(server, session, 1);
}

WireError PoolFullRow(Way way) {
  Config config = TestConfig();
  config.engine.pool_bytes = int64_t{8} << 20;  // 128 pages of 64 KiB, in 4 slabs
  TestServer server(config);
  v1::OpenSessionRequest open = TestOpenRequest();
  open.set_max_tokens(1 << 20);
  open.set_overcommit(true);
  const uint64_t session = server.Open(open);
  for (int64_t position = 0; position < 128 * 64; position += 1024) {
    Prefill(server, session, position, 1024);
  }
  return Decode(server, way, DecodeAt(session, 128 * 64));
}

WireError TooManySessionsRow(Way /*way*/) {
  Config config = TestConfig();
  config.engine.max_sessions = 1;
  TestServer server(config);
  server.Open();
  return Open(server, TestOpenRequest());
}

WireError TablesFullRow(Way /*way*/) {
  Config config = TestConfig();
  config.engine.max_table_bytes = int64_t{100} << 10;
  TestServer server(config);
  WireError error;
  for (int opened = 0; opened < 1000 && error.code == grpc::StatusCode::OK; ++opened) {
    error = Open(server, TestOpenRequest());
  }
  return error;
}

WireError HostMemoryRow(Way way) {
  FakeDevice device;
  TestServer server(TestConfig(), &device);
  v1::OpenSessionRequest open = TestOpenRequest();
  open.mutable_policy()->set_dense_below_tokens(0);
  open.set_max_tokens(4096);
  const uint64_t session = server.Open(open);
  Prefill(server, session, 0, 2048);
  device.Fail(FakeVerb::kAllocate, MakeReason(absl::StatusCode::kResourceExhausted, kHostMemory,
                                              "the system gave no memory"));
  v1::PrefillResponse response;  // whose blocks' selections need some
  return SendStep(server, way, TestStep<v1::PrefillRequest>(session, 2048, 2000), &response);
}

// Of three steps one is held, one waits, and one is refused.
WireError QueueFullRow(Way way) {
  FakeDevice device;
  Config config = TestConfig();
  config.max_queued_calls = 1;
  TestServer server(config, &device);
  const std::array<uint64_t, 3> sessions = {server.Open(), server.Open(), server.Open()};
  device.Hold();
  std::future<grpc::Status> held = std::async(std::launch::async, [&] {
    v1::DecodeStepResponse response;
    return server.Decode(DecodeAt(sessions[0], 0), &response);
  });
  device.AwaitHeld();
  std::array<std::future<WireError>, 2> steps;
  for (size_t index = 0; index < steps.size(); ++index) {
    steps[index] = std::async(std::launch::async, [&, index] {
      return Decode(server, way, DecodeAt(sessions[index + 1], 0));
    });
  }
  while (steps[0].wait_for(milliseconds(1)) != std::future_status::ready) {
    std::swap(steps[0], steps[1]);
  }
  device.Release();
  EXPECT_TRUE(held.get().ok());
  EXPECT_EQ(steps[1].get().code, grpc::StatusCode::OK);
  return steps[0].get();
}

WireError LoadingRow(Way /*way*/) {
  FakeDevice device;
  std::promise<void> gate;
  const absl::StatusOr<std::unique_ptr<Server>> server = Server::Start(
      TestConfig(),
      [&]() -> absl::StatusOr<std::unique_ptr<Backend>> {
        gate.get_future().wait();
        return std::make_unique<FakeBackend>(&device);
      },
      [] {});
  EXPECT_TRUE(server.ok()) << server.status();
  const auto channel =
      grpc::CreateChannel((*server)->addresses()[0].ToString(), grpc::InsecureChannelCredentials());
  grpc::ClientContext context;
  v1::OpenSessionResponse response;
  const grpc::Status status =
      v1::Sessions::NewStub(channel)->OpenSession(&context, TestOpenRequest(), &response);
  gate.set_value();
  EXPECT_TRUE((*server)->WaitReady().ok());
  return ErrorOf(status);
}

// A step that waits when the drain begins.
WireError DrainingRow(Way way) {
  FakeDevice device;
  TestServer server(TestConfig(), &device);
  const std::array<uint64_t, 2> sessions = {server.Open(), server.Open()};
  device.Hold();
  std::future<grpc::Status> held = std::async(std::launch::async, [&] {
    v1::DecodeStepResponse response;
    return server.Decode(DecodeAt(sessions[0], 0), &response);
  });
  device.AwaitHeld();
  std::future<WireError> waits =
      std::async(std::launch::async, [&] { return Decode(server, way, DecodeAt(sessions[1], 0)); });
  std::this_thread::sleep_for(milliseconds(50));  // it answers the same if it comes later
  std::future<bool> drained = std::async(std::launch::async, [&] { return (*server).Drain(); });
  WireError error = waits.get();
  device.Release();
  EXPECT_TRUE(held.get().ok());
  EXPECT_TRUE(drained.get());
  return error;
}

WireError DeviceLostRow(Way way) {
  FakeDevice device;
  TestServer server(TestConfig(), &device);
  const uint64_t session = server.Open();
  device.Fail(FakeVerb::kAttend, absl::InternalError("burnt"));
  return Decode(server, way, DecodeAt(session, 0));
}

WireError NotImplementedRow(Way way) {
  TestServer server;
  v1::DecodeStepRequest request = DecodeAt(server.Open(), 0);
  request.mutable_k()->mutable_region()->set_region_id(1);
  return Decode(server, way, request);
}

// A client's own library answers these two before the daemon's word can reach it: what the queue
// says is looked at where it says it.
WireError QueueRefusal(std::function<bool()> cancelled,
                       std::chrono::system_clock::time_point deadline) {
  FakeDevice device;
  DeviceQueue queue({}, [&] {
    return Engine::Create({.pool_bytes = int64_t{16} << 20},
                          std::make_unique<FakeBackend>(&device));
  });
  EXPECT_TRUE(queue.WaitReady().ok());
  std::promise<absl::Status> refused;
  Job job;
  job.cancelled = std::move(cancelled);
  job.deadline = deadline;
  job.run = [](Engine& /*engine*/) { return absl::OkStatus(); };
  job.done = [&](const absl::Status& status) { refused.set_value(status); };
  queue.Push(std::move(job));
  return ErrorOf(ToGrpcStatus(refused.get_future().get()));
}

WireError DeadlineExceededRow(Way /*way*/) {
  return QueueRefusal(nullptr, std::chrono::system_clock::now() - milliseconds(1));
}

WireError CancelledRow(Way /*way*/) {
  return QueueRefusal([] { return true; }, std::chrono::system_clock::time_point::max());
}

// Nothing that a client can do provokes a bug: this is how one would read.
WireError InternalRow(Way /*way*/) { return ErrorOf(ToGrpcStatus(absl::InternalError("a bug"))); }

struct Row {
  const char* reason;
  grpc::StatusCode code;
  WireError (*provoke)(Way);
  bool on_streams = true;
  bool retry = false;
  const char* field = "";
};

constexpr bool kUnaryOnly = false;
constexpr bool kRetry = true;

const Row kRows[] = {
    {"INVALID_FIELD", grpc::StatusCode::INVALID_ARGUMENT, InvalidFieldRow, true, false, "layer"},
    {"MALFORMED_MESSAGE", grpc::StatusCode::INVALID_ARGUMENT, MalformedMessageRow},
    {"NON_FINITE", grpc::StatusCode::INVALID_ARGUMENT,
     [](Way way) { return DecodeWithValue(way, std::numeric_limits<float>::quiet_NaN()); }, true,
     false, "k"},
    {"OUT_OF_RANGE_VALUE", grpc::StatusCode::INVALID_ARGUMENT,
     [](Way way) { return DecodeWithValue(way, 3e38F); }, true, false, "k"},
    {"SESSION_NOT_FOUND", grpc::StatusCode::NOT_FOUND, SessionNotFoundRow, true, false,
     "items[0].session_id"},
    {"SESSION_EXPIRED", grpc::StatusCode::NOT_FOUND, SessionExpiredRow, true, false,
     "items[0].session_id"},
    {"INSTANCE_CHANGED", grpc::StatusCode::NOT_FOUND, InstanceChangedRow, true, false,
     "items[0].session_id"},
    {"POSITION_CONFLICT", grpc::StatusCode::ABORTED, PositionConflictRow, true, false,
     "items[0].position"},
    {"POSITION_GAP", grpc::StatusCode::OUT_OF_RANGE, PositionGapRow, true, false,
     "items[0].position"},
    {"MAX_TOKENS", grpc::StatusCode::OUT_OF_RANGE, MaxTokensRow, true, false, "items[0].rows"},
    {"TRUNCATE_PAST_END", grpc::StatusCode::OUT_OF_RANGE, TruncatePastEndRow, kUnaryOnly, false,
     "position"},
    {"TOKENS_EXPIRED", grpc::StatusCode::OUT_OF_RANGE, TokensExpiredRow, kUnaryOnly, false,
     "position"},
    {"POOL_FULL", grpc::StatusCode::RESOURCE_EXHAUSTED, PoolFullRow, true, kRetry},
    {"TOO_MANY_SESSIONS", grpc::StatusCode::RESOURCE_EXHAUSTED, TooManySessionsRow, kUnaryOnly,
     kRetry},
    {"TABLES_FULL", grpc::StatusCode::RESOURCE_EXHAUSTED, TablesFullRow, kUnaryOnly, kRetry},
    {"HOST_MEMORY", grpc::StatusCode::RESOURCE_EXHAUSTED, HostMemoryRow},
    {"QUEUE_FULL", grpc::StatusCode::RESOURCE_EXHAUSTED, QueueFullRow, true, kRetry},
    {"LOADING", grpc::StatusCode::UNAVAILABLE, LoadingRow, kUnaryOnly, kRetry},
    {"DRAINING", grpc::StatusCode::UNAVAILABLE, DrainingRow, true, kRetry},
    {"DEVICE_LOST", grpc::StatusCode::UNAVAILABLE, DeviceLostRow},
    {"DEADLINE_EXCEEDED", grpc::StatusCode::DEADLINE_EXCEEDED, DeadlineExceededRow, kUnaryOnly},
    {"CANCELLED", grpc::StatusCode::CANCELLED, CancelledRow, kUnaryOnly},
    {"NOT_IMPLEMENTED", grpc::StatusCode::UNIMPLEMENTED, NotImplementedRow, true, false,
     "k.region"},
    {"INTERNAL", grpc::StatusCode::INTERNAL, InternalRow, kUnaryOnly},
};

class ErrorTable : public ::testing::TestWithParam<Row> {};

INSTANTIATE_TEST_SUITE_P(Rows, ErrorTable, ::testing::ValuesIn(kRows), [](const auto& info) {
  return std::string(info.param.reason);
});

TEST_P(ErrorTable, ReadsTheSameOnEveryWay) {
  const Row& row = GetParam();
  std::vector<Way> ways = {Way::kUnary};
  if (row.on_streams) {
    ways.push_back(Way::kStream);
  }
  for (const Way way : ways) {
    SCOPED_TRACE(NameOf(way));
    const WireError error = row.provoke(way);
    EXPECT_EQ(error.code, row.code) << error.message;
    EXPECT_EQ(error.reason, row.reason) << error.message;
    EXPECT_EQ(error.domain, "longshore");
    EXPECT_EQ(error.field, row.field) << error.message;
    EXPECT_EQ(error.retry, row.retry);
    EXPECT_FALSE(error.message.empty());
  }
}

TEST(ErrorTable, HasARowForEveryLineOfTheDocument) {
  const std::string path = std::string(LONGSHORE_SOURCE_DIR) + "/proto/README.md";
  std::ifstream file(path);
  ASSERT_TRUE(file) << path;
  std::ostringstream text;
  text << file.rdbuf();
  const std::string document = text.str();
  // | CODE | `REASON` | when | what to do |
  const std::regex line(R"(\n\| ([A-Z_]+) \| `([A-Z_]+)` \|)");
  std::set<std::pair<std::string, std::string>> documented;
  for (auto it = std::sregex_iterator(document.begin(), document.end(), line);
       it != std::sregex_iterator(); ++it) {
    documented.emplace((*it)[1], (*it)[2]);
  }
  std::set<std::pair<std::string, std::string>> tested;
  for (const Row& row : kRows) {
    tested.emplace(absl::StatusCodeToString(static_cast<absl::StatusCode>(row.code)), row.reason);
  }
  EXPECT_EQ(documented, tested);
}

}  // namespace
}  // namespace longshore
