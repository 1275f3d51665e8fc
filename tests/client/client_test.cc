// The C++ client library against a whole daemon in this process.

#include "longshore/client/client.h"

#include <algorithm>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <absl/time/clock.h>
#include <gtest/gtest.h>

#include "tests/service/test_server.h"

namespace longshore::client {
namespace {

constexpr int32_t kHeads = kTestHeads;
constexpr int32_t kKvHeads = kTestKvHeads;
constexpr int32_t kDim = kTestHeadDim;

ModelShape Model(DType dtype = DType::kF32) {
  return {.num_layers = kTestLayers,
          .num_heads = kHeads,
          .num_kv_heads = kKvHeads,
          .head_dim = kDim,
          .query_dtype = dtype,
          .kv_dtype = dtype,
          .rope_tables = {RopeTable::FromBase(10000.0, kDim, 4096)}};
}

SessionOptions Options(int64_t max_tokens = 1024) { return {.max_tokens = max_tokens}; }

// [rows, heads, kDim], the same for the same seed.
std::vector<float> Gaussian(int64_t rows, int64_t heads, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<size_t>(rows * heads * kDim));
  std::generate(values.begin(), values.end(), [&] { return normal(random); });
  return values;
}

// q, k and v of the same rows.
struct Tokens {
  explicit Tokens(int64_t rows, uint32_t seed = 1)
      : q(Gaussian(rows, kHeads, seed)),
        k(Gaussian(rows, kKvHeads, seed + 1000)),
        v(Gaussian(rows, kKvHeads, seed + 2000)) {}
  std::vector<float> q, k, v;
};

Client ConnectTo(TestServer& server) {
  absl::StatusOr<Client> client = Client::Connect((*server).addresses().front().ToString());
  EXPECT_TRUE(client.ok()) << client.status();
  return *std::move(client);
}

Session OpenOn(const Client& client,
               const SessionOptions& options = Options(),
               const ModelShape& model = Model()) {
  absl::StatusOr<Session> session = client.Open(model, options);
  EXPECT_TRUE(session.ok()) << session.status();
  return *std::move(session);
}

TEST(Client, TellsWhatTheDaemonIs) {
  Config config = TestConfig();
  config.engine.max_sessions = 7;
  TestServer server(config);
  const Client client = ConnectTo(server);
  const absl::StatusOr<ServerInfo> info = client.Info();
  ASSERT_TRUE(info.ok()) << info.status();
  EXPECT_EQ(info->limits.max_sessions, 7);
  EXPECT_EQ(info->limits.pool_bytes, int64_t{64} << 20);
  EXPECT_EQ(info->backends.front().name, "cpu");
  EXPECT_NE(std::find(info->presets.begin(), info->presets.end(), "standard"), info->presets.end());
  const absl::StatusOr<std::string> metrics = client.Metrics();
  ASSERT_TRUE(metrics.ok()) << metrics.status();
  EXPECT_NE(metrics->find("longshore_sessions"), std::string::npos);
}

TEST(Client, WithoutADaemonSaysHowToStartOne) {
  const std::string target = "unix:" + (TempDirectory::Get() / "nobody.sock");
  const absl::Status status = Client::Connect(target).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(ReasonOf(status), "NOT_RUNNING");
  EXPECT_NE(status.message().find("start one: longshored --listen=" + target), std::string::npos)
      << status;
  EXPECT_FALSE(MayHaveBeenApplied(status));
}

TEST(Session, ClosesWhenItGoes) {
  TestServer server;
  const Client client = ConnectTo(server);
  {
    const Session session = OpenOn(client);
    EXPECT_EQ(client.List()->size(), 1U);
    EXPECT_EQ(client.List()->front().id, session.id());
  }
  EXPECT_TRUE(client.List()->empty());
  Session session = OpenOn(client);
  session = OpenOn(client);  // closes the one before
  EXPECT_EQ(client.List()->size(), 1U);
  EXPECT_TRUE(session.Close().ok());
  EXPECT_TRUE(client.List()->empty());
  EXPECT_TRUE(session.Close().ok()) << "closing again is nothing to do";
  EXPECT_EQ(session.Truncate(0).code(), absl::StatusCode::kFailedPrecondition);
}

TEST(Session, HasALeaseAndAnOwner) {
  TestServer server;
  const Client client = ConnectTo(server);
  SessionOptions options = Options();
  options.lease = absl::Seconds(90);
  options.name = "leased";
  const absl::Time start = absl::Now();
  const Session session = OpenOn(client, options);
  EXPECT_EQ(session.lease(), absl::Seconds(90));
  const absl::StatusOr<SessionInfo> info = session.Describe();
  ASSERT_TRUE(info.ok()) << info.status();
  EXPECT_EQ(info->lease, absl::Seconds(90));
  EXPECT_EQ(info->name, "leased");
  EXPECT_EQ(info->owner, "local");
  EXPECT_GT(info->idle, absl::ZeroDuration()) << "this very call does not count";
  EXPECT_LT(info->idle, absl::Now() - start);
  EXPECT_GT(info->page_bytes_reserved, 0);
  options.lease = absl::Hours(10000);
  EXPECT_EQ(DetailsOf(client.Open(Model(), options).status()).field, "lease_seconds");
}

TEST(Session, ThatIsReleasedCanBeAttached) {
  TestServer server;
  const Client client = ConnectTo(server);
  const Tokens tokens(5);
  uint64_t id = 0;
  {
    Session session = OpenOn(client);
    ASSERT_TRUE(session.Append(1, tokens.k, tokens.v).ok());
    id = session.Release();
    EXPECT_EQ(session.id(), 0U);
  }
  absl::StatusOr<Session> session = client.Attach(id);
  ASSERT_TRUE(session.ok()) << session.status();
  EXPECT_EQ(session->tokens(0), 0);
  EXPECT_EQ(session->tokens(1), 5);
  EXPECT_EQ(session->model().head_dim, kDim);
  EXPECT_NE(session->PolicyText().find("SELECTOR_BOUNDS"), std::string::npos);
  EXPECT_TRUE(client.Close(id).ok());
  EXPECT_EQ(ReasonOf(client.Describe(id).status()), "SESSION_NOT_FOUND");
  EXPECT_TRUE(session->Close().ok()) << "what is gone need not be closed";
}

TEST(Session, GivesTheBitsOfTheWire) {
  TestServer server;
  const Client client = ConnectTo(server);
  Session session = OpenOn(client);
  const Tokens prompt(70);
  const Tokens next(1, 7);
  const absl::StatusOr<Attended> filled =
      session.Prefill(0, prompt.q, prompt.k, prompt.v, {.log_sum_exp = true});
  ASSERT_TRUE(filled.ok()) << filled.status();
  EXPECT_EQ(filled->out.shape(), (std::vector<int64_t>{70, kHeads, kDim}));
  EXPECT_EQ(filled->log_sum_exp.size(), size_t{70} * kHeads);
  const absl::StatusOr<Attended> decoded = session.Decode(0, next.q, next.k, next.v);
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_TRUE(decoded->log_sum_exp.empty());
  EXPECT_EQ(session.tokens(0), 71);

  // The same through the generated stubs.
  v1::OpenSessionRequest open = TestOpenRequest();
  open.mutable_model()->mutable_rope_tables(0)->mutable_inv_freq()->Assign(
      session.model().rope_tables[0].inv_freq.begin(),
      session.model().rope_tables[0].inv_freq.end());
  const uint64_t id = server.Open(open);
  v1::PrefillRequest request;
  *request.add_items() = TestItem(id, 0, 70);
  const auto pack = [](v1::Tensor* tensor, const std::vector<float>& values, int64_t heads) {
    tensor->set_dtype(v1::DTYPE_F32);
    tensor->add_shape(static_cast<int64_t>(values.size()) / (heads * kDim));
    tensor->add_shape(heads);
    tensor->add_shape(kDim);
    tensor->set_inline_data(values.data(), values.size() * sizeof(float));
  };
  pack(request.mutable_q(), prompt.q, kHeads);
  pack(request.mutable_k(), prompt.k, kKvHeads);
  pack(request.mutable_v(), prompt.v, kKvHeads);
  v1::PrefillResponse response;
  ASSERT_TRUE(server.Prefill(request, &response).ok());
  EXPECT_EQ(response.out().inline_data(), filled->out.bytes());
}

TEST(Session, TakesEveryType) {
  TestServer server;
  const Client client = ConnectTo(server);
  const Tokens tokens(9);
  Session wide = OpenOn(client);
  const std::vector<float> expected = wide.Prefill(0, tokens.q, tokens.k, tokens.v)->out.ToFloats();
  const auto check = [&](DType dtype, auto convert, float tolerance) {
    const auto narrow = [&](const std::vector<float>& values) {
      std::vector<decltype(convert(0.0F))> result(values.size());
      std::transform(values.begin(), values.end(), result.begin(), convert);
      return result;
    };
    Session session = OpenOn(client, Options(), Model(dtype));
    const absl::StatusOr<Attended> got =
        session.Prefill(0, narrow(tokens.q), narrow(tokens.k), narrow(tokens.v));
    ASSERT_TRUE(got.ok()) << got.status();
    EXPECT_EQ(got->out.dtype(), dtype);
    const std::vector<float> values = got->out.ToFloats();
    ASSERT_EQ(values.size(), expected.size());
    for (size_t element = 0; element < values.size(); ++element) {
      ASSERT_NEAR(values[element], expected[element], tolerance) << element;
    }
  };
  check(
      DType::kBf16, [](float value) { return ToBf16(value); }, 0.06F);
  check(
      DType::kF16, [](float value) { return ToF16(value); }, 0.01F);
}

TEST(Session, RefusesSizesThatDoNotFit) {
  TestServer server;
  const Client client = ConnectTo(server);
  Session session = OpenOn(client);
  const Tokens tokens(3);
  const std::vector<float> short_q(tokens.q.begin(), tokens.q.end() - kDim);
  const absl::Status status = session.Decode(0, short_q, tokens.k, tokens.v).status();
  EXPECT_EQ(DetailsOf(status).field, "q");
  EXPECT_EQ(status.message(), "q has 704 elements, and 3 rows of 4 heads of 64 are 768");
  EXPECT_EQ(DetailsOf(session.Append(0, tokens.k, tokens.q)).field, "v");
  EXPECT_EQ(DetailsOf(session.Append(0, std::vector<float>(), tokens.v)).field, "k");
  EXPECT_EQ(DetailsOf(session.Append(2, tokens.k, tokens.v)).field, "layer");
  EXPECT_EQ(DetailsOf(client.Open(Model(), {.policy = {.text = "sink_tokens: x"}}).status()).field,
            "policy.text");
  EXPECT_EQ(session.tokens(0), 0);
}

TEST(Session, TellsWhatTheDaemonRefuses) {
  TestServer server;
  const Client client = ConnectTo(server);
  Session session = OpenOn(client);
  Tokens tokens(3);
  ASSERT_TRUE(session.Append(0, tokens.k, tokens.v).ok());

  const absl::Status gap = session.Append(0, tokens.k, tokens.v, {.position = 8});
  EXPECT_EQ(gap.code(), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(ReasonOf(gap), "POSITION_GAP");
  EXPECT_EQ(ExpectedPosition(gap), 3);
  EXPECT_EQ(DetailsOf(gap).field, "items[0].position");
  EXPECT_EQ(DetailsOf(gap).retry_delay, std::nullopt);
  EXPECT_EQ(session.tokens(0), 3) << "a refused step is not counted";
  EXPECT_EQ(ReasonOf(session.Append(0, tokens.k, tokens.v, {.position = 1})), "POSITION_CONFLICT");
  EXPECT_EQ(session.tokens(0), 3);

  tokens.k[7] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(ReasonOf(session.Append(0, tokens.k, tokens.v)), "NON_FINITE");
  EXPECT_EQ(ReasonOf(client.Open(Model(), {.max_tokens = -1}).status()), "INVALID_FIELD");
  const absl::Status unknown = client.Open(Model(), {.policy = {.preset = "best"}}).status();
  EXPECT_NE(unknown.message().find("best"), std::string::npos) << unknown;

  ASSERT_TRUE(session.Truncate(1).ok());
  EXPECT_EQ(session.tokens(0), 1);
  EXPECT_EQ(session.Describe()->layer_tokens, (std::vector<int64_t>{1, 0}));
}

TEST(Session, TellsWhenToTryAgain) {
  Config config = TestConfig();
  config.engine.max_sessions = 1;
  TestServer server(config);
  const Client client = ConnectTo(server);
  const Session session = OpenOn(client);
  const absl::Status full = client.Open(Model(), Options()).status();
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ReasonOf(full), "TOO_MANY_SESSIONS");
  EXPECT_EQ(DetailsOf(full).retry_delay, absl::Seconds(2));
}

TEST(Session, CutsAPromptWhereItDoesNotShow) {
  Config config = TestConfig();
  TestServer whole_server(config);
  config.listen = TestConfig().listen;
  config.engine.max_rows_per_prefill = 100;
  TestServer small_server(config);
  const Tokens tokens(333);
  Session whole = OpenOn(ConnectTo(whole_server));
  Session pieces = OpenOn(ConnectTo(small_server));
  const StepOptions options{.log_sum_exp = true};
  const absl::StatusOr<Attended> expected = whole.Prefill(0, tokens.q, tokens.k, tokens.v, options);
  const absl::StatusOr<Attended> got = pieces.Prefill(0, tokens.q, tokens.k, tokens.v, options);
  ASSERT_TRUE(expected.ok()) << expected.status();
  ASSERT_TRUE(got.ok()) << got.status();
  EXPECT_EQ(got->out.shape(), expected->out.shape());
  EXPECT_TRUE(got->out.bytes() == expected->out.bytes());
  EXPECT_EQ(got->log_sum_exp, expected->log_sum_exp);
  ASSERT_TRUE(pieces.Append(1, tokens.k, tokens.v).ok());
  EXPECT_EQ(pieces.Describe()->layer_tokens, (std::vector<int64_t>{333, 333}));
}

TEST(Session, StepThatTookTooLongCanBeReplayed) {
  FakeDevice device;
  TestServer server(TestConfig(), &device);
  const Client client = ConnectTo(server);
  Session session = OpenOn(client);
  const Tokens tokens(1);
  device.Hold();
  const StepOptions hurried{.append_id = 77, .call = {.timeout = absl::Milliseconds(100)}};
  const absl::Status late = session.Decode(0, tokens.q, tokens.k, tokens.v, hurried).status();
  device.Release();
  EXPECT_EQ(late.code(), absl::StatusCode::kDeadlineExceeded) << late;
  EXPECT_TRUE(MayHaveBeenApplied(late));
  EXPECT_EQ(session.tokens(0), 0);
  EXPECT_TRUE(session.Decode(0, tokens.q, tokens.k, tokens.v, {.append_id = 77}).ok());
  EXPECT_EQ(session.Describe()->layer_tokens[0], 1) << "once, not twice";
  ASSERT_TRUE(session.Truncate(0).ok());
  EXPECT_EQ(session.tokens(0), 0);
}

TEST(StepStream, GivesTheBitsOfCalls) {
  TestServer server;
  const Client client = ConnectTo(server);
  Session by_call = OpenOn(client);
  Session by_stream = OpenOn(client);
  StepStream stream = client.StreamSteps();
  std::vector<StepStream::Tag> tags;
  constexpr int kSteps = 40;  // more than the daemon has in flight: they are sent all the same
  for (int step = 0; step < kSteps; ++step) {
    const Tokens tokens(1, static_cast<uint32_t>(step));
    const absl::StatusOr<StepStream::Tag> tag =
        step == 0
            ? stream.Prefill(by_stream, 0, tokens.q, tokens.k, tokens.v)
            : stream.Decode(by_stream, 0, tokens.q, tokens.k, tokens.v, {.log_sum_exp = true});
    ASSERT_TRUE(tag.ok()) << tag.status();
    tags.push_back(*tag);
  }
  EXPECT_EQ(by_stream.tokens(0), kSteps);
  for (int step = 0; step < kSteps; ++step) {
    const Tokens tokens(1, static_cast<uint32_t>(step));
    const absl::StatusOr<Attended> expected =
        step == 0 ? by_call.Prefill(0, tokens.q, tokens.k, tokens.v)
                  : by_call.Decode(0, tokens.q, tokens.k, tokens.v, {.log_sum_exp = true});
    const absl::StatusOr<Attended> got = stream.Wait(tags[static_cast<size_t>(step)]);
    ASSERT_TRUE(got.ok()) << got.status();
    EXPECT_TRUE(got->out.bytes() == expected->out.bytes()) << "step " << step;
    EXPECT_EQ(got->log_sum_exp, expected->log_sum_exp);
  }
  EXPECT_TRUE(stream.Finish().ok());
  EXPECT_EQ(stream.Wait(tags[0]).status().code(), absl::StatusCode::kNotFound);
  const Tokens tokens(1);
  EXPECT_EQ(stream.Append(by_stream, 0, tokens.k, tokens.v).status().code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST(StepStream, RefusesInBandAndGoesOn) {
  TestServer server;
  const Client client = ConnectTo(server);
  Session session = OpenOn(client);
  const Tokens tokens(2);
  Tokens broken(2);
  broken.v[3] = std::numeric_limits<float>::infinity();
  StepStream stream = client.StreamSteps();
  const auto bad = stream.Append(session, 0, broken.k, broken.v);
  const auto gap = stream.Append(session, 0, tokens.k, tokens.v);
  const auto other_layer = stream.Append(session, 1, tokens.k, tokens.v);
  EXPECT_EQ(ReasonOf(stream.Wait(*bad).status()), "NON_FINITE");
  const absl::Status left_a_gap = stream.Wait(*gap).status();
  EXPECT_EQ(ReasonOf(left_a_gap), "POSITION_GAP");
  EXPECT_EQ(ExpectedPosition(left_a_gap), 0);
  EXPECT_TRUE(stream.Wait(*other_layer).ok());
  EXPECT_EQ(session.tokens(0), 0);
  EXPECT_EQ(session.tokens(1), 2);
  const auto good = stream.Append(session, 0, tokens.k, tokens.v);
  EXPECT_TRUE(stream.Wait(*good).ok());
  EXPECT_TRUE(stream.Finish().ok());
}

TEST(StepStream, WaitsForAsLongAsIsAsked) {
  FakeDevice device;
  TestServer server(TestConfig(), &device);
  const Client client = ConnectTo(server);
  Session session = OpenOn(client);
  const Tokens tokens(1);
  StepStream stream = client.StreamSteps();
  device.Hold();
  const auto tag = stream.Append(session, 0, tokens.k, tokens.v);
  EXPECT_EQ(stream.Wait(*tag, absl::Milliseconds(20)).status().code(),
            absl::StatusCode::kDeadlineExceeded);
  device.Release();
  EXPECT_TRUE(stream.Wait(*tag).ok());
}

TEST(StepStream, FailsEveryStepWhenItBreaks) {
  FakeDevice device;
  TestServer server(TestConfig(), &device);
  const Client client = ConnectTo(server);
  Session session = OpenOn(client);
  const Tokens tokens(1);
  device.Hold();
  StepStream stream = client.StreamSteps({.timeout = absl::Milliseconds(100)});
  const auto first = stream.Append(session, 0, tokens.k, tokens.v);
  const auto second = stream.Append(session, 0, tokens.k, tokens.v);
  EXPECT_EQ(stream.Wait(*second).status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(stream.Wait(*first).status().code(), absl::StatusCode::kDeadlineExceeded);
  device.Release();
  EXPECT_EQ(stream.Append(session, 0, tokens.k, tokens.v).status().code(),
            absl::StatusCode::kDeadlineExceeded);
  ASSERT_TRUE(session.Sync().ok());
  EXPECT_EQ(session.tokens(0), session.Describe()->layer_tokens[0]);
}

}  // namespace
}  // namespace longshore::client
