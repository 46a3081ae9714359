// SPDX-License-Identifier: Apache-2.0
#include "ctl/limits.h"

#include <fmt/format.h>
#include <google/protobuf/descriptor.h>

#include <algorithm>
#include <charconv>
#include <limits>

#include "ctl/nearest.h"
#include "ctl/size.h"

namespace cleat::ctl {
namespace {

using google::protobuf::FieldDescriptor;

constexpr std::string_view kBurst = "burst=";

Error BadLimit(std::string_view text, std::string_view why) {
  return Error(
      ErrorCode::kInvalidArgument,
      fmt::format("'{:.80}' is no limit: {}. Write {}: iops=6000, iops=6000,burst=12000/30s or bytes=100M",
                  text, why, kLimitForm));
}

bool InBytes(const FieldDescriptor& field) {
  return field.name().ends_with("bytes");
}

std::vector<std::string> Names() {
  std::vector<std::string> names;
  const auto& type = *v1::Limits::descriptor();
  for (int i = 0; i < type.field_count(); ++i) names.push_back(type.field(i)->name());
  return names;
}

// "6000", "6k", "1M".
Result<uint64_t> ParseCount(std::string_view text) {
  uint64_t count = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), count);
  const std::string_view unit = text.substr(static_cast<size_t>(end - text.data()));
  const uint64_t scale = unit.empty() ? 1 : unit == "k" || unit == "K" ? 1000 : unit == "M" ? 1'000'000 : 0;
  if (error != std::errc() || scale == 0 || count > std::numeric_limits<uint64_t>::max() / scale) {
    return Error(ErrorCode::kInvalidArgument,
                 fmt::format("'{:.40}' is not a whole number (6000, 6k, 1M)", text));
  }
  return count * scale;
}

Result<uint64_t> ParseRate(std::string_view text, bool bytes) {
  return bytes ? ParseSize(text) : ParseCount(text);
}

std::string ShowRate(uint64_t rate, bool bytes) {
  return bytes ? HumanSize(rate) : std::to_string(rate);
}

std::string ShowTime(const google::protobuf::Duration& time) {
  if (time.nanos() == 0) return fmt::format("{} s", time.seconds());
  return fmt::format("{} ms", time.seconds() * 1000 + time.nanos() / 1'000'000);
}

}  // namespace

Status ParseLimit(std::string_view text, v1::Limits* limits) {
  const size_t equals = text.find('=');
  if (equals == std::string_view::npos) return BadLimit(text, "it has no '='");
  std::string name(text.substr(0, equals));
  std::replace(name.begin(), name.end(), '-', '_');
  const auto* field = v1::Limits::descriptor()->FindFieldByName(name);
  if (field == nullptr) {
    return BadLimit(text, fmt::format("there is no '{:.40}'{}; there are {}", name, DidYouMean(name, Names()),
                                      fmt::join(Names(), ", ")));
  }
  const auto& reflection = *limits->GetReflection();
  if (reflection.HasField(*limits, field)) return BadLimit(text, name + " is given twice");
  const std::string_view value = text.substr(equals + 1);
  const size_t comma = value.find(',');
  const auto rate = ParseRate(value.substr(0, comma), InBytes(*field));
  if (!rate.ok()) return BadLimit(text, rate.error().message);
  if (*rate == 0) return BadLimit(text, "a rate of 0 lets nothing pass; leave the limit out to have none");
  auto& limit = static_cast<v1::RateLimit&>(*reflection.MutableMessage(limits, field));
  limit.set_per_second(*rate);
  if (comma == std::string_view::npos) return Ok{};
  const std::string_view burst = value.substr(comma + 1);
  const size_t slash = burst.find('/');
  if (!burst.starts_with(kBurst) || slash == std::string_view::npos)
    return BadLimit(text, "after the comma comes a burst");
  const auto burst_rate = ParseRate(burst.substr(kBurst.size(), slash - kBurst.size()), InBytes(*field));
  if (!burst_rate.ok()) return BadLimit(text, burst_rate.error().message);
  const auto time = ParseMilliseconds(burst.substr(slash + 1));
  if (!time.ok()) return BadLimit(text, time.error().message);
  limit.set_burst_per_second(*burst_rate);
  limit.mutable_burst_duration()->set_seconds(time->count() / 1000);
  limit.mutable_burst_duration()->set_nanos(static_cast<int32_t>(time->count() % 1000 * 1'000'000));
  return Ok{};
}

Result<v1::Limits> ParseLimits(const std::vector<std::string>& texts) {
  v1::Limits limits;
  if (texts.size() == 1 && texts.front() == "none") return limits;
  for (const std::string& text : texts) {
    CLEAT_TRY(ParseLimit(text, &limits));
  }
  return limits;
}

std::string ShowLimits(const v1::Limits& limits) {
  std::string text;
  const auto& reflection = *limits.GetReflection();
  std::vector<const FieldDescriptor*> fields;
  reflection.ListFields(limits, &fields);
  for (const auto* field : fields) {
    const auto& limit = static_cast<const v1::RateLimit&>(reflection.GetMessage(limits, field));
    const bool bytes = InBytes(*field);
    text +=
        fmt::format("{}{} {}", text.empty() ? "" : "; ", field->name(), ShowRate(limit.per_second(), bytes));
    if (limit.burst_per_second() == 0) continue;
    text += fmt::format(", burst {} for {}", ShowRate(limit.burst_per_second(), bytes),
                        ShowTime(limit.burst_duration()));
  }
  return text;
}

}  // namespace cleat::ctl
