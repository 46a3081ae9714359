// SPDX-License-Identifier: Apache-2.0
#include "nvme/target/target.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "nvme/target/pages.h"

namespace cleat::nvme::target {
namespace {

using fabrics::ConnectData;
using fabrics::SubmissionEntry;
using fabrics::TransportAddress;

constexpr uint16_t kFirstId = 1;  // of the discovery service's controllers, and behind kControllerIdLast
constexpr uint64_t kAuthenticationAsked = 1U << 17;  // of Connect's result: AUTHREQ's ATR

void CheckLimits(const TargetLimits& limits) {
  CLEAT_CHECK(limits.tcp.in_capsule_bytes % 16 == 0 && limits.rdma.in_capsule_bytes % 16 == 0);
  CLEAT_CHECK(std::has_single_bit(limits.transfer_bytes_max) && limits.transfer_bytes_max >= 8192);
  CLEAT_CHECK(limits.queue_entries_max >= 2 && limits.queue_entries_max <= 1U << 16);
  CLEAT_CHECK(limits.commands_max <= limits.queue_entries_max);
  CLEAT_CHECK(limits.ready_timeout_ms > 0 && limits.ready_timeout_ms <= 127'500);
  CLEAT_CHECK(limits.ana_transition_s > 0);
}

// Malformed: the same Connect would never do.
Answer Malformed(uint16_t status) {
  return {.status = static_cast<uint16_t>(status | status_field::kDoNotRetry), .data = {}};
}
// Which field it is: its offset in the command, or in the data.
Answer InvalidInCommand(uint32_t offset) {
  Answer answer = Malformed(status_field::kCommandSpecific | fabrics::kInvalidParameters);
  answer.result = offset;
  return answer;
}
Answer InvalidInData(size_t offset) {
  constexpr uint32_t kInData = 1U << 16;
  Answer answer = Malformed(status_field::kCommandSpecific | fabrics::kInvalidParameters);
  answer.result = kInData | static_cast<uint32_t>(offset);
  return answer;
}
// What may be otherwise in a moment, as while an engine starts or a host is let in: hosts that are told not to retry give a path up forever.
Answer ForNow(Answer answer) {
  answer.status = static_cast<uint16_t>(answer.status & ~status_field::kDoNotRetry);
  return answer;
}

// Offsets of Connect's fields in the command (base 6.3).
enum ConnectField : uint32_t { kQueueIdAt = 42, kQueueSizeAt = 44, kAttributesAt = 46, kKatoAt = 48 };

// nullopt: it does not end within its field, or is none.
template <size_t kBytes>
std::optional<std::string> NqnIn(const char (&field)[kBytes]) {
  const size_t length = strnlen(field, kBytes);
  if (length == kBytes) return std::nullopt;
  std::string nqn(field, length);
  return fabrics::CheckNqn(nqn, "it") ? std::optional(std::move(nqn)) : std::nullopt;
}

// Whether a connection that was secured as `secured` may say that it is this host's to this subsystem. `host`: nullptr for the discovery
// service, which everybody may ask, in plain TCP too.
bool IsSecuredFor(const SecuredAs* secured, const HostAccess* host, std::string_view host_nqn,
                  std::string_view subsystem_nqn) {
  if (secured == nullptr) return host == nullptr || host->psk == nullptr;
  if (secured->host_nqn != host_nqn || secured->subsystem_nqn != subsystem_nqn) return false;
  return host == nullptr || (host->psk != nullptr && secured->psk != nullptr && *secured->psk == *host->psk);
}

}  // namespace

struct Target::Shown {
  std::unique_ptr<Subsystem> subsystem;  // nullptr: the discovery service
  uint16_t id_next = kFirstId;
  bool lets_in = true;
  std::map<uint16_t, std::unique_ptr<TargetController>> controllers;  // by identifier

