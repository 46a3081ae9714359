// SPDX-License-Identifier: Apache-2.0
#include "scsi/inquiry.h"

#include <algorithm>
#include <bit>

#include "scsi/bytes.h"

namespace cleat::scsi {
namespace {

constexpr uint8_t kSupportedPages = 0x00;
constexpr uint8_t kUnitSerialNumber = 0x80;
constexpr uint8_t kDeviceIdentification = 0x83;
constexpr uint8_t kBlockLimits = 0xb0;
constexpr uint8_t kBlockCharacteristics = 0xb1;
constexpr uint8_t kLogicalBlockProvisioning = 0xb2;
constexpr uint8_t kPages[] = {kSupportedPages, kUnitSerialNumber,     kDeviceIdentification,
                              kBlockLimits,    kBlockCharacteristics, kLogicalBlockProvisioning};

constexpr size_t kPageHeader = 4;

size_t Blocks(uint64_t bytes, const block::Geometry& geometry) {
  return bytes / geometry.logical_block_bytes;
}
uint32_t BlocksPerPhysical(const block::Geometry& geometry) {
  return geometry.physical_block_bytes / geometry.logical_block_bytes;
}

// SPC-4 7.8.6: what udev makes its names from, the NAA first of all.
size_t DeviceIdentification(const Identity& identity, uint8_t* at) {
  constexpr uint8_t kBinary = 0x01;
  constexpr uint8_t kAscii = 0x02;
  constexpr uint8_t kT10VendorId = 0x01;
  constexpr uint8_t kNaa = 0x03;
  uint8_t* const begin = at;
  if (identity.wwn != 0) {
    at[0] = kBinary;
    at[1] = kNaa;
    at[3] = 8;
    StoreBig(at + 4, identity.wwn, 8);
    at += 12;
  }
  const size_t bytes = Identity::kVendorBytes + Identity::kProductBytes + identity.serial.size();
  at[0] = kAscii;
  at[1] = kT10VendorId;
  at[3] = static_cast<uint8_t>(bytes);
  StoreText(at + 4, identity.vendor, Identity::kVendorBytes);
  StoreText(at + 12, identity.product, Identity::kProductBytes);
  StoreText(at + 28, identity.serial, identity.serial.size());
  return static_cast<size_t>(at - begin) + 4 + bytes;
}

// SBC-4 6.6.4; offsets from the page's beginning.
size_t BlockLimits(const block::Geometry& geometry, uint8_t* page) {
  page[4] = 0x01;  // WSNZ: a WRITE SAME says how many blocks
  page[5] = static_cast<uint8_t>(std::min<size_t>(Blocks(block::kCompareAndWriteBytesMax, geometry), 255));
  StoreBig(page + 6, Saturate(BlocksPerPhysical(geometry), 2), 2);
  StoreBig(page + 8, Blocks(block::kTransferBytesMax, geometry), 4);
  StoreBig(page + 12, Blocks(geometry.optimal_io_bytes, geometry), 4);
  if (geometry.discard) {
    StoreBig(page + 20, Saturate(Blocks(kUnmapBytesMax, geometry), 4), 4);
    StoreBig(page + 24, kUnmapRangesMax, 4);
    StoreBig(page + 28, Blocks(geometry.discard_granularity_bytes, geometry), 4);
    page[32] = 0x80;  // UGAVALID, alignment 0
  }
  StoreBig(page + 36, Blocks(kWriteSameBytesMax, geometry), 8);
  return 60;
}

// SBC-4 6.6.6. Unmapped blocks may read back anything (LBPRZ 0); WRITE SAME with UNMAP reads back zero.
size_t Provisioning(const block::Geometry& geometry, uint8_t* page) {
  if (geometry.discard) {
    page[5] = 0x80 | (geometry.write_zeroes ? 0x60 : 0);  // LBPU, LBPWS, LBPWS10
    page[6] = 0x02;                                       // thin
  }
  return 4;
}

}  // namespace

size_t StandardInquiry(const Identity& identity, uint8_t peripheral, ReplyBytes out) {
  constexpr size_t kBytes = 96;
  std::ranges::fill(out, uint8_t{0});
  uint8_t* at = out.data();
  at[0] = peripheral;
  at[2] = 0x06;  // SPC-4
  at[3] = 0x12;  // HISUP, response data format 2
  at[4] = kBytes - 5;
  at[7] = 0x02;  // CMDQUE
  StoreText(at + 8, identity.vendor, Identity::kVendorBytes);
  StoreText(at + 16, identity.product, Identity::kProductBytes);
  StoreText(at + 32, identity.revision, Identity::kRevisionBytes);
  constexpr uint16_t kVersions[] = {0x00a0, 0x0460, 0x0600};  // SAM-5, SPC-4, SBC-4
  for (size_t i = 0; i < std::size(kVersions); ++i) StoreBig(at + 58 + 2 * i, kVersions[i], 2);
  return kBytes;
}

size_t VitalProductData(uint8_t page, const Identity& identity, const block::Geometry& geometry,
                        ReplyBytes out) {
  std::ranges::fill(out, uint8_t{0});
  uint8_t* at = out.data();
  at[0] = kDirectAccess;
  at[1] = page;
  size_t bytes = 0;
  switch (page) {
    case kSupportedPages:
      bytes = std::size(kPages);
      std::ranges::copy(kPages, at + kPageHeader);
      break;
    case kUnitSerialNumber:
      bytes = identity.serial.size();
      StoreText(at + kPageHeader, identity.serial, bytes);
      break;
    case kDeviceIdentification:
      bytes = DeviceIdentification(identity, at + kPageHeader);
      break;
    case kBlockLimits:
      bytes = BlockLimits(geometry, at);
      break;
    case kBlockCharacteristics:  // SBC-4 6.6.2
      at[5] = 0x01;              // non-rotating
      bytes = 60;
      break;
    case kLogicalBlockProvisioning:
      bytes = Provisioning(geometry, at);
      break;
    default:
      return 0;
  }
  StoreBig(at + 2, bytes, 2);
  return kPageHeader + bytes;
}

size_t ReadCapacity10(const block::Geometry& geometry, ReplyBytes out) {
  StoreBig(out.data(), Saturate(Blocks(geometry.size_bytes, geometry) - 1, 4), 4);
  StoreBig(out.data() + 4, geometry.logical_block_bytes, 4);
  return 8;
}

size_t ReadCapacity16(const block::Geometry& geometry, ReplyBytes out) {
  std::ranges::fill(out, uint8_t{0});
  uint8_t* at = out.data();
  StoreBig(at, Blocks(geometry.size_bytes, geometry) - 1, 8);
  StoreBig(at + 8, geometry.logical_block_bytes, 4);
  at[13] = static_cast<uint8_t>(std::min(std::countr_zero(BlocksPerPhysical(geometry)), 15));
  at[14] = geometry.discard ? 0x80 : 0;  // LBPME
  return 32;
}

size_t LbaStatus(uint64_t lba, const block::Geometry& geometry, ReplyBytes out) {
  constexpr size_t kBytes = 24;
  std::ranges::fill(out, uint8_t{0});
  uint8_t* at = out.data();
  StoreBig(at, kBytes - 4, 4);
  StoreBig(at + 8, lba, 8);
  StoreBig(at + 16, Saturate(Blocks(geometry.size_bytes, geometry) - lba, 4), 4);
  return kBytes;
}

}  // namespace cleat::scsi
