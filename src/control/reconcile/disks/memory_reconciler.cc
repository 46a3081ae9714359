// SPDX-License-Identifier: Apache-2.0
#include "control/reconcile/disks/memory_reconciler.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "base/log_request.h"
#include "control/link/translate.h"
#include "control/model/names.h"
#include "control/reconcile/context/unclaimed.h"
#include "control/validate/backends.h"

namespace cleat::control {

MemoryPlan PlanMemory(const EngineView& engine, const std::string& disk, const std::optional<DiskRow>& row,
                      const DiskIdentity& identity, bool here, bool restored, uint64_t now_ns) {
  using Step = MemoryPlan::Step;
  if (engine.foreign || engine.memory_requests.IsBusy(DiskId{disk})) return {};
  if (row && HoldsAnother(engine, disk, identity)) return {};
  const bool held = engine.memories.contains(disk);
  const bool wanted = row && !row->deleting;
  const bool unknown = held && wanted && !row->reached_engine && restored;
  MemoryPlan plan{.record = row && !unknown};
  if (!held || !engine.memory_requests.Ready(DiskId{disk}, now_ns)) return plan;
  // The engine's memory is the content of a disk that cleatd does not have, and of one of which a restored store does not know that it
  // has content.
  if (wanted && (unknown || !here)) {
    plan.step = Step::kFetch;
  } else if (UnclaimedHolderOf(engine, disk) == nullptr) {
    plan.step = wanted ? Step::kDropIfSpare : Step::kDrop;
  }
  return plan;
}

void MemoryReconciler::ReconcileDisk(const std::string& disk) {
  const log::RequestScope request(context_.LastRequest(DiskName(disk)));
  if (upgrades_.GuestWaits()) {
    put_off_.insert(disk);
    return;
  }
  const std::optional<DiskRow> row = context_.state.disks().MemoryRow(disk);
  for (auto& [peer, engine] : context_.engines.all()) ReconcileOn(engine, disk, row);
  if (row && memory_.Has(disk)) ForgetDead(disk);
  // Recording who holds the memory may have changed the row.
  if (const std::optional<DiskRow> recorded = context_.state.disks().MemoryRow(disk)) Report(*recorded);
}

void MemoryReconciler::ReconcilePutOff() {
  if (put_off_.empty() || upgrades_.GuestWaits()) return;
  for (const std::string& disk : std::exchange(put_off_, {})) ReconcileDisk(disk);
}

void MemoryReconciler::ReconcileOn(EngineView& engine, const std::string& disk,
                                   const std::optional<DiskRow>& row) {
  const DiskIdentity identity = row ? context_.state.disks().IdentityOf(*row) : DiskIdentity();
  if (row && HoldsUnrecorded(engine, *row, identity)) memory_.Drop(disk);
  const bool here = memory_.Has(disk) && !memory_.IsLostLog(disk);
  const MemoryPlan plan =
      PlanMemory(engine, disk, row, identity, here, context_.IsRestored(), context_.now_ns());
  if (plan.record) {
    const bool held = engine.memories.contains(disk);
    if (auto status = context_.state.disks().RecordKept(disk, engine.info.id, held); !status.ok())
      return context_.requests.RetryLater(status, DiskId{disk});
  }
  switch (plan.step) {
    case MemoryPlan::Step::kNothing:
      return;
    case MemoryPlan::Step::kFetch:
      return AskFetch(engine, *row);
    case MemoryPlan::Step::kDrop:
      return AskDrop(engine, disk);
    case MemoryPlan::Step::kDropIfSpare:
      if (IsSpare(engine, disk)) AskDrop(engine, disk);
      return;
  }
}

// Whether the engine has memory of the disk of which its row knows nothing: cleatd ended before it could record that it had given it
// away, and has made memory anew since. The engine's is the content, which is fetched.
bool MemoryReconciler::HoldsUnrecorded(const EngineView& engine, const DiskRow& row,
                                       const DiskIdentity& identity) const {
  return !engine.foreign && !row.deleting && !row.reached_engine && !context_.IsRestored() &&
         engine.memories.contains(row.id) && !HoldsAnother(engine, row.id, identity);
}

// Copies of engines that have died are gone for certain.
void MemoryReconciler::ForgetDead(const std::string& disk) {
  for (const std::string& engine : context_.engines.dead())
    context_.requests.RetryLater(context_.state.disks().RecordKept(disk, engine, false), DiskId{disk});
}

// Whether the engine holds memory of a disk whose controllers have gone to another engine, while cleatd and that engine hold it too.
// Deleting the disk is not to wait for an engine that may never come back.
bool MemoryReconciler::IsSpare(const EngineView& engine, const std::string& disk) {
  HostState& state = context_.state;
  if (state.disks().IsFor(disk, engine.info.id)) return false;
  for (const std::string& controller : state.disks().ControllersWith(disk)) {
    const ControllerView* view = engine.FindController(controller);
    if (view == nullptr) continue;
    if (view->targets.AnyBusy()) return false;
    for (const auto& [target, status] : view->attachments) {
      if (status.attachment().disk().name() == DiskName(disk)) return false;
    }
  }
  const auto& engines = context_.engines.all();
  return std::any_of(engines.begin(), engines.end(), [&](const auto& other) {
    return other.second.memories.contains(disk) && state.disks().IsFor(disk, other.second.info.id);
  });
}

void MemoryReconciler::Report(const DiskRow& row) {
  HostState& state = context_.state;
  if (row.deleting) {
    if (row.held_by.empty()) context_.requests.RetryLater(state.disks().Forget(row.id), DiskId{row.id});
    return;
  }
  if (memory_.Has(row.id)) return state.disks().Report(row.id, v1::DISK_STATE_READY, "");
  if (!row.held_by.empty()) {
    return state.disks().Report(
        row.id, v1::DISK_STATE_PENDING,
        fmt::format("its {} is held by {}, which is waited for",
                    KeptMemoryOf(row.spec) == KeptMemory::kDoubtLog ? "log of writes in doubt" : "content",
                    EngineName(*row.held_by.begin())));
  }
  if (KeptMemoryOf(row.spec) == KeptMemory::kDoubtLog) return ReplaceLog(row);
  state.disks().Report(
      row.id, v1::DISK_STATE_LOST,
      fmt::format("the content of {} is lost: memory disks do not outlive both cleatd and the engine. "
                  "Detach it, delete it and create it anew (cleatctl disk delete {})",
                  DiskName(row.id), row.id));
  for (const std::string& controller : state.disks().ControllersWith(row.id))
    reconcile_.Controller(controller);
}

// The disk was used by an engine, and its log is nowhere.
void MemoryReconciler::ReplaceLog(const DiskRow& row) {
  const Status made = memory_.MakeLostLog(row.id);
  context_.requests.RetryLater(made, DiskId{row.id});
  if (!made.ok()) return;
  context_.state.disks().Report(row.id, v1::DISK_STATE_READY, "");
  for (const std::string& controller : context_.state.disks().ControllersWith(row.id))
    reconcile_.Controller(controller);
}

void MemoryReconciler::Ask(EngineView& engine, const std::string& disk, engine::v1::Envelope envelope,
                           std::function<Status(EngineView&, const Status&, UniqueFd)> done) {
  engine.memory_requests.Begin(DiskId{disk});
  context_.requests.Ask(engine, std::move(envelope), {},
                        [this, disk, done = std::move(done)](EngineView& answered,
                                                             const engine::v1::Reply& reply, UniqueFd fd) {
                          answered.memory_requests.End(DiskId{disk});
                          const Status status = done(answered, FromEngine(reply), std::move(fd));
                          if (status.ok()) {
                            answered.memory_requests.Done(DiskId{disk});
                          } else {
                            context_.requests.Fail(answered.memory_requests, DiskId{disk}, DiskId{disk});
                            spdlog::warn("{}: memory not exchanged with {}: {}; tried again", DiskName(disk),
                                         EngineName(answered.info.id), status.error().message);
                          }
                          reconcile_.Disk(disk);
                          for (const std::string& controller : context_.state.disks().ControllersWith(disk))
                            reconcile_.Controller(controller);
                        });
}

void MemoryReconciler::AskDrop(EngineView& engine, const std::string& disk) {
  engine::v1::Envelope envelope;
  envelope.mutable_drop_memory()->set_disk(DiskName(disk));
  Ask(engine, disk, std::move(envelope), [disk](EngineView& answered, const Status& status, const UniqueFd&) {
    if (status.ok()) answered.memories.erase(disk);
    return status;
  });
}

void MemoryReconciler::AskFetch(EngineView& engine, const DiskRow& row) {
  engine::v1::Envelope envelope;
  envelope.mutable_fetch_memory()->set_disk(DiskName(row.id));
  Ask(engine, row.id, std::move(envelope),
      [this, disk = row.id, size_bytes = KeptBytes(row.spec)](EngineView& answered, const Status& status,
                                                              UniqueFd fd) {
        if (!status.ok()) return status;
        // Another engine may have been given cleatd's meanwhile, or have answered first.
        Status adopted = memory_.IsUsed(disk) ? Status(Ok{}) : memory_.Adopt(disk, size_bytes, std::move(fd));
        if (adopted.ok()) adopted = context_.state.disks().RecordKept(disk, answered.info.id, true);
        return adopted;
      });
}

}  // namespace cleat::control
