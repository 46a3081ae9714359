// SPDX-License-Identifier: Apache-2.0
#include "nvme/fabrics/commands.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>

#include "base/check.h"

namespace cleat::nvme::fabrics {
namespace {

constexpr uint8_t kCommandSpecific = 1;

struct Name {
  uint8_t code;
  const char* name;
};
constexpr Name kNames[] = {
    {kIncompatibleFormat, "Incompatible Format"},
    {kControllerBusy, "Controller Busy"},
    {kInvalidParameters, "Connect Invalid Parameters"},
    {kRestartDiscovery, "Connect Restart Discovery"},
    {kInvalidHost, "Connect Invalid Host"},
    {kInvalidQueueType, "Invalid Queue Type"},
    {kDiscoverRestart, "Discover Restart"},
    {kAuthenticationRequired, "Authentication Required"},
};

struct Field {
  uint32_t offset;  // of its first byte
  const char* name;
};

// Sorted by offset.
constexpr Field kDataFields[] = {
    {offsetof(ConnectData, host_id), "the host identifier (HOSTID)"},
    {offsetof(ConnectData, controller_id), "the controller identifier (CNTLID)"},
    {offsetof(ConnectData, reserved1), "a reserved field"},
    {offsetof(ConnectData, subsystem_nqn), "the subsystem's NQN (SUBNQN)"},
    {offsetof(ConnectData, host_nqn), "the host's NQN (HOSTNQN)"},
    {offsetof(ConnectData, reserved2), "a reserved field"},
};
constexpr Field kCommandFields[] = {
    {0, "its head"},
    {offsetof(SubmissionEntry, data), "the data descriptor (SGL1)"},
    {40, "the record format (RECFMT)"},
    {42, "the queue identifier (QID)"},
    {44, "the queue's size (SQSIZE)"},
    {46, "the attributes (CATTR)"},
    {47, "a reserved field"},
    {48, "the keep alive timeout (KATO)"},
    {52, "a reserved field"},
};

template <size_t kCount>
const char* FieldAt(const Field (&fields)[kCount], uint32_t offset) {
  const Field* const after =
      std::upper_bound(std::begin(fields), std::end(fields), offset,
                       [](uint32_t at, const Field& field) { return at < field.offset; });
  return std::prev(after)->name;  // the first field's offset is 0
}

// Connect Invalid Parameters says which field it does not like: its offset in bits 15:0, and in bit 16 whether in the data.
std::string InvalidParameter(uint32_t result) {
  const uint32_t offset = result & 0xffff;
  const bool in_data = (result & 1U << 16) != 0;
  return fmt::format("{} (byte {} of the {})",
                     in_data ? FieldAt(kDataFields, offset) : FieldAt(kCommandFields, offset), offset,
                     in_data ? "data" : "command");
}

Error ConnectError(const CompletionEntry& entry, const std::string& who, std::string_view host_nqn,
                   std::string_view subsystem_nqn) {
  const Status status = entry.status();
  const std::string name = NameOfFabricsStatus(status);
  if (status.type() == kCommandSpecific) {
    switch (status.code()) {
      case kInvalidHost:
        return {ErrorCode::kPermissionDenied,
                fmt::format("{}: the target does not let host {} in ({}): allow it at the target", who,
                            host_nqn, name)};
      case kInvalidParameters:
        return {ErrorCode::kInvalidArgument,
                fmt::format("{}: the target refuses {} of Connect to subsystem {} ({})", who,
                            InvalidParameter(static_cast<uint32_t>(entry.result)), subsystem_nqn, name)};
      case kControllerBusy:
        return {ErrorCode::kUnavailable,
                fmt::format("{}: the target has no controller to give at present ({})", who, name)};
      case kRestartDiscovery:
        return {ErrorCode::kFailedPrecondition,
                fmt::format("{}: subsystem {} is elsewhere now ({}): ask its discovery service", who,
                            subsystem_nqn, name)};
      case kAuthenticationRequired:
        return {ErrorCode::kPermissionDenied,
                fmt::format("{}: the target takes no Connect of a host that has not authenticated ({}): see "
                            "what it asks of host {}",
                            who, name, host_nqn)};
      default:
        break;
    }
  }
  return {status.do_not_retry() ? ErrorCode::kFailedPrecondition : ErrorCode::kUnavailable,
          fmt::format("{}: the target refuses Connect to subsystem {}: {}", who, subsystem_nqn, name)};
}

}  // namespace

ConnectData ConnectDataOf(const HostIdentity& host, std::string_view subsystem_nqn, uint16_t controller_id) {
  CLEAT_CHECK(host.nqn.size() <= kNqnBytesMax && subsystem_nqn.size() <= kNqnBytesMax);
  ConnectData data;
  data.host_id = host.id;
  data.controller_id = controller_id;
  std::ranges::copy(subsystem_nqn, data.subsystem_nqn);
  std::ranges::copy(host.nqn, data.host_nqn);
  return data;
}

Command Connect(const ConnectOptions& options) {
  CLEAT_CHECK(options.entries >= 2 && options.entries <= 1U << 16);
  constexpr uint32_t kNoFlowControl = 1U << (16 + 2);  // bit 2 of CATTR
  return {.opcode = static_cast<uint8_t>(AdminOpcode::kFabrics),
          .nsid = static_cast<uint32_t>(FabricsType::kConnect),
          .cdw10 = uint32_t{options.queue_id} << 16,
          .cdw11 = (options.entries - 1) | (options.flow_control ? 0 : kNoFlowControl),
          .cdw12 = options.kato_ms};
}

Result<ConnectAnswer> ParseConnect(const CompletionEntry& entry, const std::string& who,
                                   std::string_view host_nqn, std::string_view subsystem_nqn) {
  if (!entry.status().ok()) return ConnectError(entry, who, host_nqn, subsystem_nqn);
  const auto result = static_cast<uint32_t>(entry.result);
  ConnectAnswer answer;
  answer.controller_id = static_cast<uint16_t>(result);
  // AUTHREQ: which of its bits wants what has changed between revisions; none of them wants nothing.
  answer.authentication_required = result >> 16 != 0;
  answer.secure_channel_required = (result >> 18 & 1) != 0;
  if (answer.controller_id > kControllerIdLast) {
    return Error(ErrorCode::kDataLoss,
                 fmt::format("{}: the target gives controller {:#06x}, which is no identifier of one", who,
                             answer.controller_id));
  }
  return answer;
}

Result<Capabilities> ParseCapabilities(uint64_t value, const std::string& who) {
  constexpr uint64_t kTimeoutUnitNs = 500'000'000;
  constexpr uint32_t kPageShift = 12;  // of the smallest that a controller may have
  Capabilities capabilities;
  capabilities.queue_entries_max = static_cast<uint32_t>(value & 0xffff) + 1;
  // 0: by the letter not a moment. One unit is the least that can be measured.
  capabilities.ready_timeout_ns = std::max<uint64_t>(value >> 24 & 0xff, 1) * kTimeoutUnitNs;
  const auto page_exponent = static_cast<uint32_t>(value >> 48 & 0xf);
  capabilities.page_shift_min = static_cast<uint8_t>(kPageShift + page_exponent);
  capabilities.nvm_command_set = (value >> 37 & 1) != 0;
  capabilities.any_command_set = (value >> 43 & 1) != 0;
  if (capabilities.queue_entries_max < 2) {
    return Error(ErrorCode::kDataLoss,
                 who + ": the controller says that its queues have one entry (CAP.MQES 0), which is none");
  }
  return capabilities;
}

uint32_t EnabledConfiguration(const Capabilities& capabilities) {
  constexpr uint32_t kEnable = 1, kSubmissionEntry = 6U << 16, kCompletionEntry = 4U << 20;
  constexpr uint32_t kAnyCommandSet = 6U << 4;
  constexpr uint32_t kPageShift = 12, kPageAt = 7;
  const uint32_t command_set =
      !capabilities.nvm_command_set && capabilities.any_command_set ? kAnyCommandSet : 0;
  return kEnable | kSubmissionEntry | kCompletionEntry | command_set |
         (capabilities.page_shift_min - kPageShift) << kPageAt;
}

uint32_t ShutdownConfiguration(uint32_t configuration) {
  constexpr uint32_t kNormal = 1U << 14, kField = 3U << 14;
  return (configuration & ~kField) | kNormal;
}

std::string TextOfVersion(uint32_t version) {
  const uint32_t tertiary = version & 0xff;
  const std::string text = fmt::format("{}.{}", version >> 16, version >> 8 & 0xff);
  return tertiary == 0 ? text : fmt::format("{}.{}", text, tertiary);
}

std::string NameOfFabricsStatus(Status status) {
  if (status.type() == kCommandSpecific) {
    for (const Name& row : kNames) {
      if (row.code == status.code())
        return fmt::format("{} ({}/{:02x}h)", row.name, status.type(), status.code());
    }
    return fmt::format("status {}/{:02x}h", status.type(), status.code());
  }
  return nvme::NameOf(status);
}

}  // namespace cleat::nvme::fabrics
