#include "service/html.h"

#include <algorithm>
#include <array>
#include <cmath>

#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>

namespace longshore::html {
namespace {

constexpr double kThousand = 1000;

// Three digits, whatever the size.
std::string ThreeDigits(double value) {
  const int decimals = value >= 100 ? 0 : (value >= 10 ? 1 : 2);
  return absl::StrFormat("%.*f", decimals, value);
}

std::string Grouped(double count) {
  std::string digits = absl::StrFormat("%.0f", count);
  for (auto end = static_cast<std::ptrdiff_t>(digits.size()) - 3; end > 0; end -= 3) {
    digits.insert(static_cast<size_t>(end), 1, ',');
  }
  return digits;
}

}  // namespace

std::string Escape(absl::string_view text) {
  std::string escaped;
  for (const char character : text) {
    switch (character) {
      case '&': escaped += "&amp;"; break;
      case '<': escaped += "&lt;"; break;
      case '>': escaped += "&gt;"; break;
      case '"': escaped += "&quot;"; break;
      case '\'': escaped += "&#39;"; break;
      default: {
        const auto byte = static_cast<unsigned char>(character);
        if (byte < ' ' || byte == 0x7f) {
          escaped += "\xef\xbf\xbd";
        } else {
          escaped += character;
        }
      }
    }
  }
  return escaped;
}

std::string Count(double count) {
  constexpr double kGroupedBelow = 1e6;
  constexpr std::array<const char*, 4> kUnits = {" M", " G", " T", " P"};
  if (count < kGroupedBelow) {
    return Grouped(count);
  }
  count /= kGroupedBelow;
  size_t unit = 0;
  for (; count >= kThousand - 0.5 && unit + 1 < kUnits.size(); ++unit) {
    count /= kThousand;
  }
  return ThreeDigits(count) + kUnits[unit];
}

std::string Bytes(double bytes) {
  constexpr double kStep = 1024;
  constexpr std::array<const char*, 5> kUnits = {" B", " KiB", " MiB", " GiB", " TiB"};
  size_t unit = 0;
  for (; bytes >= kStep - 0.5 && unit + 1 < kUnits.size(); ++unit) {
    bytes /= kStep;
  }
  return (unit == 0 ? Grouped(bytes) : ThreeDigits(bytes)) + kUnits[unit];
}

std::string Seconds(double seconds) {
  constexpr double kMicro = 1e-6;
  constexpr double kMilli = 1e-3;
  if (seconds < kMilli) {
    return absl::StrFormat("%.0f µs", seconds / kMicro);
  }
  return seconds < 1 ? ThreeDigits(seconds / kMilli) + " ms" : ThreeDigits(seconds) + " s";
}

std::string Duration(double seconds) {
  constexpr int64_t kMinute = 60;
  constexpr int64_t kHour = 60 * kMinute;
  constexpr int64_t kDay = 24 * kHour;
  const auto whole = static_cast<int64_t>(seconds);
  if (whole >= kDay) {
    return absl::StrCat(whole / kDay, " d ", whole % kDay / kHour, " h");
  }
  if (whole >= kHour) {
    return absl::StrCat(whole / kHour, " h ", whole % kHour / kMinute, " min");
  }
  if (whole >= kMinute) {
    return absl::StrCat(whole / kMinute, " min ", whole % kMinute, " s");
  }
  return absl::StrCat(whole, " s");
}

std::string Percent(double part, double whole) {
  constexpr double kHundred = 100;
  return whole > 0 ? absl::StrFormat("%.1f %%", kHundred * part / whole) : "–";
}

std::string Bar(const std::vector<std::pair<double, const char*>>& shares) {
  std::string bar = R"(<span class="bar">)";
  for (const auto& [share, classes] : shares) {
    if (share > 0) {
      absl::StrAppendFormat(&bar, R"(<i class="%s" style="width:%.2f%%"></i>)", classes,
                            std::min(share, 1.0) * 100);
    }
  }
  return bar + "</span>";
}

std::string Columns(const Distribution& distribution) {
  constexpr int kWidth = 5;
  constexpr double kHeight = 22;
  double highest = 1;
  for (const Distribution::Bucket& bucket : distribution.buckets) {
    highest = std::max(highest, static_cast<double>(bucket.count));
  }
  const auto columns = static_cast<int>(distribution.buckets.size());
  std::string svg = absl::StrFormat(
      R"(<svg class="columns" width="%d" height="%.0f" viewBox="0 0 %d %.0f" role="img" )"
      R"(aria-label="distribution">)",
      kWidth * columns, kHeight, kWidth * columns, kHeight);
  for (int column = 0; column < columns; ++column) {
    const Distribution::Bucket& bucket = distribution.buckets[static_cast<size_t>(column)];
    const double share = std::sqrt(static_cast<double>(bucket.count) / highest);
    const double height = std::max(share * kHeight, bucket.count > 0 ? 2.0 : 1.0);
    const std::string bound = std::isinf(bucket.upper_bound)
                                  ? "more"
                                  : absl::StrCat("up to ", Seconds(bucket.upper_bound));
    absl::StrAppendFormat(&svg,
                          R"(<rect%s x="%d" y="%.1f" width="%d" height="%.1f">)"
                          "<title>%s: %s</title></rect>",
                          bucket.count > 0 ? "" : R"( class="none")", column * kWidth,
                          kHeight - height, kWidth - 1, height, bound,
                          Count(static_cast<double>(bucket.count)));
  }
  return svg + "</svg>";
}

std::string Table(const std::vector<std::string>& head,
                  const std::vector<std::vector<std::string>>& rows) {
  std::string table = R"(<div class="scroll"><table><thead><tr>)";
  for (const std::string& cell : head) {
    absl::StrAppend(&table, R"(<th scope="col">)", cell, "</th>");
  }
  table += "</tr></thead><tbody>";
  for (const std::vector<std::string>& row : rows) {
    table += "<tr>";
    for (size_t column = 0; column < row.size(); ++column) {
      absl::StrAppend(&table, column == 0 ? R"(<th scope="row">)" : "<td>", row[column],
                      column == 0 ? "</th>" : "</td>");
    }
    table += "</tr>\n";
  }
  return table + "</tbody></table></div>";
}

std::string Card(const char* classes,
                 absl::string_view title,
                 absl::string_view remark,
                 absl::string_view content) {
  return absl::StrCat(R"(<section class="card )", classes, R"("><h2>)", title, "<small>", remark,
                      "</small></h2>\n", content, "</section>\n");
}

}  // namespace longshore::html
