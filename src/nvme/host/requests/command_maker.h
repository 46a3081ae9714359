// SPDX-License-Identifier: Apache-2.0
// Makes a request's commands, one after the other: each does as much of what is left of the request as the controller, the namespace, and
// the room for its data's segments allow.
//
// Memory: a command that does its whole request has the request's own segments. Any other has a list from here, of which there are few,
// from Make until GiveBack; with none free no such command can be made. Nothing is allocated for a command, with one exception (wide_).
//
// Source: NVM Command Set Specification 1.0, 3.2. Owned by the request queue, on its reactor; pure.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "block/memory.h"
#include "block/request.h"
#include "nvme/command.h"
#include "nvme/fabrics/queues/queue_pair.h"
#include "nvme/limits.h"

namespace cleat::nvme::host {

// How commands on one path are made.
struct PathFormat {
  uint32_t nsid = 0;
  Limits limits;                          // of its controller and namespace
  bool write_zeroes_deallocates = false;  // Write Zeroes may be asked to deallocate
};

class CommandMaker {
 public:
  // Lists of segments, and the room of each.
  static constexpr uint32_t kListsMax = 32;
  static constexpr uint32_t kListSegmentsMax = 34;
  // Zeroes for targets without Write Zeroes: of one command. At least a block of any namespace.
  static constexpr uint32_t kZeroBytes = 64 * 1024;
  static constexpr uint8_t kNoList = 0xff;

  struct Made {
    fabrics::QueuedCommand command;
    uint64_t bytes = 0;      // of the request
    uint8_t list = kNoList;  // for GiveBack
  };

  CommandMaker();
  CommandMaker(const CommandMaker&) = delete;
  CommandMaker& operator=(const CommandMaker&) = delete;

  // False: the target has no command for such a request.
  static bool CanMake(const block::Request& request, const PathFormat& format) {
    return request.op != block::Op::kDiscard || format.limits.discard_bytes_max() > 0;
  }
  // The command that goes on where `begun_bytes` of the request, not all of it, have a command. False: no list is free.
  bool Make(const block::Request& request, uint64_t begun_bytes, const PathFormat& format, Made& made);
  void GiveBack(uint8_t list);

 private:
  struct List {
    std::array<block::Segment, kListSegmentsMax> segments;
    DatasetRange range;  // a discard's data
  };
  static constexpr uint8_t kWide = kListsMax;  // as Made::list: wide_

  bool MakeTransfer(const block::Request& request, uint64_t begun_bytes, const PathFormat& format,
                    Made& made);
  bool MakeZeroes(const block::Request& request, uint64_t begun_bytes, const PathFormat& format, Made& made);
  bool MakeDiscard(const block::Request& request, uint64_t begun_bytes, const PathFormat& format, Made& made);
  std::span<const block::Segment> CutData(const block::Request& request, uint64_t begun_bytes,
                                          uint32_t block_bytes, Made& made);
  std::span<const block::Segment> CutWide(const block::Request& request, uint64_t begun_bytes, Made& made);
  List* Take(Made& made);

  std::array<List, kListsMax> lists_;
  std::array<uint8_t, kListsMax> free_;
  uint32_t free_count_ = kListsMax;
  const std::shared_ptr<block::MemoryRegion> lists_region_;
  // For what no list holds: a piece of a large request, one of whose blocks lies in more than kListSegmentsMax segments. No driver was seen
  // to make such a request, a guest may. One command at a time has it; its memory is kept.
  std::vector<block::Segment> wide_;
  bool wide_in_use_ = false;
};

}  // namespace cleat::nvme::host
