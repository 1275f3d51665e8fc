#include "engine/cuda/call_queue.h"

#include <span>

#include "engine/cuda/cuda_status.h"

namespace longshore::cuda {
namespace {

// Its thread blocks may start while those of the kernel before still run. Errors show in
// cudaGetLastError().
void LaunchNow(const void* kernel,
               const GridShape& shape,
               const void* argument,
               cudaStream_t stream) {
  cudaLaunchAttribute early = {};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = shape.grid;
  config.blockDim = dim3(static_cast<uint32_t>(shape.threads));
  config.dynamicSmemBytes = static_cast<size_t>(shape.shared_bytes);
  config.stream = stream;
  config.attrs = &early;
  config.numAttrs = 1;
  void* arguments[] = {const_cast<void*>(argument)};
  (void)cudaLaunchKernelExC(&config, kernel, arguments);
}

}  // namespace

Operation& CallQueue::Next() {
  if (waiting_ == operations_.size()) {
    operations_.emplace_back();
  }
  return operations_[waiting_++];
}

void CallQueue::Launch(const void* kernel,
                       const GridShape& shape,
                       const void* argument,
                       size_t bytes) {
  if (direct_) {
    LaunchNow(kernel, shape, argument, stream_);
    return;
  }
  Operation& operation = Next();
  const auto* begin = static_cast<const std::byte*>(argument);
  operation.kernel = kernel;
  operation.shape = shape;
  operation.argument.assign(begin, begin + bytes);
  operation.from = nullptr;
  operation.to = nullptr;
  operation.bytes = 0;
}

absl::Status CallQueue::Copy(std::byte* to, const std::byte* from, int64_t bytes) {
  Operation& operation = Next();
  operation.kernel = nullptr;
  operation.shape = GridShape{};
  operation.argument.clear();
  operation.from = from;
  operation.to = to;
  operation.bytes = bytes;
  if (direct_) {
    EnqueueWaiting();
    return LaunchStatus("copying to the device");
  }
  return absl::OkStatus();
}

void CallQueue::EnqueueWaiting() {
  for (const Operation& operation : std::span(operations_).first(waiting_)) {
    if (operation.kernel == nullptr) {
      (void)cudaMemcpyAsync(operation.to, operation.from, static_cast<size_t>(operation.bytes),
                            cudaMemcpyHostToDevice, stream_);
    } else {
      LaunchNow(operation.kernel, operation.shape, operation.argument.data(), stream_);
    }
  }
  waiting_ = 0;
}

cudaStream_t CallQueue::stream() {
  if (waiting_ > 0) {
    EnqueueWaiting();
    direct_ = true;
  }
  return stream_;
}

absl::Status CallQueue::EndCall() {
  direct_ = false;
  if (waiting_ == 0) {
    return LaunchStatus("launching");
  }
  ASSIGN_OR_RETURN(const bool replayed,
                   graphs_.Replay(std::span(operations_).first(waiting_), stream_));
  if (replayed) {
    waiting_ = 0;
  } else {
    EnqueueWaiting();
  }
  return LaunchStatus("launching");
}

}  // namespace longshore::cuda
