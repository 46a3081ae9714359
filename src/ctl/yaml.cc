// SPDX-License-Identifier: Apache-2.0
#include "ctl/yaml.h"

#include <fmt/format.h>
#include <google/protobuf/descriptor.h>
#include <google/protobuf/util/json_util.h>
#include <google/protobuf/util/time_util.h>
#include <google/protobuf/wrappers.pb.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <set>
#include <vector>

#include "ctl/nearest.h"
#include "ctl/size.h"

namespace cleat::ctl {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

std::string Upper(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::toupper(c); });
  return text;
}

// ---- Out

// Whether every YAML reader, 1.1 or 1.2, takes it for a string when it has no quotes.
bool PlainIsString(const std::string& text) {
  static const std::set<std::string> kWords = {"Y", "N", "YES", "NO", "ON", "OFF", "TRUE", "FALSE", "NULL"};
  const auto plain = [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '_' || c == '-' || c == '.' || c == '/';
  };
  const auto first = static_cast<unsigned char>(text.empty() ? '0' : text.front());
  return (std::isalpha(first) != 0 || first == '/') && std::all_of(text.begin(), text.end(), plain) &&
         kWords.count(Upper(text)) == 0;
}

void EmitScalar(YAML::Emitter& out, const std::string& text, bool is_string) {
  if (is_string && !PlainIsString(text)) out << YAML::DoubleQuoted;
  out << text;
}

void Emit(YAML::Emitter& out, const YAML::Node& node) {
  switch (node.Type()) {
    case YAML::NodeType::Map:
      if (node.size() == 0) out << YAML::Flow;
      out << YAML::BeginMap;
      for (const auto& entry : node) {
        out << YAML::Key;
        EmitScalar(out, entry.first.Scalar(), true);
        out << YAML::Value;
        Emit(out, entry.second);
      }
      out << YAML::EndMap;
      break;
    case YAML::NodeType::Sequence:
      if (node.size() == 0) out << YAML::Flow;
      out << YAML::BeginSeq;
      for (const auto& item : node) Emit(out, item);
      out << YAML::EndSeq;
      break;
    case YAML::NodeType::Scalar:
      EmitScalar(out, node.Scalar(), node.Tag() == "!");  // "!": it had quotes
      break;
    case YAML::NodeType::Null:
    case YAML::NodeType::Undefined:
      out << YAML::Null;
      break;
  }
}

// ---- In

bool IsQuoted(const YAML::Node& node) {
  return node.Tag() == "!";
}

class Reader {
 public:
  Reader(std::string_view source, std::string_view ignored) : source_(source), ignored_(ignored) {}

  Status ReadDocument(const YAML::Node& node, Message& message) {
    if (node.IsNull()) return Ok{};  // an empty document
    return ReadMessage(node, "", message);
  }

 private:
  Error Bad(const YAML::Node& node, const std::string& path, std::string_view what) const {
    const YAML::Mark mark = node.Mark();
    return Error(ErrorCode::kInvalidArgument,
                 fmt::format("{}:{}: {}{}{}", source_, mark.line + 1, path, path.empty() ? "" : ": ", what));
  }

  Status ReadMessage(const YAML::Node& node, const std::string& path, Message& message);
  Status ReadField(const YAML::Node& node, const std::string& path, const FieldDescriptor& field,
                   Message& message);
  Status ReadList(const YAML::Node& node, const std::string& path, const FieldDescriptor& field,
                  Message& message);
  Status ReadMap(const YAML::Node& node, const std::string& path, const FieldDescriptor& field,
                 Message& message);
  Status ReadScalar(const YAML::Node& node, const std::string& path, const FieldDescriptor& field,
                    Message& message);
  Status ReadDuration(const YAML::Node& node, const std::string& path, Message& duration) const;
  Status ReadBytes(const YAML::Node& node, const std::string& path, const FieldDescriptor& field,
                   Message& message) const;
  Result<uint64_t> ReadNumber(const YAML::Node& node, const std::string& path,
                              const FieldDescriptor& field) const;
  Status ReadEnum(const YAML::Node& node, const std::string& path, const FieldDescriptor& field,
                  Message& message) const;

  std::string_view source_;
  std::string_view ignored_;
};

std::vector<std::string> FieldNames(const google::protobuf::Descriptor& type) {
  std::vector<std::string> names;
  for (int i = 0; i < type.field_count(); ++i) names.push_back(type.field(i)->name());
  return names;
}

