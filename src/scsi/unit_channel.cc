// SPDX-License-Identifier: Apache-2.0
// The way of every command, those that are one request of the storage, and task management.
#include "scsi/unit_channel.h"

#include <bit>
#include <utility>

#include "scsi/bytes.h"

namespace cleat::scsi {
namespace {

constexpr uint8_t kFua = 0x08;         // byte 1 of reads and writes
constexpr uint8_t kBytchkBits = 0x06;  // byte 1 of the verifying ones
constexpr uint8_t kNdob = 0x01;        // byte 1 of WRITE SAME(16)

// What may become a request of the storage.
bool UsesMedium(Action action) {
  switch (action) {
    case Action::kRead:
    case Action::kWrite:
    case Action::kSynchronizeCache:
    case Action::kCompareAndWrite:
    case Action::kStartStop:
    case Action::kVerify:
    case Action::kWriteAndVerify:
    case Action::kWriteSame:
    case Action::kUnmap:
      return true;
    default:
      return false;
  }
}

}  // namespace

UnitChannel::UnitChannel(Reactor& reactor, std::shared_ptr<LogicalUnit> unit, block::PipelineChannel& channel,
                         const block::Geometry& geometry, TransferMemory& memory)
    : reactor_(reactor),
      unit_(std::move(unit)),
      channel_(channel),
      geometry_(geometry),
      block_shift_(static_cast<uint32_t>(std::countr_zero(geometry.logical_block_bytes))),
      memory_(memory),
      quiescing_(reactor) {
  channel_.SetFrontEnd(this);
}

UnitChannel::~UnitChannel() {
  CLEAT_CHECK(commands_.empty() && waits_.empty());
  channel_.SetFrontEnd(nullptr);
}

// ---- The way of every command

void UnitChannel::Execute(Command& command) {
  command.Prepare();
  command.Decode();
  command.descriptor_sense = unit_->mode().descriptor_sense;
  if (command.info != nullptr && command.info->needs_discard && !geometry_.discard) [[unlikely]] {
    command.info = nullptr;
  }
  if (command.info != nullptr && !DataFits(command)) [[unlikely]] {
    command.delivery = Delivery::kOverrun;
    return command.on_done(command);
  }
  if (Refuse(command)) [[unlikely]]
    return command.on_done(command);
  if (may_owe_ && Postpone(command)) [[unlikely]]
    return command.on_done(command);
  Dispatch(command);
}

// All commands but one leave the same behind when they are carried out twice with nothing acknowledged in between.
// COMPARE AND WRITE does not: the second time it finds what the first wrote, and says miscompare about a lock that was
// taken - or takes one that its owner has given up meanwhile. So it is not tried. ABORTED COMMAND is the sense key for
// a command that the device server gave up on and that the application client may send anew (SPC-4 4.5.6); the
// initiator reads what is there and decides. COMMANDS CLEARED BY DEVICE SERVER is the reason that comes closest: no
// other initiator had a hand in it, nor a loss of power (2Fh 00h, 2Fh 01h), and nothing on the target is broken
// (INTERNAL TARGET FAILURE, 44h 00h). Before any unit attention: that one is an invitation to repeat the command.
void UnitChannel::ExecuteReplayed(Command& command) {
  if (command.cdb[0] != kCompareAndWrite) return Execute(command);
  command.Prepare();
  command.Decode();
  command.descriptor_sense = unit_->mode().descriptor_sense;
  command.Check(SenseKey::kAbortedCommand, SenseCode::kCommandsClearedByDeviceServer);
  command.on_done(command);
}

// Nothing is carried out for which the data has no room, or is not there, or goes the other way (virtio 1.2,
// 5.6.6.1: OVERRUN). What remains of the data is residual.
bool UnitChannel::DataFits(const Command& command) const {
  switch (command.info->data) {
    case DataUse::kNone:
      return true;
    case DataUse::kAllocation:
      return command.blocks <= command.data_in_bytes;
    case DataUse::kEightIn:
      return command.data_in_bytes >= 8;
    case DataUse::kBlocksIn:
      return Bytes(command.blocks) <= command.data_in_bytes;
    case DataUse::kBlocksOut:
      return Bytes(command.blocks) <= command.data_out_bytes;
    case DataUse::kTwiceBlocksOut:
      return Bytes(command.blocks) * 2 <= command.data_out_bytes;
    case DataUse::kParameters:
      return command.blocks <= command.data_out_bytes;
    case DataUse::kBlockOrNone:
      return (command.cdb[1] & kNdob) != 0 || Bytes(1) <= command.data_out_bytes;
    case DataUse::kByteCheck:
      return ByteCheckBytes(command) <= command.data_out_bytes;
  }
  return false;
}

uint64_t UnitChannel::ByteCheckBytes(const Command& command) const {
  switch ((command.cdb[1] & kBytchkBits) >> 1) {
    case 1:
      return Bytes(command.blocks);
    case 3:
      return Bytes(command.blocks > 0 ? 1 : 0);
    default:
      return 0;
  }
}

bool UnitChannel::Refuse(Command& command) {
  const CommandInfo* info = command.info;
  if (unit_->attention_pending() && (info == nullptr || !info->passes_attention)) [[unlikely]] {
    if (const auto attention = unit_->TakeAttention()) {
      command.Check(SenseKey::kUnitAttention, *attention);
      return true;
    }
  }
  if (info == nullptr) {
    command.RefuseOpcode();
    return true;
  }
  if (const BadField bad = CheckUsage(*info, command.cdb); bad.byte >= 0) [[unlikely]] {
    command.RefuseField(bad);
    return true;
  }
  if (info->writes_medium && unit_->read_only()) [[unlikely]] {
    command.Check(SenseKey::kDataProtect, SenseCode::kWriteProtected);
    return true;
  }
  if (info->lba.bytes != 0 && (command.lba > disk_blocks() || command.blocks > disk_blocks() - command.lba) &&
      info->action != Action::kGetLbaStatus) [[unlikely]] {
    command.Check(SenseKey::kIllegalRequest, SenseCode::kLbaOutOfRange);
    return true;
  }
  return false;
}

// While what was let pass is still owed for. Of other queues' commands none gets through while any is let pass.
bool UnitChannel::Postpone(Command& command) {
  if (!UsesMedium(command.info->action) || (!bypass_ && commands_.empty()) || !LooksOwing()) return false;
  command.End(ScsiStatus::kBusy);
  return true;
}

void UnitChannel::Dispatch(Command& command) {
  switch (command.info->action) {
    case Action::kRead:
      return Transfer(command, block::Op::kRead);
    case Action::kWrite:
      return Transfer(command, block::Op::kWrite);
    case Action::kSynchronizeCache:
      return Flush(command);
    case Action::kCompareAndWrite:
      return CompareAndWrite(command);
    case Action::kStartStop:
      return StartStop(command);
    case Action::kVerify:
      return StartVerify(command);
    case Action::kWriteAndVerify:
      return StartWriteAndVerify(command);
    case Action::kWriteSame:
      return StartWriteSame(command);
    case Action::kUnmap:
      return StartUnmap(command);
    case Action::kTestUnitReady:
    case Action::kSendDiagnostic:  // a unit that answers has passed its self-test
    case Action::kPreFetch:
      break;
    case Action::kRequestSense:
      RequestSense(command);
      break;
    case Action::kInquiry:
      Inquiry(command);
      break;
    case Action::kReportLuns:
      ReportLuns(command);
      break;
    case Action::kModeSelect:
      ModeSelect(command);
      break;
    case Action::kModeSense:
      ModeSense(command);
      break;
    case Action::kReadCapacity10:
      ReplyWithCapacity10(command);
      break;
    case Action::kReadCapacity16:
      ReplyWithCapacity16(command);
      break;
    case Action::kGetLbaStatus:
      GetLbaStatus(command);
      break;
    case Action::kReportOpcodes:
      ReportOpcodes(command);
      break;
  }
  command.on_done(command);
}

// ---- One request

void UnitChannel::Transfer(Command& command, block::Op op) {
  const uint64_t bytes = Bytes(command.blocks);
  command.op = op;
  command.offset_bytes = Bytes(command.lba);
  command.length_bytes = bytes;
  command.segments = TakeFirst(op == block::Op::kRead ? command.data_in : command.data_out, bytes);
  command.fua = op == block::Op::kWrite && (command.cdb[1] & kFua) != 0;
  Submit(command);
}

void UnitChannel::CompareAndWrite(Command& command) {
  const uint64_t bytes = Bytes(command.blocks);
  if (bytes > block::kCompareAndWriteBytesMax) {
    command.RefuseField({13, 7});
    return command.on_done(command);
  }
  if (bytes == 0) return command.on_done(command);  // SBC-4 5.4: no error
  command.op = block::Op::kCompareAndWrite;
  command.offset_bytes = Bytes(command.lba);
  command.length_bytes = bytes;
  command.segments = TakeFirst(command.data_out, 2 * bytes);
  command.fua = (command.cdb[1] & kFua) != 0;
  Submit(command);
}

// The storage flushes all or nothing, so the range says nothing; nor does IMMED, a status that comes later than it
// had to.
void UnitChannel::Flush(Command& command) {
  command.op = block::Op::kFlush;
  command.offset_bytes = command.length_bytes = 0;
  Submit(command);
}

// There is nothing to spin down: a stop writes the cache back, as SBC-4 5.31 has it, and the disk stays ready.
void UnitChannel::StartStop(Command& command) {
  constexpr uint8_t kStart = 0x01;
  constexpr uint8_t kNoFlush = 0x04;
  if ((command.cdb[4] & (kStart | kNoFlush)) == 0) return Flush(command);
  command.on_done(command);
}

void UnitChannel::Submit(Command& command) {
  Begin(command);
  command.Push(&RequestDone, this);
  channel_.Submit(command);
}

void UnitChannel::RequestDone(block::Request& request, const block::Frame& frame) {
  auto& self = *static_cast<UnitChannel*>(frame.layer);
  auto& command = static_cast<Command&>(request);
  if (command.status == block::IoStatus::kOk) [[likely]] {
    command.transferred_bytes =
        command.op == block::Op::kCompareAndWrite ? 2 * command.length_bytes : command.length_bytes;
  } else {
    self.SetOutcome(command, command.status);
  }
  self.End(command);
}

// What the storage says, in SCSI's words.
void UnitChannel::SetOutcome(Command& command, block::IoStatus status) {
  switch (status) {
    case block::IoStatus::kOk:
      return;
    case block::IoStatus::kIoError:
      return command.Check(SenseKey::kMediumError, command.op == block::Op::kRead
                                                       ? SenseCode::kUnrecoveredReadError
                                                       : SenseCode::kWriteError);
    case block::IoStatus::kHardwareError:
      return command.Check(SenseKey::kHardwareError, SenseCode::kInternalTargetFailure);
    case block::IoStatus::kNoSpace:
      return command.Check(SenseKey::kDataProtect, SenseCode::kSpaceAllocationFailed);
    case block::IoStatus::kReadOnly:
      return command.Check(SenseKey::kDataProtect, SenseCode::kWriteProtected);
    case block::IoStatus::kUnsupported:
      return command.Check(SenseKey::kIllegalRequest, SenseCode::kInvalidOpcode);
    case block::IoStatus::kInvalid:
      return command.Check(SenseKey::kIllegalRequest, SenseCode::kLbaOutOfRange);
    case block::IoStatus::kReservationConflict:
    case block::IoStatus::kFenced:  // somebody else has the disk, or may have; to try again is no use
      return command.End(ScsiStatus::kReservationConflict);
    case block::IoStatus::kMiscompare:  // SBC-4 5.4: how far into the data
      return command.CheckInformation(SenseKey::kMiscompare, SenseCode::kMiscompareDuringVerify,
                                      command.miscompare_bytes);
    case block::IoStatus::kAborted:
      if (command.abort == Abort::kNone) return command.Check(SenseKey::kAbortedCommand, SenseCode::kNone);
      if (command.abort == Abort::kBusy) return command.End(ScsiStatus::kBusy);
      command.delivery = Delivery::kAborted;
      return;
  }
}

void UnitChannel::Begin(Command& command) {
  command.sequence = next_sequence_++;
  commands_.PushBack(command);
}

void UnitChannel::End(Command& command) {
  command.in_flight.Unlink();
  if (!waits_.empty()) [[unlikely]]
    Wake(command);
  command.on_done(command);
}

// ---- Task management

bool UnitChannel::Has(std::optional<uint64_t> tag) {
  if (!tag) return !commands_.empty();
  for (Command* command = commands_.front(); command != nullptr; command = commands_.Next(*command)) {
    if (command->tag == *tag) return true;
  }
  return false;
}

Task<void> UnitChannel::Quiesce(Abort why, std::optional<uint64_t> tag) {
  const Gate::Holder holder(quiescing_);
  if (!Mark(why, tag)) co_return;
  Wait wait(reactor_, next_sequence_ - 1, tag);
  waits_.PushBack(wait);
  AbortQueued(tag);
  co_await wait.over.Wait();
}

// False: there is none.
bool UnitChannel::Mark(Abort why, std::optional<uint64_t> tag) {
  bool any = false;
  for (Command* command = commands_.front(); command != nullptr; command = commands_.Next(*command)) {
    if (tag && command->tag != *tag) continue;
    any = true;
    if (command->abort <= Abort::kBusy) command->abort = why;
  }
  return any;
}

// A command that waits for a limit need not wait any longer. Of several with the same tag (which SAM-5 4.8.3 forbids)
// the oldest: what is completed here may end any others.
void UnitChannel::AbortQueued(std::optional<uint64_t> tag) {
  if (!tag) return channel_.AbortQueued(nullptr);
  for (Command* command = commands_.front(); command != nullptr; command = commands_.Next(*command)) {
    if (command->tag == *tag) return channel_.AbortQueued(command);
  }
}

// `ended` is not in flight any more; whoever waited for it and the likes of it goes on.
void UnitChannel::Wake(const Command& ended) {
  const auto left = [this](const Wait& wait) {
    if (!wait.tag) return !commands_.empty() && commands_.front()->sequence <= wait.last_sequence;
    for (Command* command = commands_.front(); command != nullptr; command = commands_.Next(*command)) {
      if (command->sequence > wait.last_sequence) return false;
      if (command->tag == *wait.tag) return true;
    }
    return false;
  };
  Wait* next = nullptr;
  for (Wait* wait = waits_.front(); wait != nullptr; wait = next) {
    next = waits_.Next(*wait);
    if ((wait->tag && *wait->tag != ended.tag) || left(*wait)) continue;
    wait->hook.Unlink();
    wait->over.Set();
  }
}

bool UnitChannel::MayWait(const block::Request& request) const {
  const auto& command = static_cast<const Command&>(request);
  const bool drains = command.queue_drains != nullptr && command.queue_drains(command);
  return command.abort == Abort::kNone && !drains;
}

void UnitChannel::BypassLimits(bool on) {
  if (std::exchange(bypass_, on) == on) {
    if (bypassing_) channel_.EndWaits();  // another queue drains
    return;
  }
  if (!on) {
    if (std::exchange(bypassing_, false)) channel_.EndBypass();
    LooksOwing();
    return;
  }
  if (LooksOwing()) TakeBack();
  // The caller may have got its commands back within TakeBack, and have called again with false.
  if (!bypass_ || std::exchange(bypassing_, true)) return;
  may_owe_ = true;
  channel_.BeginBypass();
}

bool UnitChannel::LooksOwing() {
  const bool owes = may_owe_ && channel_.throttle_debt_until_ns() != 0;
  may_owe_ = owes || bypassing_;
  return owes;
}

// What waits, and the further steps of what the storage has.
void UnitChannel::TakeBack() {
  if (Mark(Abort::kBusy, std::nullopt)) channel_.AbortQueued(nullptr);
}

Task<void> UnitChannel::Close() {
  if (Mark(Abort::kRemoved, std::nullopt)) AbortQueued(std::nullopt);
  // What is under way may have more steps.
  channel_.BeginBypass();
  co_await Quiesce(Abort::kRemoved, std::nullopt);
  co_await quiescing_.Close();
  CLEAT_CHECK(commands_.empty());
  BypassLimits(false);
  channel_.EndBypass();
}

}  // namespace cleat::scsi
