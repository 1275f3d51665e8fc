#pragma once

namespace longshore {

/// Both come from CMake (service/CMakeLists.txt).
inline constexpr char kVersion[] = LONGSHORE_VERSION;
inline constexpr char kBuildType[] = LONGSHORE_BUILD_TYPE;

}  // namespace longshore
