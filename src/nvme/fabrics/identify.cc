// SPDX-License-Identifier: Apache-2.0
#include "nvme/fabrics/identify.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "nvme/fabrics/capsule.h"
#include "nvme/fabrics/commands.h"

namespace cleat::nvme::fabrics {
namespace {

constexpr uint32_t kCapsuleUnitBytes = 16;
constexpr uint8_t kDiscoveryController = 2;  // CNTRLTYPE
constexpr size_t kOaes = 92;

template <typename Number>
Number At(IdentifyData data, size_t offset) {
  Number number;
  std::memcpy(&number, data.data() + offset, sizeof(number));
  return number;
}

template <size_t kBytes>
std::optional<std::array<uint8_t, kBytes>> IdAt(IdentifyData data, size_t offset) {
  std::array<uint8_t, kBytes> id;
  std::memcpy(id.data(), data.data() + offset, kBytes);
  return std::ranges::all_of(id, [](uint8_t byte) { return byte == 0; }) ? std::nullopt : std::optional(id);
}

std::string NqnAt(IdentifyData data, size_t offset) {
  constexpr size_t kFieldBytes = 256;
  const auto* const begin = reinterpret_cast<const char*>(data.data() + offset);
  return {begin, strnlen(begin, kFieldBytes)};
}

template <size_t kBytes>
std::string Hex(const std::array<uint8_t, kBytes>& id) {
  std::string text;
  for (const uint8_t byte : id) text += fmt::format("{:02x}", byte);
  return text;
}

// An I/O controller's capsules. Those of a discovery controller, which has the admin queue alone, are of the size that this queue has
// with every controller.
cleat::Status ParseCapsules(IdentifyData data, FabricsInfo& info, const std::string& who) {
  constexpr size_t kIoccsz = 1792, kIorcsz = 1796, kIcdoff = 1800, kMsdbd = 1803;
  const uint64_t command_bytes = uint64_t{At<uint32_t>(data, kIoccsz)} * kCapsuleUnitBytes;
  const uint64_t response_bytes = uint64_t{At<uint32_t>(data, kIorcsz)} * kCapsuleUnitBytes;
  const auto offset = At<uint16_t>(data, kIcdoff);
  if (command_bytes < sizeof(SubmissionEntry) || command_bytes > UINT32_MAX) {
    return Error(
        ErrorCode::kDataLoss,
        fmt::format("{}: the controller says that commands have {} bytes (IOCCSZ)", who, command_bytes));
  }
  if (response_bytes < sizeof(CompletionEntry) || response_bytes > UINT32_MAX) {
    return Error(
        ErrorCode::kDataLoss,
        fmt::format("{}: the controller says that answers have {} bytes (IORCSZ)", who, response_bytes));
  }
  if (offset != 0) {
    return Error(
        ErrorCode::kUnimplemented,
        fmt::format("{}: the controller wants data {} bytes behind the command (ICDOFF), Cleat puts it "
                    "right behind",
                    who, offset * kCapsuleUnitBytes));
  }
  info.in_capsule_bytes = static_cast<uint32_t>(command_bytes - sizeof(SubmissionEntry));
  info.response_bytes = static_cast<uint32_t>(response_bytes);
  info.descriptors_max = At<uint8_t>(data, kMsdbd);
  return {};
}

cleat::Status ParseAna(IdentifyData data, FabricsInfo& info, const std::string& who) {
  constexpr size_t kCmic = 76, kAnatt = 342, kAnagrpmax = 344, kNanagrpid = 348;
  constexpr uint64_t kSecondNs = 1'000'000'000;
  info.ana = (At<uint8_t>(data, kCmic) & 1U << 3) != 0;
  if (!info.ana) return {};
  info.ana_transition_ns = At<uint8_t>(data, kAnatt) * kSecondNs;
  info.ana_group_last = At<uint32_t>(data, kAnagrpmax);
  info.ana_groups_max = At<uint32_t>(data, kNanagrpid);
  if (info.ana_groups_max == 0) {
    return Error(ErrorCode::kDataLoss,
                 who + ": the controller says that it has ANA (CMIC), and no groups (NANAGRPID 0)");
  }
  return {};
}

}  // namespace

Result<FabricsInfo> ParseFabrics(IdentifyData data, const std::string& who) {
  constexpr size_t kCntlid = 78, kCtratt = 96, kControllerType = 111, kAerl = 259, kLpa = 261, kKas = 320,
                   kCqt = 386, kSqes = 512, kCqes = 513, kMaxcmd = 514, kNn = 516, kSgls = 536, kSubnqn = 768;
  constexpr uint64_t kKasUnitMs = 100;
  FabricsInfo info;
  info.controller_id = At<uint16_t>(data, kCntlid);
  info.discovery = At<uint8_t>(data, kControllerType) == kDiscoveryController;
  info.subsystem_nqn = NqnAt(data, kSubnqn);
  if (!info.subsystem_nqn.empty() && !CheckNqn(info.subsystem_nqn, "it")) {
    return Error(ErrorCode::kDataLoss, who + ": the controller calls its subsystem what is no NQN (SUBNQN)");
  }
  info.commands_max = At<uint16_t>(data, kMaxcmd);
  info.keep_alive_granularity_ms = At<uint16_t>(data, kKas) * kKasUnitMs;
  info.traffic_keeps_alive = (At<uint32_t>(data, kCtratt) & 1U << 6) != 0;
  info.long_host_ids = (At<uint32_t>(data, kCtratt) & 1U) != 0;
  info.events_max = At<uint8_t>(data, kAerl) + 1U;
  info.events_supported = ParseEventsSupported(data);
  info.log_offsets = (At<uint8_t>(data, kLpa) & 1U << 2) != 0;
  info.namespaces_max = At<uint32_t>(data, kNn);
  info.command_quiesce_ms = At<uint16_t>(data, kCqt);
  if (info.discovery) return info;
  if (info.keep_alive_granularity_ms == 0) {
    return Error(ErrorCode::kUnimplemented,
                 who +
                     ": the controller has no Keep Alive (KAS 0), without which a dead "
                     "host's or target's commands could never be given up");
  }
  if ((At<uint32_t>(data, kSgls) & 3U) == 0)
    return Error(ErrorCode::kDataLoss,
                 who + ": the controller says that it takes no SGL (SGLS), which fabrics need");
  // The low nibble is the smallest size of an entry and the high one the largest, as powers of two.
  const auto submission = At<uint8_t>(data, kSqes);
  const auto completion = At<uint8_t>(data, kCqes);
  if ((submission & 0xfU) > 6 || submission >> 4 < 6 || (completion & 0xfU) > 4 || completion >> 4 < 4) {
    return Error(
        ErrorCode::kDataLoss,
        fmt::format("{}: the controller's queues have no entries of 64 and 16 bytes (SQES {:02x}h, CQES "
                    "{:02x}h)",
                    who, submission, completion));
  }
  CLEAT_TRY(ParseCapsules(data, info, who));
  CLEAT_TRY(ParseAna(data, info, who));
  return info;
}

uint32_t ParseEventsSupported(IdentifyData data) {
  return At<uint32_t>(data, kOaes);
}

std::string TextOfIds(const NamespaceIds& ids) {
  std::string text;
  const auto add = [&](std::string_view kind, const std::string& id) {
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", kind, id);
  };
  if (ids.uuid) add("UUID", TextOfUuid(*ids.uuid));
  if (ids.nguid) add("NGUID", Hex(*ids.nguid));
  if (ids.eui64) add("EUI64", Hex(*ids.eui64));
  return text.empty() ? "no identifier" : text;
}

Result<NamespaceIds> ParseDescriptors(IdentifyData data, const std::string& who) {
  constexpr size_t kHeaderBytes = 4;
  enum Type : uint8_t { kEnd = 0, kEui64 = 1, kNguid = 2, kUuid = 3, kCommandSet = 4 };
  constexpr uint8_t kBytesOf[] = {0, 8, 16, 16, 1};
  constexpr uint8_t kNvmCommandSet = 0;
  NamespaceIds ids;
  uint32_t seen = 0;  // a bit for each type
  for (size_t at = 0; at + kHeaderBytes <= data.size();) {
    const uint8_t type = data[at];
    const uint8_t bytes = data[at + 1];
    if (type == kEnd) break;
    const size_t id = at + kHeaderBytes;
    if (bytes == 0 || id + bytes > data.size() || (type <= kCommandSet && bytes != kBytesOf[type])) {
      return Error(ErrorCode::kDataLoss,
                   fmt::format("{}: a descriptor of type {} has {} bytes", who, type, bytes));
    }
    at = id + bytes;
    if (type > kCommandSet) continue;  // of a later revision
    if ((seen & 1U << type) != 0)
      return Error(ErrorCode::kDataLoss, fmt::format("{}: two descriptors of type {}", who, type));
    seen |= 1U << type;
    if (type == kEui64) ids.eui64 = IdAt<8>(data, id);
    if (type == kNguid) ids.nguid = IdAt<16>(data, id);
    if (type == kUuid) ids.uuid = IdAt<16>(data, id);
    if (type == kCommandSet && data[id] != kNvmCommandSet) {
      return Error(ErrorCode::kUnimplemented,
                   fmt::format("{} is of command set {}: only namespaces of the NVM command set hold disks",
                               who, data[id]));
    }
  }
  return ids;
}

NamespacePlace ParseNamespacePlace(IdentifyData data) {
  constexpr size_t kAnagrpid = 92, kNguid = 104, kEui64 = 120;
  NamespacePlace place;
  place.ids.nguid = IdAt<16>(data, kNguid);
  place.ids.eui64 = IdAt<8>(data, kEui64);
  place.ana_group = At<uint32_t>(data, kAnagrpid);
  return place;
}

Result<uint32_t> ParseActiveNamespaces(IdentifyData data, uint32_t after, std::span<uint32_t, kListedMax> ids,
                                       const std::string& who) {
  for (uint32_t i = 0; i < kListedMax; ++i) {
    const auto id = At<uint32_t>(data, i * sizeof(uint32_t));
    if (id == 0) return i;
    if (id <= after) {
      return Error(
          ErrorCode::kDataLoss,
          fmt::format("{}: the list of namespaces has {} after {}, and is to be in order", who, id, after));
    }
    ids[i] = after = id;
  }
  return kListedMax;
}

}  // namespace cleat::nvme::fabrics
