#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <gtest/gtest.h>

#include "engine/backend.h"

namespace longshore {

/// `count` elements of device memory, once all that is queued is done.
template <typename Element>
std::vector<Element> ReadDevice(Backend* backend, const Element* from, int64_t count) {
  std::vector<Element> elements(static_cast<size_t>(count));
  const auto bytes = static_cast<int64_t>(sizeof(Element)) * count;
  EXPECT_TRUE(backend->Copy(elements.data(), from, bytes).ok());
  EXPECT_TRUE(backend->WaitForAll().ok());
  return elements;
}

/// `elements` in device memory.
template <typename Element>
void WriteDevice(Backend* backend, std::span<const Element> elements, Element* to) {
  EXPECT_TRUE(backend->Copy(to, elements.data(), static_cast<int64_t>(elements.size_bytes())).ok());
  EXPECT_TRUE(backend->WaitForAll().ok());
}

}  // namespace longshore
