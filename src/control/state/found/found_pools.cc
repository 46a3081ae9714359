// SPDX-License-Identifier: Apache-2.0
#include "control/state/found/found_pools.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "base/disk_identity.h"
#include "base/log.h"
#include "control/model/errors.h"
#include "control/model/names.h"
#include "control/pools/block_drive.h"
#include "control/state/pools/host_uid.h"
#include "control/validate/backends.h"
#include "control/validate/disk_settings.h"
#include "control/validate/spec_rules.h"

namespace cleat::control {
namespace {

// So often a map is looked for that its pool's thread may be writing meanwhile, now to the one slot and now to the other.
constexpr int kReads = 3;

constexpr char kOneSlotDamaged[] =
    "one of the two copies of the map on its drive is damaged: what was made, deleted or grown last may be "
    "missing";

Error UnusableAsFound(const std::string& name, std::string message) {
  return RefuseFor(name, v1::REASON_DRIVE_UNUSABLE, std::move(message));
}

Result<pool::MapSlots> ReadSlots(pool::Drive& drive, const pool::Label& label) {
  for (int reads = 1;; ++reads) {
    auto slots = pool::ReadMapSlots(drive, label);
    if (!slots.ok() || slots->map || !slots->damaged || reads == kReads) return slots;
  }
}

uint64_t SecondsKept(const KeepDeleted& keep) {
  constexpr uint64_t kDaySeconds = 86'400;
  return keep.time_s != 0 ? keep.time_s : kKeepDeletedDaysDefault * kDaySeconds;
}

// Whether the drive is the pool that was asked for.
Status CheckAsFound(const Pools::Asked& asked, const pool::Label& label) {
  const std::string name = PoolName(asked.id);
  if (label.name != asked.id) {
    return RefuseFor(
        name, v1::REASON_INVALID_FIELD,
        fmt::format("{}: {} is pool '{}': give that as its id, since its disks are said to be in "
                    "that one",
                    name, asked.spec.device(), label.name),
        {{"field", "pool_id"}});
  }
  if (asked.spec.extent_bytes() == 0 || asked.spec.extent_bytes() == label.extent_bytes) return Ok{};
  return RefuseFor(name, v1::REASON_INVALID_FIELD,
                   fmt::format("{}: extent_bytes is {}: the drive has extents of {}: leave it out", name,
                               asked.spec.extent_bytes(), label.extent_bytes),
                   {{"field", "spec.extent_bytes"}});
}

void AddTo(google::protobuf::RepeatedPtrField<v1::ScannedDisk>& disks, const pool::MapDisk& disk,
           FoundDisk found, bool with_spec) {
  v1::ScannedDisk& scanned = *disks.Add();
  if (!found.id.empty()) scanned.mutable_disk()->set_name(DiskName(found.id));
  scanned.mutable_disk()->set_uid(fmt::format("{:016x}", disk.identity));
  if (found.spec && with_spec) *scanned.mutable_disk()->mutable_spec() = *std::move(found.spec);
  scanned.set_deleted(disk.deleted);
  scanned.set_problem(std::move(found.problem));
}

}  // namespace

// What those of the drive's disks take that come first in its map.
class FoundPools::Room {
 public:
  Room(size_t disks, size_t deleted) : disks_(disks), deleted_(deleted) {}

  // Empty: there is room, and the disk has it from then on.
  std::string Take(const std::string& id, const v1::DiskSpec& spec, bool deleted) {
    if (deleted) {
      if (deleted_ >= kDeletedDisksMax)
        return fmt::format("{} deleted disks are kept, which is the most", kDeletedDisksMax);
      ++deleted_;
      return {};
    }
    if (disks_ >= kDisksMax) return fmt::format("there are {} disks, which is the most", kDisksMax);
    if (ids_.contains(id)) return "another disk of the drive has its name";
    if (wwns_.contains(spec.wwn())) return "another disk of the drive has its wwn";
    ids_.insert(id);
    wwns_.insert(spec.wwn());
    ++disks_;
    return {};
  }

