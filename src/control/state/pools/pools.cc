// SPDX-License-Identifier: Apache-2.0
#include "control/state/pools/pools.h"

#include <fmt/format.h>
#include <openssl/rand.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <iterator>
#include <thread>
#include <utility>

#include "base/log.h"
#include "control/model/errors.h"
#include "control/model/names.h"
#include "control/model/page.h"
#include "control/state/pools/host_uid.h"
#include "control/state/pools/pool_extents.h"
#include "control/validate/backends.h"
#include "control/validate/spec_rules.h"
#include "pool/pool_drive.h"

namespace cleat::control {
namespace {

// Among the names of a new pool's write: one is made at a time, since two might be of one drive.
constexpr char kPoolCount[] = "number of pools";

Error UnusableDrive(const std::string& pool, std::string message) {
  return RefuseFor(pool, v1::REASON_DRIVE_UNUSABLE, std::move(message));
}

Result<v1::PoolSpec> CompletePoolSpec(const std::string& pool, v1::PoolSpec spec) {
  CLEAT_ASSIGN(auto device, CompletePath(pool, "device", spec.device(), kFilePathBytesMax));
  spec.set_device(device);
  const uint64_t extent_bytes = spec.extent_bytes();
  const bool known = std::has_single_bit(extent_bytes) && extent_bytes >= pool::kExtentBytesMin &&
                     extent_bytes <= pool::kExtentBytesMax;
  if (extent_bytes == 0 || known) return spec;
  return RefuseFor(
      pool, v1::REASON_INVALID_FIELD,
      fmt::format("{}: extent_bytes is {}: it must be a power of two from {} (64 MiB) to {} (1 GiB)", pool,
                  extent_bytes, pool::kExtentBytesMin, pool::kExtentBytesMax),
      {{"field", "spec.extent_bytes"}});
}

pool::Uid NewUid() {
  pool::Uid uid{};
  CLEAT_CHECK(RAND_bytes(uid.data(), static_cast<int>(uid.size())) == 1);
  return uid;
}

// How the drive is cut, or why it can't be.
Status Cut(const std::string& pool, uint64_t drive_bytes, PoolRow& row) {
  if (row.spec.extent_bytes() == 0) row.spec.set_extent_bytes(pool::DefaultExtentBytes(drive_bytes));
  if (row.spec.extent_bytes() != 0) row.extents = pool::ExtentsOn(drive_bytes, row.spec.extent_bytes());
  if (row.extents != 0) return Ok{};
  return UnusableDrive(
      pool, fmt::format("{}: {} has {} bytes: a pool takes {} for itself, and at least one extent, at "
                        "most {} of them: see extent_bytes",
                        pool, row.spec.device(), drive_bytes, pool::kDataOffset, pool::kExtentsMax));
}

// The thread of a pool that was deleted a moment ago, or the last I/O of a process that was killed, may still have the drive.
Result<std::unique_ptr<HostDrive>> OpenDrive(const OpenHostDrive& open, const UniqueFd& found,
                                             const std::string& device) {
  constexpr int kTries = 20;
  constexpr std::chrono::milliseconds kPause{100};
  for (int tries = 1;; ++tries) {
    auto opened = open(found, device);
    if (opened.ok() || opened.error().code != ErrorCode::kUnavailable || tries == kTries) return opened;
    std::this_thread::sleep_for(kPause);
  }
}

}  // namespace

void Pools::Fill(std::vector<PoolRow> rows) {
  for (PoolRow& row : rows) {
    const std::string id = row.id;
    PoolEntry entry;
    entry.row = std::move(row);
    entry.revision = core_.publisher.newest() + 1;
    core_.tables.pools.Insert(id, std::move(entry));
  }
}

// ---- Creating

Result<v1::Pool> Pools::Create(const v1::CreatePoolRequest& request) {
  CLEAT_CHECK(!request.from_drive());  // FoundPools makes these
  CLEAT_ASSIGN(Asked asked, Complete(request));
  const std::string& id = asked.id;
  {
    const StateLock lock(core_.mutex);
    core_.writes.Await({.changes = {PoolName(id)}});
    CLEAT_ASSIGN(const auto existing, CheckExisting(asked));
    if (existing != nullptr) return core_.view.Show(*existing);
    CLEAT_TRY(CheckNew(id, asked.spec));
  }
  auto prepared = Prepare(id, asked.spec, request.overwrite());
  const StateLock lock(core_.mutex);
  const WriteNames names = NamesOf(asked);
  core_.writes.Await(names);
  // The same call may have been made twice at once, and the other one has the drive.
  CLEAT_ASSIGN(const auto existing, CheckExisting(asked));
  if (existing != nullptr) return core_.view.Show(*existing);
  CLEAT_TRY(prepared);
  CLEAT_TRY(CheckNew(id, asked.spec));
  prepared->row.labels = std::move(asked.labels);
  CLEAT_TRY(Commit(*prepared, names));
  return AwaitLabel(id);
}

Result<Pools::Asked> Pools::Complete(const v1::CreatePoolRequest& request) {
  Asked asked{.id = request.pool_id(), .spec = {}, .labels = {}};
  CLEAT_TRY(CheckId("pool_id", asked.id));
  const std::string name = PoolName(asked.id);
  CLEAT_ASSIGN(asked.spec, CompletePoolSpec(name, request.pool().spec()));
  CLEAT_ASSIGN(asked.labels, CheckLabels(name, request.pool().labels()));
  return asked;
}

WriteNames Pools::NamesOf(const Asked& asked) {
  return {.changes = {PoolName(asked.id), kPoolCount, StorageName(asked.spec.device())}};
}

// The pool's thread labels the drive. If that takes long the answer says so; if it fails, why.
Result<v1::Pool> Pools::AwaitLabel(const std::string& id) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(kLabelWaitMs);
  for (;;) {
    const PoolEntry* const entry = core_.tables.pools.Find(id);
    if (entry == nullptr) return NotFound(PoolName(id));
    if (entry->state != v1::POOL_STATE_OPENING || !core_.publisher.AwaitPublished(core_.mutex, until))
      return core_.view.Show(*entry);
  }
}

