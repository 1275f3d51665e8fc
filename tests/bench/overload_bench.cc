// How much of its capacity a daemon still serves when five times as much is asked of it. One JSON
// object on stdout; ends with 1 if a call was answered otherwise than it may be under load.
//
//   overload_bench TARGET DAEMON_PID SECONDS     tests/bench/overload.py starts the daemon for it
//
// Decode steps of many sessions, one call each at a time. First the capacity, by as many clients as
// the daemon's line holds, each of which sends its next step when the last is answered; then the
// same generator sends five times as many a second, whatever is answered, each with a deadline. A
// step that was refused or late is sent again when the session's turn comes: the same step, so that
// one that had been applied is a replay. Served is a step that was answered in time.

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <fstream>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <google/rpc/error_details.pb.h>
#include <google/rpc/status.pb.h>
#include <grpcpp/grpcpp.h>

#include "longshore/v1/attention.grpc.pb.h"
#include "longshore/v1/session.grpc.pb.h"

namespace longshore {
namespace {

constexpr int32_t kHeads = 32;
constexpr int32_t kKvHeads = 2;
constexpr int32_t kHeadDim = 64;
constexpr int32_t kContext = 4096;  // all of it attended to: a millisecond or two of one core
constexpr int32_t kSessions = 320;
constexpr int32_t kCapacityClients = 48;
constexpr int32_t kChannels = 8;
constexpr double kOverload = 5.0;
constexpr std::chrono::seconds kCapacityTime{10};  // at most
constexpr std::chrono::seconds kWarmUpTime{1};
constexpr std::chrono::seconds kDeadline{2};

using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

void Check(bool ok, const std::string& what) {
  if (!ok) {
    std::fprintf(stderr, "overload_bench: %s\n", what.c_str());
    std::exit(1);  // NOLINT(concurrency-mt-unsafe): nothing else runs that minds
  }
}

// [rows, heads, kHeadDim] in bf16 of small numbers.
v1::Tensor MakeTensor(int32_t rows, int32_t heads) {
  v1::Tensor tensor;
  tensor.set_dtype(v1::DTYPE_BF16);
  for (const int32_t extent : {rows, heads, kHeadDim}) {
    tensor.add_shape(extent);
  }
  std::string* data = tensor.mutable_inline_data();
  data->resize(static_cast<size_t>(rows) * static_cast<size_t>(heads * kHeadDim) * 2);
  for (size_t element = 0; element < data->size() / 2; ++element) {
    (*data)[2 * element + 1] = static_cast<char>(0x3c + element % 3);
  }
  return tensor;
}

enum class Answer : uint8_t { kServed, kFull, kLate, kOther };

// QUEUE_FULL with RetryInfo, a passed deadline, or what should not be.
Answer Classify(const grpc::Status& status) {
  if (status.ok()) {
    return Answer::kServed;
  }
  if (status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED) {
    return Answer::kLate;
  }
  google::rpc::Status details;
  details.ParseFromString(status.error_details());
  bool full = false;
  bool retry = false;
  for (const google::protobuf::Any& detail : details.details()) {
    google::rpc::ErrorInfo info;
    google::rpc::RetryInfo delay;
    full |= detail.UnpackTo(&info) && info.reason() == "QUEUE_FULL";
    retry |= detail.UnpackTo(&delay) && delay.has_retry_delay();
  }
  return full && retry ? Answer::kFull : Answer::kOther;
}

struct Counts {
  std::array<std::atomic<int64_t>, 4> answers = {};  // by Answer
  std::atomic<int64_t> sent = 0;
  std::atomic<int64_t> no_client = 0;  // calls that were due when every session had one out

  int64_t of(Answer answer) const { return answers[static_cast<size_t>(answer)]; }
};

// One session's next step, sent again until it is served.
struct Client {
  std::unique_ptr<v1::Attention::Stub> stub;
  v1::DecodeStepRequest request;
  v1::DecodeStepResponse response;
  std::unique_ptr<grpc::ClientContext> context;
};

// All sessions, and which of them have no call out.
class Generator {
 public:
  explicit Generator(const std::string& target);
  ~Generator() { AwaitIdle(); }

