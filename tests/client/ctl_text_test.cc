#include <gtest/gtest.h>

#include "client/cpp/ctl/text.h"

namespace longshore::ctl {
namespace {

TEST(CtlText, Numbers) {
  EXPECT_EQ(WithCommas(0), "0");
  EXPECT_EQ(WithCommas(999), "999");
  EXPECT_EQ(WithCommas(1234567), "1,234,567");
  EXPECT_EQ(WithCommas(-123456), "-123,456");
  EXPECT_EQ(ByteText(999), "999 bytes");
  EXPECT_EQ(ByteText(1234567), "1.23 MB");
  EXPECT_EQ(ByteText(9999), "10.0 kB");
  EXPECT_EQ(ByteText(99960), "100 kB");
  EXPECT_EQ(SecondsText(0.00123), "1.23 ms");
  EXPECT_EQ(SecondsText(0.0000001), "0.10 us");
}

TEST(CtlText, LayersAsRanges) {
  EXPECT_EQ(LayerText(std::vector<int32_t>{0, 1, 2, 5}), "0-2, 5");
  EXPECT_EQ(LayerText(std::vector<int32_t>{3}), "3");
}

TEST(CtlText, TablesAlign) {
  const std::vector<std::vector<std::string>> rows = {{"name", "n"}, {"a", "10"}, {"ü", "5"}};
  EXPECT_EQ(Table(rows, {"name"}), "name   n\na     10\nü      5\n");
}

// A name that sets a terminal's title, one that clears its screen, and one that is fine.
TEST(CtlText, WhatOthersChoseMovesNoCursor) {
  EXPECT_EQ(Harmless("a\x1b]0;mine\x07"), "a\uFFFD]0;mine\uFFFD");
  EXPECT_EQ(Harmless("\xC2\x9B\x32J\r\n\x7F"), "\uFFFD2J\uFFFD\uFFFD\uFFFD");
  EXPECT_EQ(Harmless("\u00A0\u00FC \u6587"), "\u00A0\u00FC \u6587");
  EXPECT_EQ(Harmless("cut \xC2"), "cut \xC2");
}

}  // namespace
}  // namespace longshore::ctl
