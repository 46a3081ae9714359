// SPDX-License-Identifier: Apache-2.0
#include "nvme/target/pages.h"

#include <arpa/inet.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "nvme/fabrics/capsule.h"
#include "nvme/fabrics/commands.h"
#include "nvme/fabrics/events.h"

namespace cleat::nvme::target {
namespace {

constexpr uint32_t kPageShift = 12;  // MPSMIN is 0

template <typename Number>
void Put(std::span<uint8_t> page, size_t offset, Number value) {
  std::memcpy(page.data() + offset, &value, sizeof(value));
}

// Padded with blanks, as ASCII fields are, or with zeroes, as NQNs are. What does not fit is cut.
void PutText(std::span<uint8_t> page, size_t offset, size_t bytes, std::string_view text,
             char padding = ' ') {
  for (size_t i = 0; i < bytes; ++i)
    page[offset + i] = static_cast<uint8_t>(i < text.size() ? text[i] : padding);
}

constexpr size_t kNqnBytes = 256;

// The exponent of a limit that is a power of two of 4 KiB; 0: no limit, so that less than 8 KiB can't be said.
uint8_t LimitExponent(uint64_t bytes) {
  if (bytes >> kPageShift <= 1) return 0;
  return static_cast<uint8_t>(std::bit_width(bytes >> kPageShift) - 1);
}
bool CanSayLimit(uint64_t bytes) {
  return bytes == 0 || LimitExponent(bytes) != 0;
}

// What controllers of both kinds have.
void WriteCommon(IdentifyPage page, uint16_t id, std::string_view firmware, const TargetLimits& limits,
                 const TransportOffer& offer) {
  constexpr size_t kFirmware = 64, kMdts = 77, kCntlid = 78, kVer = 80, kCtratt = 96, kAerl = 259, kKas = 320,
                   kMaxcmd = 514, kSgls = 536;
  constexpr size_t kFirmwareBytes = 8;
  constexpr uint32_t kLongHostIds = 1U << 0, kTrafficKeepsAlive = 1U << 6;  // CTRATT
  constexpr uint32_t kSgl = 1U << 0, kSglKeyed = 1U << 2, kSglOffset = 1U << 20,
                     kSglTransport = 1U << 21;  // SGLS
  PutText(page, kFirmware, kFirmwareBytes, firmware);
  page[kMdts] = LimitExponent(limits.transfer_bytes_max);
  Put(page, kCntlid, id);
  Put(page, kVer, kVersion);
  Put(page, kCtratt, kLongHostIds | (limits.traffic_keeps_alive ? kTrafficKeepsAlive : 0));
  page[kAerl] = kEventRequestsMax - 1;
  Put<uint16_t>(page, kKas, kKeepAliveUnitMs / 100);
  const uint32_t commands = limits.commands_max == 0 ? limits.queue_entries_max : limits.commands_max;
  Put(page, kMaxcmd, static_cast<uint16_t>(std::min<uint32_t>(commands, UINT16_MAX)));
  Put(page, kSgls, kSgl | kSglOffset | (offer.keyed_descriptors ? kSglKeyed : kSglTransport));
}

void WriteAna(IdentifyPage page, const TargetLimits& limits) {
  constexpr size_t kAnatt = 342, kAnacap = 343, kAnagrpmax = 344, kNanagrpid = 348;
  constexpr uint8_t kAllStates = 0x1f, kGroupNeverChanges = 1U << 6;
  page[kAnatt] = limits.ana_transition_s;
  page[kAnacap] = kAllStates | kGroupNeverChanges;
  Put(page, kAnagrpmax, kNamespacesMax);
  Put(page, kNanagrpid, kNamespacesMax);
}

// The fields of fabrics (base 5.17.2.1, bytes 1792 on).
void WriteFabrics(IdentifyPage page, uint32_t in_capsule_bytes, uint8_t descriptors_max) {
  constexpr size_t kIoccsz = 1792, kIorcsz = 1796, kMsdbd = 1803, kOfcs = 1804;
  constexpr uint32_t kUnitBytes = 16;
  constexpr uint16_t kDisconnect = 1;
  Put(page, kIoccsz,
      static_cast<uint32_t>((sizeof(fabrics::SubmissionEntry) + in_capsule_bytes) / kUnitBytes));
  Put(page, kIorcsz, static_cast<uint32_t>(sizeof(fabrics::CompletionEntry) / kUnitBytes));
  page[kMsdbd] = descriptors_max;
  Put(page, kOfcs, kDisconnect);
}

void PutScope(LogBytes& log, size_t entry, uint32_t flags) {
  constexpr size_t kEntryBytes = 4;
  Put(log, entry * kEntryBytes, flags);
}

}  // namespace

uint32_t EventsOf(bool discovery) {
  constexpr uint32_t kOfIoControllers =
      fabrics::kEventNamespace | fabrics::kEventAna | fabrics::kEventControllerReset;
  return discovery ? fabrics::kEventDiscovery : kOfIoControllers;
}

uint16_t OptionalCommands(const TargetLimits& limits, const Subsystem& subsystem) {
  constexpr uint16_t kCompare = 1U << 0, kDatasetManagement = 1U << 2, kWriteZeroes = 1U << 3,
                     kReservations = 1U << 5, kVerify = 1U << 7;
  const Features& features = limits.features;
  uint16_t commands = 0;
  if (features.compare) commands |= kCompare;
  if (features.dataset_management && subsystem.any_discard()) commands |= kDatasetManagement;
  if (features.write_zeroes && subsystem.any_write_zeroes() &&
      CanSayLimit(subsystem.write_zeroes_bytes_max()))
    commands |= kWriteZeroes;
  if (features.reservations) commands |= kReservations;
  if (features.verify) commands |= kVerify;
  return commands;
}

void WriteController(IdentifyPage page, uint16_t id, std::string_view firmware, const TargetLimits& limits,
                     const TransportOffer& offer, const Subsystem& subsystem) {
  constexpr size_t kSerial = 4, kModel = 24, kRab = 72, kCmic = 76, kOaes = 92, kControllerType = 111,
                   kAcl = 258, kFrmw = 260, kLpa = 261, kCqt = 386, kSqes = 512, kCqes = 513, kNn = 516,
                   kOncs = 520, kVwc = 525, kMnan = 540, kSubnqn = 768;
  constexpr size_t kSerialBytes = 20, kModelBytes = 40;
  constexpr uint8_t kPorts = 1U << 0, kControllers = 1U << 1, kAna = 1U << 3;  // CMIC
  constexpr uint8_t kIoController = 1;
  constexpr uint8_t kOneReadOnlySlot = 1U << 0 | 1U << 1;                              // FRMW
  constexpr uint8_t kEffects = 1U << 1, kOffsets = 1U << 2, kLogsOfSupport = 1U << 5;  // LPA
  // VWC. Hosts read it once: a namespace whose writes have to be flushed may come later. Flush of all namespaces (FFFFFFFFh) is refused.
  constexpr uint8_t kWriteCache = 1U << 0, kFlushOfOneNamespace = 2U << 1;
  WriteCommon(page, id, firmware, limits, offer);
  PutText(page, kSerial, kSerialBytes, subsystem.config().serial);
  PutText(page, kModel, kModelBytes, subsystem.config().model);
  page[kRab] =
      6;  // the burst of commands at which arbitration is best: hosts are told what other targets tell
  page[kCmic] = kPorts | kControllers | kAna;
  Put(page, kOaes, EventsOf(false));
  page[kControllerType] = kIoController;
  page[kAcl] = 3;  // Abort answers at once, so that a few are plenty
  page[kFrmw] = kOneReadOnlySlot;
  page[kLpa] = kEffects | kOffsets | kLogsOfSupport;
  WriteAna(page, limits);
  Put(page, kCqt, limits.command_quiesce_ms);
  page[kSqes] = 0x66;  // entries of 64 and 16 bytes
  page[kCqes] = 0x44;
  Put(page, kNn, kNamespacesMax);
  Put(page, kOncs, OptionalCommands(limits, subsystem));
  page[kVwc] = kFlushOfOneNamespace | kWriteCache;
  Put(page, kMnan, kNamespacesMax);
  PutText(page, kSubnqn, kNqnBytes, subsystem.config().nqn, '\0');
  WriteFabrics(page, offer.in_capsule_bytes, offer.descriptors_max);
}

// Fields of 2.3, which 2.0 reserves: hosts that know them look there.
void WriteInstance(IdentifyPage page, const ControllerInstance& instance) {
  constexpr size_t kCiu = 135, kCirn = 136, kCcrl = 1807;
  page[kCiu] = instance.uniquifier;
  Put(page, kCirn, instance.random);
  page[kCcrl] = kResetsInProgressMax;
}

void WriteDiscoveryController(IdentifyPage page, uint16_t id, std::string_view firmware,
                              const TargetLimits& limits, const TransportOffer& offer) {
  constexpr size_t kSerial = 4, kModel = 24, kOaes = 92, kControllerType = 111, kLpa = 261, kSubnqn = 768;
  constexpr size_t kSerialBytes = 20, kModelBytes = 40;
  constexpr uint8_t kDiscoveryController = 2;
  constexpr uint8_t kOffsets = 1U << 2;
  WriteCommon(page, id, firmware, limits, offer);
  PutText(page, kSerial, kSerialBytes, "");
  PutText(page, kModel, kModelBytes, "Cleat");
  Put(page, kOaes, EventsOf(true));
  page[kControllerType] = kDiscoveryController;
  page[kLpa] = kOffsets;
  PutText(page, kSubnqn, kNqnBytes, fabrics::kDiscoveryNqn, '\0');
  WriteFabrics(page, 0, offer.descriptors_max);
}

void WriteCommandSetController(IdentifyPage page, const TargetLimits& limits, const Subsystem& subsystem) {
  constexpr size_t kWzsl = 1, kDmrsl = 4;
  if (limits.features.write_zeroes) page[kWzsl] = LimitExponent(subsystem.write_zeroes_bytes_max());
  if (limits.features.dataset_management)
    Put(page, kDmrsl, static_cast<uint32_t>(std::min<uint64_t>(subsystem.discard_blocks_max(), UINT32_MAX)));
}

// ---- Logs

LogBytes SupportedPagesLog(bool discovery, const Features& features) {
  constexpr size_t kBytes = 1024;
  constexpr uint32_t kSupported = 1;
  LogBytes log(kBytes);
  const auto add = [&](LogPage page) { PutScope(log, static_cast<size_t>(page), kSupported); };
  if (discovery) {
    for (const LogPage page : {LogPage::kSupportedPages, LogPage::kFeatureEffects, LogPage::kDiscovery})
      add(page);
    return log;
  }
  for (const LogPage page :
       {LogPage::kSupportedPages, LogPage::kErrors, LogPage::kSmart, LogPage::kFirmwareSlots,
        LogPage::kChangedNamespaces, LogPage::kCommandEffects, LogPage::kAna, LogPage::kFeatureEffects,
        LogPage::kManagementEffects, LogPage::kControllerResets})
    add(page);
  if (features.reservations) add(LogPage::kReservations);
  return log;
}

LogBytes ErrorLog() {
  constexpr size_t kEntryBytes = 64;  // ELPE is 0: there is one
  return LogBytes(kEntryBytes);
}

LogBytes HealthLog() {
  constexpr size_t kSpare = 3;
  LogBytes log(kSmartLogBytes);
  log[kSpare] = 100;  // percent; the threshold is 0
  return log;
}

LogBytes FirmwareLog(std::string_view firmware) {
  constexpr size_t kBytes = 512, kActive = 0, kFirstSlot = 8, kSlotBytes = 8;
  LogBytes log(kBytes);
  log[kActive] = 1;
  PutText(log, kFirstSlot, kSlotBytes, firmware);
  return log;
}

LogBytes ChangedNamespacesLog(const std::set<uint32_t>& changed) {
  LogBytes log(kIdentifyBytes);  // room for 1024, more than there can be
  size_t at = 0;
  for (const uint32_t nsid : changed) {
    Put(log, at, nsid);
    at += sizeof(nsid);
  }
  return log;
}

LogBytes CommandEffectsLog(const TargetLimits& limits, const Subsystem& subsystem) {
  constexpr size_t kIoAt = 256;  // entries; before it are the admin commands
  constexpr uint32_t kSupported = 1U << 0, kContentChanges = 1U << 1;
  constexpr uint32_t kNamespaceScope = 1U << 20, kControllerScope = 1U << 21;
  constexpr uint32_t kRead = kSupported | kNamespaceScope, kChanging = kRead | kContentChanges;
  constexpr uint16_t kCompare = 1U << 0, kVerify = 1U << 7;
  LogBytes log(kIdentifyBytes);
  const auto admin = [&](AdminOpcode opcode, uint32_t scope) {
    PutScope(log, static_cast<size_t>(opcode), kSupported | scope);
  };
  for (const AdminOpcode opcode : {AdminOpcode::kGetLogPage, AdminOpcode::kIdentify,
                                   AdminOpcode::kSetFeatures, AdminOpcode::kGetFeatures})
    admin(opcode, kNamespaceScope | kControllerScope);
  for (const AdminOpcode opcode : {AdminOpcode::kAbort, AdminOpcode::kAsyncEventRequest,
                                   AdminOpcode::kKeepAlive, AdminOpcode::kCrossControllerReset})
    admin(opcode, kControllerScope);
  const auto io = [&](size_t opcode, uint32_t flags) { PutScope(log, kIoAt + opcode, flags); };
  const auto of = [](Opcode opcode) { return static_cast<size_t>(opcode); };
  constexpr size_t kCompareOpcode = 0x05, kVerifyOpcode = 0x0c;
  const uint16_t optional = OptionalCommands(limits, subsystem);
  io(of(Opcode::kFlush), kChanging);
  io(of(Opcode::kWrite), kChanging);
  io(of(Opcode::kRead), kRead);
  if ((optional & 1U << 3) != 0) io(of(Opcode::kWriteZeroes), kChanging);
  if ((optional & 1U << 2) != 0) io(of(Opcode::kDatasetManagement), kChanging);
  if ((optional & kCompare) != 0) io(kCompareOpcode, kRead);
  if ((optional & kVerify) != 0) io(kVerifyOpcode, kRead);
  if (limits.features.reservations) {
    for (const Opcode opcode : {Opcode::kReservationRegister, Opcode::kReservationReport,
                                Opcode::kReservationAcquire, Opcode::kReservationRelease})
      io(of(opcode), kRead);
  }
  return log;
}

LogBytes FeatureEffectsLog(bool discovery, const Features& features) {
  constexpr size_t kBytes = 1024;
  constexpr uint32_t kSupported = 1U << 0, kNamespaceScope = 1U << 20, kControllerScope = 1U << 21;
  LogBytes log(kBytes);
  const auto add = [&](Feature feature, uint32_t scope) {
    PutScope(log, static_cast<size_t>(feature), kSupported | scope);
  };
  add(Feature::kAsyncEvents, kControllerScope);
  add(Feature::kKeepAliveTimer, kControllerScope);
  add(Feature::kHostIdentifier, kControllerScope);
  if (discovery) return log;
  add(Feature::kErrorRecovery, kNamespaceScope);
  if (features.reservations) {
    add(Feature::kReservationMask, kNamespaceScope);
    add(Feature::kReservationPersistence, kNamespaceScope);
  }
  for (const Feature feature :
       {Feature::kArbitration, Feature::kPowerManagement, Feature::kTemperatureThreshold,
        Feature::kWriteCache, Feature::kQueues, Feature::kWriteAtomicity, Feature::kCommandSetProfile})
    add(feature, kControllerScope);
  return log;
}

LogBytes ManagementEffectsLog() {
  return LogBytes(kIdentifyBytes);
}

LogBytes AnaLog(const Subsystem& subsystem, bool groups_only) {
  constexpr size_t kHeaderBytes = 16, kEntryBytes = 32;
  constexpr size_t kGroups = 8;                                             // of the header
  constexpr size_t kGroup = 0, kNamespaces = 4, kChanges = 8, kState = 16;  // of an entry
  const std::vector<uint32_t> active = subsystem.Active(0);
  const size_t entry_bytes = kEntryBytes + (groups_only ? 0 : sizeof(uint32_t));
  LogBytes log(kHeaderBytes + active.size() * entry_bytes);
  Put(log, 0, subsystem.ana_changes());
  Put(log, kGroups, static_cast<uint16_t>(active.size()));
  size_t at = kHeaderBytes;
  for (const uint32_t nsid : active) {
    Put(log, at + kGroup, nsid);
    Put<uint32_t>(log, at + kNamespaces, groups_only ? 0 : 1);
    Put(log, at + kChanges, subsystem.ana_changes(nsid));
    log[at + kState] = static_cast<uint8_t>(subsystem.ana_state(nsid));
    if (!groups_only) Put(log, at + kEntryBytes, nsid);
    at += entry_bytes;
  }
  return log;
}

LogBytes DiscoveryLog(uint64_t generation, const std::vector<DiscoveryEntry>& entries) {
  constexpr size_t kHeaderBytes = 1024, kEntryBytes = 1024, kRecords = 8;
  constexpr size_t kType = 0, kFamily = 1, kKind = 2, kTreq = 3, kPortId = 4, kController = 6,
                   kAdminEntries = 8, kFlags = 10, kService = 32, kServiceBytes = 32, kSubsystem = 256,
                   kAddress = 512, kAddressBytes = 256, kSpecific = 768;  // TSAS
  constexpr uint8_t kNoFlowControl = 1U << 2;                             // TREQ: SQ flow control may be off
  constexpr uint8_t kSecureChannelRequired = 1;  // TREQ; 0 there says nothing of secure channels
  constexpr uint8_t kTls13 = 2;                  // SECTYPE of TCP
  // Of RDMA: reliable connections, of a provider that is not said, by the RDMA connection manager.
  constexpr std::array<uint8_t, 3> kReliableConnections = {1, 1, 1};
  constexpr uint16_t kPersistentConnections = 1U << 1;  // EFLAGS of a discovery service
  LogBytes log(kHeaderBytes + entries.size() * kEntryBytes);
  Put(log, 0, generation);
  Put(log, kRecords, uint64_t{entries.size()});
  size_t at = kHeaderBytes;
  for (const DiscoveryEntry& entry : entries) {
    const std::span<uint8_t> record = std::span(log).subspan(at, kEntryBytes);
    at += kEntryBytes;
    record[kType] = static_cast<uint8_t>(entry.address.transport);
    record[kFamily] = static_cast<uint8_t>(entry.address.family);
    record[kKind] = static_cast<uint8_t>(entry.kind);
    record[kTreq] = kNoFlowControl | (entry.tls ? kSecureChannelRequired : 0);
    if (entry.address.transport == fabrics::TransportType::kRdma) {
      std::ranges::copy(kReliableConnections, record.begin() + kSpecific);
    } else if (entry.tls) {
      record[kSpecific] = kTls13;
    }
    Put(record, kPortId, entry.port_id);
    Put(record, kController, fabrics::kAnyController);
    Put(record, kAdminEntries, static_cast<uint16_t>(kAdminEntriesMax));
    if (entry.kind == fabrics::DiscoveredKind::kThisService) Put(record, kFlags, kPersistentConnections);
    PutText(record, kService, kServiceBytes, std::to_string(entry.address.port), '\0');
    PutText(record, kSubsystem, kNqnBytes, entry.nqn, '\0');
    char address[INET6_ADDRSTRLEN] = {};
    inet_ntop(entry.address.family == fabrics::AddressFamily::kIpv4 ? AF_INET : AF_INET6,
              entry.address.address.data(), address, sizeof(address));
    PutText(record, kAddress, kAddressBytes, address, '\0');
  }
  return log;
}

}  // namespace cleat::nvme::target
