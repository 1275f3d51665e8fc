// longshorectl bench: latency of decode steps, as calls and on a stream.

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>

#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>

#include "client/cpp/ctl/commands.h"
#include "client/cpp/ctl/json.h"
#include "client/cpp/ctl/options.h"
#include "client/cpp/ctl/text.h"
#include "client/cpp/ctl/token_data.h"
#include "engine/core/status.h"

namespace longshore::ctl {
namespace {

constexpr int64_t kAppendRows = 1024;  // a message's worth

struct BenchOptions {
  DaemonOptions daemon;
  ModelOptions model;
  std::string query_dtype = "f32";
  std::string policy = "standard";
  int64_t context = 0;
  int64_t steps = 200;
  int64_t warmup = 20;
  int64_t seed = 1;
  bool json = false;
};

// One decode step's tensors, as they are sent.
struct Message {
  Encoded q, k, v;
};

// A session filled up to the context, and what is sent to it.
class DecodeBench {
 public:
  DecodeBench(const BenchOptions& options, const client::ModelShape& model)
      : options_(options),
        model_(model),
        data_(TokenData::Synthetic(model, static_cast<uint32_t>(options.seed))) {}

  absl::Status Fill(client::Session& session) const {
    for (int32_t layer = 0; layer < model_.num_layers; ++layer) {
      for (int64_t begin = 0; begin < options_.context; begin += kAppendRows) {
        ASSIGN_OR_RETURN(const TokenRows tokens,
                         data_.Rows(layer, begin, std::min(kAppendRows, options_.context - begin)));
        const Encoded k(tokens.k, model_.query_dtype);
        const Encoded v(tokens.v, model_.query_dtype);
        RETURN_IF_ERROR(
            session.Append(layer, k.view(), v.view(), {.call = options_.daemon.call()}));
      }
    }
    return absl::OkStatus();
  }

  // Steps of every layer in turn: seconds of each after the warm-up. `send` takes one step and
  // comes back with its answer.
  using Send = std::function<absl::Status(int32_t layer, const Message& message)>;
  absl::StatusOr<std::vector<double>> Time(const Send& send) const {
    std::vector<double> seconds;
    for (int64_t step = -options_.warmup; step < options_.steps; ++step) {
      const int64_t token = options_.context + options_.warmup + step;
      for (int32_t layer = 0; layer < model_.num_layers; ++layer) {
        ASSIGN_OR_RETURN(const TokenRows next, data_.Rows(layer, token, 1));
        const Message message{Encoded(next.q, model_.query_dtype),
                              Encoded(next.k, model_.query_dtype),
                              Encoded(next.v, model_.query_dtype)};
        const auto start = std::chrono::steady_clock::now();
        RETURN_IF_ERROR(send(layer, message));
        const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
        if (step >= 0) {
          seconds.push_back(took.count());
        }
      }
    }
    std::sort(seconds.begin(), seconds.end());
    return seconds;
  }

 private:
  const BenchOptions& options_;
  const client::ModelShape& model_;
  TokenData data_;
};

double Quantile(const std::vector<double>& sorted, double quantile) {
  const auto last = static_cast<double>(sorted.size() - 1);
  return sorted[static_cast<size_t>(std::lround(quantile * last))];
}

// The figures of one way to send.
class Report {
 public:
  Report(const BenchOptions& options, std::string shapes, std::string device)
      : options_(options),
        shapes_(std::move(shapes)),
        device_(std::move(device)) {}

  void Add(const std::string& way, const std::vector<double>& sorted) {
    if (!options_.json) {
      rows_.push_back({way, absl::StrCat(sorted.size()), SecondsText(Quantile(sorted, 0.5)),
                       SecondsText(Quantile(sorted, 0.99)), SecondsText(sorted.back())});
      return;
    }
    for (const auto& [name, quantile] : {std::pair("p50", 0.5), std::pair("p99", 0.99)}) {
      PrintJsonLine({{"id", absl::StrCat("ctl_decode_", way, "_", name)},
                     {"value", Quantile(sorted, quantile) * 1e6},
                     {"unit", "us"},
                     {"steps", sorted.size()},
                     {"device", device_},
                     {"shapes", shapes_}});
    }
  }

  void Print() const {
    if (!options_.json) {
      ctl::Print(absl::StrCat(shapes_, "; ", device_, "\n", Table(rows_, {"decode by"})));
    }
  }

