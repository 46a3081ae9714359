// SPDX-License-Identifier: Apache-2.0
#include "nvme/fabrics/log_pages.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "nvme/fabrics/commands.h"

namespace cleat::nvme::fabrics {
namespace {

constexpr uint64_t kDiscoveryHeaderBytes = 1024;
constexpr uint64_t kDiscoveryRecordBytes = 1024;
constexpr uint64_t kAnaHeaderBytes = 16;
constexpr uint64_t kAnaEntryBytes = 32;
constexpr uint64_t kDwordBytes = 4;

template <typename Number>
Number At(std::span<const uint8_t> data, uint64_t offset) {
  Number number;
  std::memcpy(&number, data.data() + offset, sizeof(number));
  return number;
}

// Both logs begin with a number that changes with them.
uint64_t CounterOf(std::span<const uint8_t> log) {
  return At<uint64_t>(log, 0);
}

Error Damage(const std::string& who, std::string_view what) {
  return {ErrorCode::kDataLoss, fmt::format("{}: {}", who, what)};
}

// A text field, which ends with a zero, blanks or the field's end. `field` for the error.
Result<std::string> TextAt(std::span<const uint8_t> data, uint64_t offset, size_t bytes,
                           std::string_view field) {
  const auto* const begin = reinterpret_cast<const char*>(data.data() + offset);
  std::string text(begin, strnlen(begin, bytes));
  if (std::ranges::any_of(text, [](char c) { return c < ' ' || c > '~'; })) {
    return Error(ErrorCode::kDataLoss, fmt::format("{} with bytes that are no text", field));
  }
  const size_t last = text.find_last_not_of(' ');
  text.resize(last == std::string::npos ? 0 : last + 1);
  return text;
}

// TRADDR and TRSVCID, and the two as an address where the transport has such.
cleat::Status ParseWhere(std::span<const uint8_t> data, DiscoveryRecord& record) {
  constexpr uint64_t kFamily = 1, kService = 32, kAddress = 512;
  constexpr size_t kServiceBytes = 32, kAddressBytes = 256;
  CLEAT_ASSIGN(record.port_text, TextAt(data, kService, kServiceBytes, "a port (TRSVCID)"));
  CLEAT_ASSIGN(record.address_text, TextAt(data, kAddress, kAddressBytes, "an address (TRADDR)"));
  const uint8_t family = data[kFamily];
  if (family != static_cast<uint8_t>(AddressFamily::kIpv4) &&
      family != static_cast<uint8_t>(AddressFamily::kIpv6))
    return {};
  auto address =
      TransportAddressOf(static_cast<AddressFamily>(family), record.address_text, record.port_text);
  if (address) {
    record.address = *address;
    record.address->transport = static_cast<TransportType>(record.transport);
  }
  if (!address && record.transport == static_cast<uint8_t>(TransportType::kTcp)) {
    return Error(ErrorCode::kDataLoss, fmt::format("an address (TRADDR, TRSVCID, ADRFAM {}) that is none: {}",
                                                   family, address.error().message));
  }
  return {};
}

// The error goes on after "record 3 has ".
Result<DiscoveryRecord> ParseRecord(std::span<const uint8_t> data) {
  constexpr uint64_t kType = 0, kKind = 2, kRequirements = 3, kPort = 4, kController = 6, kAdminEntries = 8,
                     kSubsystem = 256, kTsas = 768;
  constexpr size_t kNameBytes = 256;
  DiscoveryRecord record;
  record.transport = data[kType];
  const uint8_t kind = data[kKind];
  if (kind < static_cast<uint8_t>(DiscoveredKind::kReferral) ||
      kind > static_cast<uint8_t>(DiscoveredKind::kThisService)) {
    return Error(ErrorCode::kDataLoss, fmt::format("type {} (SUBTYPE), which is not known", kind));
  }
  record.kind = static_cast<DiscoveredKind>(kind);
  const uint8_t channel = data[kRequirements] & 3U;
  if (channel > static_cast<uint8_t>(SecureChannel::kNotRequired))
    return Error(ErrorCode::kDataLoss,
                 "a reserved value where it says whether a secure channel is due (TREQ)");
  record.secure_channel = static_cast<SecureChannel>(channel);
  record.flow_control_optional = (data[kRequirements] & 4U) != 0;
  record.port_id = At<uint16_t>(data, kPort);
  record.controller_id = At<uint16_t>(data, kController);
  record.admin_entries_max = At<uint16_t>(data, kAdminEntries);
  const auto* const name = reinterpret_cast<const char*>(data.data() + kSubsystem);
  record.subsystem_nqn.assign(name, strnlen(name, kNameBytes));
  if (!CheckNqn(record.subsystem_nqn, "it"))
    return Error(ErrorCode::kDataLoss, "a subsystem's name that is no NQN (SUBNQN)");
  CLEAT_TRY(ParseWhere(data, record));
  record.tls = record.transport == static_cast<uint8_t>(TransportType::kTcp) && data[kTsas] != 0;
  return record;
}

}  // namespace

LogReader::LogReader(Kind kind, Events events, uint64_t total_bytes, bool offsets,
                     uint64_t transfer_bytes_max, std::string who)
    : kind_(kind), events_(events), offsets_(offsets), known_bytes_(total_bytes), who_(std::move(who)) {
  piece_bytes_max_ = kLogPieceMax;
  if (transfer_bytes_max != 0)
    piece_bytes_max_ = static_cast<uint32_t>(std::min<uint64_t>(transfer_bytes_max, kLogPieceMax));
  CLEAT_CHECK(piece_bytes_max_ >= kDiscoveryHeaderBytes);
  counter_.resize(kind == Kind::kDiscovery ? kDiscoveryHeaderBytes : kAnaHeaderBytes);
  Begin();
}

LogReader LogReader::Discovery(uint64_t transfer_bytes_max, std::string who, Events events) {
  // Reading a log from its middle on is mandatory for discovery controllers.
  return {Kind::kDiscovery, events, kDiscoveryHeaderBytes, true, transfer_bytes_max, std::move(who)};
}

LogReader LogReader::Ana(uint32_t groups, bool offsets, uint64_t transfer_bytes_max, std::string who) {
  CLEAT_CHECK(groups > 0 && groups <= kAnaGroupsMax);
  return {Kind::kAna, Events::kNone,      kAnaHeaderBytes + groups * kAnaEntryBytes,
          offsets,    transfer_bytes_max, std::move(who)};
}

void LogReader::Begin() {
  checking_ = false;
  read_bytes_ = 0;
  pieces_ = 0;
  total_bytes_ = known_bytes_;
  log_.resize(total_bytes_);
}

void LogReader::Restart() {
  tries_ = 0;
  Begin();
}

uint64_t LogReader::piece_bytes() const {
  if (checking_) return counter_.size();
  return std::min<uint64_t>(total_bytes_ - read_bytes_, piece_bytes_max_);
}

Command LogReader::command() const {
  constexpr uint32_t kGroupsOnly = 1U << 8;    // LSP of the ANA log
  constexpr uint32_t kRetainEvent = 1U << 15;  // RAE
  const bool ana = kind_ == Kind::kAna;
  Command command = GetLogPage(ana ? LogPage::kAna : LogPage::kDiscovery, ana ? kAllNamespaces : 0,
                               static_cast<uint32_t>(piece_bytes()));
  if (ana) command.cdw10 |= kGroupsOnly;
  if (events_ == Events::kFollowed && !checking_) command.cdw10 |= kRetainEvent;
  command.cdw12 = checking_ ? 0 : static_cast<uint32_t>(read_bytes_);
  return command;
}

std::span<uint8_t> LogReader::room() {
  if (checking_) return counter_;
  return std::span(log_).subspan(read_bytes_, piece_bytes());
}

// What the discovery log's header says of its length.
cleat::Status LogReader::TakeHeader() {
  constexpr uint64_t kRecords = 8, kFormat = 16;
  const auto records = At<uint64_t>(log_, kRecords);
  const auto format = At<uint16_t>(log_, kFormat);
  if (format != 0) {
    return Error(ErrorCode::kUnimplemented,
                 fmt::format("{}: the discovery log is of format {}, which is not known", who_, format));
  }
  if (records > kDiscoveryRecordsMax) {
    return Error(ErrorCode::kResourceExhausted,
                 fmt::format("{}: the discovery log says that it has {} records, {} are read at most", who_,
                             records, kDiscoveryRecordsMax));
  }
  total_bytes_ = kDiscoveryHeaderBytes + records * kDiscoveryRecordBytes;
  log_.resize(total_bytes_);
  return {};
}

Result<LogReader::Progress> LogReader::TakeCounter() {
  if (CounterOf(counter_) == CounterOf(log_)) return Progress::kDone;
  if (++tries_ >= kLogTriesMax) {
    return Error(ErrorCode::kAborted,
                 fmt::format("{}: the {} log has changed in each of {} tries to read it", who_,
                             kind_ == Kind::kAna ? "ANA" : "discovery", kLogTriesMax));
  }
  Begin();
  return Progress::kMore;
}

Result<LogReader::Progress> LogReader::Take(uint64_t data_bytes) {
  const uint64_t asked_bytes = piece_bytes();
  if (data_bytes != asked_bytes) {
    return Damage(who_,
                  fmt::format("{} bytes of a log came where {} were asked for", data_bytes, asked_bytes));
  }
  if (checking_) return TakeCounter();
  const bool first = read_bytes_ == 0;
  read_bytes_ += data_bytes;
  ++pieces_;
  if (first && kind_ == Kind::kDiscovery) CLEAT_TRY(TakeHeader());
  if (read_bytes_ < total_bytes_) {
    if (offsets_) return Progress::kMore;
    return Error(
        ErrorCode::kUnimplemented,
        fmt::format("{}: the ANA log has {} bytes, of which the controller hands out {} at a time and no "
                    "other (MDTS, LPA)",
                    who_, total_bytes_, piece_bytes_max_));
  }
  if (pieces_ == 1 && events_ == Events::kNone) return Progress::kDone;
  checking_ = true;
  return Progress::kMore;
}

Result<DiscoveryLog> ParseDiscoveryLog(std::span<const uint8_t> log, const std::string& who) {
  constexpr uint64_t kRecords = 8;
  if (log.size() < kDiscoveryHeaderBytes) return Damage(who, "the discovery log ends within its header");
  const auto records = At<uint64_t>(log, kRecords);
  if (records > kDiscoveryRecordsMax ||
      log.size() < kDiscoveryHeaderBytes + records * kDiscoveryRecordBytes) {
    return Damage(who, fmt::format("the discovery log says that it has {} records, and has {} bytes", records,
                                   log.size()));
  }
  DiscoveryLog parsed;
  parsed.generation = CounterOf(log);
  for (uint64_t i = 0; i < records; ++i) {
    auto record =
        ParseRecord(log.subspan(kDiscoveryHeaderBytes + i * kDiscoveryRecordBytes, kDiscoveryRecordBytes));
    if (record) {
      parsed.records.push_back(std::move(*record));
    } else if (++parsed.skipped == 1) {
      parsed.why_skipped = fmt::format("record {} has {}", i, record.error().message);
    }
  }
  return parsed;
}

std::string NameOf(AnaState state) {
  switch (state) {
    case AnaState::kOptimized:
      return "optimized";
    case AnaState::kNonOptimized:
      return "non-optimized";
    case AnaState::kInaccessible:
      return "inaccessible";
    case AnaState::kPersistentLoss:
      return "persistent loss";
    case AnaState::kChange:
      return "change";
  }
  return fmt::format("state {:x}h", static_cast<unsigned>(state));
}

const AnaGroup* AnaLog::Find(uint32_t group) const {
  const auto found = std::ranges::lower_bound(groups, group, {}, &AnaGroup::id);
  return found != groups.end() && found->id == group ? &*found : nullptr;
}

namespace {

bool IsAnaState(uint8_t state) {
  switch (static_cast<AnaState>(state)) {
    case AnaState::kOptimized:
    case AnaState::kNonOptimized:
    case AnaState::kInaccessible:
    case AnaState::kPersistentLoss:
    case AnaState::kChange:
      return true;
  }
  return false;
}

// The entry at `at`, with its namespaces; the answer is where the next one begins.
Result<uint64_t> ParseAnaEntry(std::span<const uint8_t> log, uint64_t at, AnaLog& parsed,
                               const std::string& who) {
  constexpr uint64_t kGroup = 0, kNamespaces = 4, kChangeCount = 8, kState = 16;
  if (log.size() - at < kAnaEntryBytes) return Damage(who, "the ANA log ends within an entry");
  const std::span<const uint8_t> entry = log.subspan(at);
  const auto group = At<uint32_t>(entry, kGroup);
  const auto namespaces = At<uint32_t>(entry, kNamespaces);
  const uint8_t state = entry[kState] & 0xfU;
  if (group == 0) return Damage(who, "the ANA log has group 0, which is none");
  if (!IsAnaState(state))
    return Damage(who, fmt::format("ANA group {} is in state {:x}h, which is none", group, state));
  parsed.groups.push_back({.id = group,
                           .state = static_cast<AnaState>(state),
                           .change_count = At<uint64_t>(entry, kChangeCount)});
  if (namespaces > kAnaNamespacesMax - parsed.namespaces.size()) {
    return Damage(who, fmt::format("ANA group {} has {} namespaces, with which the log has more than {}",
                                   group, namespaces, kAnaNamespacesMax));
  }
  if ((entry.size() - kAnaEntryBytes) / kDwordBytes < namespaces)
    return Damage(who, "the ANA log ends within an entry's namespaces");
  for (uint32_t i = 0; i < namespaces; ++i)
    parsed.namespaces.emplace_back(At<uint32_t>(entry, kAnaEntryBytes + i * kDwordBytes), group);
  return at + kAnaEntryBytes + namespaces * kDwordBytes;
}

}  // namespace

Result<AnaLog> ParseAnaLog(std::span<const uint8_t> log, const std::string& who) {
  constexpr uint64_t kGroups = 8;
  if (log.size() < kAnaHeaderBytes) return Damage(who, "the ANA log ends within its header");
  AnaLog parsed;
  parsed.change_count = CounterOf(log);
  const auto groups = At<uint16_t>(log, kGroups);
  if (groups > kAnaGroupsMax)
    return Damage(who, fmt::format("the ANA log has {} groups, {} are read at most", groups, kAnaGroupsMax));
  uint64_t at = kAnaHeaderBytes;
  for (uint32_t i = 0; i < groups; ++i) {
    CLEAT_ASSIGN(at, ParseAnaEntry(log, at, parsed, who));
  }
  std::ranges::sort(parsed.groups, {}, &AnaGroup::id);
  std::ranges::sort(parsed.namespaces);
  const auto twice = std::ranges::adjacent_find(parsed.groups, {}, &AnaGroup::id);
  if (twice != parsed.groups.end())
    return Damage(who, fmt::format("the ANA log has group {} twice", twice->id));
  const auto both = std::ranges::adjacent_find(
      parsed.namespaces, [](const auto& left, const auto& right) { return left.first == right.first; });
  if (both != parsed.namespaces.end())
    return Damage(who, fmt::format("the ANA log has namespace {} twice", both->first));
  return parsed;
}

}  // namespace cleat::nvme::fabrics
