#include "tests/support/host_tensor.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "engine/core/half.h"
#include "engine/core/status.h"

namespace longshore {
namespace {

constexpr int64_t kGuardBytes = 256;
constexpr std::byte kGuard{0xa5};

template <typename Element>
void Put(std::byte* to, Element element) {
  std::memcpy(to, &element, sizeof(element));
}

template <typename Element>
double Get(const std::byte* from) {
  Element element;
  std::memcpy(&element, from, sizeof(element));
  return double{ToFloat(element)};
}

// Doubles of the tests are sums of few bits or were drawn as floats: the detour over fp32 rounds
// nothing twice that matters.
void PutRounded(DType dtype, double value, std::byte* to) {
  const auto single = static_cast<float>(value);
  switch (dtype) {
    case DType::kF32: return Put(to, single);
    case DType::kBf16: return Put(to, ToBf16(single));
    case DType::kF16: return Put(to, ToF16(single));
    case DType::kF8E4M3: LONGSHORE_CHECK(false);
  }
}

double GetElement(DType dtype, const std::byte* from) {
  switch (dtype) {
    case DType::kF32: return Get<float>(from);
    case DType::kBf16: return Get<Bf16>(from);
    case DType::kF16: return Get<F16>(from);
    case DType::kF8E4M3: LONGSHORE_CHECK(false);
  }
  return 0.0;
}

}  // namespace

HostTensor::HostTensor(DType dtype, std::vector<int64_t> shape)
    : dtype_(dtype),
      shape_(std::move(shape)),
      elements_(1) {
  for (const int64_t extent : shape_) {
    elements_ *= extent;
  }
  storage_.resize(static_cast<size_t>(elements_ * SizeOf(dtype_) + kGuardBytes));
  std::fill(storage_.end() - kGuardBytes, storage_.end(), kGuard);
}

HostTensor::HostTensor(DType dtype, std::vector<int64_t> shape, std::span<const double> values)
    : HostTensor(dtype, std::move(shape)) {
  LONGSHORE_CHECK(std::ssize(values) == elements_);
  std::byte* to = storage_.data();
  for (const double value : values) {
    PutRounded(dtype_, value, to);
    to += SizeOf(dtype_);
  }
}

TensorRef HostTensor::Ref() {
  TensorRef ref;
  ref.data = storage_.data();
  ref.dtype = dtype_;
  ref.rank = static_cast<int32_t>(shape_.size());
  std::copy(shape_.begin(), shape_.end(), ref.shape.begin());
  return ref;
}

std::span<const std::byte> HostTensor::Bytes() const {
  return std::span(storage_).first(static_cast<size_t>(elements_ * SizeOf(dtype_)));
}

std::vector<double> HostTensor::Values() const {
  std::vector<double> values;
  values.reserve(static_cast<size_t>(elements_));
  for (int64_t element = 0; element < elements_; ++element) {
    values.push_back(GetElement(dtype_, storage_.data() + element * SizeOf(dtype_)));
  }
  return values;
}

bool HostTensor::GuardIsIntact() const {
  return std::all_of(storage_.end() - kGuardBytes, storage_.end(),
                     [](std::byte byte) { return byte == kGuard; });
}

}  // namespace longshore
