// SPDX-License-Identifier: Apache-2.0
// Commands of a logical unit that are answered from what is known about it, without the storage.
#include <algorithm>
#include <array>

#include "scsi/target.h"
#include "scsi/unit_channel.h"

namespace cleat::scsi {

// SPC-4 6.39: an attention that waits is reported here as data, and is reported then.
void UnitChannel::RequestSense(Command& command) {
  Sense sense;
  if (const auto attention = unit_->TakeAttention()) {
    sense.key = SenseKey::kUnitAttention;
    sense.code = *attention;
  }
  std::array<uint8_t, kSenseBytesMax> reply;
  const bool descriptor_format = (command.cdb[1] & 0x01) != 0;
  command.Reply({reply.data(), WriteSense(sense, descriptor_format, reply)});
}

void UnitChannel::Inquiry(Command& command) {
  const bool vital = (command.cdb[1] & 0x01) != 0;  // EVPD
  const uint8_t page = command.cdb[2];
  std::array<uint8_t, kReplyBytesMax> reply;
  size_t bytes = 0;
  if (vital) {
    bytes = VitalProductData(page, unit_->identity(), geometry_, reply);
  } else if (page == 0) {
    bytes = StandardInquiry(unit_->identity(), kDirectAccess, reply);
  }
  if (bytes == 0) return command.RefuseField({2, 7});
  command.Reply({reply.data(), bytes});
}

void UnitChannel::ReportLuns(Command& command) {
  ReplyWithLuns(command);
}

ModeView UnitChannel::mode_view() const {
  ModeView view;
  view.current = unit_->mode();
  view.write_cache = geometry_.write_cache && !unit_->read_only();
  view.read_only = unit_->read_only();
  view.blocks = disk_blocks();
  view.block_bytes = geometry_.logical_block_bytes;
  return view;
}

void UnitChannel::ModeSense(Command& command) {
  std::array<uint8_t, kModeBytesMax> out;
  const ModeReply reply = WriteModeSense(command.cdb, mode_view(), out);
  if (reply.saved_values) {
    return command.Check(SenseKey::kIllegalRequest, SenseCode::kSavingParametersNotSupported);
  }
  if (reply.bytes == 0) return command.RefuseField(reply.bad);
  command.Reply({out.data(), reply.bytes});
}

void UnitChannel::ModeSelect(Command& command) {
  if ((command.cdb[1] & 0x10) == 0) return command.RefuseField({1, 4});  // PF: pages of the standard
  // What is longer than all there is can't be right; the first part is looked at for what is wrong.
  std::array<uint8_t, kModeBytesMax> list;
  const size_t bytes = std::min<uint64_t>(command.blocks, list.size());
  block::Gather(command.data_out, 0, list.data(), bytes);
  const ModeSelection selection =
      ReadModeSelect(command.cdb[0] == kModeSelect10, {list.data(), bytes}, mode_view());
  if (selection.outcome == ModeSelection::Outcome::kBadParameter) {
    return command.RefuseField(selection.bad, Sense::Pointer::kParameters);
  }
  if (selection.outcome == ModeSelection::Outcome::kListLength || bytes < command.blocks) {
    return command.Check(SenseKey::kIllegalRequest, SenseCode::kParameterListLengthError);
  }
  unit_->SetMode(selection.parameters);
  command.transferred_bytes = bytes;
}

void UnitChannel::ReplyWithCapacity10(Command& command) {
  std::array<uint8_t, kReplyBytesMax> reply;
  command.Reply({reply.data(), ReadCapacity10(geometry_, reply)});
}

void UnitChannel::ReplyWithCapacity16(Command& command) {
  std::array<uint8_t, kReplyBytesMax> reply;
  command.Reply({reply.data(), ReadCapacity16(geometry_, reply)});
}

void UnitChannel::GetLbaStatus(Command& command) {
  if (command.lba >= disk_blocks()) {
    return command.Check(SenseKey::kIllegalRequest, SenseCode::kLbaOutOfRange);
  }
  std::array<uint8_t, kReplyBytesMax> reply;
  command.Reply({reply.data(), LbaStatus(command.lba, geometry_, reply)});
}

void UnitChannel::ReportOpcodes(Command& command) {
  std::array<uint8_t, kOpcodesReplyMax> reply;
  BadField bad;
  const size_t bytes = WriteSupportedOpcodes(command.cdb, geometry_.discard, reply, bad);
  if (bytes == 0) return command.RefuseField(bad);
  command.Reply({reply.data(), bytes});
}

}  // namespace cleat::scsi
