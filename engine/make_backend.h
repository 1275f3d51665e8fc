#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "engine/backend.h"

namespace longshore {

struct BackendOptions {
  std::string name = "cpu";  ///< "cpu", or "cuda" where it is built
  int32_t threads =
      0;  ///< CPU threads that compute; 0: one for each core that this process may use
};

/// The one place that knows every backend. InvalidArgument lists the names that were built.
absl::StatusOr<std::unique_ptr<Backend>> MakeBackend(const BackendOptions& options);

}  // namespace longshore
