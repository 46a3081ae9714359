// SPDX-License-Identifier: Apache-2.0
#include "control/state/disks/disk_storages.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

#include "base/log.h"
#include "control/model/errors.h"
#include "control/model/names.h"
#include "control/paths/disk_file.h"
#include "control/validate/backends.h"

namespace cleat::control {
namespace {

bool CanShareStorage(const v1::DiskSpec& a, const v1::DiskSpec& b) {
  return a.access_mode() == v1::ACCESS_MODE_MANY_READERS && b.access_mode() == v1::ACCESS_MODE_MANY_READERS;
}

}  // namespace

// ---- Who has what

std::vector<std::string> DiskStorages::ClaimsOf(const v1::DiskSpec& spec) {
  std::vector<std::string> claims{"wwn " + spec.wwn()};
  if (std::string storage = ClaimOfStorage(spec); !storage.empty()) claims.push_back(std::move(storage));
  return claims;
}

void DiskStorages::Claim(const DiskRow& row) {
  for (std::string& claim : ClaimsOf(row.spec)) claims_.emplace(std::move(claim), row.id);
}

void DiskStorages::Release(const DiskRow& row) {
  for (const std::string& claim : ClaimsOf(row.spec)) {
    const auto [first, last] = claims_.equal_range(claim);
    const auto ours = std::find_if(first, last, [&](const auto& of) { return of.second == row.id; });
    if (ours != last) claims_.erase(ours);
  }
  Drop(row.id);
}

void DiskStorages::Drop(const std::string& id) {
  memory_.Drop(id);
  known_.Forget(id);
}

// No other disk may have its file, image or world wide name, unless both only read the same thing.
Status DiskStorages::CheckUnique(const std::string& id, const v1::DiskSpec& spec) const {
  std::set<std::string> others;
  for (const std::string& key : ClaimsOf(spec)) {
    const auto [first, last] = claims_.equal_range(key);
    for (auto it = first; it != last; ++it) others.insert(it->second);
  }
  for (const std::string& other : others) {
    CLEAT_TRY(CheckAgainst(id, spec, other));
  }
  const std::string storage = ClaimOfStorage(spec);
  for (const auto& [other_id, other] : busy_) {
    if ((storage.empty() || other.storage != storage) && other.wwn != spec.wwn()) continue;
    return Busy(
        DiskName(id),
        fmt::format("{}: {} or the wwn is being looked at for {}", DiskName(id), storage, DiskName(other_id)),
        DiskName(other_id));
  }
  return Ok{};
}

Status DiskStorages::CheckAgainst(const std::string& id, const v1::DiskSpec& spec,
                                  const std::string& other_id) const {
  const auto claim = ClaimOf(spec);
  const DiskEntry& other = core_.tables.disks.At(other_id);
  const bool same_storage = claim && ClaimOfStorage(other.row.spec) == claim->Key();
  const bool same_wwn = other.row.spec.wwn() == spec.wwn();
  if (same_storage && CanShareStorage(other.row.spec, spec)) return Ok{};
  const std::string name = DiskName(id);
  const std::string other_name = DiskName(other_id);
  if ((same_storage || same_wwn) && other.row.deleting) {
    return Busy(
        name,
        fmt::format("{}: its file or wwn is still used by {}, which is being removed", name, other_name),
        other_name);
  }
  if (same_storage) {
    return RefuseFor(
        name, claim->when_taken,
        fmt::format("{}: {} '{}' is used by {}: two disks can share {} only if both are MANY_READERS. "
                    "Name another {}, or delete that disk (cleatctl disk delete {})",
                    name, claim->noun, claim->which, other_name, claim->with_an, claim->noun, other_id),
        {{"conflict", other_name}});
  }
  if (!same_wwn) return Ok{};
  return RefuseFor(
      name, v1::REASON_WWN_TAKEN,
      fmt::format("{}: wwn {} is the one of {}: leave it out, or give another", name, spec.wwn(), other_name),
      {{"conflict", other_name}});
}

Status DiskStorages::CheckClaims() const {
  size_t claims = 0;
  for (const auto& [id, entry] : core_.tables.disks) {
    for (const std::string& claim : ClaimsOf(entry.row.spec)) {
      ++claims;
      const auto [first, last] = claims_.equal_range(claim);
      if (std::any_of(first, last, [&](const auto& of) { return of.second == id; })) continue;
      return Error(ErrorCode::kInternal, fmt::format("{}: it does not claim its {}", DiskName(id), claim));
    }
  }
  if (claims == claims_.size()) return Ok{};
  return Error(ErrorCode::kInternal, fmt::format("disks: {} claims, not {}", claims_.size(), claims));
}

Status DiskStorages::CheckNotBusy(const std::string& id) const {
  const auto busy = busy_.find(id);
  if (busy == busy_.end()) return Ok{};
  const std::string name = DiskName(id);
  return Busy(name, fmt::format("{} is being {} by another call", name, busy->second.doing));
}

// ---- Files and memory

Result<DiskStorages::Identity> DiskStorages::Prepare(const std::string& id, const v1::DiskSpec& spec) {
  if (KeepsMemory(spec)) {
    CLEAT_TRY(memory_.Make(id, KeptBytes(spec)));
  }
  if (FileOf(spec).empty()) return Identity();
  CLEAT_ASSIGN(auto identity, PrepareDiskFile(DiskName(id), spec, *core_.paths));
  AwaitLooks(id, identity);
  return Identity(identity);
}

Result<DiskStorages::Identity> DiskStorages::Restore(const std::string& id, const v1::DiskSpec& spec,
                                                     bool log_lost) {
  if (log_lost) {
    CLEAT_TRY(memory_.MakeLostLog(id));
    return Identity();
  }
  if (FileOf(spec).empty()) return Prepare(id, spec);
  CLEAT_ASSIGN(auto identity, CheckDiskFile(DiskName(id), spec, *core_.paths));
  AwaitLooks(id, identity);
  return Identity(identity);
}

Status DiskStorages::MakeMemory(const DiskRow& row) {
  return IsLogLost(row) ? memory_.MakeLostLog(row.id) : memory_.Make(row.id, KeptBytes(row.spec));
}

// A store that was restored may not know that an engine has used a disk which was made before.
bool DiskStorages::IsLogLost(const DiskRow& row) const {
  const std::vector<LostRevisions>& lost = core_.tables.lost;
  const bool unknown = !lost.empty() && row.revision < lost.back().until;
  return KeptMemoryOf(row.spec) == KeptMemory::kDoubtLog && (row.reached_engine || unknown);
}

// What is behind the disk is larger before anybody hears of it. When the store then refuses, that does no harm.
Status DiskStorages::Grow(const std::string& id, const v1::DiskSpec& spec) {
  if (KeptMemoryOf(spec) == KeptMemory::kContent) return memory_.Grow(id, spec.size_bytes());
  if (!FileOf(spec).empty()) return GrowDiskFile(DiskName(id), spec, *core_.paths);
  return Ok{};
}

// A disk whose file hangs can't be compared: then only the engines' locks keep two disks of one file apart. Those that are known
// are looked at all the same: a file that is gone must not keep others from its inode because a third one hangs.
void DiskStorages::AwaitLooks(const std::string& id, const StorageIdentity& identity) {
  known_.AwaitLooks();
  known_.LookAtOthersWith(id, identity);
  if (known_.AwaitLooks()) return;
  spdlog::warn(
      "{}: storage not compared with every disk's: a file does not answer; until it does, only the engines' "
      "locks keep two disks of one file apart",
      DiskName(id));
}

Status DiskStorages::CheckSameStorage(const std::string& id, const v1::DiskSpec& spec,
                                      const Identity& identity) {
  if (!identity) return Ok{};
  for (const auto& [pool_id, pool] : core_.tables.pools) {
    if (!pool.identity || !pool.identity->Overlaps(*identity)) continue;
    return RefuseFor(
        DiskName(id), v1::REASON_FILE_TAKEN,
        fmt::format("{}: file '{}' is '{}', or a part of it, which is the drive of {}: make the disk in that "
                    "pool (--pool {})",
                    DiskName(id), FileOf(spec), pool.row.spec.device(), PoolName(pool_id), pool_id),
        {{"conflict", PoolName(pool_id)}});
  }
  for (const std::string& other_id : known_.OthersWith(id, *identity)) {
    const DiskEntry* other = core_.tables.disks.Find(other_id);
    const std::string name = DiskName(id);
    const std::string other_name = DiskName(other_id);
    if (other == nullptr && busy_.contains(other_id)) {
      return Busy(name,
                  fmt::format("{}: file '{}' is being looked at for {}", name, FileOf(spec), other_name),
                  other_name);
    }
    if (other == nullptr || CanShareStorage(other->row.spec, spec)) continue;
    return RefuseFor(
        name, v1::REASON_FILE_TAKEN,
        fmt::format("{}: file '{}' is the same as '{}', or has a part of it, which is used by {}: two "
                    "disks can share a file only if both are MANY_READERS. Name another file, or "
                    "delete that disk (cleatctl disk delete {})",
                    name, FileOf(spec), FileOf(other->row.spec), other_name, other_id),
        {{"conflict", other_name}});
  }
  known_.Keep({id, FileOf(spec)}, *identity);
  return Ok{};
}

void DiskStorages::LookAgain(const DiskRow& row) {
  if (const std::string& file = FileOf(row.spec); !file.empty()) known_.Look({{row.id, file}});
}

void DiskStorages::LookAtAll() {
  std::vector<KnownStorages::File> files;
  for (const auto& [id, entry] : core_.tables.disks) {
    if (const std::string& file = FileOf(entry.row.spec); !file.empty()) files.push_back({id, file});
  }
  known_.Look(std::move(files));
}

}  // namespace cleat::control
