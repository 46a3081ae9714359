// SPDX-License-Identifier: Apache-2.0
#include "nvme/target/controller.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "nvme/target/pages.h"

namespace cleat::nvme::target {
namespace {

using fabrics::FabricsType;
using fabrics::Property;
using fabrics::SubmissionEntry;

constexpr uint64_t kMillisecondNs = 1'000'000;

// CC
constexpr uint32_t kEnable = 1;
constexpr uint32_t kShutdownField = 3U << 14;
// CSTS
constexpr uint32_t kReady = 1;
constexpr uint32_t kShutdownStatus = 3U << 2, kShuttingDown = 1U << 2, kShutDown = 2U << 2;

Answer Refused(uint16_t status, uint64_t result = 0) {
  return {.result = result, .status = static_cast<uint16_t>(status | status_field::kDoNotRetry), .data = {}};
}
Answer Value(uint64_t result) {
  return {.result = result, .data = {}};
}

uint64_t ReadyUnits(const TargetLimits& limits) {
  constexpr uint32_t kUnitMs = 500;
  return std::clamp<uint32_t>((limits.ready_timeout_ms + kUnitMs - 1) / kUnitMs, 1, UINT8_MAX);
}

uint32_t RoundUpKato(uint32_t kato_ms) {
  return static_cast<uint32_t>((uint64_t{kato_ms} + kKeepAliveUnitMs - 1) / kKeepAliveUnitMs *
                               kKeepAliveUnitMs);
}

}  // namespace

Transfer TransferOf(const SubmissionEntry& entry) {
  constexpr uint8_t kDirection = 3, kToTarget = 1, kToHost = 2;
  // Of fabrics commands the type has the two bits that say which way data goes.
  const bool fabrics = entry.opcode == static_cast<uint8_t>(AdminOpcode::kFabrics);
  const auto direction = static_cast<uint8_t>((fabrics ? entry.nsid : entry.opcode) & kDirection);
  Transfer transfer;
  if (direction == kToTarget) transfer.to_target_bytes = entry.data.length_bytes;
  if (direction == kToHost) transfer.to_host_bytes = entry.data.length_bytes;
  return transfer;
}

TargetController::TargetController(Config config, const TargetLimits& limits, const Subsystem* subsystem,
                                   const DiscoveryLogSource* discovery, SiblingControllers& siblings,
                                   ControllerOwner& owner, uint64_t now_ns)
    : config_(std::move(config)),
      limits_(limits),
      subsystem_(subsystem),
      discovery_(discovery),
      siblings_(siblings),
      owner_(owner),
      kato_ms_(RoundUpKato(config_.kato_ms)),
      proved_(!config_.proves) {
  CLEAT_CHECK((subsystem == nullptr) != (discovery == nullptr));
  settings_.events_enabled = EventsOf(this->discovery());
  RestartTimer(now_ns);
  // How long the proof may take is for its queue's owner to say.
  if (!proved_) deadline_ns_ = UINT64_MAX;
}

// ---- Life

bool TargetController::ready() const {
  return !ending_ && (configuration_ & kEnable) != 0 && (status_ & kReady) != 0 &&
         (status_ & kShutdownStatus) == 0;
}

uint32_t TargetController::io_queues_max() const {
  if (subsystem_ == nullptr) return 0;
  return settings_.queues_granted == 0 ? subsystem_->config().io_queues_max : settings_.queues_granted;
}

bool TargetController::Join(uint16_t queue_id) {
  if (!ready() || queue_id == 0 || queue_id > io_queues_max() || HasQueue(queue_id)) return false;
  AddQueue(queue_id);
  return true;
}

void TargetController::QueueEnded(uint16_t queue_id) {
  CLEAT_CHECK(HasQueue(queue_id));
  queues_.reset(queue_id);
  Settle();
}

// What waited for the I/O queues.
void TargetController::Settle() {
  if (queues_.any()) return;
  if (std::exchange(resetting_, false)) {
    status_ &= ~(kReady | kShutdownStatus);
    return;
  }
  if ((status_ & kShutdownStatus) == kShuttingDown) status_ = (status_ & ~kShutdownStatus) | kShutDown;
}

void TargetController::EndQueues(QueuesEndFor why) {
  // Without one the owner has nothing to do.
  if (queues_.any()) owner_.EndQueues(why);
  Settle();
}

// TP 8028, as Linux' patches have it: CIU is never 0, random at first and one more with each instance, CIRN random.
void TargetController::BecomeInstance() {
  const auto next = [](uint64_t before) { return static_cast<uint8_t>(before % UINT8_MAX + 1); };
  const bool is_first = instance_.uniquifier == 0;
  instance_ = {.id = config_.id,
               .uniquifier = next(is_first ? siblings_.DrawRandom() : instance_.uniquifier),
               .random = siblings_.DrawRandom()};
  // What the host had not read of its life before.
  resets_.RemoveThatAreOver();
  settings_.events[kReset] = {};
}

void TargetController::Reset() {
  resetting_ = true;
  settings_ = {};
  settings_.events_enabled = EventsOf(discovery());
  kato_ms_ = RoundUpKato(config_.kato_ms);
  DropEventRequests();
  EndQueues(QueuesEndFor::kReset);
}

void TargetController::End(const Error& reason) {
  if (std::exchange(ending_, true)) return;
  owner_.EndAssociation(reason);
}

// ---- Time

bool TargetController::HasKeepAlive() const {
  return kato_ms_ != 0 && ready();
}

void TargetController::RestartTimer(uint64_t now_ns) {
  deadline_ns_ = now_ns + (HasKeepAlive() ? kato_ms_ * kMillisecondNs : kIdleNs);
}

void TargetController::Touch(uint64_t now_ns) {
  if (Expired(now_ns)) return;
  if (limits_.traffic_keeps_alive || !HasKeepAlive()) RestartTimer(now_ns);
}

void TargetController::Tick(uint64_t now_ns) {
  if (!Expired(now_ns) || ending_) return;
  End({ErrorCode::kDeadlineExceeded,
       HasKeepAlive() ? fmt::format("host {} was not heard from for {} ms (keep alive timeout)",
                                    config_.host_nqn, kato_ms_)
                      : fmt::format("host {} has left its controller unused for {} s", config_.host_nqn,
                                    kIdleNs / 1000 / kMillisecondNs)});
}

// ---- Commands

Answer TargetController::Execute(const SubmissionEntry& entry, std::span<const uint8_t> /*data*/,
                                 uint64_t now_ns) {
  if (Expired(now_ns)) {
    Tick(now_ns);
    return {.status = status_field::kKeepAliveExpired, .data = {}};
  }
  if (ending_) return {.status = status_field::kAbortedByQueueDeletion, .data = {}};
  // The queue's owner does not ask before the host has proved itself; this is the second lock of the door. Such a command is no sign of life.
  if (!proved_) return Refused(status_field::kCommandSpecific | fabrics::kAuthenticationRequired);
  Touch(now_ns);
  if (entry.opcode == static_cast<uint8_t>(AdminOpcode::kFabrics)) return Fabrics(entry, now_ns);
  return Admin(entry, now_ns);
}

Answer TargetController::ExecuteOnQueue(const SubmissionEntry& entry) const {
  constexpr uint16_t kFormat = 0xffff;  // RECFMT
  if (entry.opcode != static_cast<uint8_t>(AdminOpcode::kFabrics))
    return Refused(status_field::kInvalidOpcode);
  switch (static_cast<FabricsType>(entry.nsid & 0xff)) {
    case FabricsType::kDisconnect:
      if ((entry.cdw10 & kFormat) != 0)
        return Refused(status_field::kCommandSpecific | fabrics::kIncompatibleFormat);
      return {.kind = Answer::Kind::kDisconnect, .data = {}};
    case FabricsType::kConnect:
      return Refused(status_field::kCommandSequence);
    case FabricsType::kPropertyGet:
    case FabricsType::kPropertySet:
      return Refused(status_field::kInvalidField);  // of the admin queue alone
    default:
      return Refused(status_field::kInvalidOpcode);
  }
}

Answer TargetController::Fabrics(const Entry& entry, uint64_t now_ns) {
  switch (static_cast<FabricsType>(entry.nsid & 0xff)) {
    case FabricsType::kPropertyGet:
      return PropertyGet(entry);
    case FabricsType::kPropertySet:
      return PropertySet(entry, now_ns);
    case FabricsType::kConnect:
      return Refused(status_field::kCommandSequence);
    case FabricsType::kDisconnect:
      return Refused(status_field::kCommandSpecific | fabrics::kInvalidQueueType);
    default:
      return Refused(status_field::kInvalidOpcode);
  }
}

uint64_t TargetController::Capabilities() const {
  constexpr uint64_t kContiguous = uint64_t{1} << 16;
  constexpr uint64_t kNvmCommandSet = uint64_t{1} << 37, kAnyCommandSet = uint64_t{1} << 43;  // CSS
  constexpr uint64_t kReadyWithMedia = uint64_t{1} << 59;  // CRMS.CRWMS, as 2.0 wants it
  constexpr uint32_t kTimeoutAt = 24;
  return (limits_.queue_entries_max - 1) | kContiguous | ReadyUnits(limits_) << kTimeoutAt | kNvmCommandSet |
         kAnyCommandSet | kReadyWithMedia;
}

Answer TargetController::PropertyGet(const Entry& entry) const {
  constexpr uint32_t kSizeField = 7, kFourBytes = 0, kEightBytes = 1;
  const uint32_t size = entry.cdw10 & kSizeField;
  const auto property = static_cast<Property>(entry.cdw11);
  if (size != (property == Property::kCapabilities ? kEightBytes : kFourBytes))
    return Refused(status_field::kInvalidField);
  switch (property) {
    case Property::kCapabilities:
      return Value(Capabilities());
    case Property::kVersion:
      return Value(kVersion);
    case Property::kConfiguration:
      return Value(configuration_);
    case Property::kStatus:
      return Value(status_);
    case Property::kReadyTimeouts:
      return Value(ReadyUnits(limits_));
  }
  return Refused(status_field::kInvalidField);
}

// Whether a controller can run so. A field at fault is refused rather than taken as a fatal status, so that hosts say what is wrong.
uint16_t TargetController::CheckEnable(uint32_t configuration) const {
  const uint32_t command_set = configuration >> 4 & 7, page = configuration >> 7 & 0xf,
                 arbitration = configuration >> 11 & 7, submission = configuration >> 16 & 0xf,
                 completion = configuration >> 20 & 0xf;
  constexpr uint32_t kNvm = 0, kAllSupported = 6;
  const bool fits = (command_set == kNvm || command_set == kAllSupported) && page == 0 && arbitration == 0 &&
                    (configuration & kShutdownField) == 0;
  // Without I/O queues their entries' sizes may be anything.
  const bool entries_fit = discovery() || (submission == 6 && completion == 4);
  return fits && entries_fit ? status_field::kSuccess : status_field::kInvalidField;
}

Answer TargetController::PropertySet(const Entry& entry, uint64_t now_ns) {
  constexpr uint32_t kSizeField = 7;
  if ((entry.cdw10 & kSizeField) != 0 || static_cast<Property>(entry.cdw11) != Property::kConfiguration)
    return Refused(status_field::kInvalidField);
  const uint32_t value = entry.cdw12;
  const bool was_enabled = (configuration_ & kEnable) != 0, enabled = (value & kEnable) != 0;
  if (enabled && !was_enabled) {
    // The host has to see CSTS.RDY cleared first.
    if (resetting_) return {.status = status_field::kCommandSequence, .data = {}};
    if (CheckEnable(value) != status_field::kSuccess) return Refused(status_field::kInvalidField);
    configuration_ = value;
    status_ = kReady;
    BecomeInstance();
    RestartTimer(now_ns);
    return {};
  }
  const bool shutdown = (value & kShutdownField) != 0 && (configuration_ & kShutdownField) == 0;
  // Of a controller that runs nothing else may change: what it runs by was checked when it was enabled.
  configuration_ =
      was_enabled && enabled ? (configuration_ & ~kShutdownField) | (value & kShutdownField) : value;
  if (was_enabled && !enabled) {
    Reset();
  } else if (shutdown && (status_ & kShutdownStatus) == 0) {
    status_ |= kShuttingDown;
    EndQueues(QueuesEndFor::kShutdown);
  }
  RestartTimer(now_ns);
  return {};
}

// ---- Events

uint32_t TargetController::ResultOf(EventKind kind) {
  constexpr uint32_t kNotice = 2, kOfCommandSets = 6;
  const auto result = [](uint32_t type, uint32_t info, LogPage page) {
    return type | info << 8 | static_cast<uint32_t>(page) << 16;
  };
  switch (kind) {
    case kNamespaces:
      return result(kNotice, 0x00, LogPage::kChangedNamespaces);
    case kAna:
      return result(kNotice, 0x03, LogPage::kAna);
    case kReservation:
      return result(kOfCommandSets, 0x00, LogPage::kReservations);
    case kReset:
      return result(kNotice, 0xf4, LogPage::kControllerResets);
    default:
      return result(kNotice, 0xf0, LogPage::kDiscovery);
  }
}

uint32_t TargetController::BitOf(EventKind kind) {
  switch (kind) {
    case kNamespaces:
      return fabrics::kEventNamespace;
    case kAna:
      return fabrics::kEventAna;
    case kReset:
      return fabrics::kEventControllerReset;
    default:
      return fabrics::kEventDiscovery;
  }
}

// No bit has the events of reservations: the mask of each namespace keeps back what is not wanted.
bool TargetController::IsWanted(EventKind kind) const {
  return kind == kReservation || (settings_.events_enabled & BitOf(kind)) != 0;
}

// The next event that is to be told; it counts as told from now on. nullopt: there is none.
std::optional<TargetController::EventKind> TargetController::TakeEvent() {
  for (uint8_t kind = 0; kind < kEventKinds; ++kind) {
    EventState& state = settings_.events[kind];
    if (!state.pending || state.unread) continue;
    state = {.pending = false, .unread = true};
    return static_cast<EventKind>(kind);
  }
  return std::nullopt;
}

void TargetController::Raise(EventKind kind) {
  if (ending_ || !IsWanted(kind)) return;
  EventState& state = settings_.events[kind];
  // Until the log is read the host is known to look at it anyway.
  if (state.unread) return;
  state.pending = true;
  if (event_requests_.empty()) return;
  const std::optional<EventKind> event = TakeEvent();
  if (!event) return;
  const uint16_t cid = event_requests_.front();
  event_requests_.pop_front();
  owner_.Completed(cid, Value(ResultOf(*event)));
}

void TargetController::LogRead(EventKind kind) {
  settings_.events[kind] = {};
}

Answer TargetController::EventRequest(const Entry& entry) {
  if (const std::optional<EventKind> event = TakeEvent()) return Value(ResultOf(*event));
  if (std::ranges::find(event_requests_, entry.cid) != event_requests_.end())
    return Refused(status_field::kCommandIdConflict);
  if (event_requests_.size() >= kEventRequestsMax) return Refused(status_field::kEventRequestsExceeded);
  event_requests_.push_back(entry.cid);
  return {.kind = Answer::Kind::kHeld, .data = {}};
}

void TargetController::DropEventRequests() {
  for (const uint16_t cid : std::exchange(event_requests_, {}))
    owner_.Completed(cid, {.status = status_field::kAbortedByQueueDeletion, .data = {}});
}

void TargetController::NamespaceChanged(uint32_t nsid) {
  if (subsystem_->Find(nsid) == nullptr) {
    settings_.reservation_notices.Forget(nsid);
    if (settings_.reservation_notices.empty()) settings_.events[kReservation].pending = false;
  }
  settings_.changed_namespaces.insert(nsid);
  Raise(kNamespaces);
}

void TargetController::AnaChanged() {
  Raise(kAna);
}

void TargetController::DiscoveryChanged() {
  Raise(kDiscovery);
}

void TargetController::ReservationChanged(uint32_t nsid, ReservationNotice notice) {
  if (!limits_.features.reservations || discovery() || subsystem_->Find(nsid) == nullptr) return;
  if (settings_.reservation_notices.Add(nsid, notice)) Raise(kReservation);
}

void TargetController::SiblingEnded(const TargetController& sibling) {
  if (IsSiblingOf(sibling) && resets_.Finish(sibling.instance())) Raise(kReset);
}

// ---- From one process to the next

SavedController TargetController::Save() {
  CLEAT_CHECK(may_be_saved());
  if (resets_.GiveUp()) Raise(kReset);
  SavedController saved;
  saved.id = config_.id;
  saved.host_nqn = config_.host_nqn;
  saved.host_id = config_.host_id;
  saved.local = config_.local;
  saved.kato_ms = kato_ms_;
  saved.deadline_ns = deadline_ns_;
  saved.configuration = configuration_;
  saved.queues_granted = settings_.queues_granted;
  saved.events_enabled = settings_.events_enabled & ~fabrics::kEventControllerReset;
  saved.reset_events_enabled = IsWanted(kReset);
  saved.features = settings_.features;
  static_assert(SavedController::kEventKinds == kReservation && kReservation + 1 == kReset &&
                kReset + 1 == kEventKinds);
  const auto save = [](const EventState& event) {
    return SavedController::Event{.pending = event.pending, .unread = event.unread};
  };
  for (size_t kind = 0; kind < SavedController::kEventKinds; ++kind)
    saved.events[kind] = save(settings_.events[kind]);
  saved.reservation_event = save(settings_.events[kReservation]);
  settings_.reservation_notices.Save(saved);
  saved.uniquifier = instance_.uniquifier;
  saved.random = instance_.random;
  saved.reset_event = save(settings_.events[kReset]);
  resets_.Save(saved);
  saved.changed_namespaces.assign(settings_.changed_namespaces.begin(), settings_.changed_namespaces.end());
  saved.event_requests.assign(event_requests_.begin(), event_requests_.end());
  return saved;
}

cleat::Status TargetController::Restore(const SavedController& saved, uint64_t now_ns) {
  constexpr uint32_t kHealthEvents = 0xff;
  constexpr size_t kFeaturesMax = 16;  // more than there are
  const auto wrong = [](std::string what) { return Error(ErrorCode::kInvalidArgument, std::move(what)); };
  if (saved.kato_ms == 0 || saved.kato_ms > fabrics::kKeepAliveMsMax)
    return wrong(fmt::format("a keep alive timeout of {} ms", saved.kato_ms));
  if ((saved.configuration & kEnable) == 0 || CheckEnable(saved.configuration) != status_field::kSuccess)
    return wrong(fmt::format("a configuration of {:#x}", saved.configuration));
  if (saved.queues_granted > subsystem_->config().io_queues_max || saved.queues_granted >= kQueuesMax)
    return wrong(fmt::format("{} I/O queues", saved.queues_granted));
  constexpr uint32_t kToldApart = fabrics::kEventControllerReset;
  if ((saved.events_enabled & ~((EventsOf(discovery()) & ~kToldApart) | kHealthEvents)) != 0)
    return wrong(fmt::format("the events {:#x}", saved.events_enabled));
  if (saved.features.size() > kFeaturesMax || saved.event_requests.size() > kEventRequestsMax)
    return wrong(fmt::format("{} features and {} Asynchronous Event Requests", saved.features.size(),
                             saved.event_requests.size()));
  const std::set<uint16_t> requests(saved.event_requests.begin(), saved.event_requests.end());
  if (requests.size() != saved.event_requests.size()) return wrong("a command identifier twice");
  for (const uint32_t nsid : saved.changed_namespaces)
    if (nsid == 0 || nsid > kNamespacesMax) return wrong(fmt::format("namespace {} has changed", nsid));
  ReservationNotices notices;
  CLEAT_TRY(notices.Restore(saved, kNamespacesMax));
  const SavedController::Event& event = saved.reservation_event;
  const bool any = event.pending || event.unread || !notices.empty() || !saved.reservation_masks.empty();
  if (any && !limits_.features.reservations) return wrong("reservations, of which there are none here");
  if (event.pending && notices.empty()) return wrong("an event of reservations without a notice");
  ResetLog resets;
  CLEAT_TRY(resets.Restore(saved));
  const bool asked = resets.any_over() || saved.reset_event.pending || saved.reset_event.unread;
  if (saved.uniquifier == 0 && (asked || saved.random != 0)) return wrong("resets by one that has none");
  if (saved.reset_event.pending && !resets.any_over()) return wrong("an event of a reset without one");

  configuration_ = saved.configuration;
  status_ = kReady;
  kato_ms_ = RoundUpKato(saved.kato_ms);
  deadline_ns_ = std::min(saved.deadline_ns, now_ns + kato_ms_ * kMillisecondNs);
  settings_.queues_granted = saved.queues_granted;
  settings_.events_enabled = saved.events_enabled | (saved.reset_events_enabled ? kToldApart : 0);
  settings_.features = saved.features;
  for (size_t kind = 0; kind < SavedController::kEventKinds; ++kind)
    settings_.events[kind] = {.pending = saved.events[kind].pending, .unread = saved.events[kind].unread};
  settings_.events[kReservation] = {.pending = event.pending, .unread = event.unread};
  settings_.reservation_notices = std::move(notices);
  BecomeInstance();
  if (saved.uniquifier != 0)
    instance_ = {.id = config_.id, .uniquifier = saved.uniquifier, .random = saved.random};
  settings_.events[kReset] = {.pending = saved.reset_event.pending, .unread = saved.reset_event.unread};
  resets_ = std::move(resets);
  settings_.changed_namespaces = {saved.changed_namespaces.begin(), saved.changed_namespaces.end()};
  event_requests_ = {saved.event_requests.begin(), saved.event_requests.end()};
  return {};
}

}  // namespace cleat::nvme::target