  /// Sends a call of a session that has none out; false if there is none.
  bool Send(Counts* counts);
  /// Keeps `clients` calls out for a time.
  double RunClosed(int32_t clients, Clock::duration time);
  /// Sends so many calls a second for a time, then waits for the last answers.
  void RunOpen(double calls_per_second, Clock::duration time, Counts* counts);
  void AwaitIdle();

 private:
  void Answered(Client* client, const grpc::Status& status, Counts* counts);

  std::vector<std::unique_ptr<Client>> clients_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Client*> idle_;
};

uint64_t OpenSession(v1::Sessions::Stub* sessions) {
  v1::OpenSessionRequest request;
  v1::ModelShape* model = request.mutable_model();
  model->set_num_layers(1);
  model->set_num_heads(kHeads);
  model->set_num_kv_heads(kKvHeads);
  model->set_head_dim(kHeadDim);
  model->set_query_dtype(v1::DTYPE_BF16);
  model->set_kv_dtype(v1::DTYPE_BF16);
  model->add_layer_rope_table(-1);
  request.mutable_policy()->set_preset("dense");
  request.set_max_tokens(1 << 17);
  request.set_overcommit(true);
  grpc::ClientContext context;
  v1::OpenSessionResponse response;
  const grpc::Status status = sessions->OpenSession(&context, request, &response);
  Check(status.ok(), "a session does not open: " + status.error_message());
  return response.session_id();
}

Generator::Generator(const std::string& target) {
  std::vector<std::shared_ptr<grpc::Channel>> channels;
  for (int32_t index = 0; index < kChannels; ++index) {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    channels.push_back(
        grpc::CreateCustomChannel(target, grpc::InsecureChannelCredentials(), arguments));
  }
  const auto sessions = v1::Sessions::NewStub(channels[0]);
  for (int32_t index = 0; index < kSessions; ++index) {
    auto client = std::make_unique<Client>();
    client->stub = v1::Attention::NewStub(channels[static_cast<size_t>(index % kChannels)]);
    v1::AppendKVRequest append;
    v1::StepItem* item = append.add_items();
    item->set_session_id(OpenSession(sessions.get()));
    item->set_rows(kContext);
    item->set_append_id(1);
    *append.mutable_k() = MakeTensor(kContext, kKvHeads);
    *append.mutable_v() = append.k();
    grpc::ClientContext context;
    v1::AppendKVResponse response;
    const grpc::Status status = client->stub->AppendKV(&context, append, &response);
    Check(status.ok(), "a context is not taken: " + status.error_message());

    *client->request.add_items() = *item;
    client->request.mutable_items(0)->set_position(kContext);
    client->request.mutable_items(0)->set_rows(1);
    *client->request.mutable_q() = MakeTensor(1, kHeads);
    *client->request.mutable_k() = MakeTensor(1, kKvHeads);
    *client->request.mutable_v() = MakeTensor(1, kKvHeads);
    idle_.push_back(client.get());
    clients_.push_back(std::move(client));
  }
}

bool Generator::Send(Counts* counts) {
  Client* client = nullptr;
  {
    const std::lock_guard lock(mutex_);
    if (idle_.empty()) {
      return false;
    }
    client = idle_.front();
    idle_.pop_front();
  }
  ++counts->sent;
  client->context = std::make_unique<grpc::ClientContext>();
  client->context->set_deadline(std::chrono::system_clock::now() + kDeadline);
  client->stub->async()->DecodeStep(
      client->context.get(), &client->request, &client->response,
      [=, this](const grpc::Status& status) { Answered(client, status, counts); });
  return true;
}

void Generator::Answered(Client* client, const grpc::Status& status, Counts* counts) {
  const Answer answer = Classify(status);
  ++counts->answers[static_cast<size_t>(answer)];
  if (answer == Answer::kServed) {
    client->request.mutable_items(0)->set_position(client->request.items(0).position() + 1);
  } else if (answer == Answer::kOther) {
    std::fprintf(stderr, "overload_bench: answered %d %s\n", status.error_code(),
                 status.error_message().c_str());
  }
  const std::lock_guard lock(mutex_);
  idle_.push_back(client);
  changed_.notify_all();
}

void Generator::AwaitIdle() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return idle_.size() == clients_.size(); });
}

