// SPDX-License-Identifier: Apache-2.0
#include "nvme/identify.h"

#include <bit>
#include <cstring>

namespace cleat::nvme {
namespace {

// MDTS and the limits like it are powers of two of the controller's smallest page. CAP.MPSMIN would say which that is; it is no part of
// what Identify returns, and 4 KiB is the least that it may be.
constexpr uint32_t kPageShift = 12;
constexpr uint32_t kLimitShiftMax = 19;  // 2 GiB: more is no limit

constexpr uint32_t kBlockShiftMin = 9;
constexpr uint32_t kBlockShiftMax = 12;

template <typename Number>
Number At(IdentifyData data, size_t offset) {
  Number number;
  std::memcpy(&number, data.data() + offset, sizeof(number));
  return number;
}

// An ASCII field, padded with blanks. Who made the drive may have put anything there, and it goes into logs.
std::string TextAt(IdentifyData data, size_t offset, size_t bytes) {
  std::string text(data.begin() + static_cast<ptrdiff_t>(offset),
                   data.begin() + static_cast<ptrdiff_t>(offset + bytes));
  for (char& c : text) {
    if (c < ' ' || c > '~') c = ' ';
  }
  const size_t begin = text.find_first_not_of(' ');
  if (begin == std::string::npos) return {};
  return text.substr(begin, text.find_last_not_of(' ') - begin + 1);
}

uint64_t BytesOfPages(uint8_t exponent) {
  return exponent == 0 || exponent > kLimitShiftMax ? 0 : uint64_t{1} << (kPageShift + exponent);
}

}  // namespace

Result<ControllerInfo> ParseController(IdentifyData data, const std::string& who) {
  constexpr size_t kSerial = 4, kSerialBytes = 20, kModel = 24, kModelBytes = 40, kFirmware = 64,
                   kFirmwareBytes = 8;
  constexpr size_t kMdts = 77, kVersion = 80, kControllerType = 111, kOncs = 520, kVolatileWriteCache = 525,
                   kAwupf = 528;
  ControllerInfo info;
  info.serial = TextAt(data, kSerial, kSerialBytes);
  info.model = TextAt(data, kModel, kModelBytes);
  info.firmware = TextAt(data, kFirmware, kFirmwareBytes);
  info.version = At<uint32_t>(data, kVersion);
  // 0: not reported, by controllers before 1.4.
  constexpr uint8_t kIoController = 1;
  const auto type = At<uint8_t>(data, kControllerType);
  if (type != 0 && type != kIoController) {
    return Error(ErrorCode::kUnimplemented, who + " is a discovery or administrative controller (CNTRLTYPE " +
                                                std::to_string(type) + "), which has no storage");
  }
  info.transfer_bytes_max = BytesOfPages(At<uint8_t>(data, kMdts));
  info.write_cache = (At<uint8_t>(data, kVolatileWriteCache) & 1) != 0;
  const auto optional = At<uint16_t>(data, kOncs);
  info.dataset_management = (optional & 1U << 2) != 0;
  info.write_zeroes = (optional & 1U << 3) != 0;
  info.reservations = (optional & 1U << 5) != 0;
  info.write_unit_power_fail = At<uint16_t>(data, kAwupf) + 1U;
  return info;
}

Result<NamespaceInfo> ParseNamespace(IdentifyData data, const ControllerInfo& controller,
                                     const std::string& who) {
  constexpr size_t kSize = 0, kFeatures = 24, kFormats = 25, kFormatInUse = 26, kProtection = 29,
                   kShared = 30, kRescap = 31, kDlfeat = 33;
  constexpr size_t kNawupf = 36, kNoiob = 46, kNpdg = 68, kAttributes = 99, kFormatTable = 128,
                   kFormatBytes = 4;
  NamespaceInfo info;
  info.blocks = At<uint64_t>(data, kSize);
  if (info.blocks == 0) {
    return Error(ErrorCode::kFailedPrecondition,
                 who + " is no active namespace: attach it to its controller (nvme attach-ns)");
  }
  // FLBAS: bits 3:0, and 6:5 above them; NLBAF is one less than their count.
  const auto in_use = At<uint8_t>(data, kFormatInUse);
  const uint32_t format = (in_use & 0xfU) | (in_use >> 1 & 0x30U);
  if (format > At<uint8_t>(data, kFormats)) {
    return Error(ErrorCode::kUnimplemented,
                 who + " uses format " + std::to_string(format) + ", and says that it has no such");
  }
  const auto lba_format = At<uint32_t>(data, kFormatTable + kFormatBytes * format);
  const uint32_t metadata_bytes = lba_format & 0xffff;
  const uint32_t block_shift = lba_format >> 16 & 0xff;
  const uint32_t protection = At<uint8_t>(data, kProtection) & 7U;
  if (metadata_bytes != 0 || protection != 0) {
    return Error(
        ErrorCode::kUnimplemented,
        who + " is formatted with " + std::to_string(metadata_bytes) + " bytes of metadata a block" +
            (protection == 0 ? "" : " and protection information of type " + std::to_string(protection)) +
            ", which guests' disks have no use for: format it without (nvme format --lbaf; all data is "
            "lost)");
  }
  if (block_shift < kBlockShiftMin || block_shift > kBlockShiftMax) {
    return Error(ErrorCode::kUnimplemented, who + " has blocks of 2^" + std::to_string(block_shift) +
                                                " bytes: Cleat's disks lie on blocks of 512 to 4096 bytes");
  }
  if (info.blocks > UINT64_MAX >> block_shift) {
    return Error(ErrorCode::kUnimplemented,
                 who + " says that it has " + std::to_string(info.blocks) + " blocks");
  }
  info.block_bytes = 1U << block_shift;
  info.shared = (At<uint8_t>(data, kShared) & 1) != 0;
  info.write_protected = (At<uint8_t>(data, kAttributes) & 1) != 0;
  info.boundary_blocks = At<uint16_t>(data, kNoiob);
  const auto features = At<uint8_t>(data, kFeatures);
  // NSFEAT bit 1: NAWUPF is this namespace's own. Bit 4: NPDG and its like are there.
  info.write_unit_power_fail =
      (features & 1U << 1) != 0 ? At<uint16_t>(data, kNawupf) + 1U : controller.write_unit_power_fail;
  if ((features & 1U << 4) != 0) info.discard_granularity_blocks = At<uint16_t>(data, kNpdg) + 1U;
  // Bits 2:0: what deallocated blocks read as, 1 for zeroes. Bit 3: Write Zeroes may deallocate.
  const auto deallocated = At<uint8_t>(data, kDlfeat);
  info.deallocated_reads_zero = (deallocated & 7U) == 1;
  info.write_zeroes_deallocates = (deallocated & 1U << 3) != 0;
  const auto reservations = At<uint8_t>(data, kRescap);
  info.registrants_persist = (reservations & 1U) != 0;
  info.write_exclusive_all = (reservations & 1U << 5) != 0;
  return info;
}

CommandSetLimits ParseCommandSetLimits(IdentifyData data) {
  constexpr size_t kWzsl = 1, kDmrsl = 4;
  return {.write_zeroes_bytes_max = BytesOfPages(At<uint8_t>(data, kWzsl)),
          .discard_blocks_max = At<uint32_t>(data, kDmrsl)};
}

}  // namespace cleat::nvme
