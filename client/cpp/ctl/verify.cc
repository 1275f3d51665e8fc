// longshorectl verify: a policy's attention against dense attention on the same data.

#include <algorithm>
#include <cmath>
#include <optional>

#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>

#include "client/cpp/ctl/commands.h"
#include "client/cpp/ctl/json.h"
#include "client/cpp/ctl/options.h"
#include "client/cpp/ctl/reference_attention.h"
#include "client/cpp/ctl/text.h"
#include "client/cpp/ctl/token_data.h"
#include "engine/core/status.h"

namespace longshore::ctl {
namespace {

constexpr int64_t kAppendRows = 1024;        // a message's worth
constexpr int64_t kLongestReference = 8192;  // fp64 attention is plain loops
constexpr char kDense[] = "dense";

struct VerifyOptions {
  DaemonOptions daemon;
  ModelOptions model;
  std::string policy = "standard";
  int64_t context = 0;
  int64_t rows = 64;
  int64_t steps = 32;
  std::string data;
  int64_t seed = 1;
  std::optional<double> max_error;
  std::optional<double> min_mass;
  std::optional<double> min_worst_mass;
  bool json = false;
};

// Attention of some rows: out [rows, heads, head_dim], log-sum-exp [rows, heads].
struct Rows {
  std::vector<double> out;
  std::vector<double> log_sum_exp;

