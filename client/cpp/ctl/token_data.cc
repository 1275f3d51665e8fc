#include "client/cpp/ctl/token_data.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <random>
#include <utility>

#include <absl/strings/str_cat.h>

namespace longshore::ctl {
namespace {

constexpr int64_t kGroupTokens = 16;
constexpr int64_t kTopicTokens = 64;  // whose queries look for the same group
constexpr float kNoise = 0.5F;        // of a key around its group's
constexpr float kFocus = 1.5F;        // of a query on the group that it looks for

// Independent streams for what is drawn.
enum class Draw : uint32_t { kGroup, kKey, kValue, kQuery, kTopic };

std::mt19937 RandomOf(uint32_t seed, Draw draw, int32_t layer, int64_t index) {
  std::seed_seq sequence{seed, static_cast<uint32_t>(draw), static_cast<uint32_t>(layer),
                         static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32)};
  return std::mt19937(sequence);
}

void Fill(std::mt19937 random, float scale, std::span<float> values) {
  std::normal_distribution<float> normal(0.0F, scale);
  std::generate(values.begin(), values.end(), [&] { return normal(random); });
}

}  // namespace

TokenData::TokenData(client::ModelShape model,
                     std::string folder,
                     int64_t file_tokens,
                     uint32_t seed)
    : model_(std::move(model)),
      folder_(std::move(folder)),
      file_tokens_(file_tokens),
      seed_(seed) {}

TokenData TokenData::Synthetic(const client::ModelShape& model, uint32_t seed) {
  return {model, "", 0, seed};
}

absl::StatusOr<TokenData> TokenData::FromFolder(const std::string& folder,
                                                const client::ModelShape& model,
                                                int64_t tokens) {
  int64_t file_tokens = 0;
  for (const auto& [name, heads] :
       {std::pair("q", model.num_heads), std::pair("k", model.num_kv_heads),
        std::pair("v", model.num_kv_heads)}) {
    const std::string path = absl::StrCat(folder, "/", name, ".f32");
    std::error_code error;
    const auto bytes = static_cast<int64_t>(std::filesystem::file_size(path, error));
    if (error) {
      return absl::NotFoundError(absl::StrCat("cannot read ", path, ": ", error.message()));
    }
    const int64_t token_bytes = int64_t{4} * model.num_layers * heads * model.head_dim;
    const int64_t found = bytes / token_bytes;
    if (bytes % token_bytes != 0 || found < tokens || (file_tokens != 0 && found != file_tokens)) {
      return absl::InvalidArgumentError(absl::StrCat(path, " has ", bytes, " bytes, which are ",
                                                     found, " tokens of ", token_bytes, "; ",
                                                     std::max(tokens, file_tokens), " are needed"));
    }
    file_tokens = found;
  }
  return TokenData(model, folder, file_tokens, 0);
}

absl::StatusOr<TokenRows> TokenData::Rows(int32_t layer, int64_t begin, int64_t count) const {
  if (folder_.empty()) {
    return MakeUp(layer, begin, count);
  }
  TokenRows rows{.rows = count, .q = {}, .k = {}, .v = {}};
  const auto size = [&](int32_t heads) {
    return static_cast<size_t>(count * heads * model_.head_dim);
  };
  rows.q.resize(size(model_.num_heads));
  rows.k.resize(size(model_.num_kv_heads));
  rows.v.resize(size(model_.num_kv_heads));
  absl::Status status = Read("q", layer, begin, model_.num_heads, &rows.q);
  status.Update(Read("k", layer, begin, model_.num_kv_heads, &rows.k));
  status.Update(Read("v", layer, begin, model_.num_kv_heads, &rows.v));
  return status.ok() ? absl::StatusOr<TokenRows>(std::move(rows)) : status;
}

absl::Status TokenData::Read(const char* name,
                             int32_t layer,
                             int64_t begin,
                             int64_t heads,
                             std::vector<float>* values) const {
  const std::string path = absl::StrCat(folder_, "/", name, ".f32");
  std::ifstream file(path, std::ios::binary);
  file.seekg((layer * file_tokens_ + begin) * heads * model_.head_dim * 4);
  file.read(reinterpret_cast<char*>(values->data()),
            static_cast<std::streamsize>(values->size() * sizeof(float)));
  return file.good() ? absl::OkStatus() : absl::DataLossError("cannot read " + path);
}

TokenRows TokenData::MakeUp(int32_t layer, int64_t begin, int64_t count) const {
  const auto dim = static_cast<size_t>(model_.head_dim);
  const size_t kv_row = dim * static_cast<size_t>(model_.num_kv_heads);
  const size_t q_row = dim * static_cast<size_t>(model_.num_heads);
  const auto rows_of = [&](size_t row_size) {
    return std::vector<float>(static_cast<size_t>(count) * row_size);
  };
  TokenRows rows{.rows = count, .q = rows_of(q_row), .k = rows_of(kv_row), .v = rows_of(kv_row)};
  std::vector<float> group(kv_row);
  for (int64_t row = 0; row < count; ++row) {
    const int64_t token = begin + row;
    const std::span<float> key(&rows.k[static_cast<size_t>(row) * kv_row], kv_row);
    Fill(RandomOf(seed_, Draw::kKey, layer, token), kNoise, key);
    Fill(RandomOf(seed_, Draw::kGroup, layer, token / kGroupTokens), 1.0F, group);
    std::transform(key.begin(), key.end(), group.begin(), key.begin(), std::plus<>());
    Fill(RandomOf(seed_, Draw::kValue, layer, token), 1.0F,
         std::span(&rows.v[static_cast<size_t>(row) * kv_row], kv_row));

    const int64_t topic = token / kTopicTokens;
    const int64_t looks_for =  // a group up to the topic's first
        static_cast<int64_t>(RandomOf(seed_, Draw::kTopic, layer, topic)()) %
        (topic * kTopicTokens / kGroupTokens + 1);
    const std::span<float> query(&rows.q[static_cast<size_t>(row) * q_row], q_row);
    Fill(RandomOf(seed_, Draw::kQuery, layer, token), 1.0F, query);
    Fill(RandomOf(seed_, Draw::kGroup, layer, looks_for), 1.0F, group);
    for (size_t head = 0; head < static_cast<size_t>(model_.num_heads); ++head) {
      const size_t kv_head =
          head * static_cast<size_t>(model_.num_kv_heads) / static_cast<size_t>(model_.num_heads);
      for (size_t element = 0; element < dim; ++element) {
        query[head * dim + element] += kFocus * group[kv_head * dim + element];
      }
    }
  }
  return rows;
}

Encoded::Encoded(const std::vector<float>& values, client::DType dtype) : dtype_(dtype) {
  switch (dtype) {
    case client::DType::kF32: f32_ = values; break;
    case client::DType::kBf16:
      for (const float value : values) {
        bf16_.push_back(client::ToBf16(value));
      }
      break;
    case client::DType::kF16:
      for (const float value : values) {
        f16_.push_back(client::ToF16(value));
      }
      break;
  }
}

client::Values Encoded::view() const {
  switch (dtype_) {
    case client::DType::kF32: return f32_;
    case client::DType::kBf16: return bf16_;
    case client::DType::kF16: return f16_;
  }
  return {};
}

}  // namespace longshore::ctl