double Generator::RunClosed(int32_t clients, Clock::duration time) {
  Counts counts;
  const Clock::time_point begin = Clock::now();
  const size_t out = static_cast<size_t>(clients);
  while (Clock::now() - begin < time) {
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return clients_.size() - idle_.size() < out; });
    }
    Send(&counts);
  }
  const double seconds = SecondsSince(begin);
  const auto served = static_cast<double>(counts.of(Answer::kServed));
  AwaitIdle();
  Check(counts.of(Answer::kOther) == 0, "a call failed while the capacity was measured");
  return served / seconds;
}

void Generator::RunOpen(double calls_per_second, Clock::duration time, Counts* counts) {
  constexpr std::chrono::milliseconds kTick{1};
  const Clock::time_point begin = Clock::now();
  int64_t due = 0;
  for (Clock::time_point tick = begin; tick - begin < time; tick += kTick) {
    std::this_thread::sleep_until(tick);
    const auto by_now = static_cast<int64_t>(SecondsSince(begin) * calls_per_second);
    for (; due < by_now; ++due) {
      counts->no_client += Send(counts) ? 0 : 1;
    }
  }
}

int64_t ResidentBytes(const std::string& pid) {
  std::ifstream statm("/proc/" + pid + "/statm");
  int64_t size = 0;
  int64_t resident = 0;
  statm >> size >> resident;
  return resident * 4096;
}

int Run(const std::string& target, const std::string& pid, std::chrono::seconds time) {
  Generator generator(target);
  generator.RunClosed(kCapacityClients, kWarmUpTime);
  const double capacity = generator.RunClosed(kCapacityClients, std::min(kCapacityTime, time));

  std::fputs("overload begins\n", stderr);
  std::atomic<bool> done = false;
  const int64_t before = ResidentBytes(pid);
  int64_t most = before;
  std::thread watch([&] {
    while (!done) {
      most = std::max(most, ResidentBytes(pid));
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
  });
  Counts counts;
  const Clock::time_point begin = Clock::now();
  generator.RunOpen(kOverload * capacity, time, &counts);
  const double seconds = SecondsSince(begin);
  const auto served = static_cast<double>(counts.of(Answer::kServed)) / seconds;
  generator.AwaitIdle();
  done = true;
  watch.join();
  std::printf(
      "{\"id\": \"overload_goodput_share\", \"value\": %.3f, \"unit\": \"share of capacity\", "
      "\"capacity_per_s\": %.0f, \"sent_per_s\": %.0f, \"served_per_s\": %.0f, \"queue_full\": "
      "%lld, \"late\": %lld, \"other\": %lld, \"no_client\": %lld, \"rss_growth_mib\": %.1f, "
      "\"seconds\": %.0f}\n",
      served / capacity, capacity, static_cast<double>(counts.sent) / seconds, served,
      static_cast<long long>(counts.of(Answer::kFull)),
      static_cast<long long>(counts.of(Answer::kLate)),
      static_cast<long long>(counts.of(Answer::kOther)), static_cast<long long>(counts.no_client),
      static_cast<double>(most - before) / (1 << 20), seconds);
  std::fflush(stdout);
  return counts.of(Answer::kOther) == 0 ? 0 : 1;
}

}  // namespace
}  // namespace longshore

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fputs("overload_bench TARGET DAEMON_PID SECONDS\n", stderr);
    return 2;
  }
  return longshore::Run(argv[1], argv[2], std::chrono::seconds(std::atoi(argv[3])));
}
