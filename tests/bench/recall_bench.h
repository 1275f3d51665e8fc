#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>

#include "engine/engine.h"
#include "engine/make_backend.h"

namespace longshore {

/// Ends the benchmark.
[[noreturn]] inline void Die(const std::string& why) {
  std::fprintf(stderr, "%s\n", why.c_str());
  std::exit(1);  // NOLINT(concurrency-mt-unsafe): the only thread left
}

/// The value, or Die() with its error.
template <typename T>
T Must(absl::StatusOr<T> value) {
  if (!value.ok()) {
    Die(value.status().ToString());
  }
  return *std::move(value);
}

/// On the CPU; 0 threads: one a core.
inline std::unique_ptr<Engine> MakeEngine(const EngineOptions& options, int32_t threads) {
  return Must(Engine::Create(options, Must(MakeBackend({.name = "cpu", .threads = threads}))));
}

/// A line for record.py; `more`: further members, each with a comma before it.
inline void Print(const std::string& id, double value, const char* unit, const std::string& more) {
  std::printf("{\"id\": \"%s\", \"value\": %.6g, \"unit\": \"%s\"%s}\n", id.c_str(), value, unit,
              more.c_str());
  std::fflush(stdout);
}

/// [rows, heads, depth] at `data`, which only outputs change.
inline TensorRef Tensor(const void* data, DType dtype, int64_t rows, int32_t heads, int32_t depth) {
  return {
      .data = const_cast<void*>(data), .dtype = dtype, .rank = 3, .shape = {rows, heads, depth, 0}};
}

}  // namespace longshore
