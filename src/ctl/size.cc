// SPDX-License-Identifier: Apache-2.0
#include "ctl/size.h"

#include <fmt/format.h>

#include <cctype>
#include <charconv>
#include <iterator>
#include <limits>
#include <utility>

namespace cleat::ctl {
namespace {

constexpr std::string_view kUnitLetters = "KMGTP";
constexpr uint64_t kUnitStep = 1024;

struct Unit {
  const char* name;
  uint64_t bytes;
};

// The largest that there is one of.
Unit UnitFor(uint64_t bytes) {
  constexpr const char* kNames[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  size_t power = 0;
  uint64_t scale = 1;
  while (power + 1 < std::size(kNames) && bytes / scale >= kUnitStep) {
    scale *= kUnitStep;
    ++power;
  }
  return {kNames[power], scale};
}

Error BadSize(std::string_view text, std::string_view why) {
  return Error(ErrorCode::kInvalidArgument,
               fmt::format("'{}' is not a size: {}. Write bytes (4096), or 64K, 512M, 10G, 1.5T, which are "
                           "powers of 1024 and may end in iB (10GiB)",
                           text, why));
}

// The digits that `text` begins with, which are taken from it. False: none, or too many.
bool TakeNumber(std::string_view& text, uint64_t& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc()) return false;
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  return true;
}

// Of "", "B", "k", "KiB" and so on; 0 for anything else.
uint64_t UnitOf(std::string_view text) {
  if (text.empty() || text == "B") return 1;
  const size_t power =
      kUnitLetters.find(static_cast<char>(std::toupper(static_cast<unsigned char>(text.front()))));
  const std::string_view rest = text.substr(1);
  if (power == std::string_view::npos || !(rest.empty() || rest == "i" || rest == "iB" || rest == "ib"))
    return 0;
  return uint64_t{1} << (10 * (power + 1));
}

}  // namespace

Result<uint64_t> ParseSize(std::string_view text) {
  std::string_view rest = text;
  uint64_t whole = 0;
  if (!TakeNumber(rest, whole)) {
    const bool digits = !rest.empty() && std::isdigit(static_cast<unsigned char>(rest.front())) != 0;
    return BadSize(text, digits ? "it is too large" : "it does not begin with a digit");
  }
  uint64_t tenths = 0;
  if (rest.starts_with('.')) {
    const bool one_digit = rest.size() >= 2 && std::isdigit(static_cast<unsigned char>(rest[1])) != 0 &&
                           (rest.size() == 2 || std::isdigit(static_cast<unsigned char>(rest[2])) == 0);
    if (!one_digit) return BadSize(text, "one digit may follow the point");
    tenths = static_cast<uint64_t>(rest[1] - '0');
    rest.remove_prefix(2);
  }
  if (rest.size() == 2 && (rest[1] == 'B' || rest[1] == 'b') && UnitOf(rest.substr(0, 1)) > 1) {
    return BadSize(text, fmt::format("{} means powers of 1000 to some", rest));
  }
  const uint64_t unit = UnitOf(rest);
  if (unit == 0) return BadSize(text, fmt::format("'{}' is no unit", rest));
  constexpr uint64_t kMax = std::numeric_limits<uint64_t>::max();
  if (whole > kMax / unit) return BadSize(text, "it is too large");
  if (unit == 1 && tenths != 0) return BadSize(text, "it is not a whole number of bytes");
  const uint64_t part = tenths * unit / 10;
  if (part * 10 != tenths * unit) return BadSize(text, "it is not a whole number of bytes");
  if (whole * unit > kMax - part) return BadSize(text, "it is too large");
  return whole * unit + part;
}

std::string HumanSize(uint64_t bytes) {
  const Unit unit = UnitFor(bytes);
  if (bytes % unit.bytes == 0) return fmt::format("{} {}", bytes / unit.bytes, unit.name);
  // Halves are the only tenths that a power of two has.
  if (bytes % (unit.bytes / 2) == 0) return fmt::format("{}.5 {}", bytes / unit.bytes, unit.name);
  return fmt::format("{} B", bytes);
}

std::string RoundedSize(uint64_t bytes) {
  const Unit unit = UnitFor(bytes);
  if (bytes % unit.bytes == 0) return fmt::format("{} {}", bytes / unit.bytes, unit.name);
  return fmt::format("{}.{} {}", bytes / unit.bytes, bytes % unit.bytes * 10 / unit.bytes, unit.name);
}

Result<std::chrono::milliseconds> ParseMilliseconds(std::string_view text) {
  constexpr uint64_t kMaxCount = 1'000'000'000;
  std::string_view rest = text;
  uint64_t count = 0;
  constexpr std::pair<std::string_view, int64_t> kUnits[] = {
      {"ms", 1}, {"s", 1000}, {"m", 60'000}, {"h", 3'600'000}};
  if (TakeNumber(rest, count) && count <= kMaxCount) {
    for (const auto& [name, ms] : kUnits) {
      if (rest == name) return std::chrono::milliseconds(static_cast<int64_t>(count) * ms);
    }
  }
  return Error(ErrorCode::kInvalidArgument,
               fmt::format("'{:.40}' is not a time: write 500ms, 30s, 5m or 1h", text));
}

Result<std::chrono::seconds> ParseSeconds(std::string_view text) {
  constexpr uint64_t kMaxCount = 1'000'000;
  std::string_view rest = text;
  uint64_t count = 0;
  constexpr std::pair<std::string_view, int64_t> kUnits[] = {{"", 1}, {"s", 1}, {"m", 60}, {"h", 3600}};
  if (TakeNumber(rest, count) && count <= kMaxCount) {
    for (const auto& [name, seconds] : kUnits) {
      if (rest == name) return std::chrono::seconds(static_cast<int64_t>(count) * seconds);
    }
  }
  return Error(ErrorCode::kInvalidArgument,
               fmt::format("'{}' is not a time: write seconds (30), or 30s, 5m, 1h", text));
}

}  // namespace cleat::ctl
