#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <string_view>

#include "tests/fuzz/target.h"

namespace longshore::fuzz {

/// Changes some field of a message, or of a message in it: to a value at the edge of its type, or
/// by a little; adds and removes elements of lists.
void MutateMessage(google::protobuf::Message* message, std::mt19937_64* random);

/// Makes a step that was changed anyhow into one that gets past the checks of its message: tensors
/// that fit the items' rows and the model of the first item's session, positions where its layers
/// end. Leaves other messages alone.
void RepairStep(google::protobuf::Message* message, std::mt19937_64* random);

/// Other bytes for a target, at most `max_size` of them; empty when there are none. Of bytes that
/// are a message of the target, a message mostly.
std::string Mutate(const Target& target,
                   std::string_view bytes,
                   size_t max_size,
                   std::mt19937_64* random);

}  // namespace longshore::fuzz