Status Reader::ReadMessage(const YAML::Node& node, const std::string& path, Message& message) {
  const auto& type = *message.GetDescriptor();
  const auto& reflection = *message.GetReflection();
  // "memory:" alone is the way to write a message without fields.
  if (node.IsNull()) return Ok{};
  if (!node.IsMap()) return Bad(node, path, "fields are expected here (name: value)");
  std::set<int> seen;
  for (const auto& entry : node) {
    // YAML's null, without quotes, is also the name of a back end.
    const std::string key = entry.first.IsNull()     ? "null"
                            : entry.first.IsScalar() ? entry.first.Scalar()
                                                     : "";
    if (path.empty() && !ignored_.empty() && key == ignored_) continue;
    const FieldDescriptor* field = type.FindFieldByName(key);
    if (field == nullptr) field = type.FindFieldByCamelcaseName(key);
    if (field == nullptr) {
      return Bad(entry.first, path,
                 fmt::format("there is no field '{}'{}", key, DidYouMean(key, FieldNames(type))));
    }
    const std::string field_path = path.empty() ? field->name() : path + "." + field->name();
    if (!seen.insert(field->number()).second) return Bad(entry.first, field_path, "is given twice");
    const auto* oneof = field->real_containing_oneof();
    if (oneof != nullptr) {
      const FieldDescriptor* other = reflection.GetOneofFieldDescriptor(message, oneof);
      if (other != nullptr) {
        return Bad(entry.first, field_path, fmt::format("can't be together with {}", other->name()));
      }
    }
    CLEAT_TRY(ReadField(entry.second, field_path, *field, message));
  }
  return Ok{};
}

Status Reader::ReadField(const YAML::Node& node, const std::string& path, const FieldDescriptor& field,
                         Message& message) {
  if (field.is_map()) return ReadMap(node, path, field, message);
  if (field.is_repeated()) return ReadList(node, path, field, message);
  if (field.cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
    if (node.IsScalar() && field.message_type()->full_name() == "google.protobuf.Duration") {
      return ReadDuration(node, path, *message.GetReflection()->MutableMessage(&message, &field));
    }
    return ReadMessage(node, path, *message.GetReflection()->MutableMessage(&message, &field));
  }
  if (node.IsNull()) return Ok{};
  if (!node.IsScalar()) return Bad(node, path, "one value is expected here");
  return ReadScalar(node, path, field, message);
}

// "30s" and "0.500s" as in JSON, or with the units of the command line.
Status Reader::ReadDuration(const YAML::Node& node, const std::string& path, Message& duration) const {
  auto& value = static_cast<google::protobuf::Duration&>(duration);
  if (const auto time = ParseMilliseconds(node.Scalar()); time.ok()) {
    value = google::protobuf::util::TimeUtil::MillisecondsToDuration(time->count());
    return Ok{};
  }
  if (google::protobuf::util::TimeUtil::FromString(node.Scalar(), &value)) return Ok{};
  return Bad(node, path, fmt::format("'{:.40}' is not a time: write 500ms, 30s, 5m or 1h", node.Scalar()));
}

// In base64, as in JSON. What it is stays unsaid: it may be a key.
Status Reader::ReadBytes(const YAML::Node& node, const std::string& path, const FieldDescriptor& field,
                         Message& message) const {
  const std::string& text = node.Scalar();
  const bool base64 = std::all_of(text.begin(), text.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '+' || c == '/' || c == '=' || c == '-' || c == '_';
  });
  google::protobuf::BytesValue value;
  if (!base64 || !google::protobuf::util::JsonStringToMessage("\"" + text + "\"", &value).ok()) {
    return Bad(node, path, "this is not base64");
  }
  message.GetReflection()->SetString(&message, &field, value.value());
  return Ok{};
}

Status Reader::ReadList(const YAML::Node& node, const std::string& path, const FieldDescriptor& field,
                        Message& message) {
  if (node.IsNull()) return Ok{};
  if (!node.IsSequence()) return Bad(node, path, "a list is expected here (lines that begin with '- ')");
  const auto& reflection = *message.GetReflection();
  size_t index = 0;
  for (const auto& item : node) {
    const std::string item_path = fmt::format("{}[{}]", path, index++);
    if (field.cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
      if (!item.IsMap()) return Bad(item, item_path, "fields are expected here (name: value)");
      CLEAT_TRY(ReadMessage(item, item_path, *reflection.AddMessage(&message, &field)));
    } else if (field.cpp_type() == FieldDescriptor::CPPTYPE_STRING && item.IsScalar()) {
      reflection.AddString(&message, &field, item.Scalar());
    } else {
      return Bad(item, item_path, "a string is expected here");
    }
  }
  return Ok{};
}

