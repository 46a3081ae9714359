// SPDX-License-Identifier: Apache-2.0
#include "qos/group_table.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>

#include "base/group_memory.h"

namespace cleat::qos {
namespace {

constexpr uint32_t kSlotsOffsetBytes = 4096;
constexpr uint64_t kTableBytes = kSlotsOffsetBytes + uint64_t{kGroupsMax} * sizeof(Accounts);
static_assert(kTableBytes <= kGroupMemoryBytes, "what cleatd makes must have room for all");
static_assert(sizeof(GroupTableHeader) <= kSlotsOffsetBytes && kSlotsOffsetBytes % alignof(Accounts) == 0);

Error Refuse(const std::string& why) {
  return {ErrorCode::kInvalidArgument,
          "memory of QoS groups: " + why + ": share one that this version has made"};
}

}  // namespace

Result<std::shared_ptr<GroupTable>> GroupTable::Make() {
  CLEAT_ASSIGN(auto memory, MakeGroupMemory());
  return Map(std::move(memory));
}

// Of memory that is all zeroes, as cleatd makes it; zero bytes are empty slots. Two engines of the same version that do
// this at once write the same; one of another version finds a whole header, for the magic number comes last.
void GroupTable::MakeHeader() {
  auto& header = *reinterpret_cast<GroupTableHeader*>(base_);
  const std::atomic_ref<uint64_t> magic(header.magic);
  if (magic.load(std::memory_order_acquire) != 0) return;
  const auto bytes = std::span(base_, kSlotsOffsetBytes);
  if (std::any_of(bytes.begin() + sizeof(GroupTableHeader), bytes.end(), [](uint8_t b) { return b != 0; }))
    return;
  std::atomic_ref(header.version).store(GroupTableHeader::kVersion, std::memory_order_relaxed);
  std::atomic_ref(header.slot_bytes)
      .store(static_cast<uint32_t>(sizeof(Accounts)), std::memory_order_relaxed);
  std::atomic_ref(header.slot_count).store(kGroupsMax, std::memory_order_relaxed);
  std::atomic_ref(header.slots_offset_bytes).store(kSlotsOffsetBytes, std::memory_order_relaxed);
  magic.store(GroupTableHeader::kMagic, std::memory_order_release);
}

Result<std::shared_ptr<GroupTable>> GroupTable::Map(UniqueFd fd) {
  struct stat file {};
  if (fstat(fd.get(), &file) != 0) return ErrnoError(errno, "memory of QoS groups: fstat");
  const int seals = fcntl(fd.get(), F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0)
    return Refuse("it is no memfd that is sealed against shrinking");
  if (static_cast<uint64_t>(file.st_size) < kTableBytes) {
    return Refuse(fmt::format("it has {} bytes, not {}", file.st_size, kTableBytes));
  }
  auto table = MapWhole(std::move(fd));
  CLEAT_TRY(table);
  (*table)->MakeHeader();
  const auto& header = *reinterpret_cast<const GroupTableHeader*>((*table)->base_);
  if (header.magic != GroupTableHeader::kMagic) return Refuse("it begins with something else");
  if (header.version != GroupTableHeader::kVersion) {
    return Refuse(fmt::format("its version is {}, not {}", header.version, GroupTableHeader::kVersion));
  }
  if (header.slot_bytes != sizeof(Accounts) || header.slot_count != kGroupsMax ||
      header.slots_offset_bytes != kSlotsOffsetBytes) {
    return Refuse("its slots are laid out in another way");
  }
  return table;
}

Result<std::shared_ptr<GroupTable>> GroupTable::MapWhole(UniqueFd fd) {
  void* base = mmap(nullptr, kTableBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (base == MAP_FAILED) return ErrnoError(errno, "memory of QoS groups: mmap");
  return std::shared_ptr<GroupTable>(new GroupTable(std::move(fd), base));
}

GroupTable::~GroupTable() {
  munmap(base_, kTableBytes);
}

Result<UniqueFd> GroupTable::Duplicate() const {
  UniqueFd copy = fd_.Duplicate();
  if (!copy) return ErrnoError(errno, "memory of QoS groups: a second descriptor");
  return copy;
}

std::shared_ptr<Accounts> GroupTable::Slot(uint32_t slot) {
  CLEAT_CHECK(slot < kGroupsMax);
  auto* accounts = reinterpret_cast<Accounts*>(base_ + kSlotsOffsetBytes) + slot;
  return {shared_from_this(), accounts};
}

}  // namespace cleat::qos
