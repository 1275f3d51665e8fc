#include "client/cpp/ctl/text.h"

#include <algorithm>
#include <array>
#include <cstdio>

#include <absl/strings/ascii.h>
#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>
#include <absl/strings/str_join.h>
#include <absl/strings/strip.h>

namespace longshore::ctl {
namespace {

// Columns, as UTF-8 has them for the letters that are used here.
size_t Width(const std::string& cell) {
  return static_cast<size_t>(std::count_if(cell.begin(), cell.end(), [](char letter) {
    return (static_cast<unsigned char>(letter) & 0xC0U) != 0x80U;
  }));
}

}  // namespace

std::string WithCommas(int64_t number) {
  std::string text = absl::StrCat(number);
  const int64_t digits_from = number < 0 ? 1 : 0;
  for (int64_t at = static_cast<int64_t>(text.size()) - 3; at > digits_from; at -= 3) {
    text.insert(static_cast<size_t>(at), 1, ',');
  }
  return text;
}

std::string ByteText(double bytes) {
  constexpr std::array<const char*, 6> kUnits = {"bytes", "kB", "MB", "GB", "TB", "PB"};
  size_t unit = 0;
  while (bytes >= 999.5 && unit + 1 < kUnits.size()) {
    bytes /= 1000;
    ++unit;
  }
  const int digits = unit == 0 || bytes >= 99.95 ? 0 : bytes >= 9.995 ? 1 : 2;
  return absl::StrFormat("%.*f %s", digits, bytes, kUnits[unit]);
}

std::string SecondsText(double seconds) {
  constexpr std::array<const char*, 3> kUnits = {"us", "ms", "s"};
  double value = seconds * 1e6;
  size_t unit = 0;
  while (value >= 999.5 && unit + 1 < kUnits.size()) {
    value /= 1000;
    ++unit;
  }
  const int digits = value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2;
  return absl::StrFormat("%.*f %s", digits, value, kUnits[unit]);
}

std::string LayerText(std::span<const int32_t> layers) {
  std::vector<std::string> runs;
  for (size_t first = 0; first < layers.size();) {
    size_t last = first;
    while (last + 1 < layers.size() && layers[last + 1] == layers[last] + 1) {
      ++last;
    }
    runs.push_back(first < last ? absl::StrCat(layers[first], "-", layers[last])
                                : absl::StrCat(layers[first]));
    first = last + 1;
  }
  return absl::StrJoin(runs, ", ");
}

std::string LowerName(const std::string& name, const std::string& prefix) {
  return absl::AsciiStrToLower(absl::StripPrefix(name, prefix));
}

std::string Table(std::span<const std::vector<std::string>> rows,
                  const std::set<std::string>& to_left) {
  std::vector<size_t> widths(rows.front().size());
  for (const std::vector<std::string>& row : rows) {
    for (size_t column = 0; column < row.size(); ++column) {
      widths[column] = std::max(widths[column], Width(row[column]));
    }
  }
  std::string text;
  for (const std::vector<std::string>& row : rows) {
    std::string line;
    for (size_t column = 0; column < row.size(); ++column) {
      const std::string padding(widths[column] - Width(row[column]), ' ');
      const bool left = to_left.contains(rows.front()[column]);
      absl::StrAppend(&line, column == 0 ? "" : "  ", left ? row[column] : padding + row[column],
                      left ? padding : "");
    }
    absl::StripTrailingAsciiWhitespace(&line);
    absl::StrAppend(&text, line, "\n");
  }
  return text;
}

std::string Harmless(const std::string& text) {
  std::string shown;
  for (size_t at = 0; at < text.size(); ++at) {
    const auto letter = static_cast<unsigned char>(text[at]);
    // U+0080 to U+009F are control characters, too: 0xC2 and a byte below 0xA0.
    const bool of_two =
        letter == 0xC2 && at + 1 < text.size() && static_cast<unsigned char>(text[at + 1]) < 0xA0;
    if (letter < 0x20 || letter == 0x7F || of_two) {
      shown += "\xEF\xBF\xBD";
      at += of_two ? 1 : 0;
    } else {
      shown += text[at];
    }
  }
  return shown;
}

void Print(const std::string& text) { std::fputs(text.c_str(), stdout); }

}  // namespace longshore::ctl
