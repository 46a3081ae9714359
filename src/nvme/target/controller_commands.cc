// SPDX-License-Identifier: Apache-2.0
// The admin commands of a controller.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "nvme/fabrics/capsule.h"
#include "nvme/target/controller.h"
#include "nvme/target/pages.h"

namespace cleat::nvme::target {
namespace {

using fabrics::SubmissionEntry;

Answer Refused(uint16_t status) {
  return {.status = static_cast<uint16_t>(status | status_field::kDoNotRetry), .data = {}};
}
Answer Value(uint64_t result) {
  return {.result = result, .data = {}};
}

// Whether the command has room for so many bytes to the host, in the way that NVMe/TCP has for it.
uint16_t CheckRoom(const SubmissionEntry& entry, uint64_t bytes) {
  if (entry.data.type != fabrics::kSglByTransport) return status_field::kSglTypeInvalid;
  return entry.data.length_bytes < bytes ? status_field::kSglLengthInvalid : status_field::kSuccess;
}

// The controller's, by either way to say so.
bool IsOfController(uint32_t nsid) {
  return nsid == 0 || nsid == kAllNamespaces;
}

constexpr uint8_t kNvmCommandSet = 0;  // CSI
uint8_t CommandSetOf(const SubmissionEntry& entry) {
  return entry.cdw11 >> 24;
}

}  // namespace

Answer TargetController::Admin(const Entry& entry, uint64_t now_ns) {
  constexpr uint8_t kFused = 3, kSglField = 0xc0;
  if ((entry.flags & kFused) != 0 || (entry.flags & kSglField) != fabrics::kFlagsSgl)
    return Refused(status_field::kInvalidField);
  // Before it is enabled, and while it is being reset, it has properties alone.
  constexpr uint32_t kEnable = 1, kReady = 1;
  if ((configuration_ & kEnable) == 0 || (status_ & kReady) == 0)
    return Refused(status_field::kCommandSequence);
  switch (static_cast<AdminOpcode>(entry.opcode)) {
    case AdminOpcode::kIdentify:
      return Identify(entry);
    case AdminOpcode::kGetLogPage:
      return GetLogPage(entry);
    case AdminOpcode::kGetFeatures:
      return GetFeature(entry);
    case AdminOpcode::kSetFeatures:
      return SetFeature(entry, now_ns);
    case AdminOpcode::kAsyncEventRequest:
      return EventRequest(entry);
    case AdminOpcode::kKeepAlive:
      RestartTimer(now_ns);
      return {};
    case AdminOpcode::kAbort:
      // No command is looked for: each ends in its time. Bit 0 of the result says that it was not aborted.
      return discovery() ? Refused(status_field::kInvalidOpcode) : Value(1);
    case AdminOpcode::kCrossControllerReset:
      return discovery() ? Refused(status_field::kInvalidOpcode) : ResetSibling(entry);
    default:
      return Refused(status_field::kInvalidOpcode);
  }
}

// ---- Identify

Answer TargetController::Identify(const Entry& entry) const {
  if (const uint16_t status = CheckRoom(entry, kIdentifyBytes); status != status_field::kSuccess)
    return Refused(status);
  const auto cns = static_cast<IdentifyCns>(entry.cdw10 & 0xff);
  Answer answer;
  answer.data.resize(kIdentifyBytes);
  const IdentifyPage page(answer.data);
  if (discovery()) {
    if (cns != IdentifyCns::kController) return Refused(status_field::kInvalidField);
    WriteDiscoveryController(page, config_.id, config_.firmware, limits_,
                             limits_.OfferOf(config_.local.transport));
    return answer;
  }
  switch (cns) {
    case IdentifyCns::kController:
      WriteController(page, config_.id, config_.firmware, limits_, limits_.OfferOf(config_.local.transport),
                      *subsystem_);
      WriteInstance(page, instance_);
      return answer;
    case IdentifyCns::kCommandSetController:
      if (CommandSetOf(entry) != kNvmCommandSet) return Refused(status_field::kInvalidField);
      WriteCommandSetController(page, limits_, *subsystem_);
      return answer;
    case IdentifyCns::kCommandSets: {
      // Vectors of 64 bits, of which the first has the NVM command set alone. CNTID is this controller's or FFFFh.
      const uint32_t controller = entry.cdw10 >> 16;
      if (controller != config_.id && controller != fabrics::kAnyController)
        return Refused(status_field::kInvalidField);
      page[0] = 1;
      return answer;
    }
    case IdentifyCns::kActiveNamespaces:
    case IdentifyCns::kAllocatedNamespaces:
    case IdentifyCns::kCommandSetActive:
      return NamespaceList(entry);
    default:
      return IdentifyNamespace(entry);
  }
}

Answer TargetController::NamespaceList(const Entry& entry) const {
  constexpr uint32_t kNsidLast = 0xffff'fffd;
  const auto cns = static_cast<IdentifyCns>(entry.cdw10 & 0xff);
  if (entry.nsid > kNsidLast) return Refused(status_field::kInvalidNamespace);
  if (cns == IdentifyCns::kCommandSetActive && CommandSetOf(entry) != kNvmCommandSet)
    return Refused(status_field::kInvalidField);
  Answer answer;
  answer.data.resize(kIdentifyBytes);
  size_t at = 0;
  for (const uint32_t nsid : subsystem_->Active(entry.nsid)) {
    std::memcpy(answer.data.data() + at, &nsid, sizeof(nsid));
    at += sizeof(nsid);
  }
  return answer;
}

// Of one namespace. A page of zeroes says that there is none by this identifier, though there may be one.
Answer TargetController::IdentifyNamespace(const Entry& entry) const {
  const auto cns = static_cast<IdentifyCns>(entry.cdw10 & 0xff);
  Answer answer;
  answer.data.resize(kIdentifyBytes);
  const IdentifyPage page(answer.data);
  const bool may_be = entry.nsid >= 1 && entry.nsid <= kNamespacesMax;
  const NamespaceShape* const shape = subsystem_->Find(entry.nsid);
  switch (cns) {
    case IdentifyCns::kNamespace:
    case IdentifyCns::kAllocatedNamespace:
      if (!may_be) return Refused(status_field::kInvalidNamespace);
      if (shape != nullptr) WriteNamespace(page, *shape, entry.nsid, limits_.features.reservations);
      return answer;
    case IdentifyCns::kDescriptors:
      if (shape == nullptr) return Refused(status_field::kInvalidNamespace);
      WriteDescriptors(page, *shape);
      return answer;
    case IdentifyCns::kCommandSetNamespace:
      if (CommandSetOf(entry) != kNvmCommandSet) return Refused(status_field::kInvalidField);
      // No protection information: all of it is zeroes.
      return may_be ? answer : Refused(status_field::kInvalidNamespace);
    case IdentifyCns::kIndependentNamespace:
      if (!may_be) return Refused(status_field::kInvalidNamespace);
      if (shape != nullptr)
        WriteIndependentNamespace(page, *shape, entry.nsid, limits_.features.reservations);
      return answer;
    default:
      return Refused(status_field::kInvalidField);
  }
}

// ---- Logs

std::optional<std::vector<uint8_t>> TargetController::LogOf(uint8_t page, uint8_t parameter) const {
  constexpr uint8_t kGroupsOnly = 1;  // LSP of the ANA log
  switch (static_cast<LogPage>(page)) {
    case LogPage::kSupportedPages:
      return SupportedPagesLog(discovery(), limits_.features);
    case LogPage::kFeatureEffects:
      return FeatureEffectsLog(discovery(), limits_.features);
    case LogPage::kDiscovery:
      if (!discovery()) return std::nullopt;
      return discovery_->DiscoveryLogOf(*this);
    default:
      break;
  }
  if (discovery()) return std::nullopt;
  switch (static_cast<LogPage>(page)) {
    case LogPage::kErrors:
      return ErrorLog();
    case LogPage::kSmart:
      return HealthLog();
    case LogPage::kFirmwareSlots:
      return FirmwareLog(config_.firmware);
    case LogPage::kChangedNamespaces:
      return ChangedNamespacesLog(settings_.changed_namespaces);
    case LogPage::kCommandEffects:
      return CommandEffectsLog(limits_, *subsystem_);
    case LogPage::kAna:
      return AnaLog(*subsystem_, (parameter & kGroupsOnly) != 0);
    case LogPage::kManagementEffects:
      return ManagementEffectsLog();
    case LogPage::kControllerResets:
      return resets_.Bytes();
    case LogPage::kReservations:
      if (!limits_.features.reservations) return std::nullopt;
      return settings_.reservation_notices.Log();
    default:
      return std::nullopt;
  }
}

// Once a log is read its events are told again.
void TargetController::ReadLog(uint8_t page) {
  switch (static_cast<LogPage>(page)) {
    case LogPage::kChangedNamespaces:
      settings_.changed_namespaces.clear();
      LogRead(kNamespaces);
      return;
    case LogPage::kAna:
      LogRead(kAna);
      return;
    case LogPage::kDiscovery:
      LogRead(kDiscovery);
      return;
    case LogPage::kControllerResets:
      LogRead(kReset);
      return;
    case LogPage::kReservations:
      // One notice is read at a time, so that the host has to come again for the next.
      settings_.reservation_notices.DropOldest();
      LogRead(kReservation);
      if (!settings_.reservation_notices.empty()) Raise(kReservation);
      return;
    default:
      return;
  }
}

Answer TargetController::GetLogPage(const Entry& entry) {
  constexpr uint32_t kDwordBytes = 4;
  constexpr uint32_t kRetainEvent = 1U << 15, kOffsetIsIndex = 1U << 23;
  const auto page = static_cast<uint8_t>(entry.cdw10);
  const auto parameter = static_cast<uint8_t>(entry.cdw10 >> 8 & 0x7f);
  const uint64_t dwords = (uint64_t{entry.cdw11 & 0xffff} << 16 | entry.cdw10 >> 16) + 1;
  const uint64_t bytes = dwords * kDwordBytes;
  const uint64_t offset = uint64_t{entry.cdw13} << 32 | entry.cdw12;
  if (bytes > limits_.transfer_bytes_max || offset % kDwordBytes != 0 ||
      (entry.cdw14 & kOffsetIsIndex) != 0 || !IsOfController(entry.nsid))
    return Refused(status_field::kInvalidField);
  if (const uint16_t status = CheckRoom(entry, bytes); status != status_field::kSuccess)
    return Refused(status);
  auto log = LogOf(page, parameter);
  if (!log) return Refused(status_field::kInvalidLogPage);
  if (offset > log->size()) return Refused(status_field::kInvalidField);
  // Hosts get what they have asked for: what is behind the log's end is zeroes.
  Answer answer;
  answer.data.resize(bytes);
  const size_t there = std::min<uint64_t>(bytes, log->size() - offset);
  std::copy_n(log->begin() + static_cast<ptrdiff_t>(offset), there, answer.data.begin());
  if ((entry.cdw10 & kRetainEvent) == 0) ReadLog(page);
  // Of the log of resets what the host has not been shown stays.
  const bool removes =
      page == static_cast<uint8_t>(LogPage::kControllerResets) && (parameter & kRemoveResetsThatAreOver) != 0;
  if (removes && there == log->size()) RemoveResets();
  return answer;
}

// ---- Cross-Controller Reset

bool TargetController::IsSiblingOf(const TargetController& other) const {
  return this != &other && subsystem_ != nullptr && other.subsystem_ != nullptr &&
         subsystem_->config().nqn == other.subsystem_->config().nqn && host_nqn() == other.host_nqn() &&
         host_id() == other.host_id();
}

// A controller that is not here may be another engine's, or its host may have reset it since: nothing is said of what that one still does, and the
// host relies on nothing.
Answer TargetController::ResetSibling(const Entry& entry) {
  const ControllerInstance meant{.id = static_cast<uint16_t>(entry.cdw10),
                                 .uniquifier = static_cast<uint8_t>(entry.cdw10 >> 16),
                                 .random = uint64_t{entry.cdw13} << 32 | entry.cdw12};
  TargetController* const impacted = meant.uniquifier == 0 ? nullptr : siblings_.FindSibling(*this, meant);
  if (impacted == nullptr) return Refused(status_field::kInvalidField);
  if (const uint16_t status = resets_.Refusal(meant); status != status_field::kSuccess)
    return {.status = status, .data = {}};
  impacted->End({ErrorCode::kUnavailable, fmt::format("host {} has had controller {} reset by controller {}",
                                                      host_nqn(), impacted->id(), id())});
  // From here on no queue joins it.
  if (impacted->queues_.none()) return Value(kResetIsOver);
  resets_.Begin(meant);
  return Value(0);
}

void TargetController::RemoveResets() {
  resets_.RemoveThatAreOver();
  settings_.events[kReset].pending = false;
}

// ---- Features

namespace {

// Features that hosts may set have no effect here, and are kept under a key: the identifier, with what CDW11 adds. nullopt: no such feature.
std::optional<uint32_t> KeyOf(const SubmissionEntry& entry) {
  constexpr uint32_t kSensorAt = 16, kSensor = 0xf, kAllSensors = 0xf, kTypeAt = 20, kType = 3;
  const auto feature = static_cast<uint8_t>(entry.cdw10);
  switch (static_cast<Feature>(feature)) {
    case Feature::kArbitration:
    case Feature::kPowerManagement:
    case Feature::kErrorRecovery:
    case Feature::kWriteAtomicity:
    case Feature::kCommandSetProfile:
      return feature;
    case Feature::kTemperatureThreshold: {
      // The composite temperature has an upper and a lower threshold; there are no sensors.
      const uint32_t sensor = entry.cdw11 >> kSensorAt & kSensor, type = entry.cdw11 >> kTypeAt & kType;
      if ((sensor != 0 && sensor != kAllSensors) || type > 1) return std::nullopt;
      return feature | type << 8;
    }
    default:
      return std::nullopt;
  }
}

// Of a threshold the temperature that is never reached.
uint32_t DefaultOf(uint32_t key) {
  return key == static_cast<uint32_t>(Feature::kTemperatureThreshold) ? 0xffff : 0;
}

}  // namespace

Answer TargetController::GetFeature(const Entry& entry) const {
  constexpr uint32_t kSelect = 7U << 8;  // SEL: of what is saved, of which there is nothing (ONCS)
  if ((entry.cdw10 & kSelect) != 0) return Refused(status_field::kInvalidField);
  switch (static_cast<Feature>(entry.cdw10 & 0xff)) {
    case Feature::kAsyncEvents:
      return Value(settings_.events_enabled);
    case Feature::kKeepAliveTimer:
      return Value(kato_ms_);
    case Feature::kHostIdentifier: {
      // On fabrics it is the long one.
      constexpr uint32_t kLong = 1;
      if ((entry.cdw11 & kLong) == 0) return Refused(status_field::kHostIdFormat);
      if (const uint16_t status = CheckRoom(entry, config_.host_id.size()); status != status_field::kSuccess)
        return Refused(status);
      return {.data = {config_.host_id.begin(), config_.host_id.end()}};
    }
    default:
      break;
  }
  if (discovery()) return Refused(status_field::kInvalidField);
  switch (static_cast<Feature>(entry.cdw10 & 0xff)) {
    case Feature::kQueues:
      return Value((io_queues_max() - 1) << 16 | (io_queues_max() - 1));
    case Feature::kWriteCache:
      return Value(1);
    case Feature::kReservationMask:
    case Feature::kReservationPersistence:
      return GetReservationFeature(entry);
    default:
      break;
  }
  const std::optional<uint32_t> key = KeyOf(entry);
  if (!key) return Refused(status_field::kInvalidField);
  if (*key == static_cast<uint32_t>(Feature::kErrorRecovery) && !IsOfController(entry.nsid) &&
      subsystem_->Find(entry.nsid) == nullptr)
    return Refused(status_field::kInvalidNamespace);
  const auto found = settings_.features.find(*key);
  return Value(found == settings_.features.end() ? DefaultOf(*key) : found->second);
}

Answer TargetController::SetQueues(uint32_t value) {
  const uint32_t submission = value & 0xffff, completion = value >> 16;
  if (submission == 0xffff || completion == 0xffff) return Refused(status_field::kInvalidField);
  // Once, before there are queues (base 5.27.1.5).
  if (queues_.any()) return Refused(status_field::kCommandSequence);
  settings_.queues_granted =
      std::min({std::min(submission, completion) + 1, subsystem_->config().io_queues_max, kQueuesMax - 1});
  return Value((settings_.queues_granted - 1) << 16 | (settings_.queues_granted - 1));
}

Answer TargetController::SetKeepAlive(uint32_t value, uint64_t now_ns) {
  const bool may_be_none = discovery();
  if (value > fabrics::kKeepAliveMsMax || (value == 0 && !may_be_none))
    return Refused(status_field::kKeepAliveInvalid);
  kato_ms_ = (value + kKeepAliveUnitMs - 1) / kKeepAliveUnitMs * kKeepAliveUnitMs;
  RestartTimer(now_ns);
  return {};
}

Answer TargetController::SetWithoutEffect(const Entry& entry) {
  constexpr uint32_t kPowerState = 0x1f, kDeallocatedError = 1U << 16, kCombination = 0x1ff;
  const std::optional<uint32_t> key = KeyOf(entry);
  if (!key) return Refused(status_field::kInvalidField);
  uint32_t value = entry.cdw11;
  switch (static_cast<Feature>(entry.cdw10 & 0xff)) {
    case Feature::kPowerManagement:
      // There is power state 0.
      if ((value & kPowerState) != 0) return Refused(status_field::kInvalidField);
      break;
    case Feature::kErrorRecovery:
      // Deallocated blocks are no errors (NSFEAT has no DULBE).
      if ((value & kDeallocatedError) != 0) return Refused(status_field::kInvalidField);
      if (!IsOfController(entry.nsid) && subsystem_->Find(entry.nsid) == nullptr)
        return Refused(status_field::kInvalidNamespace);
      break;
    case Feature::kTemperatureThreshold:
      value &= 0xffff;
      break;
    case Feature::kCommandSetProfile:
      if ((value & kCombination) != 0) return Refused(status_field::kCommandSetsRejected);
      return Value(0);
    default:
      break;
  }
  settings_.features[*key] = value;
  return {};
}

Answer TargetController::GetReservationFeature(const Entry& entry) const {
  // Each namespace has its own: no value is that of all.
  if (!limits_.features.reservations || entry.nsid == kAllNamespaces)
    return Refused(status_field::kInvalidField);
  if (subsystem_->Find(entry.nsid) == nullptr) return Refused(status_field::kInvalidNamespace);
  if (static_cast<Feature>(entry.cdw10 & 0xff) == Feature::kReservationMask)
    return Value(settings_.reservation_notices.mask(entry.nsid));
  return Value(subsystem_->reservation_persists(entry.nsid) ? 1 : 0);
}

Answer TargetController::SetReservationFeature(const Entry& entry) {
  if (!limits_.features.reservations) return Refused(status_field::kInvalidField);
  const bool all = entry.nsid == kAllNamespaces;
  if (!all && subsystem_->Find(entry.nsid) == nullptr) return Refused(status_field::kInvalidNamespace);
  // What outlives the power is changed by Register alone (CPTPL), which is stored before it is answered.
  if (static_cast<Feature>(entry.cdw10 & 0xff) == Feature::kReservationPersistence)
    return Refused(status_field::kFeatureNotChangeable);
  if ((entry.cdw11 & ~kReservationMaskBits) != 0) return Refused(status_field::kInvalidField);
  for (const uint32_t nsid : all ? subsystem_->Active(0) : std::vector{entry.nsid})
    settings_.reservation_notices.SetMask(nsid, entry.cdw11);
  return {};
}

Answer TargetController::SetFeature(const Entry& entry, uint64_t now_ns) {
  constexpr uint32_t kSave = 1U << 31, kWriteCacheOn = 1, kHealthEvents = 0xff;
  if ((entry.cdw10 & kSave) != 0) return Refused(status_field::kFeatureNotSaveable);
  switch (static_cast<Feature>(entry.cdw10 & 0xff)) {
    case Feature::kAsyncEvents:
      if ((entry.cdw11 & ~(EventsOf(discovery()) | kHealthEvents)) != 0)
        return Refused(status_field::kInvalidField);
      settings_.events_enabled = entry.cdw11;
      return {};
    case Feature::kKeepAliveTimer:
      return SetKeepAlive(entry.cdw11, now_ns);
    case Feature::kHostIdentifier:
      return Refused(status_field::kCommandSequence);  // Connect has set it
    default:
      break;
  }
  if (discovery()) return Refused(status_field::kInvalidField);
  switch (static_cast<Feature>(entry.cdw10 & 0xff)) {
    case Feature::kQueues:
      return SetQueues(entry.cdw11);
    case Feature::kWriteCache:
      // The cache is the storage's, where there is one, and stays as it is.
      return (entry.cdw11 & kWriteCacheOn) != 0 ? Answer{} : Refused(status_field::kFeatureNotChangeable);
    case Feature::kReservationMask:
    case Feature::kReservationPersistence:
      return SetReservationFeature(entry);
    default:
      return SetWithoutEffect(entry);
  }
}

}  // namespace cleat::nvme::target
