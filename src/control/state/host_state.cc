// SPDX-License-Identifier: Apache-2.0
#include "control/state/host_state.h"

#include <fmt/format.h>

#include <atomic>
#include <cstdio>
#include <utility>

#include "base/check.h"
#include "control/model/names.h"
#include "control/model/reasons.h"
#include "control/state/tables/invariants.h"

namespace cleat::control {
namespace {

std::atomic<bool> check_always = false;

}  // namespace

HostState::HostState(Store& store, MemfdKeeper& memory, size_t watch_queue_max, keys::Keyring* keyring,
                     KeepDeleted keep)
    : core_(store, watch_queue_max),
      keep_(std::move(keep)),
      keys_(keyring),
      storages_(core_, memory),
      disk_doubt_(disks_, memory) {}

Result<std::unique_ptr<HostState>> HostState::Load(Store& store, MemfdKeeper& memory, size_t watch_queue_max,
                                                   keys::Keyring* keyring, KeepDeleted keep) {
  std::unique_ptr<HostState> state(new HostState(store, memory, watch_queue_max, keyring, std::move(keep)));
  const StateLock lock(state->core_.mutex);
  CLEAT_TRY(state->core_.publisher.Start());
  CLEAT_ASSIGN(auto rows, store.Load());
  CLEAT_TRY(state->Fill(std::move(rows)));
  state->storages_.LookAtAll();
  if (check_always) state->core_.mutex.SetCheck([&loaded = *state] { loaded.StopIfBroken(); });
  return state;
}

Status HostState::CheckLoads(Store& store) {
  MemfdKeeper memory;
  HostState state(store, memory, WatchHub::kQueueMax, nullptr, {});
  CLEAT_ASSIGN(auto rows, store.Load());
  const StateLock lock(state.core_.mutex);
  return state.Fill(std::move(rows));
}

Status HostState::Fill(Rows rows) {
  core_.tables.paths_checked_from = rows.paths_checked_from;
  core_.tables.lost = std::move(rows.lost);
  // What is named comes before what names it.
  clusters_.Fill(std::move(rows.clusters));
  subsystems_.Fill(std::move(rows.subsystems));
  pools_.Fill(std::move(rows.pools));
  CLEAT_TRY(disks_.Fill(std::move(rows.disks)));
  for (DeletedDiskRow& row : rows.deleted_disks) {
    pool_extents_.Join(row.disk, PoolExtents::As::kDeleted);
    core_.tables.deleted.Put(std::move(row));
  }
  CLEAT_TRY(groups_.Fill(std::move(rows.groups)));
  CLEAT_TRY(controllers_.Fill(std::move(rows.controllers)));
  CLEAT_TRY(attachments_.Fill(std::move(rows.attachments)));
  upgrades_.Fill(std::move(rows.upgrades));
  core_.publisher.StartHistory();
  engines_.SetUnseen();
  const Status sound = CheckInvariants();
  if (sound.ok()) return Ok{};
  return Refuse(v1::REASON_STORE_DAMAGED, "store: " + sound.error().message);
}

Status HostState::CheckInvariants() {
  CLEAT_TRY(CheckTables(core_.tables));
  return storages_.CheckClaims();
}

void HostState::CheckAlways() {
  check_always = true;
}

void HostState::StopIfBroken() {
  const Status status = CheckInvariants();
  if (!status.ok()) fmt::print(stderr, "the tables contradict one another: {}\n", status.error().message);
  CLEAT_CHECK(status.ok());
}

// ---- Changes

Result<std::shared_ptr<Watcher>> HostState::Watch(uint64_t start_revision) {
  const StateLock lock(core_.mutex);
  return core_.publisher.Watch(start_revision);
}

Result<std::shared_ptr<Watcher>> HostState::WatchSettled() {
  const StateLock lock(core_.mutex);
  core_.writes.AwaitAll();
  return core_.publisher.Watch(0);
}

void HostState::StopWatchers() {
  waits_.Stop();
  discoveries_.Stop();
  core_.publisher.Stop();
}

void HostState::SetWake(std::function<void()> wake) {
  const StateLock lock(core_.mutex);
  core_.publisher.SetWake(std::move(wake));
}

ChangedIntent HostState::TakeChanged() {
  const StateLock lock(core_.mutex);
  return core_.publisher.TakeChanged();
}

uint64_t HostState::NewestRevision() {
  const StateLock lock(core_.mutex);
  return core_.publisher.newest();
}

// ---- The store

bool HostState::WaitsForStore(std::thread::id thread) {
  const StateLock lock(core_.mutex);
  return core_.writes.IsAwaitedBy(thread);
}

bool HostState::CheckStore() {
  if (!core_.store.writable() && !(core_.store.Probe().ok() && GoOn().ok())) return false;
  controllers_.PlaceAgain();
  return true;
}

Status HostState::GoOn() {
  const StateLock lock(core_.mutex);
  if (!core_.publisher.stands_still()) return Ok{};
  core_.writes.AwaitAll();
  // Others may have been here meanwhile.
  if (!core_.publisher.stands_still()) return Ok{};
  CLEAT_TRY(core_.publisher.GoOn());
  const auto publish = [&](auto& entry) CLEAT_REQUIRES(holds_state) { core_.publisher.Publish(entry); };
  for (auto& [id, entry] : core_.tables.engines) publish(entry);
  for (auto& [id, entry] : core_.tables.clusters) publish(entry);
  for (auto& [id, entry] : core_.tables.subsystems) publish(entry);
  for (auto& [id, entry] : core_.tables.pools) publish(entry);
  for (auto& [id, entry] : core_.tables.disks) publish(entry);
  for (auto& [id, entry] : core_.tables.groups) publish(entry);
  for (auto& [id, entry] : core_.tables.controllers) {
    publish(entry);
    for (auto& [attachment_id, attachment] : entry.attachments) publish(attachment);
  }
  return Ok{};
}

// ---- Pools' drives

void HostState::StartPoolThreads() {
  {
    const StateLock lock(core_.mutex);
    pool_signals_.wake = [this](const std::string& id) { pool_threads_.Wake(id); };
  }
  pool_threads_.Start();
}

void HostState::SetDrives(OpenHostDrive open, const PoolThreads::Pace& pace) {
  pool_signals_.open = std::move(open);
  pool_threads_.SetPace(pace);
}

// ---- Keys and paths

size_t HostState::waiting_changes() {
  const StateLock lock(core_.mutex);
  return core_.writes.waiting_for_names();
}

Status HostState::RewrapKeys() {
  if (keys_.keyring() == nullptr) return Ok{};
  CLEAT_TRY(clusters_.RewrapKeys());
  CLEAT_TRY(subsystems_.RewrapKeys());
  CLEAT_TRY(controllers_.RewrapKeys());
  return disk_keys_.RewrapKeys();
}

std::map<std::string, std::string> HostState::Unlisted() {
  std::map<std::string, std::string> unlisted;
  const auto add = [&](std::string name, const auto& row) {
    if (auto why = core_.view.WhyUnlisted(row)) unlisted.emplace(std::move(name), std::move(*why));
  };
  const StateLock lock(core_.mutex);
  for (const auto& [id, entry] : core_.tables.disks) add(DiskName(id), entry.row);
  for (const auto& [id, entry] : core_.tables.controllers) add(ControllerName(id), entry.row);
  for (const auto& [id, entry] : core_.tables.clusters) add(ClusterName(id), entry.row);
  return unlisted;
}

}  // namespace cleat::control