 private:
  const BenchOptions& options_;
  std::string shapes_;
  std::string device_;
  std::vector<std::vector<std::string>> rows_ = {{"decode by", "steps", "p50", "p99", "longest"}};
};

std::string ShapesText(const BenchOptions& options, const client::ModelShape& model) {
  return absl::StrCat(model.num_layers, model.num_layers == 1 ? " layer, " : " layers, ",
                      model.num_heads, "/", model.num_kv_heads, " heads, ", model.head_dim,
                      " dims, ", client::NameOf(model.kv_dtype), " KV, ", options.context,
                      " tokens, batch 1, ", options.policy);
}

absl::StatusOr<client::ModelShape> ModelOf(const BenchOptions& options) {
  ASSIGN_OR_RETURN(client::ModelShape model, options.model.Shape());
  model.query_dtype = DTypeOf(options.query_dtype);
  return model;
}

absl::Status CheckOptions(const BenchOptions& options) {
  return options.context >= 1 && options.steps >= 1 && options.warmup >= 0
             ? absl::OkStatus()
             : absl::InvalidArgumentError(
                   absl::StrCat("--context ", options.context, " and --steps ", options.steps,
                                " must be 1 or more, --warmup ", options.warmup, " 0 or more"));
}

absl::StatusOr<std::vector<double>> TimeCalls(const DecodeBench& bench,
                                              const client::CallOptions& call,
                                              client::Session& session) {
  return bench.Time([&](int32_t layer, const Message& step) {
    return session.Decode(layer, step.q.view(), step.k.view(), step.v.view(), {.call = call})
        .status();
  });
}

// Each step is sent when the one before is answered.
absl::StatusOr<std::vector<double>> TimeStream(const DecodeBench& bench,
                                               const client::CallOptions& call,
                                               const client::Client& daemon,
                                               client::Session& session) {
  client::StepStream stream = daemon.StreamSteps();
  ASSIGN_OR_RETURN(std::vector<double> seconds,
                   bench.Time([&](int32_t layer, const Message& step) -> absl::Status {
                     ASSIGN_OR_RETURN(const client::StepStream::Tag tag,
                                      stream.Decode(session, layer, step.q.view(), step.k.view(),
                                                    step.v.view()));
                     return stream.Wait(tag, call.timeout).status();
                   }));
  RETURN_IF_ERROR(stream.Finish());
  return seconds;
}

absl::StatusOr<int> Bench(const BenchOptions& options) {
  RETURN_IF_ERROR(CheckOptions(options));
  ASSIGN_OR_RETURN(const client::ModelShape model, ModelOf(options));
  ASSIGN_OR_RETURN(const client::Policy policy, PolicyOf(options.policy, std::nullopt));
  ASSIGN_OR_RETURN(const client::Client daemon, options.daemon.Connect());
  const client::CallOptions call = options.daemon.call();
  ASSIGN_OR_RETURN(const client::ServerInfo info, daemon.Info(call));
  ASSIGN_OR_RETURN(client::Session session,
                   daemon.Open(model,
                               {.policy = policy,
                                .max_tokens = options.context + options.warmup + options.steps,
                                .name = "longshorectl bench"},
                               call));
  const DecodeBench bench(options, model);
  RETURN_IF_ERROR(bench.Fill(session));
  Report report(options, ShapesText(options, model),
                info.backends.empty() ? "" : info.backends.front().device);
  ASSIGN_OR_RETURN(const std::vector<double> unary, TimeCalls(bench, call, session));
  report.Add("unary", unary);
  RETURN_IF_ERROR(session.Truncate(options.context, call));  // the same tokens once more
  ASSIGN_OR_RETURN(const std::vector<double> streamed, TimeStream(bench, call, daemon, session));
  report.Add("stream", streamed);
  report.Print();
  return kExitOk;
}

}  // namespace

void AddBench(CommandLine& root) {
  const auto options = std::make_shared<BenchOptions>();
  CommandLine command = root.Command(
      "bench", "latency of decode at a shape and a context, as calls and on a stream",
      "Fills a session with made-up tokens, then sends single ones, layer by layer, each when the\n"
      "one before is answered. What is timed is a step from the client's call to its return, the\n"
      "tensors' copies included. With --json a line a figure, as tests/bench/record.py takes "
      "them.");
  options->daemon.AddTo(command);
  command.AddRequired("context", &options->context, "tokens of each layer before the steps");
  command.Add("policy", &options->policy, kPolicyHelp);
  command.Add("steps", &options->steps, "that are timed, of each layer");
  command.Add("warmup", &options->warmup, "steps before that are not");
  command.Add("seed", &options->seed, "of made-up data");
  options->model.AddTo(command);
  command.AddChoice("query-dtype", &options->query_dtype, {"f32", "bf16", "f16"},
                    "of q, of the output, and of k and v on the way");
  command.AddFlag("json", &options->json, kJsonHelp);
  command.Run([options] { return Bench(*options); });
}

}  // namespace longshore::ctl
