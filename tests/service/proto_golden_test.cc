// Compares the wire contract with the copy in proto_golden.txt, so that nothing is renumbered,
// renamed or retyped by accident. A change on purpose: run this test with
// LONGSHORE_UPDATE_GOLDEN=1, which rewrites the copy, and read the diff: only added lines are
// compatible (proto/README.md).

#include <filesystem>
#include <set>
#include <string>

#include <absl/strings/str_cat.h>
#include <google/protobuf/descriptor.h>
#include <gtest/gtest.h>

#include "longshore/v1/attention.pb.h"
#include "longshore/v1/region.pb.h"
#include "longshore/v1/server.pb.h"
#include "longshore/v1/session.pb.h"
#include "tests/support/golden_file.h"

namespace longshore {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::EnumDescriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::FileDescriptor;
using google::protobuf::MethodDescriptor;
using google::protobuf::ServiceDescriptor;

void RenderEnum(const EnumDescriptor& descriptor, std::string* text) {
  absl::StrAppend(text, "enum ", descriptor.full_name(), "\n");
  for (int index = 0; index < descriptor.value_count(); ++index) {
    absl::StrAppend(text, "  ", descriptor.value(index)->number(), " ",
                    descriptor.value(index)->name(), "\n");
  }
}

void RenderField(const FieldDescriptor& field, std::string* text) {
  absl::StrAppend(text, "  ", field.number(), " ", field.name(), ": ",
                  field.is_repeated() ? "repeated " : "",
                  field.has_optional_keyword() ? "optional " : "", field.type_name());
  if (field.message_type() != nullptr) {
    absl::StrAppend(text, " ", field.message_type()->full_name());
  }
  if (field.enum_type() != nullptr) {
    absl::StrAppend(text, " ", field.enum_type()->full_name());
  }
  if (field.real_containing_oneof() != nullptr) {
    absl::StrAppend(text, ", oneof ", field.real_containing_oneof()->name());
  }
  absl::StrAppend(text, "\n");
}

void RenderMessage(const Descriptor& descriptor, std::string* text) {
  absl::StrAppend(text, "message ", descriptor.full_name(), "\n");
  for (int index = 0; index < descriptor.field_count(); ++index) {
    RenderField(*descriptor.field(index), text);
  }
  for (int index = 0; index < descriptor.enum_type_count(); ++index) {
    RenderEnum(*descriptor.enum_type(index), text);
  }
  for (int index = 0; index < descriptor.nested_type_count(); ++index) {
    RenderMessage(*descriptor.nested_type(index), text);
  }
}

void RenderService(const ServiceDescriptor& descriptor, std::string* text) {
  absl::StrAppend(text, "service ", descriptor.full_name(), "\n");
  for (int index = 0; index < descriptor.method_count(); ++index) {
    const MethodDescriptor& method = *descriptor.method(index);
    absl::StrAppend(text, "  ", method.name(), "(", method.client_streaming() ? "stream " : "",
                    method.input_type()->full_name(), ") returns (",
                    method.server_streaming() ? "stream " : "", method.output_type()->full_name(),
                    ")\n");
  }
}

std::string RenderFile(const FileDescriptor& file) {
  std::string text = absl::StrCat("file ", file.name(), ", package ", file.package(), "\n");
  for (int index = 0; index < file.enum_type_count(); ++index) {
    RenderEnum(*file.enum_type(index), &text);
  }
  for (int index = 0; index < file.message_type_count(); ++index) {
    RenderMessage(*file.message_type(index), &text);
  }
  for (int index = 0; index < file.service_count(); ++index) {
    RenderService(*file.service(index), &text);
  }
  return text;
}

TEST(ProtoGolden, TheContractIsTheCommittedOne) {
  const std::filesystem::path root = SourceRoot();
  std::set<std::string> names;  // in order
  for (const auto& entry : std::filesystem::directory_iterator(root / "proto/longshore/v1")) {
    if (entry.path().extension() == ".proto") {
      names.insert("longshore/v1/" + entry.path().filename().string());
    }
  }
  std::string rendered;
  for (const std::string& name : names) {
    const FileDescriptor* file =
        google::protobuf::DescriptorPool::generated_pool()->FindFileByName(name);
    ASSERT_NE(file, nullptr) << name << " is not linked into this test";
    absl::StrAppend(&rendered, RenderFile(*file), "\n");
  }
  ExpectGolden("tests/service/proto_golden.txt", rendered);
}

}  // namespace
}  // namespace longshore
