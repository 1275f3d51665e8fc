// An explanation as JSON and as a table, the same as the Python client's.

#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>
#include <absl/strings/str_join.h>
#include <absl/strings/str_split.h>

#include "client/cpp/ctl/explain.h"
#include "client/cpp/ctl/text.h"
#include "engine/core/dtype.h"

namespace longshore::ctl {
namespace {

std::string Bytes(int64_t bytes) { return ByteText(static_cast<double>(bytes)); }

std::string RankingName(const v1::AttentionPolicy& policy) {
  return LowerName(v1::Ranking_Name(policy.ranking()), "RANKING_");
}

std::string ExtensionName(const v1::AttentionPolicy& policy) {
  return LowerName(v1::Extension_Name(policy.extension()), "EXTENSION_");
}

Json ClockJson(const Clock& clock) {
  return {{"fresh", clock.fresh()}, {"cached", clock.cached()}, {"average", clock.average()}};
}

Json StageJson(const StageReads& stage) {
  return {{"selector", stage.selector},
          {"chunk_tokens", stage.chunk_tokens},
          {"candidates", stage.candidates},
          {"kept_chunks", stage.kept_chunks},
          {"keep_tokens", stage.keep_tokens},
          {"refresh_steps", stage.refresh_steps},
          {"rope", stage.rope},
          {"shared_rows", stage.shared_rows},
          {"read_bytes", stage.read_bytes}};
}

Json PhaseJson(const PhaseSteps& phase) {
  Json groups = Json::array();
  for (const LayerGroup& group : phase.groups) {
    Json stages = Json::array();
    for (const StageReads& stage : group.step.stages) {
      stages.push_back(StageJson(stage));
    }
    Json one = {{"layers", group.layers}, {"middle", group.middle}};
    one["trained_tokens"] =
        group.trained_tokens.has_value() ? Json(*group.trained_tokens) : Json(nullptr);
    one["rope"] = group.rope;
    one["step"] = {{"stages", stages},
                   {"sink", ClockJson(group.step.sink)},
                   {"selected", ClockJson(group.step.selected)},
                   {"window", ClockJson(group.step.window)},
                   {"attended", ClockJson(group.step.attended)},
                   {"read_bytes", ClockJson(group.step.read_bytes)}};
    one["dense_bytes"] = group.dense_bytes;
    groups.push_back(one);
  }
  return {{"rows", phase.rows}, {"groups", groups}};
}

// What it is when every stage has just run, and what it has become before the next time.
std::string Range(const Clock& clock) {
  const std::string fresh = WithCommas(clock.fresh());
  return clock.fresh() == clock.cached() ? fresh
                                         : absl::StrCat(fresh, "..", WithCommas(clock.cached()));
}

std::string MiddleText(const std::string& middle) {
  return middle == "stages"        ? "sink, window and what the stages keep"
         : middle == "dense"       ? "every token"
         : middle == "dense_below" ? "every token: the context is short (dense_below_tokens)"
         : middle == "none"        ? "sink and window"
                                   : "the model's sliding window, whatever the policy";
}

std::string StagesText(const std::vector<StageReads>& stages, bool decodes) {
  std::vector<std::vector<std::string>> rows = {
      {"stage", "selector", "chunk", "candidates", "keep", "kept", "refreshed", "rope", "reads"}};
  for (const StageReads& stage : stages) {
    const std::string every = decodes ? absl::StrCat("every ", stage.refresh_steps)
                                      : absl::StrCat("every ", stage.shared_rows, " rows");
    rows.push_back({absl::StrCat(rows.size() - 1), stage.selector, WithCommas(stage.chunk_tokens),
                    WithCommas(stage.candidates), WithCommas(stage.keep_tokens),
                    WithCommas(stage.kept_chunks * stage.chunk_tokens), every, stage.rope,
                    stage.kept_chunks == stage.candidates ? "all kept" : Bytes(stage.read_bytes)});
  }
  std::string text;
  const std::string table = Table(rows, {"stage", "selector", "refreshed", "rope"});
  for (const absl::string_view line : absl::StrSplit(table, '\n', absl::SkipEmpty())) {
    absl::StrAppend(&text, "    ", line, "\n");
  }
  return text;
}

// What the rows attend to, and how many tokens of each kind.
std::string AttendedText(const LayerStep& step) {
  std::vector<std::string> named;
  for (const auto& [name, clock] :
       {std::pair("sink", &step.sink), std::pair("selected", &step.selected),
        std::pair("window", &step.window)}) {
    if (clock->fresh() > 0 || clock->cached() > 0) {
      named.push_back(absl::StrCat(name, " ", Range(*clock)));
    }
  }
  const std::string sum = named.size() > 1 ? absl::StrJoin(named, " + ") + " = " : "";
  return sum + Range(step.attended);
}

std::string GroupText(const LayerGroup& group, bool decodes) {
  std::string text =
      absl::StrCat("  layer", group.layers.size() > 1 ? "s " : " ", LayerText(group.layers));
  if (group.trained_tokens.has_value()) {
    absl::StrAppend(&text, ", trained to ", WithCommas(*group.trained_tokens));
  }
  absl::StrAppend(&text, ": ", MiddleText(group.middle), "\n");
  const LayerStep& step = group.step;
  if (!step.stages.empty()) {
    absl::StrAppend(&text, StagesText(step.stages, decodes));
  }
  // Rows of a prefill: causally, and each to its own window.
  absl::StrAppend(&text, "    ", decodes ? "attends" : "its rows together attend", " to ",
                  AttendedText(step), " tokens, ids ", group.rope, "\n");
  const Clock& reads = step.read_bytes;
  absl::StrAppend(&text, "    a layer reads ", Bytes(reads.fresh()));
  if (reads.values.size() > 1) {
    absl::StrAppend(&text, " fresh, ", Bytes(reads.cached()), " cached, ",
                    ByteText(reads.average()), " on average");
  }
  absl::StrAppend(&text, "; dense ", Bytes(group.dense_bytes), "\n");
  return text;
}

std::string PhaseText(const std::string& title, const PhaseSteps& phase, bool decodes) {
  std::string text = absl::StrCat("\n", title, "\n");
  for (const LayerGroup& group : phase.groups) {
    absl::StrAppend(&text, GroupText(group, decodes));
  }
  const double average = phase.AverageBytes();
  const auto fresh = static_cast<double>(phase.FreshBytes());
  const auto dense = static_cast<double>(phase.DenseBytes());
  absl::StrAppend(&text, "  all layers read ", ByteText(average));
  if (fresh > average) {
    absl::StrAppend(&text, " on average, ", ByteText(fresh), " when every stage runs");
  }
  absl::StrAppend(&text, "; dense ", ByteText(dense));
  if (average < dense) {
    absl::StrAppendFormat(&text, " (%.1f times)", dense / average);
  }
  return text + "\n";
}

}  // namespace

Json ExplanationJson(const Explanation& it) {
  const ModelShape& model = it.spec.model;
  return {{"name", it.name},
          {"shape",
           {{"num_layers", model.num_layers},
            {"num_heads", model.num_heads},
            {"num_kv_heads", model.num_kv_heads},
            {"head_dim", model.head_dim},
            {"kv_dtype", NameOf(model.kv_dtype)}}},
          {"context_tokens", it.context_tokens},
          {"max_tokens", it.spec.max_tokens},
          {"sink_tokens", it.wire.sink_tokens()},
          {"ranking", RankingName(it.wire)},
          {"query_stride", it.wire.query_stride()},
          {"dense_below_tokens", it.wire.dense_below_tokens()},
          {"extension", ExtensionName(it.wire)},
          {"decode", PhaseJson(it.decode)},
          {"prefill", PhaseJson(it.prefill)},
          {"memory",
           {{"page_bytes", it.memory.page_bytes},
            {"summary_bytes", it.memory.summary_bytes},
            {"table_bytes", it.memory.table_bytes}}}};
}

std::string ExplanationText(const Explanation& it) {
  const ModelShape& model = it.spec.model;
  return absl::StrCat(
      it.name, " at ", WithCommas(it.context_tokens), " tokens of at most ",
      WithCommas(it.spec.max_tokens), "; ", model.num_layers, " layers, ", model.num_heads, "/",
      model.num_kv_heads, " heads of ", model.head_dim, ", ", NameOf(model.kv_dtype), "\nsink ",
      WithCommas(it.wire.sink_tokens()), ", ranking ", RankingName(it.wire), ", query_stride ",
      it.wire.query_stride(), ", dense_below_tokens ", WithCommas(it.wire.dense_below_tokens()),
      ", extension ", ExtensionName(it.wire), "\n",
      PhaseText("decode: a step of one token", it.decode, true),
      PhaseText(absl::StrCat("prefill: a query block of ", it.prefill.rows, " rows"), it.prefill,
                false),
      "\nhost memory of a session for ", WithCommas(it.spec.max_tokens), " tokens\n  pages ",
      Bytes(it.memory.page_bytes), " of the pool (", WithCommas(it.memory.page_bytes),
      " bytes)\n  beside the pool: key summaries ", Bytes(it.memory.summary_bytes), ", tables ",
      Bytes(it.memory.table_bytes), "\n");
}

std::string PolicyLine(const v1::AttentionPolicy& policy) {
  const v1::LayerPolicy& layers = policy.decode().rest();
  if (layers.middle() == v1::MIDDLE_DENSE) {
    return "every token";
  }
  std::vector<std::string> stages;
  std::vector<std::string> every;
  for (const v1::Stage& stage : layers.stages()) {
    stages.push_back(absl::StrCat(LowerName(v1::Selector_Name(stage.selector()), "SELECTOR_"), " ",
                                  stage.chunk_tokens(), " keep ", stage.keep_tokens()));
    every.push_back(absl::StrCat(stage.refresh_steps()));
  }
  const std::string pruning = stages.empty()
                                  ? ""
                                  : absl::StrCat(absl::StrJoin(stages, " -> "), ", every ",
                                                 absl::StrJoin(every, "/"), " steps; ");
  return absl::StrCat(pruning, "sink ", policy.sink_tokens(), ", window ", layers.window_tokens());
}

}  // namespace longshore::ctl