  void Add(const std::vector<float>& more_out, const std::vector<float>& more_lse) {
    out.insert(out.end(), more_out.begin(), more_out.end());
    log_sum_exp.insert(log_sum_exp.end(), more_lse.begin(), more_lse.end());
  }
};

// One layer in one phase.
struct Comparison {
  int32_t layer = 0;
  const char* phase = "";
  double error = 0;       // |out - dense out| / |dense out|, over all rows
  double mass = 0;        // exp(lse - dense lse): mean over rows and heads
  double worst_head = 0;  // the smallest mean over rows of one head
  double lse_error = 0;   // the largest |lse - dense lse|
};

Comparison Compare(int32_t layer,
                   const char* phase,
                   const Rows& got,
                   const Rows& dense,
                   int32_t num_heads) {
  double difference = 0;
  double norm = 0;
  for (size_t element = 0; element < dense.out.size(); ++element) {
    difference += std::pow(got.out[element] - dense.out[element], 2);
    norm += std::pow(dense.out[element], 2);
  }
  Comparison result{.layer = layer, .phase = phase, .error = std::sqrt(difference / norm)};
  std::vector<double> heads(static_cast<size_t>(num_heads));
  for (size_t at = 0; at < dense.log_sum_exp.size(); ++at) {
    const double delta = got.log_sum_exp[at] - dense.log_sum_exp[at];
    heads[at % heads.size()] += std::exp(delta);
    result.lse_error = std::max(result.lse_error, std::abs(delta));
  }
  const size_t rows = dense.log_sum_exp.size() / heads.size();
  for (double& head : heads) {
    head /= static_cast<double>(rows);
    result.mass += head / num_heads;
  }
  result.worst_head = *std::min_element(heads.begin(), heads.end());
  return result;
}

// What a layer of one session answers to the last rows of the context and the steps after them.
struct Answers {
  Rows prefill;
  Rows decode;
};

absl::StatusOr<Answers> Ask(client::Session& session,
                            const TokenData& data,
                            int32_t layer,
                            const VerifyOptions& options) {
  const client::StepOptions with_lse{.log_sum_exp = true, .call = options.daemon.call()};
  const int64_t before = options.context - options.rows;
  for (int64_t begin = 0; begin < before; begin += kAppendRows) {
    ASSIGN_OR_RETURN(const TokenRows tokens,
                     data.Rows(layer, begin, std::min(kAppendRows, before - begin)));
    RETURN_IF_ERROR(session.Append(layer, tokens.k, tokens.v, {.call = options.daemon.call()}));
  }
  Answers answers;
  ASSIGN_OR_RETURN(const TokenRows last, data.Rows(layer, before, options.rows));
  ASSIGN_OR_RETURN(const client::Attended prefilled,
                   session.Prefill(layer, last.q, last.k, last.v, with_lse));
  answers.prefill.Add(prefilled.out.ToFloats(), prefilled.log_sum_exp);
  for (int64_t step = 0; step < options.steps; ++step) {
    ASSIGN_OR_RETURN(const TokenRows next, data.Rows(layer, options.context + step, 1));
    ASSIGN_OR_RETURN(const client::Attended decoded,
                     session.Decode(layer, next.q, next.k, next.v, with_lse));
    answers.decode.Add(decoded.out.ToFloats(), decoded.log_sum_exp);
  }
  return answers;
}

// The same by fp64 attention in this process.
absl::StatusOr<Answers> AskReference(const client::ModelShape& model,
                                     const TokenData& data,
                                     int32_t layer,
                                     const VerifyOptions& options) {
  ReferenceAttention reference(model);
  ASSIGN_OR_RETURN(const TokenRows all, data.Rows(layer, 0, options.context + options.steps));
  reference.Append(all.k, all.v);
  const auto row_size = static_cast<size_t>(int64_t{model.num_heads} * model.head_dim);
  const auto attend = [&](int64_t begin, int64_t rows) {
    ReferenceAttention::Result result =
        reference.Attend(begin, std::span(all.q).subspan(static_cast<size_t>(begin) * row_size,
                                                         static_cast<size_t>(rows) * row_size));
    return Rows{std::move(result.out), std::move(result.log_sum_exp)};
  };
  return Answers{.prefill = attend(options.context - options.rows, options.rows),
                 .decode = attend(options.context, options.steps)};
}

absl::Status CheckOptions(const VerifyOptions& options, const client::ModelShape& model) {
  if (options.rows < 1 || options.rows > options.context) {
    return absl::InvalidArgumentError(
        absl::StrCat("--rows ", options.rows, " is not in 1..--context ", options.context));
  }
  if (options.steps < 1) {
    return absl::InvalidArgumentError(absl::StrCat("--steps ", options.steps, " is less than 1"));
  }
  if (options.policy == kDense && options.context > kLongestReference) {
    return absl::InvalidArgumentError(
        absl::StrCat("--context ", options.context, " is more than ", kLongestReference,
                     ", which fp64 attention in this process is for"));
  }
  if (options.policy == kDense && !model.layer_sliding_window.empty()) {
    return absl::InvalidArgumentError("fp64 attention in this process knows no sliding windows");
  }
  return absl::OkStatus();
}

// Beyond the trained length a policy may give out other rotary ids than dense: other scores, and
// log-sum-exps that do not compare.
bool SharesRotaryIds(const client::ModelShape& model, int64_t max_tokens) {
  return model.rope_tables.empty() || max_tokens <= model.rope_tables.front().trained_tokens;
}

absl::StatusOr<std::vector<Comparison>> Measure(const VerifyOptions& options,
                                                const client::ModelShape& model) {
  const int64_t max_tokens = options.context + options.steps;
  ASSIGN_OR_RETURN(const client::Policy policy, PolicyOf(options.policy, std::nullopt));
  ASSIGN_OR_RETURN(const TokenData data,
                   options.data.empty()
                       ? TokenData::Synthetic(model, static_cast<uint32_t>(options.seed))
                       : TokenData::FromFolder(options.data, model, max_tokens));
  ASSIGN_OR_RETURN(const client::Client daemon, options.daemon.Connect());
  const auto open = [&](const client::Policy& under) {
    return daemon.Open(model,
                       {.policy = under, .max_tokens = max_tokens, .name = "longshorectl verify"},
                       options.daemon.call());
  };
  std::vector<Comparison> comparisons;
  ASSIGN_OR_RETURN(client::Session session, open(policy));
  std::optional<client::Session> dense;
  if (options.policy != kDense) {
    ASSIGN_OR_RETURN(dense, open({.preset = kDense}));
  }
  for (int32_t layer = 0; layer < model.num_layers; ++layer) {
    ASSIGN_OR_RETURN(const Answers got, Ask(session, data, layer, options));
    ASSIGN_OR_RETURN(const Answers expected, dense.has_value()
                                                 ? Ask(*dense, data, layer, options)
                                                 : AskReference(model, data, layer, options));
    comparisons.push_back(
        Compare(layer, "prefill", got.prefill, expected.prefill, model.num_heads));
    comparisons.push_back(Compare(layer, "decode", got.decode, expected.decode, model.num_heads));
  }
  return comparisons;
}

// The thresholds that some comparison passes, in words.
std::vector<std::string> Passed(const VerifyOptions& options,
                                const std::vector<Comparison>& comparisons) {
  std::vector<std::string> passed;
  for (const Comparison& one : comparisons) {
    const std::string where = absl::StrCat("layer ", one.layer, " ", one.phase, ": ");
    if (options.max_error.has_value() && !(one.error <= *options.max_error)) {
      passed.push_back(
          absl::StrFormat("%serror %g is more than %g", where, one.error, *options.max_error));
    }
    if (options.min_mass.has_value() && !(one.mass >= *options.min_mass)) {
      passed.push_back(
          absl::StrFormat("%smass kept %g is less than %g", where, one.mass, *options.min_mass));
    }
    if (options.min_worst_mass.has_value() && !(one.worst_head >= *options.min_worst_mass)) {
      passed.push_back(absl::StrFormat("%smass kept by the worst head %g is less than %g", where,
                                       one.worst_head, *options.min_worst_mass));
    }
  }
  return passed;
}

void PrintComparisons(const VerifyOptions& options,
                      const std::vector<Comparison>& comparisons,
                      bool mass_compares) {
  Json layers = Json::array();
  std::vector<std::vector<std::string>> rows = {
      {"layer", "phase", "error", "mass kept", "worst head", "lse error"}};
  for (const Comparison& one : comparisons) {
    layers.push_back(
        {{"layer", one.layer},
         {"phase", one.phase},
         {"error", one.error},
         {"mass_kept", mass_compares ? Json(one.mass) : Json(nullptr)},
         {"worst_head_mass_kept", mass_compares ? Json(one.worst_head) : Json(nullptr)},
         {"log_sum_exp_error", mass_compares ? Json(one.lse_error) : Json(nullptr)}});
    const auto percent = [&](double share) {
      return mass_compares ? absl::StrFormat("%.2f %%", 100 * share) : "-";
    };
    rows.push_back({absl::StrCat(one.layer), one.phase, absl::StrFormat("%.3g", one.error),
                    percent(one.mass), percent(one.worst_head),
                    mass_compares ? absl::StrFormat("%.3g", one.lse_error) : "-"});
  }
  const char* judge = options.policy == kDense ? "fp64 attention" : kDense;
  if (options.json) {
    PrintJson({{"policy", options.policy},
               {"against", judge},
               {"context_tokens", options.context},
               {"rows", options.rows},
               {"steps", options.steps},
               {"layers", layers}});
    return;
  }
  Print(absl::StrCat(options.policy, " against ", judge, ": the last ", options.rows, " of ",
                     WithCommas(options.context), " tokens, then ", options.steps, " single ones\n",
                     Table(rows, {"phase"})));
  if (!mass_compares) {
    Print("no mass: beyond the trained length the two give out different rotary ids\n");
  }
}

absl::StatusOr<int> Verify(const VerifyOptions& options) {
  ASSIGN_OR_RETURN(const client::ModelShape model, options.model.Shape());
  RETURN_IF_ERROR(CheckOptions(options, model));
  const bool mass_compares = SharesRotaryIds(model, options.context + options.steps);
  if (!mass_compares && (options.min_mass.has_value() || options.min_worst_mass.has_value())) {
    return absl::InvalidArgumentError(
        "no mass can be compared beyond the trained length: leave out --min-mass and "
        "--min-worst-mass, or raise --trained-tokens");
  }
  ASSIGN_OR_RETURN(const std::vector<Comparison> comparisons, Measure(options, model));
  PrintComparisons(options, comparisons, mass_compares);
  const std::vector<std::string> passed = Passed(options, comparisons);
  for (const std::string& line : passed) {
    std::fprintf(stderr, "%s\n", line.c_str());
  }
  return passed.empty() ? kExitOk : kExitCheckFailed;
}

}  // namespace

void AddVerify(CommandLine& root) {
  const auto options = std::make_shared<VerifyOptions>();
  CommandLine command = root.Command(
      "verify", "a policy's attention against dense attention on the same data",
      "Opens a session with the policy and one with `dense`, appends the same context to both, "
      "and\n"
      "compares the attention of its last rows (prefill) and of single tokens after them "
      "(decode).\n"
      "\n"
      "  error       |out - dense out| / |dense out|\n"
      "  mass kept   exp(lse - dense lse): the share of dense attention that the policy looked "
      "at,\n"
      "              mean over rows and heads; worst head: of the head with the smallest\n"
      "\n"
      "--policy dense checks the daemon against fp64 attention computed here (up to 8192 tokens).\n"
      "Made-up data have something to find in them and nothing else of a text: to judge a policy,\n"
      "give a model's own (--data).");
  options->daemon.AddTo(command);
  command.AddRequired("context", &options->context, "tokens of each layer before the steps");
  command.Add("policy", &options->policy, kPolicyHelp);
  command.Add("rows", &options->rows, "of the context's end, that are attended by a prefill");
  command.Add("steps", &options->steps, "decode steps after it");
  command.Add("data", &options->data,
              "folder with q.f32, k.f32, v.f32: [layers, tokens, heads, head_dim] fp32, unrotated");
  command.Add("seed", &options->seed, "of made-up data");
  options->model.AddTo(command);
  command.Group("Thresholds: exit code 1 where one is passed");
  command.Add("max-error", &options->max_error, "of every layer and phase");
  command.Add("min-mass", &options->min_mass, "mass kept, 0 to 1");
  command.Add("min-worst-mass", &options->min_worst_mass, "mass kept by the worst head, 0 to 1");
  command.Group("Options");
  command.AddFlag("json", &options->json, kJsonHelp);
  command.Run([options] { return Verify(*options); });
}

}  // namespace longshore::ctl