 private:
  size_t disks_;
  size_t deleted_;
  std::set<std::string> ids_;
  std::set<std::string> wwns_;
};

const PoolEntry* FoundPools::FindPool(const pool::Uid& uid) const {
  for (const auto& [id, entry] : core_.tables.pools) {
    if (entry.row.uid == uid) return &entry;
  }
  return nullptr;
}

// ---- Reading

Result<FoundPool> FoundPools::Read(const std::string& name, HostDrive& drive, const std::string& device) {
  const std::string what = name == device ? device : fmt::format("{}: {}", name, device);
  auto label = pool::ReadLabel(drive);
  if (!label.ok()) return UnusableAsFound(name, fmt::format("{}: {}", what, label.error().message));
  if (!*label) {
    return UnusableAsFound(name, what +
                                     " has no label of a pool: a new one can be made of it (cleatctl pool "
                                     "create, without --from-drive)");
  }
  FoundPool found{.label = std::move(**label), .slots = {}};
  auto slots = ReadSlots(drive, found.label);
  if (!slots.ok()) return UnusableAsFound(name, fmt::format("{}: {}", what, slots.error().message));
  if (!slots->map && slots->damaged) {
    return UnusableAsFound(
        name,
        fmt::format("{} is pool '{}', and both copies of its map are damaged: which disks it has can't be "
                    "told. Restore a backup of the store (cleatctl store restore), or give up what is in "
                    "it (cleatctl pool create --overwrite)",
                    what, found.label.name));
  }
  found.slots = std::move(*slots);
  return found;
}

std::string FoundPools::WhyNotHere(const std::string& id, const v1::DiskSpec& spec, uint64_t identity) const {
  if (const DiskEntry* const present = core_.tables.disks.Find(id)) {
    return core_.view.IdentityOf(present->row).value() == identity
               ? "it is here already"
               : fmt::format("{} is another disk of this host", DiskName(id));
  }
  Status status = storages_.CheckNotBusy(id);
  if (status.ok()) status = storages_.CheckUnique(id, spec);
  return status.ok() ? std::string() : ProblemText(status.error().message);
}

std::string FoundPools::WhyNot(const pool::MapDisk& disk, const FoundDisk& found, Room& room) const {
  if (!found.problem.empty()) return found.problem;
  if (disk.deleted) {
    for (const DeletedDiskRow* const kept : core_.tables.deleted.Of(found.id)) {
      if (core_.view.IdentityOf(kept->disk).value() == disk.identity) return "it is here already";
    }
  } else if (std::string why = WhyNotHere(found.id, *found.spec, disk.identity); !why.empty()) {
    return why;
  }
  return room.Take(found.id, *found.spec, disk.deleted);
}

// ---- Scanning

Result<v1::ScanDriveResponse> FoundPools::Scan(const v1::ScanDriveRequest& request) {
  auto device = CompletePath("the drive", "device", request.device(), kFilePathBytesMax);
  if (!device.ok()) return Refuse(v1::REASON_INVALID_FIELD, device.error().message, {{"field", "device"}});
  CLEAT_ASSIGN(const auto file, core_.paths->FindDisk(*device, fmt::format("device '{}'", *device)));
  auto drive = BlockDrive::OpenToRead(file, *device);
  if (!drive.ok()) return UnusableAsFound(*device, drive.error().message);
  CLEAT_ASSIGN(const FoundPool found, Read(*device, **drive, *device));
  const StateLock lock(core_.mutex);
  return Show(found, *device);
}

v1::ScanDriveResponse FoundPools::Show(const FoundPool& found, const std::string& device) {
  const pool::Label& label = found.label;
  v1::ScanDriveResponse response;
  response.set_of_this_host(IsThisHost(label.host));
  v1::Pool& pool = *response.mutable_pool();
  v1::PoolStatus& status = *pool.mutable_status();
  Room room(core_.tables.disks.size() + storages_.busy(), core_.tables.deleted.size());
  uint64_t rest = label.extents;
  size_t bytes = 0;
  const std::vector<pool::MapDisk> none;
  for (const pool::MapDisk& disk : found.slots.map ? found.slots.map->disks : none) {
    FoundDisk described = ReadFoundDisk(disk, label);
    described.problem = WhyNot(disk, described, room);
    const uint64_t extents = pool::CountOf(disk.extents);
    const uint64_t its_bytes = extents * label.extent_bytes;
    rest -= extents;
    if (!described.problem.empty()) {
      status.set_unknown_bytes(status.unknown_bytes() + its_bytes);
    } else if (disk.deleted) {
      status.set_reclaimable_bytes(status.reclaimable_bytes() + its_bytes);
    } else {
      status.set_allocated_bytes(status.allocated_bytes() + its_bytes);
      status.set_disks(status.disks() + 1);
    }
    AddTo(*response.mutable_disks(), disk, std::move(described), bytes < kPageBytesMax);
    bytes += response.disks().rbegin()->ByteSizeLong();
  }
  if (found.slots.map) response.set_map_generation(found.slots.map->generation);
  if (const PoolEntry* const entry = FindPool(label.pool)) {
    pool = core_.view.Show(*entry);
    return response;
  }
  if (CheckId("pool", label.name).ok()) pool.set_name(PoolName(label.name));
  pool.mutable_spec()->set_device(device);
  pool.mutable_spec()->set_extent_bytes(label.extent_bytes);
  status.set_uid(pool::TextOf(label.pool));
  status.set_capacity_bytes(label.extents * label.extent_bytes);
  status.set_to_erase_bytes(rest * label.extent_bytes);
  if (found.slots.damaged) status.set_message(kOneSlotDamaged);
  return response;
}

// ---- Making

Result<v1::Pool> FoundPools::Create(const v1::CreatePoolRequest& request) {
  CLEAT_ASSIGN(Pools::Asked asked, Pools::Complete(request));
  const std::string name = PoolName(asked.id);
  if (request.overwrite()) {
    return RefuseFor(
        name, v1::REASON_INVALID_FIELD,
        name +
            ": overwrite and from_drive (--overwrite, --from-drive): what is on the drive is either "
            "lost, or the pool: say one of them",
        {{"field", "overwrite"}});
  }
  {
    const StateLock lock(core_.mutex);
    core_.writes.Await({.changes = {name}});
    CLEAT_ASSIGN(const auto existing, pools_.CheckExisting(asked));
    if (existing != nullptr) return core_.view.Show(*existing);
    CLEAT_TRY(pools_.CheckNew(asked.id, asked.spec));
  }
  auto prepared = Prepare(asked);
  const StateLock lock(core_.mutex);
  WriteNames names = Pools::NamesOf(asked);
  names.everything = true;
  core_.writes.Await(names);
  // The same call may have been made twice at once, and the other one has the drive.
  CLEAT_ASSIGN(const auto existing, pools_.CheckExisting(asked));
  if (existing != nullptr) return core_.view.Show(*existing);
  CLEAT_TRY(prepared);
  CLEAT_TRY(pools_.CheckNew(asked.id, asked.spec));
  CLEAT_TRY(CheckStill(name, prepared->rows));
  CLEAT_TRY(Commit(std::move(*prepared), names));
  return pools_.AwaitLabel(asked.id);
}

Result<FoundPools::Prepared> FoundPools::Prepare(const Pools::Asked& asked) {
  const std::string name = PoolName(asked.id);
  const std::string& device = asked.spec.device();
  CLEAT_ASSIGN(auto drive, pools_.OpenUntaken(name, device));
  CLEAT_ASSIGN(const FoundPool found, Read(name, *drive, device));
  CLEAT_TRY(pools_.CheckNoPools(name, found.label.pool, device));
  CLEAT_TRY(CheckAsFound(asked, found.label));
  // An engine that gets an extent's lock once these are given back reads the new map.
  CLEAT_TRY(Pools::LockExtents(name, *drive, device));
  Result<FoundRows> rows = [&] {
    const StateLock lock(core_.mutex);
    return Plan(name, found);
  }();
  CLEAT_TRY(rows);
  CLEAT_TRY(WriteTo(*drive, name, found, *rows));
  Pools::UnlockExtents(*drive);
  rows->pool.id = asked.id;
  rows->pool.spec.set_device(device);
  rows->pool.labels = asked.labels;
  return Prepared{.drive = std::move(drive), .rows = std::move(*rows)};
}

Status FoundPools::Commit(Prepared prepared, const WriteNames& names) {
  FoundRows& rows = prepared.rows;
  StoreChange change{rows.pool};
  change.insert(change.end(), rows.disks.begin(), rows.disks.end());
  change.insert(change.end(), rows.deleted.begin(), rows.deleted.end());
  CLEAT_TRY(core_.writes.Write(names, change));
  const std::string id = rows.pool.id;
  spdlog::info("{}: made from its drive: {} disks, {} deleted ones, {} that stay unknown", PoolName(id),
               rows.disks.size(), rows.deleted.size(), rows.pool.unknown.size());
  pools_.Insert(std::move(rows.pool), std::move(prepared.drive));
  Add(std::move(rows));
  pools_.Wake(id);
  return Ok{};
}

Result<FoundRows> FoundPools::Plan(const std::string& name, const FoundPool& found) {
  // Revisions that stand still would be given to several disks.
  if (core_.publisher.stands_still()) CLEAT_TRY(core_.store.Probe());
  if (core_.publisher.stands_still()) return Busy(name, name + ": the store could not be written until now");
  FoundRows rows{.pool = {},
                 .disks = {},
                 .deleted = {},
                 .map = found.slots.map,
                 .newest_before = core_.publisher.newest()};
  rows.pool.uid = found.label.pool;
  rows.pool.extents = found.label.extents;
  rows.pool.labelled = true;
  rows.pool.spec.set_extent_bytes(found.label.extent_bytes);
  pool::ExtentSet rest;  // of which nobody knows what is in it
  rest.Add(pool::ExtentRun{0, found.label.extents});
  if (rows.map) {
    Room room(core_.tables.disks.size() + storages_.busy(), core_.tables.deleted.size());
    for (pool::MapDisk& disk : rows.map->disks) {
      rest.Remove(disk.extents);
      CLEAT_TRY(PlanDisk(name, found.label, room, disk, rows));
    }
  }
  if (found.slots.damaged)
    spdlog::warn(
        "{}: one copy of the map on its drive is damaged: what was made, deleted or grown last may be "
        "missing",
        name);
  rows.pool.to_erase = rest.Runs();
  rows.pool.revision = rows.pool.intent_revision = core_.publisher.NextRevision();
  if (rows.map) rows.map->generation = rows.pool.revision;
  return rows;
}

Status FoundPools::PlanDisk(const std::string& name, const pool::Label& label, Room& room,
                            pool::MapDisk& disk, FoundRows& rows) {
  const DiskIdentity identity(disk.identity);
  FoundDisk described = ReadFoundDisk(disk, label);
  const std::string why = WhyNot(disk, described, room);
  if (why.empty()) {
    AddRow(disk, *std::move(described.spec), described.id, rows);
    const DiskRow& row = disk.deleted ? rows.deleted.back().disk : rows.disks.back();
    disk.identity = core_.view.IdentityOf(row).value();
    return Ok{};
  }
  // The disk on the drive keeps its number, which no disk that is made later, or from this map, may have.
  if (identity.store() == core_.store.number() &&
      (disk.identity & DiskIdentity::kRevisionMax) > rows.newest_before) {
    return UnusableAsFound(name,
                           fmt::format("{}: the map on the drive has disk {:016x}, which this cleatd has not "
                                       "made yet: no cleatd wrote that map",
                                       name, disk.identity));
  }
  spdlog::warn("{}: disk {} of its drive not made: {}; its extents stay as they are", name,
               described.id.empty() ? fmt::format("{:016x}", disk.identity) : described.id, why);
  rows.pool.unknown.push_back(disk);
  return Ok{};
}

void FoundPools::AddRow(const pool::MapDisk& disk, v1::DiskSpec spec, const std::string& id,
                        FoundRows& rows) {
  DiskRow row;
  row.id = id;
  row.spec = std::move(spec);
  row.revision = row.intent_revision = core_.publisher.NextRevision();
  if (HasSettings(row.spec)) row.limits_revision = row.revision;
  if (!disk.deleted) {
    rows.disks.push_back(std::move(row));
    return;
  }
  DeletedDiskRow kept{.disk = std::move(row), .delete_time_s = keep_.now_s(), .purge_time_s = 0};
  kept.purge_time_s = kept.delete_time_s + SecondsKept(keep_);
  rows.deleted.push_back(std::move(kept));
}

Status FoundPools::WriteTo(HostDrive& drive, const std::string& name, const FoundPool& found,
                           const FoundRows& rows) {
  pool::PoolDrive pool_drive(drive, found.label.pool[0]);
  Status status = pool_drive.Open(found.label);
  pool::Label label = found.label;
  label.host = HostUid();
  if (status.ok()) status = pool_drive.Relabel(label);
  if (status.ok() && rows.map) status = pool_drive.ReplaceMap(*rows.map);
  if (status.ok()) return status;
  return UnusableAsFound(name, fmt::format("{}: {}", name, status.error().message));
}

Status FoundPools::CheckStill(const std::string& name, const FoundRows& rows) const {
  std::string why;
  if (FindPool(rows.pool.uid) != nullptr) why = "its drive is a pool of this host";
  for (const DiskRow& row : rows.disks) {
    if (why.empty()) why = WhyNotHere(row.id, row.spec, 0);
  }
  if (core_.tables.disks.size() + storages_.busy() + rows.disks.size() > kDisksMax ||
      core_.tables.deleted.size() + rows.deleted.size() > kDeletedDisksMax)
    why = "there are more disks";
  if (why.empty()) return Ok{};
  return Busy(name, fmt::format("{}: something was made on this host meanwhile ({})", name, why));
}

void FoundPools::Add(FoundRows rows) {
  for (DeletedDiskRow& row : rows.deleted) {
    extents_.Join(row.disk, PoolExtents::As::kDeleted);
    core_.tables.deleted.Put(std::move(row));
  }
  for (DiskRow& row : rows.disks) {
    DiskEntry entry;
    entry.row = std::move(row);
    entry.status.set_state(v1::DISK_STATE_READY);
    disks_.Add(std::move(entry));
  }
}

}  // namespace cleat::control
