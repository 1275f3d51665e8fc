#include "tests/fuzz/mutate.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "longshore/v1/attention.pb.h"
#include "service/convert_model.h"
#include "tests/fuzz/core.h"

namespace longshore::fuzz {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

constexpr int kMaxElements = 64;  // that a list grows to

int64_t Draw(std::mt19937_64* random, int64_t low, int64_t high) {
  return std::uniform_int_distribution<int64_t>(low, high)(*random);
}

// At an edge, small, near `value`, or anything.
int64_t DrawInteger(int64_t value, std::mt19937_64* random) {
  constexpr int64_t kEdges[] = {0,
                                -1,
                                63,
                                64,
                                65,
                                1024,
                                std::numeric_limits<int32_t>::max(),
                                std::numeric_limits<int32_t>::min(),
                                std::numeric_limits<int64_t>::max(),
                                std::numeric_limits<int64_t>::min()};
  switch (Draw(random, 0, 3)) {
    case 0: return kEdges[Draw(random, 0, std::ssize(kEdges) - 1)];
    case 1: return Draw(random, 0, 300);
    case 2:
      return static_cast<int64_t>(static_cast<uint64_t>(value) +
                                  static_cast<uint64_t>(Draw(random, -2, 2)));
    default: return static_cast<int64_t>((*random)());
  }
}

double DrawReal(double value, std::mt19937_64* random) {
  constexpr double kEdges[] = {0.0,
                               -0.0,
                               1.0,
                               -1.0,
                               64.0,
                               1e-30,
                               1e30,
                               std::numeric_limits<double>::infinity(),
                               std::numeric_limits<double>::quiet_NaN()};
  switch (Draw(random, 0, 2)) {
    case 0: return kEdges[Draw(random, 0, std::ssize(kEdges) - 1)];
    case 1: return value * 2.0;
    default: return static_cast<double>(Draw(random, -1000, 1000)) / 10.0;
  }
}

void MutateBytes(std::string* bytes, std::mt19937_64* random) {
  if (bytes->empty() || Draw(random, 0, 3) == 0) {
    bytes->resize(static_cast<size_t>(Draw(random, 0, 600)), 'a');
    return;
  }
  const auto place = static_cast<size_t>(Draw(random, 0, std::ssize(*bytes) - 1));
  switch (Draw(random, 0, 2)) {
    case 0: (*bytes)[place] = static_cast<char>(Draw(random, 0, 127)); break;
    case 1: bytes->resize(place); break;
    default:  // an infinity or a large number in most types
      for (size_t at = place; at < std::min(place + 4, bytes->size()); ++at) {
        (*bytes)[at] = static_cast<char>(Draw(random, 0x78, 0x7f));
      }
  }
}

// A field that is there or may be: of `message` or of what is in it.
struct Place {
  Message* message;
  const FieldDescriptor* field;
};

void Collect(Message* message, std::vector<Place>* places) {
  const Reflection& reflection = *message->GetReflection();
  const auto* descriptor = message->GetDescriptor();
  for (int index = 0; index < descriptor->field_count(); ++index) {
    const FieldDescriptor* field = descriptor->field(index);
    places->push_back({message, field});
    if (field->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE) {
      continue;
    }
    if (field->is_repeated()) {
      for (int element = 0; element < reflection.FieldSize(*message, field); ++element) {
        Collect(reflection.MutableRepeatedMessage(message, field, element), places);
      }
    } else if (reflection.HasField(*message, field)) {
      Collect(reflection.MutableMessage(message, field), places);
    }
  }
}

// Sets a value through one of Reflection's many setters; `element` -1: of a single field.
template <typename Value,
          typename Get,
          typename GetOne,
          typename Set,
          typename SetOne,
          typename Next>
void Change(const Place& place,
            int element,
            std::pair<Get, GetOne> get,
            std::pair<Set, SetOne> set,
            Next next) {
  const Reflection* reflection = place.message->GetReflection();
  if (element < 0) {
    const Value value = (reflection->*get.first)(*place.message, place.field);
    (reflection->*set.first)(place.message, place.field, next(value));
  } else {
    const Value value = (reflection->*get.second)(*place.message, place.field, element);
    (reflection->*set.second)(place.message, place.field, element, next(value));
  }
}

#define LONGSHORE_CHANGE(Type, Name, next)                                                        \
  Change<Type>(place, element, std::pair(&Reflection::Get##Name, &Reflection::GetRepeated##Name), \
               std::pair(&Reflection::Set##Name, &Reflection::SetRepeated##Name), next)

void ChangeValue(const Place& place, int element, std::mt19937_64* random) {
  const auto integer = [random](auto value) {
    return static_cast<decltype(value)>(DrawInteger(static_cast<int64_t>(value), random));
  };
  const auto real = [random](auto value) {
    return static_cast<decltype(value)>(DrawReal(static_cast<double>(value), random));
  };
  switch (place.field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32: LONGSHORE_CHANGE(int32_t, Int32, integer); break;
    case FieldDescriptor::CPPTYPE_INT64: LONGSHORE_CHANGE(int64_t, Int64, integer); break;
    case FieldDescriptor::CPPTYPE_UINT32: LONGSHORE_CHANGE(uint32_t, UInt32, integer); break;
    case FieldDescriptor::CPPTYPE_UINT64: LONGSHORE_CHANGE(uint64_t, UInt64, integer); break;
    case FieldDescriptor::CPPTYPE_FLOAT: LONGSHORE_CHANGE(float, Float, real); break;
    case FieldDescriptor::CPPTYPE_DOUBLE: LONGSHORE_CHANGE(double, Double, real); break;
    case FieldDescriptor::CPPTYPE_BOOL:
      LONGSHORE_CHANGE(bool, Bool, [](bool value) { return !value; });
      break;
    case FieldDescriptor::CPPTYPE_ENUM:
      LONGSHORE_CHANGE(int, EnumValue,
                       [random](int) { return static_cast<int>(Draw(random, -1, 9)); });
      break;
    case FieldDescriptor::CPPTYPE_STRING:
      LONGSHORE_CHANGE(std::string, String, [random](std::string value) {
        MutateBytes(&value, random);
        return value;
      });
      break;
    case FieldDescriptor::CPPTYPE_MESSAGE: break;
  }
}

#undef LONGSHORE_CHANGE

void AddElement(const Place& place) {
  const Reflection& reflection = *place.message->GetReflection();
  switch (place.field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_MESSAGE: {
      const int size = reflection.FieldSize(*place.message, place.field);
      Message* added = reflection.AddMessage(place.message, place.field);
      if (size > 0) {
        added->CopyFrom(reflection.GetRepeatedMessage(*place.message, place.field, size - 1));
      }
      break;
    }
    case FieldDescriptor::CPPTYPE_INT32: reflection.AddInt32(place.message, place.field, 0); break;
    case FieldDescriptor::CPPTYPE_INT64: reflection.AddInt64(place.message, place.field, 1); break;
    case FieldDescriptor::CPPTYPE_FLOAT: reflection.AddFloat(place.message, place.field, 1); break;
    case FieldDescriptor::CPPTYPE_DOUBLE:
      reflection.AddDouble(place.message, place.field, 1);
      break;
    default: break;  // no other lists in the contract
  }
}

void MutateList(const Place& place, std::mt19937_64* random) {
  const Reflection& reflection = *place.message->GetReflection();
  const int size = reflection.FieldSize(*place.message, place.field);
  const int64_t choice = Draw(random, 0, 2);
  if (size == 0 || (choice == 0 && size < kMaxElements)) {
    AddElement(place);
  } else if (choice == 1) {
    reflection.SwapElements(place.message, place.field, static_cast<int>(Draw(random, 0, size - 1)),
                            size - 1);
    reflection.RemoveLast(place.message, place.field);
  } else {
    ChangeValue(place, static_cast<int>(Draw(random, 0, size - 1)), random);
  }
}

// [rows, heads, head_dim] of small numbers where there are too few bytes.
void FitTensor(const ModelShape& model,
               int64_t rows,
               int64_t heads,
               DType dtype,
               v1::Tensor* tensor) {
  tensor->set_dtype(DTypeToWire(dtype));
  tensor->clear_shape();
  for (const int64_t extent : {rows, heads, int64_t{model.head_dim}}) {
    tensor->add_shape(extent);
  }
  const auto bytes = static_cast<size_t>(rows * heads * model.head_dim * SizeOf(dtype));
  tensor->mutable_inline_data()->resize(bytes, '\x3c');
}

template <typename Request>
bool RepairAs(Message* message, std::mt19937_64* random) {
  if (message->GetDescriptor() != Request::descriptor()) {
    return false;
  }
  auto* request = static_cast<Request*>(message);
  if (request->items_size() == 0) {
    request->add_items();
  }
  int64_t rows = 0;
  for (v1::StepItem& item : *request->mutable_items()) {
    if (item.session_id() - 1 >= kNumSessions) {
      item.set_session_id(static_cast<uint64_t>(Draw(random, 1, kNumSessions)));
    }
    item.set_rows(std::clamp(item.rows(), 1, 3));
    rows += item.rows();
    if (request->layer() == 0 && Draw(random, 0, 2) > 0) {
      item.set_position(TokensOf(item.session_id()));
    }
  }
  const ModelShape& model = SpecOf(request->items(0).session_id()).model;
  const DType dtype = Draw(random, 0, 3) == 0 ? model.query_dtype : model.kv_dtype;
  FitTensor(model, rows, model.num_kv_heads, dtype, request->mutable_k());
  FitTensor(model, rows, model.num_kv_heads, dtype, request->mutable_v());
  if constexpr (requires { request->mutable_q(); }) {
    FitTensor(model, rows, model.num_heads, model.query_dtype, request->mutable_q());
  }
  return true;
}

}  // namespace

void MutateMessage(Message* message, std::mt19937_64* random) {
  std::vector<Place> places;
  Collect(message, &places);
  if (places.empty()) {
    return;
  }
  const Place& place = places[static_cast<size_t>(Draw(random, 0, std::ssize(places) - 1))];
  const Reflection& reflection = *place.message->GetReflection();
  if (place.field->is_repeated()) {
    MutateList(place, random);
  } else if (place.field->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE) {
    ChangeValue(place, -1, random);
  } else if (reflection.HasField(*place.message, place.field) && Draw(random, 0, 1) == 0) {
    reflection.ClearField(place.message, place.field);
  } else {
    reflection.MutableMessage(place.message, place.field);
  }
}

void RepairStep(Message* message, std::mt19937_64* random) {
  if (message->GetDescriptor() == v1::StreamStepsRequest::descriptor()) {
    auto* step = static_cast<v1::StreamStepsRequest*>(message);
    switch (step->step_case()) {
      case v1::StreamStepsRequest::kAppendKv: RepairStep(step->mutable_append_kv(), random); break;
      case v1::StreamStepsRequest::kPrefill: RepairStep(step->mutable_prefill(), random); break;
      default: RepairStep(step->mutable_decode(), random); break;
    }
    return;
  }
  RepairAs<v1::AppendKVRequest>(message, random) || RepairAs<v1::PrefillRequest>(message, random) ||
      RepairAs<v1::DecodeStepRequest>(message, random);
}

std::string Mutate(const Target& target,
                   std::string_view bytes,
                   size_t max_size,
                   std::mt19937_64* random) {
  if (target.prototype == nullptr) {
    return "";
  }
  const std::unique_ptr<Message> message(target.prototype->New());
  if (!message->ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return "";
  }
  for (int64_t changes = Draw(random, 1, 3); changes > 0; --changes) {
    MutateMessage(message.get(), random);
  }
  if (Draw(random, 0, 1) == 0) {
    RepairStep(message.get(), random);
  }
  std::string mutated;
  if (message->ByteSizeLong() <= max_size) {
    message->SerializePartialToString(&mutated);
  }
  return mutated;
}

}  // namespace longshore::fuzz
