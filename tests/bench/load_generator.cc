#include "tests/bench/load_generator.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include <google/rpc/error_details.pb.h>
#include <google/rpc/status.pb.h>

#include "longshore/v1/session.grpc.pb.h"

namespace longshore {
namespace {

constexpr int32_t kAppendRows = 4096;   // of a context, at once
constexpr int32_t kPrefillRows = 1024;  // of a prompt piece
constexpr std::chrono::seconds kDeadline{2};

double SecondsSince(LoadClock::time_point begin) {
  return std::chrono::duration<double>(LoadClock::now() - begin).count();
}

void Check(bool ok, const std::string& what) {
  if (!ok) {
    std::fprintf(stderr, "overload_bench: %s\n", what.c_str());
    std::exit(1);  // NOLINT(concurrency-mt-unsafe): nothing else runs that minds
  }
}

// [rows, heads, kLoadHeadDim] in bf16 of small numbers.
v1::Tensor MakeTensor(int32_t rows, int32_t heads) {
  v1::Tensor tensor;
  tensor.set_dtype(v1::DTYPE_BF16);
  for (const int32_t extent : {rows, heads, kLoadHeadDim}) {
    tensor.add_shape(extent);
  }
  std::string* data = tensor.mutable_inline_data();
  data->resize(static_cast<size_t>(rows) * static_cast<size_t>(heads * kLoadHeadDim) * 2);
  for (size_t element = 0; element < data->size() / 2; ++element) {
    (*data)[2 * element + 1] = static_cast<char>(0x3c + element % 3);
  }
  return tensor;
}

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

uint64_t OpenSession(v1::Sessions::Stub* sessions) {
  v1::OpenSessionRequest request;
  v1::ModelShape* model = request.mutable_model();
  model->set_num_layers(1);
  model->set_num_heads(kLoadHeads);
  model->set_num_kv_heads(kLoadKvHeads);
  model->set_head_dim(kLoadHeadDim);
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

template <typename Request>
Request MakeStep(uint64_t session, int32_t position, int32_t rows) {
  Request request;
  v1::StepItem* item = request.add_items();
  item->set_session_id(session);
  item->set_position(position);
  item->set_rows(rows);
  item->set_append_id(1);
  *request.mutable_k() = MakeTensor(rows, kLoadKvHeads);
  *request.mutable_v() = request.k();
  if constexpr (requires { request.mutable_q(); }) {
    *request.mutable_q() = MakeTensor(rows, kLoadHeads);
  }
  return request;
}

// A session with so many tokens.
uint64_t Begin(const std::shared_ptr<grpc::Channel>& channel, int32_t tokens) {
  const uint64_t session = OpenSession(v1::Sessions::NewStub(channel).get());
  const auto attention = v1::Attention::NewStub(channel);
  for (int32_t position = 0; position < tokens; position += kAppendRows) {
    const int32_t rows = std::min(kAppendRows, tokens - position);
    grpc::ClientContext context;
    v1::AppendKVResponse response;
    const grpc::Status status = attention->AppendKV(
        &context, MakeStep<v1::AppendKVRequest>(session, position, rows), &response);
    Check(status.ok(), "a context is not taken: " + status.error_message());
  }
  return session;
}

std::shared_ptr<grpc::Channel> Connect(const std::string& target) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);  // a connection of its own
  arguments.SetMaxReceiveMessageSize(-1);
  return grpc::CreateCustomChannel(target, grpc::InsecureChannelCredentials(), arguments);
}

}  // namespace

void Counts::Count(Answer answer, LoadClock::duration elapsed) {
  ++answers_[static_cast<size_t>(answer)];
  if (answer == Answer::kServed) {
    const std::lock_guard lock(mutex_);
    served_ms_.push_back(std::chrono::duration<double, std::milli>(elapsed).count());
  }
}

double Counts::ServedMs(double share) {
  const std::lock_guard lock(mutex_);
  if (served_ms_.empty()) {
    return 0;
  }
  const auto place = static_cast<int64_t>(static_cast<double>(served_ms_.size() - 1) * share);
  std::nth_element(served_ms_.begin(), served_ms_.begin() + place, served_ms_.end());
  return served_ms_[static_cast<size_t>(place)];
}

LoadGenerator::LoadGenerator(const std::string& target, int32_t context) {
  for (int32_t index = 0; index < kLoadSessions; ++index) {
    const std::shared_ptr<grpc::Channel> channel = Connect(target);
    auto client = std::make_unique<Client>();
    client->stub = v1::Attention::NewStub(channel);
    client->request = MakeStep<v1::DecodeStepRequest>(Begin(channel, context), context, 1);
    idle_.push_back(client.get());
    clients_.push_back(std::move(client));
  }
}

bool LoadGenerator::Send(Counts* counts) {
  Client* client = nullptr;
  {
    const std::lock_guard lock(mutex_);
    if (idle_.empty()) {
      return false;
    }
    client = idle_.front();
    idle_.pop_front();
  }
  client->sent = LoadClock::now();
  client->context = std::make_unique<grpc::ClientContext>();
  client->context->set_deadline(std::chrono::system_clock::now() + kDeadline);
  client->stub->async()->DecodeStep(
      client->context.get(), &client->request, &client->response,
      [=, this](const grpc::Status& status) { Answered(client, status, counts); });
  return true;
}

void LoadGenerator::Answered(Client* client, const grpc::Status& status, Counts* counts) {
  const Answer answer = Classify(status);
  counts->Count(answer, LoadClock::now() - client->sent);
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

void LoadGenerator::AwaitIdle() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return idle_.size() == clients_.size(); });
}

double LoadGenerator::RunClosed(int32_t clients, LoadClock::duration time) {
  Counts counts;
  const LoadClock::time_point begin = LoadClock::now();
  const size_t out = static_cast<size_t>(clients);
  while (LoadClock::now() - begin < time) {
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

void LoadGenerator::RunOpen(double calls_per_second, LoadClock::duration time, Counts* counts) {
  constexpr std::chrono::milliseconds kTick{1};
  const LoadClock::time_point begin = LoadClock::now();
  int64_t due = 0;
  for (LoadClock::time_point tick = begin; tick - begin < time; tick += kTick) {
    std::this_thread::sleep_until(tick);
    const auto by_now = static_cast<int64_t>(SecondsSince(begin) * calls_per_second);
    for (; due < by_now; ++due) {
      counts->CountSent(Send(counts));
    }
  }
}

uint64_t BeginSession(const std::string& target, int32_t tokens) {
  return Begin(Connect(target), tokens);
}

void RunPrefills(const std::string& target,
                 uint64_t session,
                 int32_t position,
                 const std::atomic<bool>& stop) {
  const auto attention = v1::Attention::NewStub(Connect(target));
  const auto request = MakeStep<v1::PrefillRequest>(session, position, kPrefillRows);
  grpc::Status status;
  while (!stop && status.error_code() != grpc::StatusCode::UNAVAILABLE) {
    grpc::ClientContext context;
    v1::PrefillResponse response;
    status = attention->Prefill(&context, request, &response);
    if (!status.ok()) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));  // the line is full
    }
  }
}

}  // namespace longshore
