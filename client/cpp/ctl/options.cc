#include "client/cpp/ctl/options.h"

#include <fstream>
#include <set>
#include <sstream>
#include <utility>
#include <vector>

#include <absl/strings/match.h>
#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_split.h>

#include "engine/policy.h"

namespace longshore::ctl {
namespace {

// 0-4,6 -> {0, 1, 2, 3, 4, 6}; empty: all layers.
absl::StatusOr<std::set<int32_t>> ParseLayers(const std::string& text, int32_t num_layers) {
  std::set<int32_t> layers;
  const std::string list = text.empty() ? absl::StrCat("0-", num_layers - 1) : text;
  for (const absl::string_view part : absl::StrSplit(list, ',')) {
    const std::vector<std::string> ends = absl::StrSplit(part, '-');
    int32_t first = 0;
    int32_t last = 0;
    if (ends.size() > 2 || !absl::SimpleAtoi(ends.front(), &first) ||
        !absl::SimpleAtoi(ends.back(), &last) || first < 0 || first > last || last >= num_layers) {
      return absl::InvalidArgumentError(absl::StrCat("--sliding-layers ", list, ": \"", part,
                                                     "\" is no layer or range in 0-",
                                                     num_layers - 1));
    }
    for (int32_t layer = first; layer <= last; ++layer) {
      layers.insert(layer);
    }
  }
  return layers;
}

}  // namespace

void DaemonOptions::AddTo(CommandLine& command) {
  command.Group("Daemon");
  command.Add("target", &target, "where it listens: unix:/path or host:port");
  command.Add("timeout", &timeout_seconds, "seconds that a call may take");
  command.Group("Options");
}

absl::StatusOr<client::Client> DaemonOptions::Connect() const {
  return client::Client::Connect(target, {.retry = {.max_attempts = 2}});
}

void ModelOptions::AddTo(CommandLine& command) {
  command.Group("Model");
  command.Add("layers", &layers, "decoder layers");
  command.Add("heads", &heads, "query heads of a layer");
  command.Add("kv-heads", &kv_heads, "KV heads of a layer (0: as many)");
  command.Add("head-dim", &head_dim, "elements of a head");
  command.AddChoice("dtype", &dtype, {"f32", "bf16", "f16"}, "of keys and values");
  command.Add("trained-tokens", &trained_tokens,
              "length that the model was trained to (without: no rotary embedding)");
  command.Add("sliding-window", &sliding_window, "tokens that a query sees, itself included");
  command.Add("sliding-layers", &sliding_layers,
              "layers with that window, as 0-4,6-10 (without: all)");
  command.Group("Options");
}

absl::StatusOr<client::ModelShape> ModelOptions::Shape() const {
  client::ModelShape shape{.num_layers = layers,
                           .num_heads = heads,
                           .num_kv_heads = kv_heads == 0 ? heads : kv_heads,
                           .head_dim = head_dim,
                           .kv_dtype = DTypeOf(dtype)};
  if (trained_tokens.has_value()) {
    shape.rope_tables = {client::RopeTable::FromBase(10000.0, head_dim, *trained_tokens)};
  }
  if (sliding_window.has_value() && layers > 0) {
    const absl::StatusOr<std::set<int32_t>> sliding = ParseLayers(sliding_layers, layers);
    if (!sliding.ok()) {
      return sliding.status();
    }
    for (int32_t layer = 0; layer < layers; ++layer) {
      shape.layer_sliding_window.push_back(sliding->contains(layer) ? *sliding_window : 0);
    }
  } else if (!sliding_layers.empty()) {
    return absl::InvalidArgumentError(
        "--sliding-layers says which, --sliding-window says how far: give both");
  }
  return shape;
}

client::DType DTypeOf(const std::string& name) {
  return name == "bf16"  ? client::DType::kBf16
         : name == "f16" ? client::DType::kF16
                         : client::DType::kF32;
}

absl::StatusOr<client::Policy> PolicyOf(const std::string& name_or_file,
                                        std::optional<int64_t> dense_below_tokens) {
  client::Policy policy{.preset = name_or_file, .dense_below_tokens = dense_below_tokens};
  if (PresetPolicy(name_or_file).ok()) {
    return policy;
  }
  std::ifstream file(name_or_file);
  std::ostringstream text;
  text << file.rdbuf();
  if (!file.is_open() || text.str().empty()) {
    const bool is_path =
        absl::StrContains(name_or_file, "/") || absl::StrContains(name_or_file, ".");
    return is_path ? absl::NotFoundError("cannot read " + name_or_file)
                   : PresetPolicy(name_or_file).status();
  }
  policy.text = text.str();
  return policy;
}

}  // namespace longshore::ctl
