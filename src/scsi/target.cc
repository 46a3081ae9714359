// SPDX-License-Identifier: Apache-2.0
#include "scsi/target.h"

#include <algorithm>

#include "scsi/bytes.h"
#include "scsi/inquiry.h"

namespace cleat::scsi {
namespace {

// False: the outcome is set.
bool Accept(Command& command) {
  command.Prepare();
  command.Decode();
  if (command.info == nullptr) {
    command.RefuseOpcode();
    return false;
  }
  if (command.info->data == DataUse::kAllocation && command.blocks > command.data_in_bytes) {
    command.delivery = Delivery::kOverrun;
    return false;
  }
  if (const BadField bad = CheckUsage(*command.info, command.cdb); bad.byte >= 0) {
    command.RefuseField(bad);
    return false;
  }
  return true;
}

void ReplyWithInquiry(Command& command, uint8_t peripheral) {
  if ((command.cdb[1] & 0x01) != 0 || command.cdb[2] != 0) return command.RefuseField({1, 0});
  std::array<uint8_t, kReplyBytesMax> reply;
  command.Reply({reply.data(), StandardInquiry(Identity{}, peripheral, reply)});
}

void ReplyWithSense(Command& command, SenseKey key, SenseCode code) {
  Sense sense;
  sense.key = key;
  sense.code = code;
  std::array<uint8_t, kSenseBytesMax> reply;
  command.Reply({reply.data(), WriteSense(sense, (command.cdb[1] & 0x01) != 0, reply)});
}

}  // namespace

void ReplyWithLuns(Command& command, std::span<const Lun> units) {
  constexpr size_t kHeader = 8;
  std::array<uint8_t, kHeader + (kListedUnitsMax + 1) * sizeof(Lun)> reply{};
  const uint8_t select = command.cdb[2];
  if (select > 2) return command.RefuseField({2, 7});
  size_t end = kHeader;
  const auto add = [&](const Lun& lun) {
    std::ranges::copy(lun, reply.begin() + end);
    end += lun.size();
  };
  if (select != 1) std::ranges::for_each(units, add);
  if (select != 0) add(kReportLunsUnit);
  StoreBig(reply.data(), end - kHeader, 4);
  command.Reply({reply.data(), end});
}

void ExecuteForAbsentUnit(Command& command) {
  const auto refuse = [&] { command.Check(SenseKey::kIllegalRequest, SenseCode::kLogicalUnitNotSupported); };
  command.Prepare();
  command.Decode();
  const Action action = command.info == nullptr ? Action::kTestUnitReady : command.info->action;
  if (action != Action::kInquiry && action != Action::kReportLuns && action != Action::kRequestSense) {
    refuse();
  } else if (Accept(command)) {
    if (action == Action::kInquiry) {
      ReplyWithInquiry(command, kNoUnit);
    } else if (action == Action::kReportLuns) {
      ReplyWithLuns(command);
    } else {
      ReplyWithSense(command, SenseKey::kIllegalRequest, SenseCode::kLogicalUnitNotSupported);
    }
  }
  command.on_done(command);
}

void ExecuteForReportLunsUnit(Command& command, std::span<const Lun> units) {
  if (Accept(command)) {
    switch (command.info->action) {
      case Action::kReportLuns:
        ReplyWithLuns(command, units);
        break;
      case Action::kInquiry:
        ReplyWithInquiry(command, kWellKnownUnit);
        break;
      case Action::kRequestSense:
        ReplyWithSense(command, SenseKey::kNoSense, SenseCode::kNone);
        break;
      case Action::kTestUnitReady:
        break;
      default:
        command.Check(SenseKey::kIllegalRequest, SenseCode::kInvalidOpcode);
    }
  }
  command.on_done(command);
}

}  // namespace cleat::scsi
