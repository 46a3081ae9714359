// SPDX-License-Identifier: Apache-2.0
#include "fake_scsi.h"

#include <algorithm>
#include <array>
#include <cstring>

namespace cleat::perf {
namespace {

void Fail(uint8_t key, uint16_t additional, wire::ScsiAnswer* answer) {
  answer->status = scsi::kCheckCondition;
  answer->sense_bytes = 18;
  answer->sense[0] = 0x70;
  answer->sense[2] = key;
  answer->sense[7] = 10;
  answer->sense[12] = static_cast<uint8_t>(additional >> 8);
  answer->sense[13] = static_cast<uint8_t>(additional);
}

void PutBig(uint8_t* at, size_t bytes, uint64_t value) {
  for (size_t i = 0; i < bytes; ++i) at[i] = static_cast<uint8_t>(value >> (8 * (bytes - 1 - i)));
}

}  // namespace

std::optional<uint32_t> FakeScsi::Serve(uint16_t queue, std::span<const uint8_t> out, std::span<uint8_t> in) {
  switch (queue) {
    case wire::kScsiControlQueue:
      return Control(out, in);
    case wire::kScsiEventQueue: {
      if (!out.empty() || in.size() != sizeof(wire::ScsiEvent)) return std::nullopt;
      std::memcpy(in.data(), &events_.front(), in.size());
      events_.pop_front();
      return static_cast<uint32_t>(in.size());
    }
    default:
      return Command(out, in);
  }
}

std::optional<uint32_t> FakeScsi::Control(std::span<const uint8_t> out, std::span<uint8_t> in) {
  wire::ScsiTmfRequest request;
  if (out.size() != sizeof request || in.size() != 1) return std::nullopt;
  std::memcpy(&request, out.data(), sizeof request);
  tmfs_.emplace_back(request.subtype, request.id);
  in[0] = request.lun[1] == kTarget ? wire::kScsiFunctionSucceeded : wire::kScsiBadTarget;
  return 1;
}

std::optional<uint32_t> FakeScsi::Command(std::span<const uint8_t> out, std::span<uint8_t> in) {
  wire::ScsiHeader header;
  wire::ScsiAnswer answer{};
  if (out.size() < sizeof header || in.size() < sizeof answer) return std::nullopt;
  std::memcpy(&header, out.data(), sizeof header);
  uint32_t written = 0;
  if (header.lun[0] != 1 || header.lun[1] != kTarget) {
    answer.response = wire::kScsiBadTarget;
  } else {
    Run(header.cdb, out.subspan(sizeof header), in.subspan(sizeof answer), &answer, &written);
    const size_t room = std::max(out.size() - sizeof header, in.size() - sizeof answer);
    answer.residual = static_cast<uint32_t>(room) - (out.size() > sizeof header ? room : written);
  }
  std::memcpy(in.data(), &answer, sizeof answer);
  return sizeof answer + written;
}

void FakeScsi::Run(const uint8_t* cdb, std::span<const uint8_t> data_out, std::span<uint8_t> data_in,
                   wire::ScsiAnswer* answer, uint32_t* written) {
  if (unit_attention_ && cdb[0] != 0x12) {
    unit_attention_ = false;
    return Fail(scsi::kUnitAttention, scsi::kAscPowerOnOrReset, answer);
  }
  switch (cdb[0]) {
    case 0x00:
      return;
    case 0x12: {
      std::array<uint8_t, 36> data{};
      *written = static_cast<uint32_t>(
          std::min({data.size(), data_in.size(), scsi::Big(std::span<const uint8_t>(cdb, 6), 3, 2)}));
      std::copy_n(data.begin(), *written, data_in.begin());
      return;
    }
    case 0x1b:
      events_.push_back({wire::kScsiParamChange, {1, kTarget, 0x40, 0}, wire::kScsiCapacityChanged});
      return;
    case 0x9e: {
      std::array<uint8_t, 32> data{};
      PutBig(data.data(), 8, bytes_.size() / kBlockBytes - 1);
      PutBig(data.data() + 8, 4, kBlockBytes);
      *written = static_cast<uint32_t>(std::min(data.size(), data_in.size()));
      std::copy_n(data.begin(), *written, data_in.begin());
      return;
    }
    case 0x88:
    case 0x8a:
      return Transfer(cdb, data_out, data_in, answer, written);
    default:
      return Fail(scsi::kIllegalRequest, scsi::kAscInvalidOpcode, answer);
  }
}

void FakeScsi::Transfer(const uint8_t* cdb, std::span<const uint8_t> data_out, std::span<uint8_t> data_in,
                        wire::ScsiAnswer* answer, uint32_t* written) {
  const std::span<const uint8_t> fields(cdb, 16);
  const uint64_t offset = scsi::Big(fields, 2, 8) * kBlockBytes;
  const uint64_t length = scsi::Big(fields, 10, 4) * kBlockBytes;
  if (offset > bytes_.size() || length > bytes_.size() - offset) {
    return Fail(scsi::kIllegalRequest, scsi::kAscLbaOutOfRange, answer);
  }
  const auto disk = bytes_.begin() + static_cast<ptrdiff_t>(offset);
  if (cdb[0] == 0x8a) {
    std::copy_n(data_out.begin(), std::min(length, uint64_t{data_out.size()}), disk);
  } else {
    *written = static_cast<uint32_t>(std::min(length, uint64_t{data_in.size()}));
    std::copy_n(disk, *written, data_in.begin());
  }
}

}  // namespace cleat::perf
