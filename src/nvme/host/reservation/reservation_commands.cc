// SPDX-License-Identifier: Apache-2.0
#include "nvme/host/reservation/reservation_commands.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace cleat::nvme::host {
namespace {

// `data` is long enough.
template <typename Data>
Data From(std::span<const uint8_t> data) {
  Data from;
  std::memcpy(&from, data.data(), sizeof(from));
  return from;
}

Error Damage(const std::string& who, std::string_view what) {
  return {ErrorCode::kDataLoss, fmt::format("{}: the reservation report {}", who, what)};
}

// The report's header. The registrants that it announces have to be there.
cleat::Status ParseHeader(std::span<const uint8_t> data, ReservationReport& report, size_t& entries,
                          const std::string& who) {
  if (data.size() < kReportHeaderBytes)
    return Damage(who, fmt::format("has {} bytes, its header alone has {}", data.size(), kReportHeaderBytes));
  const auto header = From<fabrics::ReservationReportHeader>(data);
  report.generation = header.generation;
  if (header.type > static_cast<uint8_t>(ReservationType::kExclusiveAccessAll))
    return Damage(who, fmt::format("has a reservation of type {} (RTYPE), which there is not", header.type));
  report.type = static_cast<ReservationType>(header.type);
  if (header.persists > 1)
    return Damage(who,
                  fmt::format("has {} for what a power loss leaves (PTPLS), 0 or 1 may be", header.persists));
  report.persistent = header.persists == 1;
  entries = header.entries[0] | size_t{header.entries[1]} << 8;
  if (entries > kRegistrantsMax) {
    return Error(ErrorCode::kResourceExhausted,
                 fmt::format("{}: the namespace has {} registrants (REGCTL), Cleat reads {}: remove those of "
                             "hosts that are gone",
                             who, entries, kRegistrantsMax));
  }
  const size_t bytes = kReportHeaderBytes + entries * kReportEntryBytes;
  if (bytes > data.size()) {
    return Damage(
        who, fmt::format("has {} bytes, and {} registrants (REGCTL) take {}", data.size(), entries, bytes));
  }
  return {};
}

// An entry. A host that is associated with several controllers has an entry for each of them, all with its key.
cleat::Status ParseEntry(std::span<const uint8_t> entry, ReservationReport& report, const std::string& who) {
  const auto from = From<fabrics::ReservationReportEntry>(entry);
  const Registrant registrant{.host_id = from.host_id, .key = from.key, .holder = (from.status & 1U) != 0};
  const std::string host = fabrics::TextOfUuid(registrant.host_id);
  if (registrant.key == 0)
    return Damage(who, fmt::format("has host {} with key 0 (RKEY), which nobody can register", host));
  if (registrant.holder && report.type == ReservationType::kNone)
    return Damage(who, fmt::format("has host {} as holder (RCSTS) of no reservation (RTYPE)", host));
  const auto same = std::ranges::find(report.registrants, registrant.host_id, &Registrant::host_id);
  if (same == report.registrants.end()) {
    report.registrants.push_back(registrant);
    return {};
  }
  if (same->key != registrant.key) return Damage(who, fmt::format("has host {} with two keys (RKEY)", host));
  same->holder |= registrant.holder;
  return {};
}

}  // namespace

std::string_view NameOf(ReservationType type) {
  switch (type) {
    case ReservationType::kNone:
      return "no";
    case ReservationType::kWriteExclusive:
      return "Write Exclusive";
    case ReservationType::kExclusiveAccess:
      return "Exclusive Access";
    case ReservationType::kWriteExclusiveRegistrants:
      return "Write Exclusive - Registrants Only";
    case ReservationType::kExclusiveAccessRegistrants:
      return "Exclusive Access - Registrants Only";
    case ReservationType::kWriteExclusiveAll:
      return "Write Exclusive - All Registrants";
    case ReservationType::kExclusiveAccessAll:
      return "Exclusive Access - All Registrants";
  }
  return "unknown";
}

std::string TextOf(const Registrant& registrant) {
  return fmt::format("host {} with key {:016x}h", fabrics::TextOfUuid(registrant.host_id), registrant.key);
}

const Registrant* ReservationReport::Find(const fabrics::Uuid& host_id) const {
  const auto found = std::ranges::find(registrants, host_id, &Registrant::host_id);
  return found == registrants.end() ? nullptr : &*found;
}

size_t ReservationReport::CountOf(uint64_t key) const {
  return static_cast<size_t>(std::ranges::count(registrants, key, &Registrant::key));
}

Result<ReservationReport> ParseReservationReport(std::span<const uint8_t> data, const std::string& who) {
  ReservationReport report;
  size_t entries = 0;
  CLEAT_TRY(ParseHeader(data, report, entries, who));
  report.registrants.reserve(entries);
  for (size_t i = 0; i < entries; ++i) {
    const auto entry = data.subspan(kReportHeaderBytes + i * kReportEntryBytes, kReportEntryBytes);
    CLEAT_TRY(ParseEntry(entry, report, who));
  }
  return report;
}

cleat::Status CheckReservations(const ControllerInfo& controller, const fabrics::FabricsInfo& fabrics,
                                const NamespaceInfo& space, const std::string& who) {
  const char* missing = nullptr;
  if (!controller.reservations) missing = "the controller has no reservations (ONCS)";
  if (!fabrics.long_host_ids) missing = "the controller knows no host identifiers of 128 bits (CTRATT)";
  if (!space.write_exclusive_all)
    missing = "the namespace has no reservation for all registrants to write (RESCAP)";
  if (missing == nullptr) return {};
  return Error(
      ErrorCode::kUnimplemented,
      fmt::format("{}: {}: other hosts can't be kept out, and no reservation proves that a dead path's "
                  "writes are over",
                  who, missing));
}

}  // namespace cleat::nvme::host