Result<const PoolEntry*> Pools::CheckExisting(const Asked& asked) const {
  const std::string& id = asked.id;
  const PoolEntry* const existing = core_.tables.pools.Find(id);
  if (existing == nullptr) return existing;
  v1::PoolSpec wanted = asked.spec;
  if (wanted.extent_bytes() == 0) wanted.set_extent_bytes(existing->row.spec.extent_bytes());
  if (!SameSpec(existing->row.spec, wanted)) return AlreadyExists(PoolName(id), existing->row.spec, wanted);
  if (existing->row.labels != asked.labels) return AlreadyExistsWithOtherLabels(PoolName(id));
  return existing;
}

Status Pools::CheckNew(const std::string& id, const v1::PoolSpec& spec) const {
  const std::string name = PoolName(id);
  if (core_.tables.pools.size() >= kPoolsMax) {
    return RefuseFor(name, v1::REASON_TOO_MANY_RESOURCES,
                     fmt::format("{}: there are {} pools, which is the most: delete one", name, kPoolsMax),
                     {{"limit", std::to_string(kPoolsMax)}});
  }
  const auto taken = [&](const std::string& by) {
    return RefuseFor(
        name, v1::REASON_DRIVE_TAKEN,
        fmt::format("{}: '{}' is {}'s: name another drive, or delete that first", name, spec.device(), by),
        {{"conflict", by}});
  };
  for (const auto& [other, entry] : core_.tables.pools) {
    if (entry.row.spec.device() == spec.device()) return taken(PoolName(other));
  }
  for (const auto& [disk, entry] : core_.tables.disks) {
    if (FileOf(entry.row.spec) == spec.device()) return taken(DiskName(disk));
  }
  return Ok{};
}

Result<Pools::Prepared> Pools::Prepare(const std::string& id, v1::PoolSpec spec, bool overwrite) const {
  const std::string name = PoolName(id);
  const std::string& device = spec.device();
  CLEAT_ASSIGN(auto drive, OpenUntaken(name, device));
  Prepared prepared{.drive = std::move(drive), .row = {}};
  CLEAT_TRY(CheckLabel(name, *prepared.drive, device, overwrite));
  prepared.row.id = id;
  prepared.row.spec = std::move(spec);
  prepared.row.uid = NewUid();
  CLEAT_TRY(Cut(name, prepared.drive->size_bytes(), prepared.row));
  prepared.row.to_erase = {{0, prepared.row.extents}};
  return prepared;
}

