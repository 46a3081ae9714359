// SPDX-License-Identifier: Apache-2.0
#include "ctl/support/redact.h"

#include <google/protobuf/descriptor.h>

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <regex>
#include <vector>

namespace cleat::ctl {
namespace {

// ---- Values of what is named as a secret

#define CLEAT_SECRET_WORDS "(?:key|secret|passw|passphrase|token|credential)"

// NAME=, NAME: and "NAME": with what is blank around them, and --NAME before a blank. Nothing here can be repeated without end, so that
// the time goes with the length of the line. The first group is the separator.
const std::regex& SecretName() {
  static const std::regex pattern(
      CLEAT_SECRET_WORDS "[\\w.-]{0,64}\\\\?[\"']?(\\s{0,8}[=:]\\s{0,8})|--[\\w-]{0,64}?" CLEAT_SECRET_WORDS
                         "[\\w-]{0,64}\\s{1,8}",
      std::regex::icase | std::regex::optimize);
  return pattern;
}
#undef CLEAT_SECRET_WORDS

bool IsOfName(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '-' || c == '.';
}

bool IsBlank(char c) {
  return std::isspace(static_cast<unsigned char>(c)) != 0;
}

// A name that a value follows, at a place of a line.
struct NamedValue {
  std::string_view before;     // the line up to the name
  std::string_view name;       // "--db-password", without quotes
  std::string_view separator;  // "=" or ":" with blanks; blanks alone after an option
  std::string_view rest;       // of the line, from the value on
};

// `match` is one of SecretName in the line from `from` on.
NamedValue NamedValueAt(std::string_view line, size_t from, const std::cmatch& match) {
  const size_t at = from + static_cast<size_t>(match.position());
  const size_t end = at + static_cast<size_t>(match.length());
  size_t begin = at;
  while (begin > 0 && IsOfName(line[begin - 1])) --begin;
  size_t name_end = at;
  while (name_end < end && IsOfName(line[name_end])) ++name_end;
  const size_t separator = match[1].matched ? from + static_cast<size_t>(match.position(1)) : name_end;
  return {.before = line.substr(0, begin),
          .name = line.substr(begin, name_end - begin),
          .separator = line.substr(separator, end - separator),
          .rest = line.substr(end)};
}

// What says where a secret is, not what it is. Only where the name says so: a token may begin with a slash as well.
bool IsPath(const NamedValue& named, std::string_view value) {
  const bool looks_so = value.starts_with('/') || value.starts_with("./") || value.starts_with("../");
  if (!looks_so) return false;
  std::string name(named.name);
  std::ranges::transform(name, name.begin(), [](unsigned char c) { return std::tolower(c); });
  if (name == "--tls-key" || name == "--key") return true;  // options of our own
  constexpr std::string_view kOfPaths[] = {"file", "path", "cert", "keyring"};
  return std::ranges::any_of(kOfPaths, [&](std::string_view end) { return name.ends_with(end); });
}

// What cleatd and engines say of keys: none is in there.
bool IsOwnSubject(const NamedValue& named) {
  constexpr std::string_view kBefore[] = {"key-encryption ", "disk "};
  return named.name == "keys" && named.separator == ": " &&
         std::ranges::any_of(kBefore, [&](std::string_view words) { return named.before.ends_with(words); });
}

// Whether nothing but the value is left of the line: what begins it, or is written with a colon or blanks, as a setting is. Elsewhere
// other words may follow.
bool GoesToTheEnd(const NamedValue& named) {
  if (named.name.starts_with("--")) return false;
  if (named.separator != "=") return true;
  std::string_view before = named.before;
  while (!before.empty() && (IsBlank(before.back()) || before.back() == '"')) before.remove_suffix(1);
  return before.empty() || before == "export" || before.ends_with(" export") || before == "-";
}

// The quotation mark that begins the value, with a backslash when it is within another text; empty when there is none.
std::string_view QuoteOf(std::string_view value) {
  const size_t length = value.starts_with('\\') ? 2 : 1;
  const bool quoted = value.size() >= length && (value[length - 1] == '"' || value[length - 1] == '\'');
  return quoted ? value.substr(0, length) : std::string_view();
}

// Where the text after the quotation mark ends: before the same one. One that was not closed goes to the end of the line.
size_t EndOfQuoted(std::string_view text, std::string_view quote) {
  for (size_t at = 0; at < text.size(); ++at) {
    if (text.substr(at).starts_with(quote)) return at;
    if (text[at] == '\\') ++at;
  }
  return text.size();
}

size_t EndOfUnquoted(const NamedValue& named, std::string_view value) {
  if (GoesToTheEnd(named) && !IsPath(named, value)) return value.size();
  const auto* const end =
      std::ranges::find_if(value, [](char c) { return IsBlank(c) || c == '"' || c == '\''; });
  return static_cast<size_t>(end - value.begin());
}

std::string RedactNamed(std::string_view line) {
  std::string result;
  size_t done = 0;  // of the line is in the result
  std::cmatch match;
  while (std::regex_search(line.data() + done, line.data() + line.size(), match, SecretName())) {
    const NamedValue named = NamedValueAt(line, done, match);
    const std::string_view quote = QuoteOf(named.rest);
    const std::string_view text = named.rest.substr(quote.size());
    const size_t length = quote.empty() ? EndOfUnquoted(named, text) : EndOfQuoted(text, quote);
    const size_t value_at = line.size() - text.size();
    result += line.substr(done, value_at - done);
    done = value_at;
    if (IsOwnSubject(named)) continue;
    const std::string_view value = text.substr(0, length);
    result += value.empty() || IsPath(named, value) ? value : kRedacted;
    done += length;
  }
  return result.append(line.substr(done));
}

// ---- What looks like a key

bool IsHexDigit(char c) {
  return std::isxdigit(static_cast<unsigned char>(c)) != 0;
}

// Whether the character is one of base64 or of base64url.
bool IsBase64(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 ||
         std::string_view("+/-_=").find(c) != std::string_view::npos;
}

constexpr size_t kHexDigitsMin = 32;     // a key of 16 bytes
constexpr size_t kPaddedBase64Min = 40;  // one of 28 bytes, as Ceph has
constexpr size_t kBase64Min = 38;        // the same without its padding

enum class CharKind : uint8_t { kUpper, kLower, kDigit, kOther };

CharKind CharKindOf(unsigned char c) {
  if (std::isupper(c) != 0) return CharKind::kUpper;
  if (std::islower(c) != 0) return CharKind::kLower;
  return std::isdigit(c) != 0 ? CharKind::kDigit : CharKind::kOther;
}

// Paths and names are of the same characters as base64 without padding. In random text two of three characters are of another kind than
// the one before - capital, small letter, digit or sign -, and in words few are: what changes at two of five is taken for random.
bool LooksRandom(std::string_view run) {
  size_t changes = 0;
  bool seen[4] = {};
  for (size_t i = 0; i < run.size(); ++i) {
    const CharKind kind = CharKindOf(static_cast<unsigned char>(run[i]));
    seen[static_cast<size_t>(kind)] = true;
    if (i > 0 && kind != CharKindOf(static_cast<unsigned char>(run[i - 1]))) ++changes;
  }
  return seen[0] && seen[1] && seen[2] && changes * 5 >= run.size() * 2;
}

bool IsBase64Key(std::string_view run) {
  if (run.ends_with('=')) return run.size() >= kPaddedBase64Min;
  return run.size() >= kBase64Min && LooksRandom(run);
}

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
  text = RedactNamed(text);
  text = ReplaceRuns(text, IsHexDigit, [](std::string_view run) { return run.size() >= kHexDigitsMin; });
  text = ReplaceRuns(text, IsBase64, IsBase64Key);
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
