// SPDX-License-Identifier: Apache-2.0
#include "control/state/doubt/disk_doubt.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "base/log.h"
#include "control/model/names.h"
#include "control/model/reasons.h"
#include "control/validate/backends.h"
#include "nvme/host/doubt/doubt_log.h"

namespace cleat::control {
namespace {

using nvme::host::DoubtLog;
using nvme::host::kDoubtBlockBytes;
using nvme::host::kDoubtLogBytes;

// A disk's log, as long as this lives. The memory can't shrink: MemfdKeeper has sealed it.
class MappedLog {
 public:
  static Result<MappedLog> Map(const std::string& disk, const UniqueFd& memory) {
    struct stat status {};
    if (fstat(memory.get(), &status) != 0 || status.st_size != static_cast<off_t>(kDoubtLogBytes)) {
      return Error(ErrorCode::kDataLoss,
                   disk + ": its log of writes in doubt has not the size of one: it is another version's");
    }
    void* const at = mmap(nullptr, kDoubtLogBytes, PROT_READ | PROT_WRITE, MAP_SHARED, memory.get(), 0);
    if (at == MAP_FAILED) return ErrnoError(errno, disk + ": its log of writes in doubt can't be read");
    return MappedLog(static_cast<uint8_t*>(at));
  }
  MappedLog(MappedLog&& other) noexcept : at_(std::exchange(other.at_, nullptr)) {}
  MappedLog& operator=(MappedLog&&) = delete;
  ~MappedLog() {
    if (at_ != nullptr) munmap(at_, kDoubtLogBytes);
  }

  std::span<uint8_t> bytes() const { return {at_, kDoubtLogBytes}; }

 private:
  explicit MappedLog(uint8_t* at) : at_(at) {}
  uint8_t* at_;
};

std::optional<v1::DiskDoubt> DescribeDoubt(const DoubtLog::Doubt& doubt, const v1::DiskSpec& spec) {
  if (doubt.ranges.empty()) return std::nullopt;
  v1::DiskDoubt described;
  described.set_number(doubt.number);
  described.set_ranges(static_cast<uint32_t>(doubt.ranges.size()));
  const uint64_t blocks_max = spec.size_bytes() / kDoubtBlockBytes;
  uint64_t blocks = 0;
  for (const nvme::host::BlockRange& range : doubt.ranges) {
    if (range.first == 0 && range.blocks >= blocks_max) described.set_whole_disk(true);
    const uint64_t behind = range.first < blocks_max ? blocks_max - range.first : 0;
    blocks = std::min(blocks_max, blocks + std::min(range.blocks, behind));
  }
  described.set_bytes(blocks * kDoubtBlockBytes);
  return described;
}

Error OtherDoubt(const std::string& disk, uint64_t confirmed, uint64_t number) {
  return RefuseFor(
      disk, v1::REASON_DOUBT_CHANGED,
      number == 0
          ? disk + ": what is in doubt can't be told now: look at it again once an engine has the disk"
          : fmt::format("{}: what is in doubt has the number {} now, not {}: look at it again", disk, number,
                        confirmed));
}

}  // namespace

void DiskDoubt::AddTo(v1::Disk& disk) const {
  const auto id = ParseDiskName(disk.name());
  if (KeptMemoryOf(disk.spec()) != KeptMemory::kDoubtLog || !id.ok()) return;
  const UniqueFd memory = memory_.Share(*id);
  if (!memory.valid()) return;
  const auto log = MappedLog::Map(disk.name(), memory);
  if (!log.ok()) return;
  if (auto doubt = DescribeDoubt(DoubtLog::Look(log->bytes(), nvme::host::kDoubtLogShape), disk.spec()))
    *disk.mutable_status()->mutable_doubt() = *std::move(doubt);
}

Result<v1::Disk> DiskDoubt::ConfirmDead(const v1::ConfirmDeadRequest& request) {
  v1::GetDiskRequest get;
  get.set_name(request.name());
  CLEAT_ASSIGN(auto disk, disks_.Get(get));
  if (KeptMemoryOf(disk.spec()) != KeptMemory::kDoubtLog) return disk;  // nothing of it ever is
  CLEAT_ASSIGN(const auto id, ParseDiskName(disk.name()));
  const UniqueFd memory = memory_.Share(id);
  if (!memory.valid()) {
    return RefuseFor(disk.name(), v1::REASON_MEMORY_NOT_HERE,
                     fmt::format("{}: its log of writes in doubt is held by an engine that is not connected",
                                 disk.name()));
  }
  CLEAT_ASSIGN(const auto log, MappedLog::Map(disk.name(), memory));
  const DoubtLog::Doubt doubt = DoubtLog::Look(log.bytes(), nvme::host::kDoubtLogShape);
  const auto described = DescribeDoubt(doubt, disk.spec());
  if (!described) return disk;
  if (doubt.number == 0 || request.doubt_number() != doubt.number)
    return OtherDoubt(disk.name(), request.doubt_number(), doubt.number);
  DoubtLog::Confirm(log.bytes(), doubt.number);
  // An engine that has just put more into doubt does not believe the word; one that has obeyed it has nothing left.
  const DoubtLog::Doubt after = DoubtLog::Look(log.bytes(), nvme::host::kDoubtLogShape);
  if (!after.ranges.empty() && after.number != doubt.number)
    return OtherDoubt(disk.name(), request.doubt_number(), after.number);
  spdlog::warn("{}: {} ranges of {} bytes in doubt, number {}: confirmed to be dead", disk.name(),
               described->ranges(), described->bytes(), doubt.number);
  *disk.mutable_status()->mutable_doubt() = *described;
  return disk;
}

}  // namespace cleat::control