// map<string, string>; proto keeps a map as a list of entries with the fields `key` and `value`.
Status Reader::ReadMap(const YAML::Node& node, const std::string& path, const FieldDescriptor& field,
                       Message& message) {
  if (node.IsNull()) return Ok{};
  if (!node.IsMap()) return Bad(node, path, "keys with values are expected here (key: value)");
  const FieldDescriptor& key = *field.message_type()->map_key();
  const FieldDescriptor& value = *field.message_type()->map_value();
  std::set<std::string> seen;
  for (const auto& entry : node) {
    if (!entry.first.IsScalar() || !entry.second.IsScalar()) {
      return Bad(entry.first, path, "keys and values are strings");
    }
    if (!seen.insert(entry.first.Scalar()).second) {
      return Bad(entry.first, path, fmt::format("'{}' is given twice", entry.first.Scalar()));
    }
    Message& added = *message.GetReflection()->AddMessage(&message, &field);
    added.GetReflection()->SetString(&added, &key, entry.first.Scalar());
    added.GetReflection()->SetString(&added, &value, entry.second.Scalar());
  }
  return Ok{};
}

Status Reader::ReadScalar(const YAML::Node& node, const std::string& path, const FieldDescriptor& field,
                          Message& message) {
  const auto& reflection = *message.GetReflection();
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_STRING:
      if (field.type() == FieldDescriptor::TYPE_BYTES) return ReadBytes(node, path, field, message);
      reflection.SetString(&message, &field, node.Scalar());
      return Ok{};
    case FieldDescriptor::CPPTYPE_BOOL: {
      const std::string text = Upper(node.Scalar());
      if (IsQuoted(node) || (text != "TRUE" && text != "FALSE")) {
        return Bad(node, path, fmt::format("'{}' is neither true nor false", node.Scalar()));
      }
      reflection.SetBool(&message, &field, text == "TRUE");
      return Ok{};
    }
    case FieldDescriptor::CPPTYPE_ENUM:
      return ReadEnum(node, path, field, message);
    case FieldDescriptor::CPPTYPE_UINT32:
    case FieldDescriptor::CPPTYPE_UINT64: {
      CLEAT_ASSIGN(const auto number, ReadNumber(node, path, field));
      if (field.cpp_type() == FieldDescriptor::CPPTYPE_UINT64) {
        reflection.SetUInt64(&message, &field, number);
      } else if (number <= UINT32_MAX) {
        reflection.SetUInt32(&message, &field, static_cast<uint32_t>(number));
      } else {
        return Bad(node, path, fmt::format("{} is too large", number));
      }
      return Ok{};
    }
    default:
      return Bad(node, path, "can't be given in a file");
  }
}

Result<uint64_t> Reader::ReadNumber(const YAML::Node& node, const std::string& path,
                                    const FieldDescriptor& field) const {
  const std::string& text = node.Scalar();
  const bool bytes_per_second =
      path.ends_with("bytes.per_second") || path.ends_with("bytes.burst_per_second");
  if (field.name().ends_with("_bytes") || bytes_per_second) {
    auto size = ParseSize(text);
    if (!size.ok()) return Bad(node, path, size.error().message);
    return size;
  }
  uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) {
    return Bad(node, path, fmt::format("'{}' is not a whole number from 0 to 2^64-1", text));
  }
  return number;
}

Status Reader::ReadEnum(const YAML::Node& node, const std::string& path, const FieldDescriptor& field,
                        Message& message) const {
  constexpr std::string_view kZero = "UNSPECIFIED";
  const auto& type = *field.enum_type();
  std::string prefix = type.value(0)->name();  // CONTROLLER_TYPE_UNSPECIFIED
  if (prefix.ends_with(kZero)) prefix.resize(prefix.size() - kZero.size());
  const std::string name = Upper(node.Scalar());
  const auto* value = type.FindValueByName(name);
  if (value == nullptr) value = type.FindValueByName(prefix + name);
  if (value == nullptr) {
    std::string choices;
    for (int i = 1; i < type.value_count(); ++i) {
      choices += (i == 1 ? "" : ", ") + type.value(i)->name().substr(prefix.size());
    }
    return Bad(node, path, fmt::format("'{}' is none of {}", node.Scalar(), choices));
  }
  message.GetReflection()->SetEnum(&message, &field, value);
  return Ok{};
}

}  // namespace

std::string JsonToYaml(const std::string& json) {
  YAML::Emitter out;
  Emit(out, YAML::Load(json));
  return std::string(out.c_str(), out.size()) + "\n";
}

Status MergeYaml(const std::string& text, std::string_view source, std::string_view ignored,
                 Message& message) {
  // yaml-cpp speaks in exceptions; here they end.
  try {
    Reader reader(source, ignored);
    for (const YAML::Node& document : YAML::LoadAll(text)) {
      CLEAT_TRY(reader.ReadDocument(document, message));
    }
    return Ok{};
  } catch (const YAML::Exception& error) {
    return Error(ErrorCode::kInvalidArgument,
                 fmt::format("{}:{}: not YAML: {}", source, error.mark.line + 1, error.msg));
  }
}

}  // namespace cleat::ctl
