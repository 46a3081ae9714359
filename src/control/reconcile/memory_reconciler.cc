// SPDX-License-Identifier: Apache-2.0
// Memory disks: which engines hold their memory, handing it out, getting it back.
//
//   reached_engine  durable, before the first Attach: from then on a guest may have written to it
//   kept_by         durable: the engines that hold it, as they confirmed and as their inventories say
//
//   cleatd has it                              READY
//   else a connected engine has it             fetched back, then READY
//   else an engine that isn't connected may    PENDING
//   else                                       LOST
// (Memory that never reached an engine is zero by definition, and made anew when cleatd starts.)
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "control/names.h"
#include "control/reconcile/reconciler.h"
#include "control/translate.h"

namespace cleat::control {

// Who holds it is written down, and that takes milliseconds in which a guest between two engines would wait as well.
void Reconciler::LookAtMemory(const std::string& disk) {
  if (GuestWaits()) {
    memory_later_.insert(disk);
    return;
  }
  const std::optional<DiskRow> row = state_.MemoryDisk(disk);
  const uint64_t now_ns = clock_.NowNs();
  for (auto& [peer, engine] : engines_) {
    if (engine.foreign || engine.memory_busy.contains(disk)) continue;
    const bool held = engine.memories.contains(disk);
    if (row && HoldsAnother(engine, *row)) continue;
    const bool unknown = held && row && !row->deleting && !row->reached_engine && !lost_.empty();
    if (row && !unknown) {
      if (auto status = state_.RecordKept(disk, engine.info.id, held); !status.ok()) {
        Later(status, {.controller = {}, .disk = disk});
        continue;
      }
    }
    if (const auto work = engine.memory_work.find(disk);
        !held || (work != engine.memory_work.end() && now_ns < work->second.not_before_ns)) {
      continue;
    }
    const bool wanted = row && !row->deleting;
    // Of a restored store that does not know that the disk has content, or of a disk that is made known again: that is the engine's.
    if (wanted && (unknown || !memory_.Has(disk))) {
      AskFetchMemory(engine, *row);
    } else if (HeldAlone(engine, disk) != nullptr) {
      continue;
    } else if (!wanted || IsSuperfluous(engine, disk)) {
      AskDropMemory(engine, disk);
    }
  }
  // Copies of those that have died are gone for certain.
  if (row && memory_.Has(disk)) {
    for (const std::string& engine : dead_)
      Later(state_.RecordKept(disk, engine, false), {.controller = {}, .disk = disk});
  }
  // RecordKept may have changed it.
  if (const std::optional<DiskRow> recorded = state_.MemoryDisk(disk)) ReportMemory(*recorded);
}

// Moves are limited in time, and so is this.
void Reconciler::LookAtMemoryLater() {
  if (memory_later_.empty() || GuestWaits()) return;
  for (const std::string& disk : std::exchange(memory_later_, {})) LookAtMemory(disk);
}

// Held by an engine from which its controllers have gone, while cleatd and the engine that has them hold it too: deleting
// the disk is not to wait for an engine that may never come back.
bool Reconciler::IsSuperfluous(const EngineView& engine, const std::string& disk) {
  if (state_.IsDiskFor(disk, engine.info.id)) return false;
  for (const std::string& controller : state_.ControllersWith(disk)) {
    const auto found = engine.controllers.find(controller);
    if (found == engine.controllers.end()) continue;
    if (!found->second.targets_busy.empty()) return false;
    for (const auto& [target, status] : found->second.attachments) {
      if (status.attachment().disk().name() == DiskName(disk)) return false;
    }
  }
  return std::any_of(engines_.begin(), engines_.end(), [&](const auto& other) {
    return other.second.memories.contains(disk) && state_.IsDiskFor(disk, other.second.info.id);
  });
}

void Reconciler::ReportMemory(const DiskRow& row) {
  if (row.deleting) {
    if (row.kept_by.empty()) Later(state_.ForgetDisk(row.id), {.controller = {}, .disk = row.id});
    return;
  }
  if (memory_.Has(row.id)) return state_.ReportDisk(row.id, v1::DISK_STATE_READY, "");
  if (!row.kept_by.empty()) {
    return state_.ReportDisk(
        row.id, v1::DISK_STATE_PENDING,
        fmt::format("its content is held by {}, which is waited for", EngineName(*row.kept_by.begin())));
  }
  state_.ReportDisk(
      row.id, v1::DISK_STATE_LOST,
      fmt::format("the content of {} is lost: memory disks do not outlive both cleatd and the engine. "
                  "Detach it, delete it and create it anew (cleatctl disk delete {})",
                  DiskName(row.id), row.id));
  for (const std::string& controller : state_.ControllersWith(row.id)) Look(controller);
}

void Reconciler::AskAboutMemory(EngineView& engine, const std::string& disk, engine::v1::Envelope envelope,
                                std::function<Status(EngineView&, const Status&, UniqueFd)> done) {
  engine.memory_busy.insert(disk);
  const PeerId peer = engine.info.peer;
  link_.Request(peer, std::move(envelope), {},
                [this, peer, disk, done = std::move(done)](const engine::v1::Reply& reply, UniqueFd fd) {
                  EngineView& answered = *Find(peer);
                  answered.memory_busy.erase(disk);
                  const Status status = done(answered, FromEngine(reply), std::move(fd));
                  if (status.ok()) {
                    answered.memory_work.erase(disk);
                  } else {
                    Fail(answered.memory_work[disk], {.controller = {}, .disk = disk});
                    spdlog::warn("{}: {}", EngineName(answered.info.id), status.error().message);
                  }
                  LookAtDisk(disk);
                  for (const std::string& controller : state_.ControllersWith(disk)) Look(controller);
                });
}

void Reconciler::AskDropMemory(EngineView& engine, const std::string& disk) {
  engine::v1::Envelope envelope;
  envelope.mutable_drop_memory()->set_disk(DiskName(disk));
  AskAboutMemory(engine, disk, std::move(envelope),
                 [disk](EngineView& answered, const Status& status, const UniqueFd&) {
                   if (status.ok()) answered.memories.erase(disk);
                   return status;
                 });
}

void Reconciler::AskFetchMemory(EngineView& engine, const DiskRow& row) {
  engine::v1::Envelope envelope;
  envelope.mutable_fetch_memory()->set_disk(DiskName(row.id));
  AskAboutMemory(engine, row.id, std::move(envelope),
                 [this, disk = row.id, size_bytes = row.spec.size_bytes()](
                     EngineView& answered, const Status& status, UniqueFd fd) {
                   if (!status.ok()) return status;
                   auto adopted = memory_.Adopt(disk, size_bytes, std::move(fd));
                   if (adopted.ok()) adopted = state_.RecordKept(disk, answered.info.id, true);
                   return adopted;
                 });
}

void Reconciler::AskKeepMemory(EngineView& engine, const std::string& controller,
                               const AttachmentIntent& intent) {
  const std::string& disk = intent.disk.id;
  engine::v1::Envelope envelope;
  envelope.mutable_keep_memory()->mutable_memory()->set_disk(DiskName(disk));
  envelope.mutable_keep_memory()->mutable_memory()->set_size_bytes(intent.disk.spec.size_bytes());
  engine.memory_busy.insert(disk);
  const AttachmentKey key{controller, intent.row.spec.target(), intent.row.revision};
  Ask(engine, controller, std::move(envelope), memory_.Share(disk), key.target,
      [this, disk, key, size_bytes = intent.disk.spec.size_bytes()](
          EngineView& answered, ControllerView& view, const Status& kept) {
        answered.memory_busy.erase(disk);
        const Status status = kept.ok() ? state_.RecordKept(disk, answered.info.id, true) : kept;
        if (status.ok()) {
          answered.memories[disk] = size_bytes;
        } else {
          spdlog::warn("{}: its memory can't be handed over: {}", DiskName(disk), status.error().message);
          FailAttachment(answered, view, key, status);
        }
        for (const std::string& other : state_.ControllersWith(disk)) {
          if (other != key.controller) Look(other);
        }
      });
}

}  // namespace cleat::control
