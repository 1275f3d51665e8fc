#pragma once

#include <cstdint>

namespace longshore {

/// Element type of a tensor that crosses a boundary or lies in a page.
enum class DType : uint8_t { kF32, kBf16, kF16, kF8E4M3 };

/// Bytes of one element.
constexpr int64_t SizeOf(DType dtype) {
  switch (dtype) {
    case DType::kF32: return 4;
    case DType::kBf16:
    case DType::kF16: return 2;
    case DType::kF8E4M3: return 1;
  }
  return 0;
}

/// The largest finite number of a type.
constexpr float LargestOf(DType dtype) {
  switch (dtype) {
    case DType::kF32: return 0x1.fffffep127F;
    case DType::kBf16: return 0x1.fep127F;
    case DType::kF16: return 65504.0F;
    case DType::kF8E4M3: return 448.0F;
  }
  return 0.0F;
}

constexpr const char* NameOf(DType dtype) {
  switch (dtype) {
    case DType::kF32: return "f32";
    case DType::kBf16: return "bf16";
    case DType::kF16: return "f16";
    case DType::kF8E4M3: return "f8e4m3";
  }
  return "?";
}

}  // namespace longshore
