#include "service/recall_monitor.h"

#include <algorithm>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include <absl/strings/match.h>
#include <absl/strings/numbers.h>
#include <absl/strings/str_split.h>
#include <gtest/gtest.h>
#include <prometheus/text_serializer.h>

#include "service/convert_model.h"
#include "service/convert_policy.h"
#include "tests/service/haystack.h"
#include "tests/service/http_get.h"
#include "tests/service/test_server.h"
#include "tests/support/engine_session.h"
#include "tests/support/oracle_recall.h"
#include "tests/support/test_model.h"

namespace longshore {
namespace {

using Clock = RecallMonitor::Clock;

// Value of the line that begins with `name`; -1 where there is none.
double ValueOf(const std::string& text, const std::string& name) {
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    if (absl::StartsWith(line, name + " ")) {
      double value = 0;
      EXPECT_TRUE(absl::SimpleAtod(line.substr(name.size() + 1), &value)) << line;
      return value;
    }
  }
  return -1;
}

std::string TextOf(const prometheus::Registry& registry) {
  return prometheus::TextSerializer().Serialize(registry.Collect());
}

// What the oracle says of every step's kept mass: mean over heads and worst head, summed over
// steps.
struct ExpectedSums {
  double mean = 0;
  double worst = 0;
  double middle = 0;
};
ExpectedSums OracleSums(const Haystack& haystack, const AttentionPolicy& policy) {
  const oracle::Model model = OracleModel(PlainModel(), 0);
  const oracle::Policy told = OraclePolicy(policy, Phase::kDecode, 0);
  oracle::Layer layer(model, told, 0);
  layer.Append(haystack.context.k, haystack.context.v);
  std::vector<double> keys = haystack.context.k;
  ExpectedSums sums;
  for (const TokenRows& step : haystack.steps) {
    layer.Decode(layer.length(), step.q, step.k, step.v);
    keys.insert(keys.end(), step.k.begin(), step.k.end());
    const oracle::BlockTrace& block = layer.trace().back();
    const oracle::KeptMass mass = oracle::MassKept(
        model, told, {.middle_end = block.middle_end, .chosen = block.stages.back().chosen},
        {.position = block.last_position,
         .block_first = block.first_position,
         .queries = step.q,
         .keys = keys});
    for (int32_t head = 0; head < kHeads; ++head) {
      sums.mean += mass.all[static_cast<size_t>(head)] / kHeads;
      sums.middle += mass.middle[static_cast<size_t>(head)] / kHeads;
    }
    sums.worst += *std::min_element(mass.all.begin(), mass.all.end());
  }
  return sums;
}

v1::Tensor Wire(const std::vector<double>& values, int64_t rows, int64_t heads) {
  v1::Tensor tensor;
  tensor.set_dtype(v1::DTYPE_F32);
  for (const int64_t extent : {rows, heads, int64_t{kDepth}}) {
    tensor.add_shape(extent);
  }
  const std::vector<float> floats(values.begin(), values.end());
  tensor.mutable_inline_data()->assign(reinterpret_cast<const char*>(floats.data()),
                                       floats.size() * sizeof(float));
  return tensor;
}

template <typename Request>
Request WireStep(uint64_t session, int64_t position, const TokenRows& rows) {
  Request request;
  *request.add_items() = TestItem(session, position, static_cast<int32_t>(rows.tokens));
  *request.mutable_k() = Wire(rows.k, rows.tokens, kKvHeads);
  *request.mutable_v() = Wire(rows.v, rows.tokens, kKvHeads);
  return request;
}

// A daemon that measures all that it can.
Config MonitoringConfig() {
  Config config = TestConfig();
  config.metrics_listen = {*ParseAddress("127.0.0.1:0")};
  config.engine.recall_sample_every = 1;
  config.recall_max_time_share = 1;
  return config;
}

std::string Scrape(TestServer* server) { return HttpGet((**server).metrics_port(), "/metrics"); }

// Scrapes until `count` blocks have been measured. A minute is longer than it ever takes.
std::string AwaitMeasured(TestServer* server, double count) {
  std::string text;
  for (const auto start = Clock::now(); Clock::now() - start < std::chrono::minutes(1);) {
    text = Scrape(server);
    if (ValueOf(text, "longshore_recall_samples_total{result=\"measured\"}") >= count) {
      return text;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  ADD_FAILURE() << "not measured in a minute:\n" << text;
  return text;
}

// A session with `policy` that holds the haystack's context.
uint64_t OpenHaystack(TestServer* server, const Haystack& haystack, const AttentionPolicy& policy) {
  v1::OpenSessionRequest open;
  *open.mutable_model() = ModelToWire(PlainModel());
  *open.mutable_policy()->mutable_policy() = PolicyToWire(policy);
  open.set_max_tokens(2 * kContext);
  const uint64_t session = server->Open(open);
  v1::AppendKVResponse appended;
  EXPECT_TRUE(
      server->Append(WireStep<v1::AppendKVRequest>(session, 0, haystack.context), &appended).ok());
  return session;
}

void DecodeStepOf(TestServer* server, uint64_t session, const Haystack& haystack, int64_t step) {
  const TokenRows& rows = haystack.steps[static_cast<size_t>(step)];
  auto request = WireStep<v1::DecodeStepRequest>(session, kContext + step, rows);
  *request.mutable_q() = Wire(rows.q, 1, kHeads);
  v1::DecodeStepResponse response;
  const grpc::Status status = server->Decode(request, &response);
  EXPECT_TRUE(status.ok()) << status.error_message();
}

// Steps through the haystack, each step measured before the next.
std::string RunHaystack(TestServer* server,
                        const Haystack& haystack,
                        const AttentionPolicy& policy) {
  const uint64_t session = OpenHaystack(server, haystack, policy);
  std::string text;
  for (int64_t step = 0; step < kSteps; ++step) {
    DecodeStepOf(server, session, haystack, step);
    text = AwaitMeasured(server, static_cast<double>(step + 1));
  }
  return text;
}

constexpr char kDecodeLabels[] = "age=\"0\",layers=\"rest\",phase=\"decode\"";

double SumOf(const std::string& text, const std::string& histogram) {
  return ValueOf(text, absl::StrCat(histogram, "_sum{", kDecodeLabels, "}"));
}

// Of the measured blocks, those with at most `share`.
double AtMost(const std::string& text, const std::string& histogram, const char* share) {
  return ValueOf(text, absl::StrCat(histogram, "_bucket{", kDecodeLabels, ",le=\"", share, "\"}"));
}

void ExpectSums(const std::string& text, const ExpectedSums& expected) {
  constexpr double kTolerance = 1e-4 * kSteps;
  EXPECT_NEAR(SumOf(text, "longshore_recall_mass_kept"), expected.mean, kTolerance);
  EXPECT_NEAR(SumOf(text, "longshore_recall_worst_head_mass_kept"), expected.worst, kTolerance);
  EXPECT_NEAR(SumOf(text, "longshore_recall_middle_kept"), expected.middle, kTolerance);
}

// One chunk of 8 tokens, for the head with the largest logits: the others starve.
TEST(RecallMonitor, ABadPolicyShows) {
  const Haystack haystack = MakeHaystack();
  const AttentionPolicy bad = Policy(1, Ranking::kScoreMax);
  TestServer server(MonitoringConfig());
  const std::string text = RunHaystack(&server, haystack, bad);
  EXPECT_EQ(AtMost(text, "longshore_recall_worst_head_mass_kept", "0.1"), kSteps) << text;
  EXPECT_EQ(AtMost(text, "longshore_recall_mass_kept", "0.5"), kSteps) << text;
  ExpectSums(text, OracleSums(haystack, bad));
}

TEST(RecallMonitor, AGoodPolicyShows) {
  const Haystack haystack = MakeHaystack();
  const AttentionPolicy good = Policy(8, Ranking::kProbability);
  TestServer server(MonitoringConfig());
  const std::string text = RunHaystack(&server, haystack, good);
  EXPECT_EQ(AtMost(text, "longshore_recall_worst_head_mass_kept", "0.97"), 0) << text;
  EXPECT_EQ(AtMost(text, "longshore_recall_worst_head_mass_kept", "+Inf"), kSteps) << text;
  ExpectSums(text, OracleSums(haystack, good));
  EXPECT_GT(ValueOf(text, "longshore_recall_seconds_total"), 0);
}

TEST(RecallMonitor, IsOffWhenAskedToBe) {
  Config config = MonitoringConfig();
  config.engine.recall_sample_every = 0;
  TestServer server(config);
  const uint64_t session = server.Open();
  v1::PrefillResponse prefilled;
  EXPECT_TRUE(server.Prefill(TestStep<v1::PrefillRequest>(session, 0, 64), &prefilled).ok());
  server.Describe(session);
  const std::string text = Scrape(&server);
  for (const char* result : {"measured", "dropped_busy", "dropped_gone", "dropped_large"}) {
    EXPECT_EQ(
        ValueOf(text, absl::StrCat("longshore_recall_samples_total{result=\"", result, "\"}")), 0);
  }
  EXPECT_EQ(ValueOf(text, "longshore_recall_seconds_total"), 0);
}

// The step has its answer by then, so nobody but the monitor meets the failure.
TEST(RecallMonitor, ADeviceThatFailsWhileItMeasuresEndsTheDaemon) {
  FakeDevice device;
  TestServer server(MonitoringConfig(), &device);
  const Haystack haystack = MakeHaystack();
  const uint64_t session = OpenHaystack(&server, haystack, Policy(1, Ranking::kScoreMax));
  device.Fail(FakeVerb::kAttend, absl::InternalError("burnt"), 1);
  DecodeStepOf(&server, session, haystack, 0);
  const auto start = Clock::now();
  while (!server.device_lost && Clock::now() - start < std::chrono::minutes(1)) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_TRUE(server.device_lost);
  const std::string ready = HttpGet((*server).metrics_port(), "/readyz");
  EXPECT_TRUE(absl::EndsWith(ready, "device lost\n")) << ready;
  v1::AppendKVResponse appended;
  const auto request = WireStep<v1::AppendKVRequest>(session, kContext + 1, haystack.steps[1]);
  EXPECT_EQ(ErrorOf(server.Append(request, &appended)).reason, "DEVICE_LOST");
}

// An engine with a session that has been sampled at `position` 600 and on, once a Step().
class MeasuredEngine {
 public:
  MeasuredEngine()
      : engine_(*Engine::Create({.pool_bytes = int64_t{64} << 20, .recall_sample_every = 1},
                                *MakeBackend({.name = "cpu", .threads = 1}))),
        session_(engine_.get(), TestSpec(PlainModel(), Policy(1, Ranking::kScoreMax), 4000)) {
    session_.Append(Rows(kContext));
  }
  void Step() { session_.Decode(Rows(1)); }
  Engine& engine() { return *engine_; }
  EngineSession& session() { return session_; }

 private:
  TokenRows Rows(int64_t rows) {
    return RandomTokens(PlainModel(), rows, ValueKind::kGaussian, &random_);
  }

  Random random_;
  std::unique_ptr<Engine> engine_;
  EngineSession session_;
};

TEST(RecallMonitor, RestsWhenNothingWaits) {
  MeasuredEngine measured;
  prometheus::Registry registry;
  RecallMonitor monitor(1.0, &registry);
  EXPECT_EQ(monitor.Work(measured.engine(), Clock::now()), Clock::time_point::max());
  measured.Step();
  Clock::time_point next{};
  while (next != Clock::time_point::max()) {
    next = monitor.Work(measured.engine(), std::max(next, Clock::now()));
  }
  EXPECT_EQ(ValueOf(TextOf(registry), "longshore_recall_samples_total{result=\"measured\"}"), 1);
}

// Whatever a slice takes on this machine: all of them together take their share and one slice more.
TEST(RecallMonitor, TakesItsShareOfTheTime) {
  constexpr double kShare = 0.01;
  MeasuredEngine measured;
  prometheus::Registry registry;
  RecallMonitor monitor(kShare, &registry);
  const Clock::time_point start{std::chrono::hours(1)};  // a clock of the test's own
  Clock::time_point now = start;
  double used = 0;
  double longest_slice = 0;
  for (int32_t call = 0; call < 300; ++call) {
    const Clock::time_point next = monitor.Work(measured.engine(), now);
    const double total = ValueOf(TextOf(registry), "longshore_recall_seconds_total");
    longest_slice = std::max(longest_slice, total - used);
    used = total;
    if (next == Clock::time_point::max()) {
      measured.Step();  // now something waits
    } else {
      EXPECT_GE(next, now);
      now = std::max(next, now + std::chrono::microseconds(1));
    }
    const double elapsed = std::chrono::duration<double>(now - start).count();
    ASSERT_LE(used, RecallMonitor::kSliceSeconds + kShare * elapsed + longest_slice);
  }
  EXPECT_GT(ValueOf(TextOf(registry), "longshore_recall_samples_total{result=\"measured\"}"), 3);
}

TEST(RecallMonitor, WhatWasDroppedIsCounted) {
  MeasuredEngine measured;
  prometheus::Registry registry;
  RecallMonitor monitor(1.0, &registry);
  for (int32_t step = 0; step < 3; ++step) {
    measured.Step();
  }
  ASSERT_TRUE(measured.engine().Truncate(measured.session().id(), 10).ok());
  monitor.Work(measured.engine(), Clock::now());
  const std::string text = TextOf(registry);
  EXPECT_EQ(ValueOf(text, "longshore_recall_samples_total{result=\"dropped_busy\"}"), 2);
  EXPECT_EQ(ValueOf(text, "longshore_recall_samples_total{result=\"dropped_gone\"}"), 1);
  EXPECT_EQ(ValueOf(text, "longshore_recall_samples_total{result=\"measured\"}"), 0);
}

// The engine says so from then on, to whoever owns it.
TEST(RecallMonitor, ADeviceThatFailsIsLeftAlone) {
  FakeDevice device;
  const auto engine = *Engine::Create({.pool_bytes = int64_t{64} << 20, .recall_sample_every = 1},
                                      std::make_unique<FakeBackend>(&device));
  EngineSession session(engine.get(), TestSpec(PlainModel(), Policy(1, Ranking::kScoreMax), 4000));
  const Haystack haystack = MakeHaystack();
  session.Append(haystack.context);
  session.Decode(haystack.steps[0]);
  prometheus::Registry registry;
  RecallMonitor monitor(1.0, &registry);
  device.Fail(FakeVerb::kAttend, absl::InternalError("lost"));
  EXPECT_EQ(monitor.Work(*engine, Clock::now()), Clock::time_point::max());
  EXPECT_EQ(engine->device_status().code(), absl::StatusCode::kInternal);
  const int64_t attends = device.attends();
  EXPECT_EQ(monitor.Work(*engine, Clock::now()), Clock::time_point::max());
  EXPECT_EQ(device.attends(), attends);
}

}  // namespace
}  // namespace longshore
