// SPDX-License-Identifier: Apache-2.0
#include "scsi/command.h"

#include <algorithm>

#include "scsi/bytes.h"

namespace cleat::scsi {

void Command::Decode() {
  info = FindCommand(cdb);
  if (info == nullptr) [[unlikely]]
    return;
  // A load reads eight bytes; no field starts behind byte 13, and a CDB has 32 bytes here.
  lba = info->lba.bytes == 0 ? 0 : LoadBig(&cdb[info->lba.at], info->lba.bytes);
  blocks = info->length.bytes == 0 ? 0 : LoadBig(&cdb[info->length.at], info->length.bytes);
  if (info->cdb_bytes == 6 && info->lba.bytes == 3) [[unlikely]] {  // READ(6), WRITE(6): SBC-4 5.x
    lba &= 0x1fffff;
    if (blocks == 0) blocks = 256;
  }
}

void Command::RefuseField(BadField field, Sense::Pointer where) {
  Check(SenseKey::kIllegalRequest, where == Sense::Pointer::kCdb ? SenseCode::kInvalidFieldInCdb
                                                                 : SenseCode::kInvalidFieldInParameterList);
  sense.pointer = where;
  sense.pointer_byte = static_cast<uint16_t>(field.byte);
  sense.pointer_bit = static_cast<int8_t>(field.bit);
}

void Command::RefuseOpcode() {
  if (HasServiceActions(cdb[0])) return RefuseField({1, 4});
  Check(SenseKey::kIllegalRequest, SenseCode::kInvalidOpcode);
}

void Command::Reply(std::span<const uint8_t> reply) {
  transferred_bytes = std::min<uint64_t>(reply.size(), info->data == DataUse::kEightIn ? 8 : blocks);
  block::Scatter(reply.data(), transferred_bytes, data_in, 0);
}

}  // namespace cleat::scsi
