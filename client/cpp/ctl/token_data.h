#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <absl/status/statusor.h>

#include "longshore/client/model_shape.h"
#include "longshore/client/tensor.h"

namespace longshore::ctl {

/// Queries, keys and values of some tokens of a layer, unrotated.
struct TokenRows {
  int64_t rows = 0;
  std::vector<float> q;  ///< [rows, num_heads, head_dim]
  std::vector<float> k;  ///< [rows, num_kv_heads, head_dim]
  std::vector<float> v;  ///< as k
};

/// The tokens that a measurement sends: given in files, or made up.
///
/// Made-up keys come in groups of 16 tokens that are alike, as a text's are, and the queries of 64
/// tokens in a row look for one group before them, so that there is something to find. The same for
/// the same seed, whatever the order in which rows are asked for.
class TokenData {
 public:
  /// A folder with q.f32, k.f32 and v.f32: [num_layers, tokens, heads, head_dim] little-endian
  /// fp32. NOT_FOUND without them, INVALID_ARGUMENT where they are shorter than `tokens`.
  static absl::StatusOr<TokenData> FromFolder(const std::string& folder,
                                              const client::ModelShape& model,
                                              int64_t tokens);
  static TokenData Synthetic(const client::ModelShape& model, uint32_t seed);

  /// Tokens [begin, begin + count) of a layer.
  absl::StatusOr<TokenRows> Rows(int32_t layer, int64_t begin, int64_t count) const;

 private:
  TokenData(client::ModelShape model, std::string folder, int64_t file_tokens, uint32_t seed);
  TokenRows MakeUp(int32_t layer, int64_t begin, int64_t count) const;
  absl::Status Read(const char* name,
                    int32_t layer,
                    int64_t begin,
                    int64_t heads,
                    std::vector<float>* values) const;

  client::ModelShape model_;
  std::string folder_;  // empty: made up
  int64_t file_tokens_;
  uint32_t seed_;
};

/// Values in the type in which they are to be sent.
class Encoded {
 public:
  Encoded(const std::vector<float>& values, client::DType dtype);
  client::Values view() const;

 private:
  client::DType dtype_;
  std::vector<float> f32_;
  std::vector<client::Bf16> bf16_;
  std::vector<client::F16> f16_;
};

}  // namespace longshore::ctl
