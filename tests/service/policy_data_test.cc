// The Python client knows presets and limits without a daemon, from files in its package. They are
// written here, from the engine, so that there is no second copy to keep:
// LONGSHORE_UPDATE_GOLDEN=1 build/release/tests/service_test --gtest_filter='PolicyData.*'

#include <set>
#include <string>
#include <vector>

#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include "engine/kv/page_pool.h"
#include "engine/session.h"
#include "service/config.h"
#include "service/convert_policy.h"
#include "tests/support/golden_file.h"

namespace longshore {
namespace {

constexpr char kFolder[] = "client/python/src/longshore/policy/data/";

std::string FileOf(const std::string& preset) { return absl::StrCat(preset, ".textproto"); }

std::string RenderPreset(const std::string& name) {
  std::string text;
  google::protobuf::TextFormat::PrintToString(PolicyToWire(*PresetPolicy(name)), &text);
  return absl::StrCat("# proto-file: longshore/v1/policy.proto\n",
                      "# proto-message: longshore.v1.AttentionPolicy\n",
                      "# Written from engine/presets.cc by tests/service/policy_data_test.cc.\n",
                      text);
}

// JSON: the presets in their order, and the numbers that decide whether a session is too large.
std::string RenderEngine() {
  const EngineOptions options = ResolveConfig({})->engine;
  const std::string presets = absl::StrJoin(PresetNames(), "\", \"");
  return absl::StrCat("{\n  \"presets\": [\"", presets, "\"],\n",
                      "  \"max_tokens_per_session\": ", options.max_tokens_per_session,
                      ",\n  \"max_rows_per_prefill\": ", options.max_rows_per_prefill,
                      ",\n  \"max_table_bytes\": ", options.max_table_bytes,
                      ",\n  \"max_score_bytes\": ", options.max_score_bytes,
                      ",\n  \"max_page_bytes\": ", PagePool::kDefaultSlabBytes,
                      ",\n  \"layer_state_bytes\": ", sizeof(LayerState), "\n}\n");
}

TEST(PolicyData, PresetsAreTheEngines) {
  for (const std::string& name : PresetNames()) {
    ExpectGolden(kFolder + FileOf(name), RenderPreset(name));
  }
}

TEST(PolicyData, LimitsAreTheDaemonsDefaults) {
  ExpectGolden(absl::StrCat(kFolder, "engine.json"), RenderEngine());
}

TEST(PolicyData, NothingElseIsThere) {
  std::set<std::string> expected = {"engine.json"};
  for (const std::string& name : PresetNames()) {
    expected.insert(FileOf(name));
  }
  std::set<std::string> found;
  for (const auto& entry : std::filesystem::directory_iterator(SourceRoot() / kFolder)) {
    found.insert(entry.path().filename());
  }
  EXPECT_EQ(found, expected);
}

}  // namespace
}  // namespace longshore