Result<std::unique_ptr<HostDrive>> Pools::OpenUntaken(const std::string& name,
                                                      const std::string& device) const {
  CLEAT_ASSIGN(const auto found, core_.paths->FindDisk(device, fmt::format("{}: device '{}'", name, device)));
  auto opened = OpenDrive(signals_.open, found, device);
  if (!opened.ok()) return UnusableDrive(name, fmt::format("{}: {}", name, opened.error().message));
  CLEAT_TRY(CheckNotTaken(name, **opened, device));
  return std::move(*opened);
}

Status Pools::LockExtents(const std::string& name, HostDrive& drive, const std::string& device) {
  if (drive.size_bytes() <= pool::kDataOffset) return Ok{};
  if (drive.TryLock(pool::kDataOffset, drive.size_bytes() - pool::kDataOffset)) return Ok{};
  return UnusableDrive(name,
                       fmt::format("{}: an engine has disks on '{}': detach them first, or, where cleatd "
                                   "does not know them any more, end the VMs and restart that engine",
                                   name, device));
}

void Pools::UnlockExtents(HostDrive& drive) {
  if (drive.size_bytes() > pool::kDataOffset)
    drive.Unlock(pool::kDataOffset, drive.size_bytes() - pool::kDataOffset);
}

Status Pools::CheckNoPools(const std::string& name, const pool::Uid& uid, const std::string& device) const {
  const StateLock lock(core_.mutex);
  for (const auto& [id, entry] : core_.tables.pools) {
    if (entry.row.uid != uid) continue;
    return RefuseFor(name, v1::REASON_DRIVE_TAKEN,
                     fmt::format("{}: '{}' is the drive of {}", name, device, PoolName(id)),
                     {{"conflict", PoolName(id)}});
  }
  return Ok{};
}

// A disk of this host may be on it by another path, and not be attached.
Status Pools::CheckNotTaken(const std::string& name, const HostDrive& drive,
                            const std::string& device) const {
  CLEAT_ASSIGN(const auto identity, IdentifyStorage(drive.file(), fmt::format("{}: {}", name, device)));
  const std::vector<std::string> disks = disks_with_(identity);
  if (disks.empty()) return Ok{};
  return RefuseFor(
      name, v1::REASON_DRIVE_TAKEN,
      fmt::format("{}: {} is on '{}', or on a part of it: name another drive, or delete that disk first",
                  name, DiskName(disks.front()), device),
      {{"conflict", DiskName(disks.front())}});
}

// What is on the drive may be overwritten, but not a pool of this host, nor what an engine has open.
Status Pools::CheckLabel(const std::string& name, HostDrive& drive, const std::string& device,
                         bool overwrite) const {
  const auto label = pool::ReadLabel(drive);
  if (label.ok() && *label) CLEAT_TRY(CheckNoPools(name, (**label).pool, device));
  CLEAT_TRY(LockExtents(name, drive, device));
  UnlockExtents(drive);
  if (overwrite) return Ok{};
  if (!label.ok()) return UnusableDrive(name, fmt::format("{}: {}: {}", name, device, label.error().message));
  if (*label) {
    const pool::Label& other = **label;
    return UnusableDrive(
        name,
        fmt::format(
            "{}: {} is pool '{}' (uid {}) of {} already: `from_drive` (--from-drive) makes it as it "
            "is there, with its disks (cleatctl pool scan shows them); `overwrite` (--overwrite) makes a "
            "new one of it, and what is in it is lost",
            name, device, other.name, pool::TextOf(other.pool),
            IsThisHost(other.host) ? "this host" : "another host, perhaps"));
  }
  if (auto empty = drive.CheckEmpty(); !empty.ok())
    return UnusableDrive(name, fmt::format("{}: {}", name, empty.error().message));
  return Ok{};
}

// The store first: a crash leaves a pool whose drive has no label, which is said, and the drive as it was.
Status Pools::Commit(Prepared& prepared, const WriteNames& names) {
  prepared.row.revision = prepared.row.intent_revision = core_.publisher.NextRevision();
  CLEAT_TRY(core_.writes.Write(names, {prepared.row}));
  Wake(Insert(std::move(prepared.row), std::move(prepared.drive)).row.id);
  return Ok{};
}

