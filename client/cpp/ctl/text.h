#pragma once

#include <cstdint>
#include <set>
#include <span>
#include <string>
#include <vector>

namespace longshore::ctl {

/// 1234567 -> "1,234,567".
std::string WithCommas(int64_t number);

/// 1234567 -> "1.23 MB": three digits, decimal units.
std::string ByteText(double bytes);

/// 0.00123 -> "1.23 ms": three digits.
std::string SecondsText(double seconds);

/// {0, 1, 2, 5} -> "0-2, 5".
std::string LayerText(std::span<const int32_t> layers);

/// "SELECTOR_BOUNDS" without "SELECTOR_" in small letters.
std::string LowerName(const std::string& name, const std::string& prefix);

/// Rows of one width, the first one the heads: two blanks between columns, columns named in
/// `to_left` to the left, others to the right. Ends with a line break.
std::string Table(std::span<const std::vector<std::string>> rows,
                  const std::set<std::string>& to_left);

/// Text that somebody else chose, for a terminal: control characters, which could move its cursor
/// or worse, as U+FFFD.
std::string Harmless(const std::string& text);

/// Prints to stdout.
void Print(const std::string& text);

}  // namespace longshore::ctl
