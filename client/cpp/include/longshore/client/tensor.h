#pragma once

#include <concepts>
#include <cstdint>
#include <ranges>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace longshore::client {

/// Element type of queries, keys, values and outputs.
enum class DType : uint8_t { kF32, kBf16, kF16 };

/// Bytes of one element.
constexpr int64_t SizeOf(DType dtype) { return dtype == DType::kF32 ? 4 : 2; }
constexpr const char* NameOf(DType dtype) {
  return dtype == DType::kF32 ? "f32" : dtype == DType::kBf16 ? "bf16" : "f16";
}

/// The upper half of an IEEE fp32 number.
struct Bf16 {
  uint16_t bits = 0;
};
/// IEEE fp16.
struct F16 {
  uint16_t bits = 0;
};

/// Exact.
float ToFloat(Bf16 value);
float ToFloat(F16 value);
/// To the nearest, ties to even; overflow becomes infinity, NaN stays NaN.
Bf16 ToBf16(float value);
F16 ToF16(float value);

template <typename T>
concept Element = std::same_as<T, float> || std::same_as<T, Bf16> || std::same_as<T, F16>;

template <Element T>
inline constexpr DType kDTypeOf = std::same_as<T, float>  ? DType::kF32
                                  : std::same_as<T, Bf16> ? DType::kBf16
                                                          : DType::kF16;

template <typename R>
concept ElementRange = std::ranges::contiguous_range<R> && std::ranges::sized_range<R> &&
    Element<std::remove_cv_t<std::ranges::range_value_t<R>>>;

/// Elements that the caller owns, dense and row-major: a span or a vector of float, Bf16 or F16.
/// Read while a call runs and not kept. The shape that is meant stands with each parameter.
class Values {
 public:
  Values() = default;
  template <ElementRange R>
  Values(const R& range)  // NOLINT(google-explicit-constructor): a span of one more kind
      : dtype_(kDTypeOf<std::remove_cv_t<std::ranges::range_value_t<R>>>),
        data_(std::ranges::data(range)),
        size_(static_cast<int64_t>(std::ranges::size(range))) {}

  DType dtype() const { return dtype_; }
  const void* data() const { return data_; }
  /// Elements.
  int64_t size() const { return size_; }
  int64_t bytes() const { return size_ * SizeOf(dtype_); }
  /// `size` elements from `begin` on; the caller keeps within bounds.
  Values Part(int64_t begin, int64_t size) const;

 private:
  DType dtype_ = DType::kF32;
  const void* data_ = nullptr;
  int64_t size_ = 0;
};

/// A result: dense, row-major, with its own memory.
class Tensor {
 public:
  Tensor() = default;
  /// `bytes` holds the product of `shape` elements.
  Tensor(DType dtype, std::vector<int64_t> shape, std::string bytes)
      : dtype_(dtype),
        shape_(std::move(shape)),
        bytes_(std::move(bytes)) {}

  DType dtype() const { return dtype_; }
  const std::vector<int64_t>& shape() const { return shape_; }
  /// Elements.
  int64_t size() const { return static_cast<int64_t>(bytes_.size()) / SizeOf(dtype_); }
  /// The bytes as they came, little-endian.
  const std::string& bytes() const { return bytes_; }
  /// The elements as they are; empty where T is not their type.
  template <Element T>
  std::span<const T> As() const {
    return kDTypeOf<T> == dtype_ ? std::span<const T>(reinterpret_cast<const T*>(bytes_.data()),
                                                      static_cast<size_t>(size()))
                                 : std::span<const T>();
  }
  /// The elements as floats, whatever their type.
  std::vector<float> ToFloats() const;

 private:
  DType dtype_ = DType::kF32;
  std::vector<int64_t> shape_;
  std::string bytes_;
};

}  // namespace longshore::client
