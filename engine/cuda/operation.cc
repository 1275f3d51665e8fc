#include "engine/cuda/operation.h"

#include <algorithm>

namespace longshore::cuda {
namespace {

bool IsOfOneKind(const Operation& left, const Operation& right) {
  return left.kernel == right.kernel && left.shape.threads == right.shape.threads &&
         left.shape.shared_bytes == right.shape.shared_bytes &&
         left.argument.size() == right.argument.size();
}

bool IsSame(const Operation& left, const Operation& right) {
  const dim3& grid = left.shape.grid;
  const dim3& other = right.shape.grid;
  return grid.x == other.x && grid.y == other.y && grid.z == other.z &&
         left.argument == right.argument && left.from == right.from && left.to == right.to &&
         left.bytes == right.bytes;
}

}  // namespace

bool AreOfOneKind(std::span<const Operation> left, std::span<const Operation> right) {
  return std::equal(left.begin(), left.end(), right.begin(), right.end(), IsOfOneKind);
}

std::vector<size_t> Differences(std::span<const Operation> left, std::span<const Operation> right) {
  std::vector<size_t> differences;
  for (size_t index = 0; index < left.size(); ++index) {
    if (!IsSame(left[index], right[index])) {
      differences.push_back(index);
    }
  }
  return differences;
}

}  // namespace longshore::cuda
