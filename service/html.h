#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <absl/strings/string_view.h>

#include "service/metric_reader.h"

namespace longshore::html {

/// Text from anywhere as text of a document or of an attribute's value: what means something in
/// HTML is escaped, and control characters are shown as U+FFFD.
std::string Escape(absl::string_view text);

/// Numbers for people, three digits or so: "1,234", "12.3 M"; "1.50 GiB"; "840 µs", "1.20 ms";
/// "3 d 4 h"; "93.8 %", or a dash for a share of nothing.
std::string Count(double count);
std::string Bytes(double bytes);
std::string Seconds(double seconds);
std::string Duration(double seconds);
std::string Percent(double part, double whole);

/// A bar of parts, each a share of the whole and a CSS class; what is left stays empty.
std::string Bar(const std::vector<std::pair<double, const char*>>& shares);

/// A histogram as a row of columns, one a bucket, as high as the square root of its count: rare
/// values stay visible.
std::string Columns(const Distribution& distribution);

/// A table: cells are HTML already. The first column is text, the others are numbers.
std::string Table(const std::vector<std::string>& head,
                  const std::vector<std::vector<std::string>>& rows);

/// A part of the page with a title, and a remark beside it that may be empty.
std::string Card(const char* classes,
                 absl::string_view title,
                 absl::string_view remark,
                 absl::string_view content);

}  // namespace longshore::html
