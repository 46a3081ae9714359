// SPDX-License-Identifier: Apache-2.0
#include "control/model/json.h"

#include <fmt/format.h>
#include <google/protobuf/util/json_util.h>

#include <memory>
#include <vector>

namespace cleat::control {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

bool IsKey(const FieldDescriptor& field) {
  return field.type() == FieldDescriptor::TYPE_BYTES || field.name() == "plain_key";
}

void ClearKeys(Message& message) {
  const auto& reflection = *message.GetReflection();
  std::vector<const FieldDescriptor*> fields;
  reflection.ListFields(message, &fields);
  for (const FieldDescriptor* field : fields) {
    if (IsKey(*field)) {
      reflection.ClearField(&message, field);
    } else if (field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE && field->is_repeated()) {
      for (int i = 0; i < reflection.FieldSize(message, field); ++i)
        ClearKeys(*reflection.MutableRepeatedMessage(&message, field, i));
    } else if (field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
      ClearKeys(*reflection.MutableMessage(&message, field));
    }
  }
}

}  // namespace

std::string JsonString(std::string_view text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      quoted += '\\';
      quoted += c;
    } else if (static_cast<unsigned char>(c) < ' ' || c == 0x7f) {
      quoted += fmt::format("\\u{:04x}", static_cast<unsigned char>(c));
    } else {
      quoted += c;
    }
  }
  return quoted + '"';
}

std::string JsonLabels(const Labels& labels) {
  std::string json;
  for (const auto& [key, value] : labels)
    json += fmt::format("{}{}:{}", json.empty() ? "" : ",", JsonString(key), JsonString(value));
  return '{' + json + '}';
}

std::string JsonWithoutKeys(const Message& message) {
  const std::unique_ptr<Message> shown(message.New());
  shown->CopyFrom(message);
  ClearKeys(*shown);
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  std::string json;
  if (!google::protobuf::util::MessageToJsonString(*shown, &json, options).ok()) return "{}";
  while (!json.empty() && json.back() == '\n') json.pop_back();
  return json;
}

}  // namespace cleat::control
