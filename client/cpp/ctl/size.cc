// longshorectl size: the memory that a session takes, by the engine's own formulas.

#include <absl/strings/str_cat.h>

#include "client/cpp/ctl/commands.h"
#include "client/cpp/ctl/explain.h"
#include "client/cpp/ctl/options.h"
#include "client/cpp/ctl/text.h"
#include "client/cpp/src/convert.h"
#include "engine/core/math.h"
#include "engine/engine.h"
#include "engine/kv/page_pool.h"
#include "engine/session_size.h"

namespace longshore::ctl {
namespace {

struct SizeOptions {
  std::string policy = "standard";
  ModelOptions model;
  int64_t context = 0;
  int64_t sessions = 1;
  bool json = false;
};

absl::StatusOr<int> Size(const SizeOptions& options) {
  ASSIGN_OR_RETURN(const client::Policy policy, PolicyOf(options.policy, std::nullopt));
  ASSIGN_OR_RETURN(const v1::PolicySpec wire, client::ToWire(policy));
  ASSIGN_OR_RETURN(const client::ModelShape model, options.model.Shape());
  if (options.sessions < 1 || options.sessions > 1000000) {
    return absl::InvalidArgumentError(
        absl::StrCat("--sessions ", options.sessions, " is not in 1..1000000"));
  }
  EngineOptions limits;
  // The question is what it would take, not what a daemon allows by default.
  limits.max_tokens_per_session = EngineOptions::kMaxTokens;
  limits.max_table_bytes = INT64_MAX;
  limits.max_score_bytes = INT64_MAX;
  ASSIGN_OR_RETURN(const SessionSpec spec,
                   MakeSpec(client::ToWire(model), wire, options.context, limits));
  const SessionMemory memory = MemoryOf(spec, limits);
  // A slab of the pool holds pages of one size; so does the last one, which may be part full.
  const int64_t slab = PagePool::kDefaultSlabBytes;
  const int64_t slab_pages = slab / PageBytes(spec.model);
  const int64_t pages = options.sessions * SessionPages(spec, limits);
  const int64_t pool_bytes = CeilDiv(pages, slab_pages) * slab;
  const int64_t summary_bytes = Engine::SummaryBytes(pool_bytes);
  if (options.json) {
    PrintJson({{"max_tokens", options.context},
               {"page_bytes", memory.page_bytes},
               {"summary_bytes", memory.summary_bytes},
               {"table_bytes", memory.table_bytes},
               {"sessions", options.sessions},
               {"pool_bytes", pool_bytes},
               {"pool_summary_bytes", summary_bytes}});
    return kExitOk;
  }
  const auto row = [](const char* what, int64_t bytes) {
    return std::vector<std::string>{what, ByteText(static_cast<double>(bytes)), WithCommas(bytes)};
  };
  const std::vector<std::vector<std::string>> rows = {
      {"a session for " + WithCommas(options.context) + " tokens", "", "bytes"},
      row("  pages, reserved in the host pool", memory.page_bytes),
      row("  key summaries, beside the pool (GPU memory where there is one)", memory.summary_bytes),
      row("  tables: rotary, page ids, masks", memory.table_bytes),
      {absl::StrCat("a daemon for ", options.sessions, " of them"), "", ""},
      row("  --pool-bytes, at least", pool_bytes),
      row("  and its key summaries", summary_bytes)};
  Print(Table(rows, {rows.front().front()}));
  return kExitOk;
}

}  // namespace

void AddSize(CommandLine& root) {
  const auto options = std::make_shared<SizeOptions>();
  CommandLine command = root.Command(
      "size", "host and GPU bytes of a session, by the engine's own formulas; needs no daemon",
      "Pages are reserved when a session is opened, unless it asks for overcommit. What a layer\n"
      "with a sliding window reserves follows from the rows of the largest call: counted here for\n"
      "a daemon with the default max_rows_per_prefill.");
  command.AddRequired("context", &options->context, "max_tokens of the session");
  command.Add("policy", &options->policy, kPolicyHelp);
  command.Add("sessions", &options->sessions, "of this size, that the pool is to hold");
  options->model.AddTo(command);
  command.AddFlag("json", &options->json, kJsonHelp);
  command.Run([options] { return Size(*options); });
}

}  // namespace longshore::ctl
