// longshorectl policy list | show NAME | explain POLICY: what the presets are, and what a policy
// does at a context. Needs no daemon.

#include <google/protobuf/text_format.h>

#include "client/cpp/ctl/commands.h"
#include "client/cpp/ctl/explain.h"
#include "client/cpp/ctl/options.h"
#include "client/cpp/ctl/text.h"
#include "client/cpp/src/convert.h"
#include "service/convert_policy.h"

namespace longshore::ctl {
namespace {

constexpr char kExplainDetails[] =
    "For decode and prefill and each group of layers: the stages with their candidates, what is\n"
    "attended to, the bytes that a step reads, and the memory of the session. Bytes are those of\n"
    "keys, values and key summaries, each counted once a step.\n"
    "\n"
    "  fresh    the step that runs every stage    cached  the one before, on what they kept\n"
    "  average  over all steps between            dense   what the policy dense reads\n"
    "  all kept  there is nothing to choose, so nothing is scored\n"
    "\n"
    "In prefill a stage runs once for the rows that share its choice: its column reads is one "
    "run,\n"
    "of which each query block is charged an equal part. Of descent the bytes are an upper bound.";

struct ExplainOptions {
  std::string policy;
  ModelOptions model;
  int64_t context = 0;
  std::optional<int64_t> max_tokens;
  std::optional<int64_t> dense_below;
  bool json = false;
};

absl::StatusOr<int> List(bool json) {
  std::vector<std::vector<std::string>> rows = {{"preset", "decode"}};
  Json all = Json::array();
  for (const std::string& name : PresetNames()) {
    const std::string line = PolicyLine(PolicyToWire(*PresetPolicy(name)));
    rows.push_back({name, line});
    all.push_back({{"name", name}, {"decode", line}});
  }
  if (json) {
    PrintJson(all);
  } else {
    Print(Table(rows, {"preset", "decode"}));
  }
  return kExitOk;
}

absl::StatusOr<int> Show(const std::string& name) {
  ASSIGN_OR_RETURN(const AttentionPolicy policy, PresetPolicy(name));
  std::string text;
  google::protobuf::TextFormat::PrintToString(PolicyToWire(policy), &text);
  Print("# proto-message: longshore.v1.AttentionPolicy\n" + text);
  return kExitOk;
}

absl::StatusOr<int> RunExplain(const ExplainOptions& options) {
  ASSIGN_OR_RETURN(const client::Policy policy, PolicyOf(options.policy, options.dense_below));
  ASSIGN_OR_RETURN(const v1::PolicySpec wire, client::ToWire(policy));
  ASSIGN_OR_RETURN(const client::ModelShape model, options.model.Shape());
  const EngineOptions limits;
  ASSIGN_OR_RETURN(
      const SessionSpec spec,
      MakeSpec(client::ToWire(model), wire, options.max_tokens.value_or(options.context), limits));
  ASSIGN_OR_RETURN(const Explanation explanation,
                   Explain(options.policy, spec, options.context, limits));
  if (options.json) {
    PrintJson(ExplanationJson(explanation));
  } else {
    Print(ExplanationText(explanation));
  }
  return kExitOk;
}

void AddExplain(CommandLine& policy) {
  const auto options = std::make_shared<ExplainOptions>();
  CommandLine command = policy.Command(
      "explain", "stages, tokens and bytes of a step, and a session's memory", kExplainDetails);
  command.AddArgument("POLICY", &options->policy, kPolicyHelp);
  command.AddRequired("context", &options->context, "tokens that every layer holds");
  command.Add("max-tokens", &options->max_tokens,
              "of the session; past the trained length it changes rotary ids (without: the "
              "context)");
  command.Add("dense-below", &options->dense_below, "replaces a preset's dense_below_tokens");
  options->model.AddTo(command);
  command.AddFlag("json", &options->json, kJsonHelp);
  command.Run([options] { return RunExplain(*options); });
}

}  // namespace

void AddPolicy(CommandLine& root) {
  CommandLine policy =
      root.Command("policy", "presets, and what a policy reads at a context; needs no daemon");

  const auto json = std::make_shared<bool>(false);
  CommandLine list = policy.Command("list", "the presets, and what decode does in a line each");
  list.AddFlag("json", json.get(), kJsonHelp);
  list.Run([json] { return List(*json); });

  const auto name = std::make_shared<std::string>();
  CommandLine show = policy.Command("show", "a preset in full, as protobuf text to change");
  show.AddArgument("NAME", name.get(), "as `policy list` has it");
  show.Run([name] { return Show(*name); });

  AddExplain(policy);
}

}  // namespace longshore::ctl
