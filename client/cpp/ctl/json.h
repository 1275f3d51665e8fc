#pragma once

#include <nlohmann/json.hpp>

#include <cstdio>

namespace longshore::ctl {

/// Keys stay in the order in which they are set.
using Json = nlohmann::ordered_json;

/// Prints a value on lines of its own, as people can read it, too.
inline void PrintJson(const Json& value) {
  // Names come from clients: what is no UTF-8 is replaced, not thrown at the caller.
  std::puts(value.dump(1, ' ', false, Json::error_handler_t::replace).c_str());
}

/// Prints a value on one line.
inline void PrintJsonLine(const Json& value) {
  std::puts(value.dump(-1, ' ', false, Json::error_handler_t::replace).c_str());
}

}  // namespace longshore::ctl
