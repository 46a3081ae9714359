// SPDX-License-Identifier: Apache-2.0
// What would be in doubt of a disk if its engine died now, in memory that outlives the engine: each write-like attempt that is under way,
// by the reactor that sent it, and the ledger's ghosts. The next engine reads it before the disk's first request (docs/nvmeof.md, rule 7).
//
// A write is recorded before its first byte is given to the transport, and forgotten when it was answered, or when the ledger has recorded
// it as a ghost. An engine may be killed between any two stores: each place is valid by one word that is stored last.
//
// The object is a view of the memory, which is its maker's; it may be copied. Each reactor's row is written by that reactor alone, the rest
// by the ledger's thread; one engine at a time has it. Read is for before any attempt begins. No lock, no allocation but Read's.
//
// Memory: the header and each row that was used cost a page, the rest nothing where the memory is a sparse file's.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "nvme/host/doubt/doubt.h"

namespace cleat::nvme::host {

// What stands in place of a log that is gone although an engine may have used it: whoever made the new memory writes this at its start, and
// Open refuses it then, so that the whole disk is in doubt.
inline constexpr std::array<uint8_t, 8> kDoubtLogLost = {'D', 'B', 'T', 'L', 'O', 'S', 'T', '1'};

class DoubtLog {
 public:
  // How much the memory has room for; the same for as long as the disk lives. Each at least 1.
  struct Shape {
    uint32_t reactors = 0;
    uint32_t attempts = 0;  // of a reactor, under way at once
    uint32_t ghosts = 0;
    uint32_t lives = 0;
    bool operator==(const Shape&) const = default;
  };
  static constexpr size_t kHeaderBytes = 64;  // so that reactors share no cache line
  static constexpr size_t BytesFor(const Shape& shape) {
    return kHeaderBytes + size_t{shape.lives} * sizeof(LifeId) +
           (size_t{shape.reactors} * shape.attempts + size_t{2} * shape.ghosts) * sizeof(BlockRange);
  }

  // `memory`: BytesFor(shape) bytes, aligned to 8; zeroes for a disk that never had a log. kFailedPrecondition: it holds something else
  // than a log of this shape, or kDoubtLogLost, and the whole disk has to count as in doubt; Format makes a new one then that has
  // that as a ghost. `first_number`: random, for a log that has no number yet, so that no word for what an earlier log had fits this one.
  static Result<DoubtLog> Open(std::span<uint8_t> memory, const Shape& shape, uint32_t first_number);
  // Without a look at what the memory has, as another engine may still have it: for those who will be told when it is this engine's.
  static DoubtLog View(std::span<uint8_t> memory, const Shape& shape) { return {memory, shape}; }
  // Has these ghosts from its first valid moment on; until then the memory is kDoubtLogLost. A log that was lost keeps its number.
  static DoubtLog Format(std::span<uint8_t> memory, const Shape& shape, std::span<const BlockRange> ghosts,
                         uint32_t first_number);

  // What an engine before left, in no order. Those who read it record it as ghosts (Store), and then ForgetAttempts.
  std::vector<BlockRange> Read() const;
  std::vector<BlockRange> ReadAttempts() const;  // without the ghosts
  // The lives that may have left it; empty: nobody knows.
  std::vector<LifeId> ReadLives() const;
  void ForgetAttempts();

  // The row of `reactor` is read from now on; before its first attempt. The ledger's thread.
  void OpenRow(uint32_t reactor);
  // `slot`, which is free, of an open row: an attempt on the range is about to be sent.
  void Begin(uint32_t reactor, uint32_t slot, const BlockRange& range);
  void End(uint32_t reactor, uint32_t slot);

  // What becomes of the number that an operator's word is about.
  enum class Number : uint8_t {
    kNew,   // something is in doubt that was not before, or all of it is proved
    kKept,  // nothing is that was not
  };
  // In place of the ghosts before; at most shape.ghosts.
  void Store(std::span<const BlockRange> ghosts, Number number);
  // All lives of which anything is in the log or may come into it: each before its first attempt begins. Not 0; more than there is room for
  // are as if nobody knew them.
  void StoreLives(std::span<const LifeId> lives);
  // Whether an operator has said of what has the present number that it is dead (Confirm).
  bool IsConfirmed() const;