  std::string_view nqn() const {
    return subsystem == nullptr ? fabrics::kDiscoveryNqn : subsystem->config().nqn;
  }
};

struct Target::Request {
  uint16_t queue_id = 0;
  uint32_t entries = 0;
  bool flow_control = true;
  uint32_t kato_ms = 0;
  fabrics::Uuid host_id{};
  uint16_t controller_id = 0;
  std::string subsystem_nqn;
  std::string host_nqn;
};

Target::Target(const TargetLimits& limits, std::string firmware, std::function<uint64_t()> random)
    : limits_(limits),
      firmware_(std::move(firmware)),
      random_(std::move(random)),
      discovery_(std::make_unique<Shown>()) {
  CheckLimits(limits_);
}

Target::~Target() {
  CLEAT_CHECK(controllers_ == 0);
}

// ---- Subsystems

Target::Shown* Target::FindShown(std::string_view nqn) const {
  if (nqn == fabrics::kDiscoveryNqn) return discovery_.get();
  const auto found = subsystems_.find(nqn);
  return found == subsystems_.end() ? nullptr : found->second.get();
}

Result<Target::Shown*> Target::Known(std::string_view nqn) const {
  const auto found = subsystems_.find(nqn);
  if (found != subsystems_.end()) return found->second.get();
  return Error(ErrorCode::kNotFound, fmt::format("there is no subsystem {}", nqn));
}

const Subsystem* Target::Find(std::string_view nqn) const {
  const auto found = subsystems_.find(nqn);
  return found == subsystems_.end() ? nullptr : found->second->subsystem.get();
}

// The log has changed for those discovery controllers whose host `concerns`.
template <typename Concerns>
void Target::DiscoveryChanged(const Concerns& concerns) {
  ++generation_;
  for (const auto& [id, controller] : discovery_->controllers) {
    if (concerns(controller->host_nqn())) controller->DiscoveryChanged();
  }
}

cleat::Status Target::Add(SubsystemConfig config) {
  CLEAT_TRY(CheckConfig(config));
  if (subsystems_.contains(config.nqn))
    return Error(ErrorCode::kAlreadyExists, fmt::format("there is a subsystem {} already", config.nqn));
  if (subsystems_.size() >= kSubsystemsMax) {
    return Error(ErrorCode::kResourceExhausted,
                 fmt::format("there are {} subsystems, more can't be", kSubsystemsMax));
  }
  auto shown = std::make_unique<Shown>();
  shown->id_next = config.controller_id_begin;
  shown->subsystem = std::make_unique<Subsystem>(std::move(config));
  const Subsystem& subsystem = *shown->subsystem;
  subsystems_.emplace(subsystem.config().nqn, std::move(shown));
  DiscoveryChanged([&](const std::string& host) { return subsystem.Admits(host); });
  return {};
}

cleat::Status Target::Remove(std::string_view nqn) {
  const auto found = subsystems_.find(nqn);
  if (found == subsystems_.end())
    return Error(ErrorCode::kNotFound, fmt::format("there is no subsystem {}", nqn));
  std::unique_ptr<Shown> shown = std::move(found->second);
  subsystems_.erase(found);
  DiscoveryChanged([&](const std::string& host) { return shown->subsystem->Admits(host); });
  for (const auto& [id, controller] : shown->controllers) {
    controller->End({ErrorCode::kNotFound, fmt::format("subsystem {} is not shown any more", shown->nqn())});
  }
  if (!shown->controllers.empty()) leaving_.push_back(std::move(shown));
  return {};
}

cleat::Status Target::SetHosts(std::string_view nqn, std::vector<HostAccess> hosts) {
  CLEAT_ASSIGN(Shown* const shown, Known(nqn));
  CLEAT_TRY(CheckHosts(hosts));
  Subsystem& subsystem = *shown->subsystem;
  const auto before = std::exchange(subsystem.hosts_, {});
  subsystem.SetHosts(std::move(hosts));
  const auto find = [](const auto& named, const std::string& host) {
    const auto found = named.find(host);
    return found == named.end() ? nullptr : &found->second;
  };
  const auto has_key = [](const HostAccess* host) { return host != nullptr && host->psk != nullptr; };
  // Whether the discovery log says something else to the host.
  const auto is_other = [&](const std::string& host) {
    const HostAccess *const was = find(before, host), *const is = subsystem.FindHost(host);
    return (was == nullptr) != (is == nullptr) || has_key(was) != has_key(is);
  };
  const auto changes = [&](const auto& some) {
    return std::ranges::any_of(some, [&](const auto& host) { return is_other(host.first); });
  };
  if (changes(before) || changes(subsystem.hosts_)) DiscoveryChanged(is_other);
  for (const auto& [id, controller] : shown->controllers) {
    const HostAccess *const was = find(before, controller->host_nqn()), *const is = subsystem.FindHost(
                                                                            controller->host_nqn());
    // A controller that ends already may be of a host that was put out before.
    if (is != nullptr && (was == nullptr || AskTheSame(*was, *is))) continue;
    controller->End(
        {ErrorCode::kPermissionDenied,
         fmt::format("host {} {}", controller->host_nqn(),
                     is == nullptr ? "is not let in any more" : "has other secrets to prove from now on")});
  }
  return {};
}

cleat::Status Target::PutNamespace(std::string_view nqn, uint32_t nsid, const NamespaceShape& shape) {
  CLEAT_ASSIGN(Shown* const shown, Known(nqn));
  if (nsid == 0 || nsid > kNamespacesMax) {
    return Error(ErrorCode::kInvalidArgument,
                 fmt::format("namespaces are from 1 to {}, {} is none", kNamespacesMax, nsid));
  }
  CLEAT_TRY(CheckShape(shape));
  if (const NamespaceShape* const before = shown->subsystem->Find(nsid); before != nullptr) {
    if (*before == shape) return {};
    if (before->ids != shape.ids || before->block_bytes != shape.block_bytes) {
      return Error(ErrorCode::kFailedPrecondition,
                   fmt::format("namespace {} of {} would be another: remove it first", nsid, nqn));
    }
  }
  shown->subsystem->Put(nsid, shape);
  for (const auto& [id, controller] : shown->controllers) controller->NamespaceChanged(nsid);
  return {};
}

cleat::Status Target::RemoveNamespace(std::string_view nqn, uint32_t nsid) {
  CLEAT_ASSIGN(Shown* const shown, Known(nqn));
  if (shown->subsystem->Find(nsid) == nullptr)
    return Error(ErrorCode::kNotFound, fmt::format("{} has no namespace {}", nqn, nsid));
  shown->subsystem->Remove(nsid);
  for (const auto& [id, controller] : shown->controllers) controller->NamespaceChanged(nsid);
  return {};
}

cleat::Status Target::SetAna(std::string_view nqn, uint32_t nsid, fabrics::AnaState state) {
  CLEAT_ASSIGN(Shown* const shown, Known(nqn));
  if (shown->subsystem->Find(nsid) == nullptr)
    return Error(ErrorCode::kNotFound, fmt::format("{} has no namespace {}", nqn, nsid));
  if (!shown->subsystem->SetAna(nsid, state)) return {};
  for (const auto& [id, controller] : shown->controllers) controller->AnaChanged();
  return {};
}

cleat::Status Target::SetAna(std::string_view nqn, fabrics::AnaState state) {
  CLEAT_ASSIGN(Shown* const shown, Known(nqn));
  if (!shown->subsystem->SetAna(state)) return {};
  for (const auto& [id, controller] : shown->controllers) controller->AnaChanged();
  return {};
}

// ---- Reservations

cleat::Status Target::SetReservationPersists(std::string_view nqn, uint32_t nsid, bool persists) {
  CLEAT_ASSIGN(Shown* const shown, Known(nqn));
  if (shown->subsystem->Find(nsid) == nullptr)
    return Error(ErrorCode::kNotFound, fmt::format("{} has no namespace {}", nqn, nsid));
  shown->subsystem->namespaces_[nsid]->reservation_persists = persists;
  return {};
}

void Target::NotifyOfReservation(std::string_view nqn, uint32_t nsid, const fabrics::Uuid& host_id,
                                 ReservationNotice notice) {
  const auto found = subsystems_.find(nqn);
  if (found == subsystems_.end()) return;
  for (const auto& [id, controller] : found->second->controllers) {
    if (controller->host_id() == host_id) controller->ReservationChanged(nsid, notice);
  }
}

std::vector<ReportedController> Target::ControllersOf(std::string_view nqn) const {
  std::vector<ReportedController> controllers;
  const auto found = subsystems_.find(nqn);
  if (found == subsystems_.end()) return controllers;
  for (const auto& [id, controller] : found->second->controllers) {
    if (controller->proved() && !controller->ending())
      controllers.push_back({.id = id, .host_id = controller->host_id()});
  }
  return controllers;
}

// ---- The discovery log

std::vector<uint8_t> Target::DiscoveryLogOf(const TargetController& controller) const {
  std::vector<DiscoveryEntry> entries;
  entries.push_back({.kind = fabrics::DiscoveredKind::kThisService,
                     .nqn = std::string(fabrics::kDiscoveryNqn),
                     .address = controller.local()});
  for (const auto& [nqn, shown] : subsystems_) {
    const HostAccess* const host = shown->subsystem->FindHost(controller.host_nqn());
    if (host == nullptr) continue;
    uint16_t port_id = 0;
    for (const TransportAddress& address : WhereIs(*shown->subsystem, controller.local())) {
      // More than hosts read.
      if (entries.size() >= fabrics::kDiscoveryRecordsMax) break;
      // There is no TLS over RDMA, and the host is let in by TLS alone.
      if (host->psk != nullptr && address.transport == fabrics::TransportType::kRdma) continue;
      entries.push_back({.nqn = nqn, .address = address, .port_id = ++port_id, .tls = host->psk != nullptr});
    }
  }
  return DiscoveryLog(generation_, entries);
}

// ---- TLS

// The host's keys that may be for this one, in the subsystems' order where it is the discovery service.
std::vector<std::shared_ptr<const tls::Psk>> Target::KeysOf(std::string_view host_nqn,
                                                            std::string_view subsystem_nqn) const {
  std::vector<std::shared_ptr<const tls::Psk>> keys;
  const auto add_of = [&](const Subsystem& subsystem) {
    const HostAccess* const host = subsystem.FindHost(host_nqn);
    if (host != nullptr && host->psk != nullptr && keys.size() < kDiscoveryKeysMax) keys.push_back(host->psk);
  };
  if (subsystem_nqn == fabrics::kDiscoveryNqn) {
    for (const auto& [nqn, shown] : subsystems_) add_of(*shown->subsystem);
  } else if (const Subsystem* const subsystem = Find(subsystem_nqn); subsystem != nullptr) {
    add_of(*subsystem);
  }
  return keys;
}

// An identity of version 1 has a digest of its key, by which one of several is found; of version 0 the first one is taken.
Result<SecuredKey> Target::KeyFor(std::string_view identity) const {
  const auto parts = tls::ParseIdentity(identity);
  if (!parts) {
    return Error(ErrorCode::kPermissionDenied,
                 fmt::format("what the host names its key by, {} bytes, is no identity of NVMe/TCP's",
                             identity.size()));
  }
  const bool may_be = parts->version == tls::IdentityVersion::kV1 ||
                      tls::Psk::HasVersion0For(parts->host_nqn, parts->subsystem_nqn);
  for (const auto& psk : KeysOf(parts->host_nqn, parts->subsystem_nqn)) {
    if (!may_be || psk->hash() != parts->hash) continue;
    CLEAT_ASSIGN(tls::ConnectionKey key, psk->KeyFor(parts->host_nqn, parts->subsystem_nqn, parts->version));
    if (key.identity != identity) continue;
    return SecuredKey{std::move(key), {std::string(parts->host_nqn), std::string(parts->subsystem_nqn), psk}};
  }
  return Error(
      ErrorCode::kPermissionDenied,
      fmt::format("no key is known here by which host {} could come to {}: see that it is let in with the "
                  "same pre-shared key, and whether the host's has the same hash",
                  parts->host_nqn, parts->subsystem_nqn));
}

// ---- Connect

Answer Target::Parse(const SubmissionEntry& entry, std::span<const uint8_t> data, Request& request) {
  constexpr uint8_t kReservedAttributes = 0xf0, kNoFlowControl = 1U << 2;  // CATTR
  if (entry.opcode != static_cast<uint8_t>(AdminOpcode::kFabrics) ||
      (entry.nsid & 0xff) != static_cast<uint32_t>(fabrics::FabricsType::kConnect))
    return Malformed(status_field::kCommandSequence);
  if ((entry.cdw10 & 0xffff) != 0)
    return Malformed(status_field::kCommandSpecific | fabrics::kIncompatibleFormat);
  if (entry.data.length_bytes != sizeof(ConnectData) || data.size() != sizeof(ConnectData))
    return Malformed(status_field::kSglLengthInvalid);
  const auto attributes = static_cast<uint8_t>(entry.cdw11 >> 16);
  if ((attributes & kReservedAttributes) != 0) return InvalidInCommand(kAttributesAt);
  request.queue_id = entry.cdw10 >> 16;
  request.entries = (entry.cdw11 & 0xffff) + 1;
  if (request.entries < 2) return InvalidInCommand(kQueueSizeAt);
  request.flow_control = (attributes & kNoFlowControl) == 0;
  request.kato_ms = entry.cdw12;
  ConnectData connect;
  std::memcpy(&connect, data.data(), sizeof(connect));
  request.host_id = connect.host_id;
  request.controller_id = connect.controller_id;
  auto subsystem_nqn = NqnIn(connect.subsystem_nqn);
  if (!subsystem_nqn) return InvalidInData(offsetof(ConnectData, subsystem_nqn));
  auto host_nqn = NqnIn(connect.host_nqn);
  if (!host_nqn) return InvalidInData(offsetof(ConnectData, host_nqn));
  request.subsystem_nqn = std::move(*subsystem_nqn);
  request.host_nqn = std::move(*host_nqn);
  return {};
}

Connected Target::Connect(const SubmissionEntry& entry, std::span<const uint8_t> data,
                          const TransportAddress& local, const SecuredAs* secured, ControllerOwner& owner,
                          uint64_t now_ns) {
  Request request;
  if (Answer answer = Parse(entry, data, request); !answer.ok()) return {.answer = std::move(answer)};
  Shown* const shown = FindShown(request.subsystem_nqn);
  const bool is_reached = shown != nullptr && shown->lets_in &&
                          (shown->subsystem == nullptr || IsReachedBy(*shown->subsystem, local));
  if (!is_reached) return {.answer = ForNow(InvalidInData(offsetof(ConnectData, subsystem_nqn)))};
  const HostAccess* const host =
      shown->subsystem == nullptr ? nullptr : shown->subsystem->FindHost(request.host_nqn);
  const bool is_known = host != nullptr || shown->subsystem == nullptr;
  if (!is_known || !IsSecuredFor(secured, host, request.host_nqn, request.subsystem_nqn)) {
    Answer answer = InvalidInData(offsetof(ConnectData, host_nqn));
    answer.status = status_field::kCommandSpecific | fabrics::kInvalidHost;
    return {.answer = std::move(answer)};
  }
  return request.queue_id == 0 ? ConnectAdmin(request, *shown, local, owner, now_ns)
                               : ConnectQueue(request, *shown);
}

bool Target::IsUsed(const Shown& shown, uint16_t id) const {
  return shown.controllers.contains(id) || std::ranges::any_of(leaving_, [&](const auto& other) {
           return other->nqn() == shown.nqn() && other->controllers.contains(id);
         });
}

// In turn, so that an identifier that was given back is not another controller's soon.
std::optional<uint16_t> Target::NewId(Shown& shown) const {
  for (uint32_t tried = 0; tried < fabrics::kControllerIdLast; ++tried) {
    const uint16_t id = shown.id_next;
    shown.id_next = id == fabrics::kControllerIdLast ? kFirstId : static_cast<uint16_t>(id + 1);
    if (!IsUsed(shown, id)) return id;
  }
  return std::nullopt;
}

std::shared_ptr<const auth::ChapSecrets> Target::ProofOf(const Shown& shown, const std::string& host_nqn) {
  return shown.subsystem == nullptr ? nullptr : shown.subsystem->FindHost(host_nqn)->chap;
}

// Controllers whose host has not proved itself have bounds of their own beneath those of all.
bool Target::HasRoomFor(const Shown& shown, const std::string& host_nqn, bool proves) const {
  const uint32_t most = shown.subsystem == nullptr ? kDiscoveryControllersMax : kControllersMax;
  if (shown.controllers.size() >= most || controllers_ >= kAllControllersMax) return false;
  if (!proves) return true;
  uint32_t unproved = 0, of_host = 0;
  for (const auto& [id, controller] : shown.controllers) {
    if (controller->proved()) continue;
    ++unproved;
    if (controller->host_nqn() == host_nqn) ++of_host;
  }
  return unproved < kUnprovedMax && of_host < kUnprovedOfOneHostMax && unproved_ < kAllUnprovedMax;
}

Connected Target::ConnectAdmin(const Request& request, Shown& shown, const TransportAddress& local,
                               ControllerOwner& owner, uint64_t now_ns) {
  const bool discovery = shown.subsystem == nullptr;
  if (request.entries > kAdminEntriesMax) return {.answer = InvalidInCommand(kQueueSizeAt)};
  // Controllers are made for a host that comes, and not named by it.
  if (request.controller_id != fabrics::kAnyController)
    return {.answer = InvalidInData(offsetof(ConnectData, controller_id))};
  // Without a keep alive timeout a dead host's writes would be waited for forever: NVMe/TCP has to have one. A log that is read once needs none.
  if (request.kato_ms > fabrics::kKeepAliveMsMax || (request.kato_ms == 0 && !discovery))
    return {.answer = InvalidInCommand(kKatoAt)};
  auto proof = ProofOf(shown, request.host_nqn);
  const bool has_room = HasRoomFor(shown, request.host_nqn, proof != nullptr);
  const std::optional<uint16_t> id = has_room ? NewId(shown) : std::nullopt;
  if (!id)
    return {.answer = {.status = status_field::kCommandSpecific | fabrics::kControllerBusy, .data = {}}};
  const DiscoveryLogSource* const log_source = discovery ? this : nullptr;
  SiblingControllers& siblings = *this;
  auto controller =
      std::make_unique<TargetController>(TargetController::Config{.id = *id,
                                                                  .host_nqn = request.host_nqn,
                                                                  .host_id = request.host_id,
                                                                  .kato_ms = request.kato_ms,
                                                                  .local = local,
                                                                  .firmware = firmware_,
                                                                  .proves = proof != nullptr},
                                         limits_, shown.subsystem.get(), log_source, siblings, owner, now_ns);
  TargetController* const made = controller.get();
  shown.controllers.emplace(*id, std::move(controller));
  ++controllers_;
  if (proof != nullptr) ++unproved_;
  return {.answer = {.result = *id | (proof == nullptr ? 0 : kAuthenticationAsked), .data = {}},
          .controller = made,
          .queue_id = 0,
          .entries = request.entries,
          .flow_control = request.flow_control,
          .proof = std::move(proof)};
}

Connected Target::ConnectQueue(const Request& request, Shown& shown) {
  const auto found = shown.controllers.find(request.controller_id);
  if (found == shown.controllers.end())
    return {.answer = ForNow(InvalidInData(offsetof(ConnectData, controller_id)))};
  TargetController& controller = *found->second;
  if (controller.host_nqn() != request.host_nqn)
    return {.answer = InvalidInData(offsetof(ConnectData, host_nqn))};
  if (controller.host_id() != request.host_id)
    return {.answer = InvalidInData(offsetof(ConnectData, host_id))};
  if (controller.discovery() || request.queue_id > controller.io_queues_max())
    return {.answer = InvalidInCommand(kQueueIdAt)};
  if (request.entries > limits_.queue_entries_max) return {.answer = InvalidInCommand(kQueueSizeAt)};
  if (!controller.ready()) return {.answer = {.status = status_field::kCommandSequence, .data = {}}};
  // The queue of that name may be about to end.
  if (controller.HasQueue(request.queue_id))
    return {.answer = {.status = status_field::kInvalidQueueId, .data = {}}};
  auto proof = ProofOf(shown, request.host_nqn);
  if (proof == nullptr) controller.AddQueue(request.queue_id);
  return {.answer = {.result = controller.id() | (proof == nullptr ? 0 : kAuthenticationAsked), .data = {}},
          .controller = &controller,
          .queue_id = request.queue_id,
          .entries = request.entries,
          .flow_control = request.flow_control,
          .proof = std::move(proof)};
}

cleat::Status Target::Admit(TargetController& controller, uint64_t now_ns) {
  CLEAT_CHECK(!controller.proved());
  if (controller.ending()) return Error(ErrorCode::kUnavailable, "the association ends");
  controller.proved_ = true;
  controller.RestartTimer(now_ns);
  --unproved_;
  return {};
}

// ---- Associations that another process had

Result<TargetController*> Target::Restore(std::string_view nqn, const SavedController& saved,
                                          ControllerOwner& owner, uint64_t now_ns) {
  CLEAT_ASSIGN(Shown* const shown, Known(nqn));
  const HostAccess* const host = shown->subsystem->FindHost(saved.host_nqn);
  if (host == nullptr || host->psk != nullptr) {
    return Error(ErrorCode::kPermissionDenied,
                 fmt::format("host {} is {}", saved.host_nqn,
                             host == nullptr ? "not let in" : "let in by its pre-shared key alone"));
  }
  if (saved.id < kFirstId || saved.id > fabrics::kControllerIdLast)
    return Error(ErrorCode::kInvalidArgument, fmt::format("{} identifies no controller", saved.id));
  if (IsUsed(*shown, saved.id))
    return Error(ErrorCode::kAlreadyExists, fmt::format("there is a controller {} already", saved.id));
  if (!HasRoomFor(*shown, saved.host_nqn, /*proves=*/false))
    return Error(ErrorCode::kResourceExhausted, "there are too many controllers");
  SiblingControllers& siblings = *this;
  auto controller =
      std::make_unique<TargetController>(TargetController::Config{.id = saved.id,
                                                                  .host_nqn = saved.host_nqn,
                                                                  .host_id = saved.host_id,
                                                                  .kato_ms = saved.kato_ms,
                                                                  .local = saved.local,
                                                                  .firmware = firmware_},
                                         limits_, shown->subsystem.get(), nullptr, siblings, owner, now_ns);
  CLEAT_TRY(controller->Restore(saved, now_ns));
  if (controller->Expired(now_ns))
    return Error(ErrorCode::kDeadlineExceeded, "the keep alive timeout is over");
  TargetController* const made = controller.get();
  shown->controllers.emplace(saved.id, std::move(controller));
  ++controllers_;
  return made;
}

void Target::LetIn(std::string_view nqn, bool lets_in) {
  const auto found = subsystems_.find(nqn);
  CLEAT_CHECK(found != subsystems_.end());
  found->second->lets_in = lets_in;
}

// ---- Ends

template <typename Function>
void Target::ForEach(const Function& function) const {
  const auto in = [&](const Shown& shown) {
    for (const auto& [id, controller] : shown.controllers) function(*controller);
  };
  in(*discovery_);
  for (const auto& [nqn, shown] : subsystems_) in(*shown);
  for (const auto& shown : leaving_) in(*shown);
}

TargetController* Target::FindSibling(const TargetController& of, const ControllerInstance& instance) {
  TargetController* found = nullptr;
  ForEach([&](TargetController& other) {
    if (other.IsSiblingOf(of) && other.instance() == instance) found = &other;
  });
  return found;
}

void Target::End(TargetController& controller) {
  CLEAT_CHECK(controller.queues_.none());
  if (controller.ending()) ForEach([&](TargetController& other) { other.SiblingEnded(controller); });
  const auto end_in = [&](Shown& shown) {
    const auto found = shown.controllers.find(controller.id());
    if (found == shown.controllers.end() || found->second.get() != &controller) return false;
    if (!controller.proved()) --unproved_;
    shown.controllers.erase(found);
    --controllers_;
    return true;
  };
  if (end_in(*discovery_)) return;
  for (const auto& [nqn, shown] : subsystems_) {
    if (end_in(*shown)) return;
  }
  for (const auto& shown : leaving_) {
    if (!end_in(*shown)) continue;
    std::erase_if(leaving_, [](const auto& other) { return other->controllers.empty(); });
    return;
  }
  CLEAT_CHECK(false);
}

void Target::Tick(uint64_t now_ns) {
  ForEach([&](TargetController& controller) { controller.Tick(now_ns); });
}

uint64_t Target::deadline_ns() const {
  uint64_t first = UINT64_MAX;
  ForEach([&](const TargetController& controller) {
    if (!controller.ending()) first = std::min(first, controller.deadline_ns());
  });
  return first;
}

}  // namespace cleat::nvme::target
