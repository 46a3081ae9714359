// SPDX-License-Identifier: Apache-2.0
#include "nvme/target/namespace_shape.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <string>

namespace cleat::nvme::target {
namespace {

constexpr uint8_t kShared = 1;          // NMIC
constexpr uint8_t kWriteProtected = 1;  // NSATTR
// RESCAP: all six types, registrations that outlive the power, and IEKEY as revisions from 1.3 on have it.
constexpr uint8_t kReservations = 0xff;
constexpr uint32_t kPhysicalMax = 1U << 20;
constexpr uint64_t kBytesMax = uint64_t{1} << 62;

template <typename Number>
void Put(IdentifyPage page, size_t offset, Number value) {
  std::memcpy(page.data() + offset, &value, sizeof(value));
}

// A field that is one less than its count of blocks: what it can't hold is said as the most that it can.
uint16_t BlocksField(uint32_t bytes, uint32_t block_bytes) {
  return static_cast<uint16_t>(std::clamp<uint32_t>(bytes / block_bytes, 1, 1U << 16) - 1);
}

uint32_t PhysicalBytes(const NamespaceShape& shape) {
  return std::max(shape.physical_block_bytes, shape.block_bytes);
}

// NSFEAT.OPTPERF and what it says are there.
void WritePreferences(IdentifyPage page, const NamespaceShape& shape) {
  constexpr size_t kFeatures = 24, kNpwg = 64, kNpwa = 66, kNpdg = 68, kNpda = 70, kNows = 72;
  constexpr uint8_t kOptPerf = 1U << 4;
  page[kFeatures] |= kOptPerf;
  const uint16_t write = BlocksField(PhysicalBytes(shape), shape.block_bytes);
  const uint16_t discard =
      BlocksField(shape.discard ? shape.discard_granularity_bytes : 0, shape.block_bytes);
  Put(page, kNpwg, write);
  Put(page, kNpwa, write);
  Put(page, kNpdg, discard);
  Put(page, kNpda, discard);
  // The optimal size is a multiple of the granularity, and the granularity where nothing is known.
  const uint16_t optimal = BlocksField(shape.optimal_io_bytes, shape.block_bytes);
  Put(page, kNows, std::max(write, optimal));
}

}  // namespace

NamespaceShape ShapeOf(const block::Geometry& geometry, bool read_only, const fabrics::NamespaceIds& ids) {
  NamespaceShape shape;
  shape.blocks = geometry.size_bytes / geometry.logical_block_bytes;
  shape.block_bytes = geometry.logical_block_bytes;
  shape.physical_block_bytes = geometry.physical_block_bytes;
  shape.optimal_io_bytes = geometry.optimal_io_bytes;
  shape.discard = geometry.discard;
  if (geometry.discard) {
    shape.discard_granularity_bytes = geometry.discard_granularity_bytes;
    shape.discard_bytes_max = geometry.discard_max_bytes;
  }
  shape.write_zeroes = geometry.write_zeroes;
  if (geometry.write_zeroes) shape.write_zeroes_bytes_max = geometry.write_zeroes_max_bytes;
  shape.write_cache = geometry.write_cache;
  shape.read_only = read_only;
  shape.ids = ids;
  return shape;
}

cleat::Status CheckShape(const NamespaceShape& shape) {
  const auto refuse = [](const std::string& why) {
    return Error(ErrorCode::kInvalidArgument, "a namespace " + why);
  };
  if (shape.block_bytes != 512 && shape.block_bytes != 4096)
    return refuse("has blocks of " + std::to_string(shape.block_bytes) + " bytes: use 512 or 4096");
  if (shape.blocks == 0 || shape.blocks > kBytesMax / shape.block_bytes)
    return refuse("has " + std::to_string(shape.blocks) + " blocks: use 1 to 4 EiB of them");
  if (shape.physical_block_bytes != 0 &&
      (!std::has_single_bit(shape.physical_block_bytes) || shape.physical_block_bytes < shape.block_bytes ||
       shape.physical_block_bytes > kPhysicalMax)) {
    return refuse("has physical blocks of " + std::to_string(shape.physical_block_bytes) +
                  " bytes: use a power of two from the logical block to 1 MiB");
  }
  if (shape.discard && shape.discard_bytes_max != 0 && shape.discard_bytes_max < shape.block_bytes)
    return refuse("takes discards of less than a block");
  if (shape.write_zeroes && shape.write_zeroes_bytes_max != 0 &&
      shape.write_zeroes_bytes_max < shape.block_bytes)
    return refuse("takes write zeroes of less than a block");
  if (!shape.ids.uuid && !shape.ids.nguid) return refuse("has neither a UUID nor an NGUID");
  return {};
}

void WriteNamespace(IdentifyPage page, const NamespaceShape& shape, uint32_t group, bool reservations) {
  constexpr size_t kSize = 0, kCapacity = 8, kUsed = 16, kNmic = 30, kRescap = 31, kNvmcap = 48,
                   kAnagrpid = 92, kNsattr = 99, kNguid = 104, kEui64 = 120, kFormat = 128;
  constexpr uint32_t kBlockShiftAt = 16;  // LBADS
  // One format, without metadata and protection, is in use: NLBAF, FLBAS, MC, DPC and DPS are 0. What is deallocated may read as anything
  // (DLFEAT 0). Single blocks are written whole (NAWUN, NAWUPF: the controller's).
  for (const size_t field : {kSize, kCapacity, kUsed}) Put(page, field, shape.blocks);
  page[kNmic] = kShared;
  if (reservations) page[kRescap] = kReservations;
  Put(page, kNvmcap, shape.blocks * shape.block_bytes);
  WritePreferences(page, shape);
  Put(page, kAnagrpid, group);
  if (shape.read_only) page[kNsattr] = kWriteProtected;
  if (shape.ids.nguid) std::ranges::copy(*shape.ids.nguid, page.begin() + kNguid);
  if (shape.ids.eui64) std::ranges::copy(*shape.ids.eui64, page.begin() + kEui64);
  Put(page, kFormat, static_cast<uint32_t>(std::countr_zero(shape.block_bytes)) << kBlockShiftAt);
}

void WriteDescriptors(IdentifyPage page, const NamespaceShape& shape) {
  enum Type : uint8_t { kEui64 = 1, kNguid = 2, kUuid = 3, kCommandSet = 4 };
  constexpr size_t kHeaderBytes = 4;
  constexpr uint8_t kNvm[] = {0};
  size_t at = 0;
  const auto add = [&](Type type, std::span<const uint8_t> id) {
    page[at] = type;
    page[at + 1] = static_cast<uint8_t>(id.size());
    std::ranges::copy(id, page.begin() + static_cast<ptrdiff_t>(at + kHeaderBytes));
    at += kHeaderBytes + id.size();
  };
  if (shape.ids.eui64) add(kEui64, *shape.ids.eui64);
  if (shape.ids.nguid) add(kNguid, *shape.ids.nguid);
  if (shape.ids.uuid) add(kUuid, *shape.ids.uuid);
  // Hosts that have enabled several command sets take no namespace without it.
  add(kCommandSet, kNvm);
}

void WriteIndependentNamespace(IdentifyPage page, const NamespaceShape& shape, uint32_t group,
                               bool reservations) {
  constexpr size_t kFeatures = 0, kNmic = 1, kRescap = 2, kAnagrpid = 4, kNsattr = 8, kNstat = 14;
  constexpr uint8_t kNoWriteCache = 1U << 5, kReady = 1;
  page[kFeatures] = shape.write_cache ? 0 : kNoWriteCache;
  page[kNmic] = kShared;
  if (reservations) page[kRescap] = kReservations;
  Put(page, kAnagrpid, group);
  if (shape.read_only) page[kNsattr] = kWriteProtected;
  page[kNstat] = kReady;
}

}  // namespace cleat::nvme::target