PoolEntry& Pools::Insert(PoolRow row, std::unique_ptr<HostDrive> drive) {
  const std::string id = row.id;
  PoolEntry entry;
  entry.row = std::move(row);
  PoolEntry& kept = core_.tables.pools.Insert(id, std::move(entry));
  core_.publisher.Publish(kept);
  spdlog::info("{}: created: {} extents of {} bytes on {}", PoolName(id), kept.row.extents,
               kept.row.spec.extent_bytes(), kept.row.spec.device());
  signals_.opened[id] = std::move(drive);
  return kept;
}

// ---- Reading and deleting

Result<v1::Pool> Pools::Get(const v1::GetPoolRequest& request) {
  CLEAT_ASSIGN(auto id, ParsePoolName(request.name()));
  const StateLock lock(core_.mutex);
  const PoolEntry* entry = core_.tables.pools.Find(id);
  if (entry == nullptr) return NotFound(request.name());
  return core_.view.Show(*entry);
}

Result<v1::ListPoolsResponse> Pools::List(const v1::ListPoolsRequest& request) {
  CLEAT_ASSIGN(auto page, Page::Of(request.page_size()));
  v1::ListPoolsResponse response;
  const StateLock lock(core_.mutex);
  for (auto it = core_.tables.pools.After(request.page_token()); it != core_.tables.pools.end(); ++it) {
    v1::Pool pool = core_.view.Show(it->second);
    if (!page.Take(pool.ByteSizeLong())) {
      response.set_next_page_token(std::prev(it)->first);
      break;
    }
    *response.add_pools() = std::move(pool);
  }
  return response;
}

std::vector<v1::Pool> Pools::All() {
  const StateLock lock(core_.mutex);
  std::vector<v1::Pool> pools;
  for (const auto& [id, entry] : core_.tables.pools) pools.push_back(core_.view.Show(entry));
  return pools;
}

Result<v1::DeletePoolResponse> Pools::Delete(const v1::DeletePoolRequest& request) {
  CLEAT_ASSIGN(auto id, ParsePoolName(request.name()));
  const std::string& name = request.name();
  const StateLock lock(core_.mutex);
  const WriteNames names{.changes = {name}};
  core_.writes.Await(names);
  const PoolEntry* entry = core_.tables.pools.Find(id);
  if (entry == nullptr) return v1::DeletePoolResponse();
  CLEAT_TRY(CheckEtag(name, request.etag(), entry->row.intent_revision));
  CLEAT_TRY(CheckNotInUse(*entry, request.discard_unknown()));
  CLEAT_TRY(core_.writes.Write(names, {ErasePoolRow{id}}));
  core_.tables.pools.Erase(id);
  signals_.opened.erase(id);
  core_.publisher.PublishGone(name);
  signals_.wake(id);
  spdlog::info("{}: deleted", name);
  return v1::DeletePoolResponse();
}

Status Pools::CheckNotInUse(const PoolEntry& entry, bool discard_unknown) const {
  const std::string name = PoolName(entry.row.id);
  if (!entry.disks.empty()) {
    const std::string& disk = *entry.disks.begin();
    return RefuseFor(
        name, v1::REASON_POOL_IN_USE,
        fmt::format("{} has {} disk(s), {} among them: delete and purge them first (cleatctl disk "
                    "delete --purge {})",
                    name, entry.disks.size(), DiskName(disk), disk),
        {{"conflict", DiskName(disk)}});
  }
  const auto is_here = [&](const auto& kept) { return PoolOf(kept.second.disk.spec) == name; };
  const DeletedDisks::Rows& deleted = core_.tables.deleted.rows();
  if (std::any_of(deleted.begin(), deleted.end(), is_here)) {
    return RefuseFor(
        name, v1::REASON_POOL_IN_USE,
        fmt::format("{} has deleted disks that are kept: purge them first (cleatctl disk list --deleted, "
                    "disk purge)",
                    name));
  }
  if (entry.row.unknown.empty() || discard_unknown) return Ok{};
  return RefuseFor(
      name, v1::REASON_POOL_IN_USE,
      fmt::format("{} has {} disks that the store, which was restored or lost, does not know: put the former "
                  "store back, or give them up (`discard_unknown`, --discard-unknown)",
                  name, entry.row.unknown.size()));
}

}  // namespace cleat::control
