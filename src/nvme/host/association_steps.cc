// SPDX-License-Identifier: Apache-2.0
// What each step of an association sends, and what its answer leads to.
#include <fmt/format.h>

#include <algorithm>
#include <tuple>

#include "base/check.h"
#include "nvme/host/association.h"
#include "nvme/host/association_memory.h"

namespace cleat::nvme::host {
namespace {

using fabrics::AnaState;
using fabrics::CompletionEntry;
using fabrics::NamespaceIds;
using fabrics::Property;

constexpr uint64_t kMillisecondNs = 1'000'000;
constexpr uint64_t kSecondNs = 1'000 * kMillisecondNs;
constexpr uint64_t kPollNs = 100 * kMillisecondNs;  // of CSTS
// Each namespace that is asked for its identifier takes a command or two.
constexpr uint32_t kLookedAtMax = 4096;
// A log that is damaged once may be whole the next time.
constexpr uint32_t kAnaTriesMax = 3;
constexpr uint64_t kAnaRetryNs = 500 * kMillisecondNs;
// What keeps I/O off the path is looked at again without being told.
constexpr uint64_t kAnaRecheckNs = 5 * kSecondNs;
// A namespace that can't be identified at the moment.
constexpr uint32_t kRefreshTriesMax = 5;
constexpr uint64_t kRefreshRetryNs = kSecondNs;

constexpr uint8_t kInvalidNamespace = 0x0b;  // generic status: no such namespace, or not here

bool IsInvalidNamespace(nvme::Status status) {
  return status.type() == 0 && status.code() == kInvalidNamespace;
}

// Whether `given` fits what is known; what is not known fits.
template <typename Id>
bool MayBe(const std::optional<Id>& given, const std::optional<Id>& known) {
  return !given || !known || *given == *known;
}
bool MayBe(const NamespaceIds& given, const NamespaceIds& known) {
  return MayBe(given.uuid, known.uuid) && MayBe(given.nguid, known.nguid) && MayBe(given.eui64, known.eui64);
}
template <typename Id>
bool Is(const std::optional<Id>& given, const std::optional<Id>& known) {
  return !given || given == known;
}
bool Is(const NamespaceIds& given, const NamespaceIds& known) {
  return Is(given.uuid, known.uuid) && Is(given.nguid, known.nguid) && Is(given.eui64, known.eui64);
}

// What is not known yet is as `also` has it.
void Learn(NamespaceIds& ids, const NamespaceIds& also) {
  if (!ids.uuid) ids.uuid = also.uuid;
  if (!ids.nguid) ids.nguid = also.nguid;
  if (!ids.eui64) ids.eui64 = also.eui64;
}

bool SameSpace(const NamespaceInfo& left, const NamespaceInfo& right) {
  const auto tie = [](const NamespaceInfo& space) {
    return std::tie(space.blocks, space.block_bytes, space.shared, space.write_protected,
                    space.boundary_blocks, space.write_unit_power_fail, space.deallocated_reads_zero,
                    space.write_zeroes_deallocates, space.discard_granularity_blocks);
  };
  return tie(left) == tie(right);
}

}  // namespace

const char* Association::NameOfStep(Step step) {
  switch (step) {
    case Step::kCapabilities:
      return "Property Get of CAP";
    case Step::kVersion:
      return "Property Get of VS";
    case Step::kEnable:
    case Step::kShutdownSet:
      return "Property Set of CC";
    case Step::kReady:
    case Step::kShutdownDone:
      return "Property Get of CSTS";
    case Step::kController:
      return "Identify Controller";
    case Step::kCommandSet:
      return "Identify Controller of the NVM command set";
    case Step::kQueues:
      return "Set Features (Number of Queues)";
    case Step::kEvents:
      return "Set Features (Asynchronous Event Configuration)";
    case Step::kList:
      return "Identify of the active namespaces";
    case Step::kDescriptors:
      return "Identify of a namespace's descriptors";
    case Step::kSpace:
      return "Identify Namespace";
    case Step::kAna:
      return "Get Log Page (ANA)";
    case Step::kChangedList:
      return "Get Log Page (Changed Namespaces)";
    case Step::kNone:
      break;
  }
  return "a command";
}

bool Association::IsFabrics(Step step) {
  return step <= Step::kReady || step >= Step::kShutdownSet;
}

Command Association::CommandOf(Step step) const {
  const uint32_t configuration = fabrics::EnabledConfiguration(capabilities_);
  switch (step) {
    case Step::kCapabilities:
      return fabrics::PropertyGet(Property::kCapabilities);
    case Step::kVersion:
      return fabrics::PropertyGet(Property::kVersion);
    case Step::kEnable:
      return fabrics::PropertySet(Property::kConfiguration, configuration);
    case Step::kShutdownSet:
      return fabrics::PropertySet(Property::kConfiguration, fabrics::ShutdownConfiguration(configuration));
    case Step::kReady:
    case Step::kShutdownDone:
      return fabrics::PropertyGet(Property::kStatus);
    case Step::kController:
      return Identify(IdentifyCns::kController, 0);
    case Step::kCommandSet:
      return Identify(IdentifyCns::kCommandSetController, 0);
    case Step::kQueues:
      return SetFeature(Feature::kQueues, (config_.io_queues - 1) << 16 | (config_.io_queues - 1));
    case Step::kEvents:
      return SetFeature(Feature::kAsyncEvents,
                        fresh_.fabrics.events_supported & (fabrics::kEventNamespace | fabrics::kEventAna));
    case Step::kList:
      return Identify(IdentifyCns::kActiveNamespaces, fresh_.nsid);
    case Step::kDescriptors:
      return Identify(IdentifyCns::kDescriptors, fresh_.nsid);
    case Step::kSpace:
      return Identify(IdentifyCns::kNamespace, fresh_.nsid);
    case Step::kAna:
      return memory_->ana->command();
    case Step::kChangedList:
      return GetLogPage(LogPage::kChangedNamespaces, kAllNamespaces, kIdentifyBytes);
    case Step::kNone:
      break;
  }
  CLEAT_CHECK(false);
  return {};
}

std::span<uint8_t> Association::DataOf(Step step) {
  if (step == Step::kAna) return memory_->ana->room();
  if (IsFabrics(step) || step == Step::kQueues || step == Step::kEvents) return {};
  return memory_->page;
}

std::string Association::NamespaceName() const {
  return fmt::format("{}: namespace {}", config_.who, fresh_.nsid);
}

cleat::Status Association::StatusError(Step step, const CompletionEntry& entry) const {
  const nvme::Status status = entry.status();
  return Error(status.do_not_retry() ? ErrorCode::kFailedPrecondition : ErrorCode::kUnavailable,
               fmt::format("{}: {}: {}", config_.who, NameOfStep(step),
                           IsFabrics(step) ? fabrics::NameOfFabricsStatus(status) : nvme::NameOf(status)));
}

cleat::Status Association::Took(Step step, const CompletionEntry& entry, uint64_t data_bytes) {
  // These have their own view of an error.
  switch (step) {
    case Step::kDescriptors:
      return TookDescriptors(entry, data_bytes);
    case Step::kSpace:
      return TookSpace(entry, data_bytes);
    case Step::kAna:
      TookAna(entry, data_bytes);
      return {};
    case Step::kEvents:
      // A controller that refuses tells nothing; what I/O says of the path is left.
      FindNamespace();
      return {};
    case Step::kCommandSet:
      if (entry.status().ok() && data_bytes == kIdentifyBytes)
        fresh_.command_set = ParseCommandSetLimits(IdentifyData(memory_->page));
      Send(Step::kQueues);
      return {};
    case Step::kChangedList:
      // The list is read so that the controller tells of the next change; the namespace is looked at whether it is listed or not.
      Send(Step::kDescriptors);
      return {};
    default:
      break;
  }
  if (!entry.status().ok()) return StatusError(step, entry);
  if (!DataOf(step).empty() && data_bytes != kIdentifyBytes) {
    return Error(ErrorCode::kDataLoss, fmt::format("{}: {}: {} bytes came, {} are the answer", config_.who,
                                                   NameOfStep(step), data_bytes, kIdentifyBytes));
  }
  switch (step) {
    case Step::kCapabilities: {
      CLEAT_ASSIGN(capabilities_, fabrics::ParseCapabilities(entry.result, config_.who));
      if (!capabilities_.nvm_command_set && !capabilities_.any_command_set) {
        return Error(ErrorCode::kUnimplemented,
                     config_.who + ": the controller has no NVM command set (CAP.CSS), and so no storage");
      }
      fresh_.queue_entries_max = capabilities_.queue_entries_max;
      Send(Step::kVersion);
      return {};
    }
    case Step::kVersion:
      fresh_.version = static_cast<uint32_t>(entry.result);
      Send(Step::kEnable);
      return {};
    case Step::kEnable:
      enabled_ = true;
      ready_deadline_ns_ = now_ns_ + capabilities_.ready_timeout_ns;
      phase_deadline_ns_ += capabilities_.ready_timeout_ns;
      Send(Step::kReady);
      return {};
    case Step::kReady:
      return TookReady(entry);
    case Step::kController:
      return TookController();
    case Step::kQueues:
      return TookQueues(entry);
    case Step::kList:
      return TookList();
    case Step::kShutdownSet:
      Send(Step::kShutdownDone);
      return {};
    case Step::kShutdownDone:
      TookShutdown(entry);
      return {};
    default:
      return {};
  }
}

// A controller that has failed does not shut down either.
void Association::TookShutdown(const CompletionEntry& entry) {
  const auto status = fabrics::ParseControllerStatus(static_cast<uint32_t>(entry.result));
  if (status.shutdown_done || status.fatal) {
    Finish();
    return;
  }
  step_ = Step::kShutdownDone;
  waiting_ = true;
  send_at_ns_ = now_ns_ + kPollNs;
}

// ---- The controller

cleat::Status Association::TookReady(const CompletionEntry& entry) {
  const auto status = fabrics::ParseControllerStatus(static_cast<uint32_t>(entry.result));
  if (status.fatal) {
    return Error(
        ErrorCode::kUnavailable,
        config_.who + ": the controller reports a fatal status (CSTS.CFS): look into the target's log");
  }
  if (!status.ready) {
    if (now_ns_ >= ready_deadline_ns_) {
      return Error(
          ErrorCode::kDeadlineExceeded,
          fmt::format("{}: the controller is not ready {} ms after it was enabled (CSTS.RDY, CAP.TO)",
                      config_.who, capabilities_.ready_timeout_ns / kMillisecondNs));
    }
    step_ = Step::kReady;
    waiting_ = true;
    send_at_ns_ = now_ns_ + kPollNs;
    return {};
  }
  // The controller's clock for the host runs from here on at the latest; before it is ready it takes no Keep Alive.
  keep_alive_at_ns_ = std::max(now_ns_, login_ns_ + config_.kato_ms * kMillisecondNs / 2);
  Send(Step::kController);
  return {};
}

cleat::Status Association::CheckController(const fabrics::FabricsInfo& fabrics) const {
  if (fabrics.controller_id != fresh_.controller_id) {
    return Error(
        ErrorCode::kDataLoss,
        fmt::format("{}: the target has connected controller {}, and this one says that it is {} (CNTLID)",
                    config_.who, fresh_.controller_id, fabrics.controller_id));
  }
  if (!fabrics.subsystem_nqn.empty() && fabrics.subsystem_nqn != config_.subsystem_nqn) {
    return Error(ErrorCode::kFailedPrecondition,
                 fmt::format("{}: the controller is of subsystem {}, not of {}", config_.who,
                             fabrics.subsystem_nqn, config_.subsystem_nqn));
  }
  return {};
}

cleat::Status Association::TookController() {
  const IdentifyData data(memory_->page);
  CLEAT_ASSIGN(fresh_.controller, ParseController(data, config_.who));
  CLEAT_ASSIGN(fresh_.fabrics, fabrics::ParseFabrics(data, config_.who));
  CLEAT_TRY(CheckController(fresh_.fabrics));
  const uint64_t unit_ms = fresh_.fabrics.keep_alive_granularity_ms;
  fresh_.kato_ms = static_cast<uint32_t>((config_.kato_ms + unit_ms - 1) / unit_ms * unit_ms);
  Send(Step::kCommandSet);
  return {};
}

cleat::Status Association::TookQueues(const CompletionEntry& entry) {
  const auto result = static_cast<uint32_t>(entry.result);
  const uint32_t submission = (result & 0xffff) + 1;
  const uint32_t completion = (result >> 16) + 1;
  fresh_.io_queues = std::min({config_.io_queues, submission, completion});
  events_armed_max_ = std::min({fresh_.fabrics.events_max, config_.event_requests, kEventRequestsMax});
  Send(Step::kEvents);
  ArmEvents();
  return {};
}

// ---- The namespace

void Association::FindNamespace() {
  if (config_.wanted.nsid) {
    fresh_.nsid = *config_.wanted.nsid;
    Send(Step::kDescriptors);
    return;
  }
  fresh_.nsid = 0;
  Send(Step::kList);
}

cleat::Status Association::TookList() {
  CLEAT_ASSIGN(listed_, fabrics::ParseActiveNamespaces(IdentifyData(memory_->page), fresh_.nsid, memory_->ids,
                                                       config_.who));
  list_at_ = 0;
  if (listed_ == 0) return NotFound();
  fresh_.nsid = memory_->ids[0];
  Send(Step::kDescriptors);
  return {};
}

cleat::Status Association::NotFound() const {
  return Error(
      ErrorCode::kNotFound,
      fmt::format("{}: no namespace here is {} ({} looked at{}{}): attach it to this host at the target",
                  config_.who, fabrics::TextOfIds(config_.wanted.ids), looked_at_,
                  why_not_.empty() ? "" : "; ", why_not_));
}

// A namespace is looked for by its identifier, and the one at hand is not it.
cleat::Status Association::NextCandidate(const std::string& why_not) {
  if (why_not_.empty()) why_not_ = why_not;
  if (++looked_at_ >= kLookedAtMax) {
    return Error(ErrorCode::kResourceExhausted,
                 fmt::format("{}: none of the first {} namespaces is {}: configure its number (nsid)",
                             config_.who, kLookedAtMax, fabrics::TextOfIds(config_.wanted.ids)));
  }
  if (++list_at_ < listed_) {
    fresh_.nsid = memory_->ids[list_at_];
    Send(Step::kDescriptors);
    return {};
  }
  // A page that is not full is the last.
  if (listed_ < fabrics::kListedMax) return NotFound();
  Send(Step::kList);
  return {};
}

cleat::Status Association::TookDescriptors(const CompletionEntry& entry, uint64_t data_bytes) {
  const bool looking = phase_ == Phase::kSetup && !config_.wanted.nsid;
  fresh_.ids = {};
  if (entry.status().ok()) {
    if (data_bytes != kIdentifyBytes) {
      return Error(ErrorCode::kDataLoss,
                   fmt::format("{}: {}: {} bytes came, {} are the answer", config_.who,
                               NameOfStep(Step::kDescriptors), data_bytes, kIdentifyBytes));
    }
    auto ids = fabrics::ParseDescriptors(IdentifyData(memory_->page), NamespaceName());
    if (!ids && looking) return NextCandidate(ids.error().message);
    if (!ids) return ids.error();
    fresh_.ids = *ids;
    if (looking && !MayBe(config_.wanted.ids, fresh_.ids)) return NextCandidate({});
  } else if (MayRetry(entry.status()) && phase_ == Phase::kSetup) {
    return StatusError(Step::kDescriptors, entry);
  } else if (phase_ == Phase::kLive) {
    fresh_.ids = info_.ids;
  }
  // Controllers before 1.3 have no descriptors, and a namespace that is gone has none: Identify Namespace tells.
  Send(Step::kSpace);
  return {};
}

// The namespace is not there, or not for this host.
cleat::Status Association::NotPresent() {
  if (phase_ == Phase::kSetup && !config_.wanted.nsid) return NextCandidate({});
  if (phase_ == Phase::kSetup) {
    return Error(
        ErrorCode::kNotFound,
        NamespaceName() + " is not there, or is not attached to this host: see the target's configuration");
  }
  fresh_ = info_;
  fresh_.present = false;
  Settle();
  return {};
}

// A namespace that is replaced, or formatted anew, is another one: what a guest knows of the old one does not hold. An identifier that it
// says only now, or does not say this time, is no other one.
cleat::Status Association::CheckSame(const NamespaceInfo& space) const {
  if (!MayBe(fresh_.ids, info_.ids)) {
    return Error(ErrorCode::kFailedPrecondition,
                 fmt::format("{} is {} now, and was {}: it is another namespace", NamespaceName(),
                             fabrics::TextOfIds(fresh_.ids), fabrics::TextOfIds(info_.ids)));
  }
  if (space.block_bytes != info_.space.block_bytes) {
    return Error(ErrorCode::kFailedPrecondition,
                 fmt::format("{} has blocks of {} bytes now, and had {}: it has been formatted anew",
                             NamespaceName(), space.block_bytes, info_.space.block_bytes));
  }
  return {};
}

cleat::Status Association::TookSpace(const CompletionEntry& entry, uint64_t data_bytes) {
  constexpr size_t kSizeBytes = sizeof(uint64_t);  // NSZE, which comes first
  const bool setup = phase_ == Phase::kSetup;
  if (IsInvalidNamespace(entry.status())) return NotPresent();
  if (!entry.status().ok()) {
    if (setup || ++refresh_tries_ >= kRefreshTriesMax) return StatusError(Step::kSpace, entry);
    Wish(kRefreshRetryNs);
    return {};
  }
  refresh_tries_ = 0;
  if (data_bytes != kIdentifyBytes) {
    return Error(ErrorCode::kDataLoss, fmt::format("{}: {}: {} bytes came, {} are the answer", config_.who,
                                                   NameOfStep(Step::kSpace), data_bytes, kIdentifyBytes));
  }
  const IdentifyData data(memory_->page);
  if (std::all_of(data.begin(), data.begin() + kSizeBytes, [](uint8_t byte) { return byte == 0; }))
    return NotPresent();
  const fabrics::NamespacePlace place = fabrics::ParseNamespacePlace(data);
  if (!MayBe(place.ids, fresh_.ids)) {
    return Error(ErrorCode::kDataLoss,
                 fmt::format("{} is {} by its descriptors, and {} by Identify Namespace", NamespaceName(),
                             fabrics::TextOfIds(fresh_.ids), fabrics::TextOfIds(place.ids)));
  }
  Learn(fresh_.ids, place.ids);
  if (!Is(config_.wanted.ids, fresh_.ids)) {
    if (setup && !config_.wanted.nsid) return NextCandidate({});
    return Error(ErrorCode::kFailedPrecondition,
                 fmt::format("{} is {}, and {} is configured", NamespaceName(),
                             fabrics::TextOfIds(fresh_.ids), fabrics::TextOfIds(config_.wanted.ids)));
  }
  CLEAT_ASSIGN(const NamespaceInfo space, ParseNamespace(data, fresh_.controller, NamespaceName()));
  if (!setup) {
    CLEAT_TRY(CheckSame(space));
    Learn(fresh_.ids, info_.ids);
  }
  fresh_.space = space;
  fresh_.present = true;
  fresh_.ana_group = place.ana_group;
  ReadAna();
  return {};
}

// ---- The way to it

void Association::ReadAna() {
  const fabrics::FabricsInfo& fabrics = fresh_.fabrics;
  if (!fabrics.ana) {
    Settle();
    return;
  }
  if (fabrics.ana_groups_max > fabrics::kAnaGroupsMax) {
    ana_tries_ = kAnaTriesMax;
    AnaFailed({ErrorCode::kUnimplemented,
               fmt::format("{}: the controller has up to {} ANA groups (NANAGRPID), {} are read at most",
                           config_.who, fabrics.ana_groups_max, fabrics::kAnaGroupsMax)});
    return;
  }
  if (memory_->ana) {
    memory_->ana->Restart();
  } else {
    memory_->ana.emplace(fabrics::LogReader::Ana(fabrics.ana_groups_max, fabrics.log_offsets,
                                                 fresh_.controller.transfer_bytes_max, config_.who));
  }
  Send(Step::kAna);
}

void Association::TookAna(const CompletionEntry& entry, uint64_t data_bytes) {
  if (!entry.status().ok()) {
    AnaFailed(StatusError(Step::kAna, entry).error());
    return;
  }
  const auto progress = memory_->ana->Take(data_bytes);
  if (!progress) {
    AnaFailed(progress.error());
    return;
  }
  if (*progress == fabrics::LogReader::Progress::kMore) {
    Send(Step::kAna);
    return;
  }
  if (auto used = UseAna(); !used) {
    AnaFailed(used.error());
    return;
  }
  Settle();
}

cleat::Status Association::UseAna() {
  CLEAT_ASSIGN(const fabrics::AnaLog log, fabrics::ParseAnaLog(memory_->ana->log(), config_.who));
  const fabrics::AnaGroup* group = log.Find(fresh_.ana_group);
  if (group == nullptr) {
    return Error(ErrorCode::kDataLoss, fmt::format("{} is in ANA group {}, which the ANA log does not have",
                                                   NamespaceName(), fresh_.ana_group));
  }
  fresh_.ana = group->state;
  fresh_.ana_problem.clear();
  return {};
}

// A single odd log says little; several count as a way that is not there.
void Association::AnaFailed(const Error& reason) {
  if (++ana_tries_ < kAnaTriesMax) {
    if (memory_->ana) memory_->ana->Restart();
    step_ = Step::kAna;
    waiting_ = true;
    send_at_ns_ = now_ns_ + kAnaRetryNs;
    return;
  }
  fresh_.ana = AnaState::kInaccessible;
  fresh_.ana_problem = reason.message;
  Settle();
}

// All is read: the owner hears of it.
void Association::Settle() {
  ana_tries_ = 0;
  // A target may send no event when a path that takes no I/O becomes usable, or when the namespace is back.
  const bool usable = fresh_.ana == AnaState::kOptimized || fresh_.ana == AnaState::kNonOptimized;
  const bool in_use = fresh_.present && usable && fresh_.ana_problem.empty();
  recheck_at_ns_ = 0;
  if (!in_use) RecheckBy(now_ns_ + kAnaRecheckNs);
  if (!ToldOfChanges()) RecheckBy(now_ns_ + kUntoldRecheckNs);
  if (phase_ == Phase::kSetup) {
    info_ = fresh_;
    phase_ = Phase::kLive;
    owner_.Live(config_.life, info_);
    return;
  }
  uint32_t changed = 0;
  if (!SameSpace(info_.space, fresh_.space)) changed |= kChangedSize;
  if (info_.present != fresh_.present) changed |= kChangedPresence;
  if (info_.ana != fresh_.ana || info_.ana_group != fresh_.ana_group ||
      info_.ana_problem != fresh_.ana_problem)
    changed |= kChangedAna;
  // What was asked meanwhile is done by the next one alone.
  if (std::exchange(rechecks_, false)) changed |= kLookedAgain;
  info_ = fresh_;
  owner_.Changed(config_.life, changed, info_);
}

}  // namespace cleat::nvme::host
