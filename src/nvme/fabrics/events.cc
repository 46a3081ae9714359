// SPDX-License-Identifier: Apache-2.0
#include "nvme/fabrics/events.h"

#include <fmt/format.h>

#include <optional>

namespace cleat::nvme::fabrics {
namespace {

enum Type : uint8_t { kTypeError = 0, kTypeHealth = 1, kTypeNotice = 2, kTypeImmediate = 3 };

struct Row {
  uint8_t type;
  uint8_t info;
  EventKind kind;
  const char* name;
};
constexpr Row kTable[] = {
    {kTypeError, 0x00, EventKind::kError, "write to an invalid doorbell register"},
    {kTypeError, 0x01, EventKind::kError, "invalid doorbell value"},
    {kTypeError, 0x02, EventKind::kError, "diagnostic failure"},
    {kTypeError, 0x03, EventKind::kError, "persistent internal error"},
    {kTypeError, 0x04, EventKind::kError, "transient internal error"},
    {kTypeError, 0x05, EventKind::kError, "firmware image load error"},
    {kTypeHealth, 0x00, EventKind::kSmart, "reliability degraded"},
    {kTypeHealth, 0x01, EventKind::kSmart, "temperature beyond a threshold"},
    {kTypeHealth, 0x02, EventKind::kSmart, "spare below its threshold"},
    {kTypeNotice, 0x00, EventKind::kNamespaceChanged, "namespace attribute changed"},
    {kTypeNotice, 0x01, EventKind::kOther, "firmware activation starting"},
    {kTypeNotice, 0x02, EventKind::kOther, "telemetry log changed"},
    {kTypeNotice, 0x03, EventKind::kAnaChanged, "asymmetric namespace access changed"},
    {kTypeNotice, 0x04, EventKind::kOther, "predictable latency event log changed"},
    {kTypeNotice, 0x05, EventKind::kOther, "LBA status information alert"},
    {kTypeNotice, 0x06, EventKind::kOther, "endurance group event log changed"},
    {kTypeNotice, 0xef, EventKind::kOther, "zone descriptor changed"},
    {kTypeNotice, 0xf0, EventKind::kDiscoveryChanged, "discovery log changed"},
    {kTypeNotice, 0xf4, EventKind::kOther, "cross-controller reset completed"},
    {kTypeImmediate, 0x00, EventKind::kShuttingDown, "normal subsystem shutdown"},
};

const char* NameOfType(uint8_t type) {
  switch (type) {
    case kTypeError:
      return "error";
    case kTypeHealth:
      return "health";
    case kTypeNotice:
      return "notice";
    case kTypeImmediate:
      return "immediate";
    default:
      return nullptr;
  }
}

const Row* Find(uint8_t type, uint8_t info) {
  for (const Row& row : kTable) {
    if (row.type == type && row.info == info) return &row;
  }
  return nullptr;
}

}  // namespace

Event ParseEvent(uint32_t result) {
  Event event;
  event.type = result & 7;
  event.info = result >> 8 & 0xff;
  event.log_page = result >> 16 & 0xff;
  if (const Row* row = Find(event.type, event.info)) {
    event.kind = row->kind;
  } else if (event.type == kTypeError) {
    event.kind = EventKind::kError;
  } else if (event.type == kTypeHealth) {
    event.kind = EventKind::kSmart;
  }
  return event;
}

std::string NameOf(const Event& event) {
  if (const Row* row = Find(event.type, event.info))
    return fmt::format("{} ({}, {:02x}h)", row->name, NameOfType(event.type), event.info);
  return fmt::format("event of type {}, information {:02x}h", event.type, event.info);
}

}  // namespace cleat::nvme::fabrics