  // ---- Who has the disk. Apart from all else, so that it holds also where that is lost or damaged
  // The disk is the caller's from now on. Who may claim it, a lock says that is not the log's affair.
  struct Claimed {
    uint32_t number = 0;    // one more than that of the claim before, modulo 2^31
    bool is_first = false;  // nobody has claimed it since GiveUp; a log that was lost was somebody's
  };
  Claimed Claim();
  // The disk is nobody's, as it was detached, or another host's. By who has claimed it last.
  void GiveUp();
  // Another host is to have the disk of this attachment, and does not have it yet: for engines to come, until GiveUp. 0: none is. By who
  // has claimed it last, after Open or Format.
  void SetLeaving(uint32_t attachment);
  uint32_t leaving() const;
  // A reservation proves something dead for as long as it is held, until this time: in seconds of CLOCK_MONOTONIC; 0: none.
  void HoldReservationUntil(uint32_t second);
  uint32_t reservation_held_until() const;

  // ---- For another process, which shares the memory with the engine; the log may be written meanwhile
  // What is in doubt while the engine lives; attempts that are under way are not.
  struct Doubt {
    uint32_t number = 0;  // 0: it can't be told now, nor be confirmed: an engine has to take the log first
    std::vector<BlockRange> ranges;  // in no order; all there are where the log is lost or damaged
  };
  static Doubt Look(std::span<const uint8_t> memory, const Shape& shape);
  // An operator says that what has this number is dead. Of no effect once it has another one.
  static void Confirm(std::span<uint8_t> memory, uint32_t number);
  // What the memory of a log that is lost begins with, of that number.
  static std::array<uint8_t, kHeaderBytes> LostHeader(uint32_t number);
  // IsConfirmed, of a log that is lost.
  static bool IsLostAndConfirmed(std::span<const uint8_t> memory);

 private:
  struct Header {
    uint64_t magic;
    Shape shape;
    // How many, from kListShift on which of the two lists has them, from kNumberShift on Doubt.number.
    uint64_t ghosts;
    uint64_t rows;       // those behind were never used, and are zeroes
    uint64_t confirmed;  // the number of what an operator knows to be dead; other processes write it
    uint32_t lives_unknown;
    // Counts beside kSomebodys alone. Older engines have it in one word with lives_unknown: the lives are unknown to them, and it ends when they
    // store theirs.
    uint32_t leaving;
    uint32_t claims;  // how many, and kSomebodys
    uint32_t held_until_s;
  };
  // Zeroes of a log that is new; what is behind, up to the header's end, is apart from it.
  static constexpr size_t kNewBytes = 56;
  static constexpr uint32_t kSomebodys = uint32_t{1} << 31;  // of claims
  static constexpr uint32_t kClaimMask = kSomebodys - 1;
  static constexpr uint32_t kListShift = 32;
  static constexpr uint32_t kNumberShift = 33;
  static constexpr uint64_t kCountMask = UINT32_MAX;
  static constexpr uint32_t kNumberMask = (1U << 31) - 1;
  static uint64_t NumberOf(uint32_t number) { return std::max(1U, number & kNumberMask); }
  // Nullptr: it is a log of this shape.
  static const char* WhyBad(const Header& header, const Shape& shape);
  static_assert(sizeof(Header) == kHeaderBytes && kHeaderBytes % 64 == 0);

  DoubtLog(std::span<uint8_t> memory, const Shape& shape);
  BlockRange& AttemptAt(uint32_t reactor, uint32_t slot) const;
  void ClearRow(uint32_t reactor);
  // The list that is valid where Header::ghosts is `word`.
  BlockRange* GhostsOf(uint64_t word) const { return GhostsAt((word >> kListShift) & 1); }
  BlockRange* GhostsAt(uint64_t list) const;

  Header* header_;
  std::span<LifeId> lives_;  // 0: none
  BlockRange* places_;       // attempts, by reactor; the two lists of ghosts
  Shape shape_;
};

// The log that is kept for each disk, of one shape for all versions of Cleat to come: a change of it puts each disk in doubt as a whole.
// Room for twice the channels that a disk has at a time, as numbers of those that leave come back late; a row is as large as a page.
inline constexpr DoubtLog::Shape kDoubtLogShape{
    .reactors = 128, .attempts = 256, .ghosts = 4096, .lives = 128};
inline constexpr size_t kDoubtLogBytes = DoubtLog::BytesFor(kDoubtLogShape);

}  // namespace cleat::nvme::host
