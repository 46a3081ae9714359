// SPDX-License-Identifier: Apache-2.0
#include "ctl/support/redact.h"

#include <google/protobuf/descriptor.h>

#include <algorithm>
#include <cctype>
#include <regex>
#include <vector>

namespace cleat::ctl {
namespace {

#define CLEAT_SECRET_WORDS "(?:key|secret|passw|passphrase|token|credential)"

// NAME=VALUE, NAME: VALUE, "NAME": "VALUE", and --NAME VALUE. A value that is a path tells where a secret is, not what it is. Nothing
// here can be repeated without end, so that the time goes with the length of the line.
const std::regex& NamedSecret() {
  static const std::regex pattern(
      "(" CLEAT_SECRET_WORDS
      "[\\w.-]{0,64}[\"']?\\s{0,8}[=:]\\s{0,8}[\"']?|--[\\w-]{0,64}?" CLEAT_SECRET_WORDS
      "[\\w-]{0,64}\\s{1,8}[\"']?)([^\\s\"',;/.][^\\s\"',;]*)",
      std::regex::icase | std::regex::optimize);
  return pattern;
}
#undef CLEAT_SECRET_WORDS

bool IsHexDigit(char c) {
  return std::isxdigit(static_cast<unsigned char>(c)) != 0;
}

bool IsBase64(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '+' || c == '/' || c == '=';
}

constexpr size_t kHexDigitsMin = 32;  // a key of 16 bytes
constexpr size_t kBase64Min = 40;     // one of 28 bytes, as Ceph has; it is padded

// In place of each run of such characters that `is_secret`.
template <typename IsMember, typename IsSecret>
std::string ReplaceRuns(std::string_view text, IsMember is_member, IsSecret is_secret) {
  std::string result;
  while (!text.empty()) {
    const auto* const end = std::ranges::find_if_not(text, is_member);
    const auto run = text.substr(0, static_cast<size_t>(end - text.begin()));
    result += is_secret(run) ? kRedacted : run;
    text.remove_prefix(run.size());
    if (text.empty()) break;
    result += text.front();
    text.remove_prefix(1);
  }
  return result;
}

const std::regex& AddressWithPassword() {
  static const std::regex pattern("://[^/\\s:@]{1,128}:[^/\\s@]{1,256}@", std::regex::optimize);
  return pattern;
}

std::string RedactLine(std::string_view line) {
  const bool cut = line.size() > kRedactedLineMax;
  std::string text(line.substr(0, kRedactedLineMax));
  const std::string redacted(kRedacted);
  text = std::regex_replace(text, AddressWithPassword(), "://" + redacted + "@");
  text = std::regex_replace(text, NamedSecret(), "$1" + redacted);
  text = ReplaceRuns(text, IsHexDigit, [](std::string_view run) { return run.size() >= kHexDigitsMin; });
  text = ReplaceRuns(text, IsBase64,
                     [](std::string_view run) { return run.size() >= kBase64Min && run.ends_with('='); });
  return cut ? text + " [line cut]" : text;
}

void ClearField(google::protobuf::Message& message, const google::protobuf::FieldDescriptor& field) {
  using google::protobuf::FieldDescriptor;
  const google::protobuf::Reflection& reflection = *message.GetReflection();
  if (field.type() == FieldDescriptor::TYPE_BYTES || field.name() == "plain_key") {
    return reflection.ClearField(&message, &field);
  }
  if (field.cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE) return;
  if (!field.is_repeated()) return ClearSecrets(*reflection.MutableMessage(&message, &field));
  for (int i = 0; i < reflection.FieldSize(message, &field); ++i) {
    ClearSecrets(*reflection.MutableRepeatedMessage(&message, &field, i));
  }
}

}  // namespace

std::string Redact(std::string_view text) {
  std::string result;
  bool in_pem = false;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    const bool ends_line = end < text.size();
    text.remove_prefix(ends_line ? end + 1 : end);
    const bool begins_pem = line.find("-----BEGIN ") != std::string_view::npos;
    const bool ends_pem = line.find("-----END ") != std::string_view::npos;
    if (begins_pem) result += std::string(kRedacted) + " (PEM)\n";
    if (!begins_pem && !in_pem) {
      result += RedactLine(line);
      if (ends_line) result += '\n';
    }
    in_pem = (in_pem || begins_pem) && !ends_pem;
  }
  return result;
}

void ClearSecrets(google::protobuf::Message& message) {
  std::vector<const google::protobuf::FieldDescriptor*> fields;
  message.GetReflection()->ListFields(message, &fields);
  for (const google::protobuf::FieldDescriptor* field : fields) ClearField(message, *field);
}

}  // namespace cleat::ctl
