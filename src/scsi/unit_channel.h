// SPDX-License-Identifier: Apache-2.0
// A logical unit on one I/O reactor: where commands are carried out. To the disk's PipelineChannel it is the front
// end. Commands that are one request of the storage (reads, writes, flushes, COMPARE AND WRITE) are plain functions
// without an allocation; those of several steps are coroutines (long_commands.cc).
//
// Belongs to its reactor. Closed (Close) before it is destroyed.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "base/intrusive_list.h"
#include "block/pipeline.h"
#include "reactor/reactor.h"
#include "reactor/sync.h"
#include "reactor/task.h"
#include "scsi/command.h"
#include "scsi/inquiry.h"
#include "scsi/logical_unit.h"
#include "scsi/mode_pages.h"
#include "scsi/transfer_memory.h"

namespace cleat::scsi {

class UnitChannel final : private block::FrontEnd {
 public:
  // `channel`, `memory` and the reactor outlive it.
  UnitChannel(Reactor& reactor, std::shared_ptr<LogicalUnit> unit, block::PipelineChannel& channel,
              const block::Geometry& geometry, TransferMemory& memory);
  ~UnitChannel();

  const std::shared_ptr<LogicalUnit>& unit() const { return unit_; }
  void SetGeometry(const block::Geometry& geometry) { geometry_ = geometry; }

  // Carries the command out and calls its on_done, perhaps before it returns.
  void Execute(Command& command);
  // As Execute, for a command that a predecessor may have carried out, wholly or in part, without living to say so.
  void ExecuteReplayed(Command& command);

  // ---- Task management (SAM-5 7)
  // Whether a command is in flight: the one with this tag, or any.
  bool Has(std::optional<uint64_t> tag);
  // Goes on when none of the commands that are in flight now (the one with this tag, or all) is any more: the
  // storage can no longer write for them. Those that wait for a limit, and that the storage has not seen, are aborted at
  // once. Those that come meanwhile are not waited for.
  Task<void> Quiesce(Abort why, std::optional<uint64_t> tag);
  // No command comes any more: those that the storage has not seen yet are aborted. Goes on when all have ended and
  // nobody waits in Quiesce.
  Task<void> Close();
  // While `on`, commands do not wait for limits (block::ThrottleControl). Commands may end before it returns. A guest
  // that lets this happen again and again must not get past its limits with it: until what was let pass has been paid
  // for, one command for the medium at a time is accepted and waits for the limits (firmware has no more), further ones
  // are answered BUSY (SAM-5 5.3.1: to be tried again); and when it happens once more before that, what waits is not let
  // pass but taken back with BUSY.
  void BypassLimits(bool on);

 private:
  struct Wait {  // somebody in Quiesce
    Wait(Reactor& reactor, uint64_t last, std::optional<uint64_t> t)
        : last_sequence(last), tag(t), over(reactor) {}
    const uint64_t last_sequence;  // younger commands don't matter
    const std::optional<uint64_t> tag;
    Event over;
    ListHook hook;
  };
  enum class Compare : uint8_t { kNothing, kData, kOneBlock };  // BYTCHK 00b, 01b, 11b
  // Several ranges of one UNMAP, checked.
  struct RangeList {
    struct Range {
      uint64_t lba, blocks;
    };
    uint32_t count = 0;
    std::array<Range, kUnmapRangesMax> ranges;
  };

  bool DataFits(const Command& command) const;
  bool Refuse(Command& command);    // true: the outcome is set already
  bool Postpone(Command& command);  // likewise
  void Dispatch(Command& command);

  // Answered from what is known here.
  void RequestSense(Command& command);
  void Inquiry(Command& command);
  void ReportLuns(Command& command);
  void ModeSense(Command& command);
  void ModeSelect(Command& command);
  void ReplyWithCapacity10(Command& command);
  void ReplyWithCapacity16(Command& command);
  void GetLbaStatus(Command& command);
  void ReportOpcodes(Command& command);
  ModeView mode_view() const;
  uint64_t ByteCheckBytes(const Command& command) const;

  // One request.
  void Transfer(Command& command, block::Op op);
  void CompareAndWrite(Command& command);
  void Flush(Command& command);
  void StartStop(Command& command);
  void Submit(Command& command);
  static void RequestDone(block::Request& request, const block::Frame& frame);

  // Several.
  void StartVerify(Command& command);
  void StartWriteAndVerify(Command& command);
  void StartWriteSame(Command& command);
  void StartUnmap(Command& command);
  bool ReadRanges(Command& command, RangeList& ranges);
  Task<void> Verify(Command& command, Compare compare);
  Task<void> WriteAndVerify(Command& command, Compare compare);
  Task<void> WriteSame(Command& command);
  Task<void> Unmap(Command& command, RangeList ranges);
  // Parts of those. False: the outcome is set, and it is not good.
  Task<bool> VerifyRange(Command& command, Compare compare);
  Task<bool> WritePattern(Command& command, std::span<const uint8_t> block);
  Task<bool> InSteps(Command& command, block::Op op, uint64_t offset_bytes, uint64_t bytes,
                     uint64_t step_bytes_max);
  Task<bool> Step(Command& command, block::Op op, uint64_t offset_bytes, uint64_t bytes);

  // What is answered at once never was in flight.
  void Begin(Command& command);
  void End(Command& command);
  void SetOutcome(Command& command, block::IoStatus status);
  void Wake(const Command& ended);
  bool Mark(Abort why, std::optional<uint64_t> tag);
  bool LooksOwing();
  void TakeBack();
  void AbortQueued(std::optional<uint64_t> tag);
  bool MayWait(const block::Request& request) const override;

  uint64_t disk_blocks() const { return geometry_.size_bytes >> block_shift_; }
  uint64_t Bytes(uint64_t blocks) const { return blocks << block_shift_; }

  Reactor& reactor_;
  const std::shared_ptr<LogicalUnit> unit_;
  block::PipelineChannel& channel_;
  block::Geometry geometry_;
  const uint32_t block_shift_;
  TransferMemory& memory_;
  bool bypass_ = false;
  bool bypassing_ = false;  // the channel bypasses its limits for this unit
  bool may_owe_ = false;    // since commands were let pass, until it is known that they have been paid for
  uint64_t next_sequence_ = 0;
  uint32_t steps_ = 0;                                    // of commands of several
  IntrusiveList<Command, &Command::in_flight> commands_;  // in order of arrival
  IntrusiveList<Wait, &Wait::hook> waits_;
  Gate quiescing_;
};

}  // namespace cleat::scsi
