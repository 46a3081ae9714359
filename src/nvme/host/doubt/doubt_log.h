// SPDX-License-Identifier: Apache-2.0
// What would be in doubt of a disk if its engine died now, in memory that outlives the engine: each write-like attempt that is under way, by
// the reactor that sent it, and the ledger's ghosts. The next engine reads it before the disk's first request (docs/nvmeof.md, rule 7).
//
// A write is recorded before its first byte is given to the transport, and forgotten when it was answered, or when the ledger has recorded it
// as a ghost. An engine may be killed between any two stores: each place is valid by one word that is stored last.
//
// The object is a view of the memory, which is its maker's; it may be copied. Each reactor's part is written by that reactor alone, the
// ghosts' by the ledger's thread; Read is for before any of these begin. No lock, no allocation but Read's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "nvme/host/doubt/doubt.h"

namespace cleat::nvme::host {

class DoubtLog {
 public:
  // How much the memory has room for; the same for as long as the disk lives. Each at least 1.
  struct Shape {
    uint32_t reactors = 0;
    uint32_t attempts = 0;  // of a reactor, under way at once
    uint32_t ghosts = 0;
    bool operator==(const Shape&) const = default;
  };
  static constexpr size_t BytesFor(const Shape& shape) {
    return sizeof(Header) +
           (size_t{shape.reactors} * shape.attempts + size_t{2} * shape.ghosts) * sizeof(BlockRange);
  }

  // `memory`: BytesFor(shape) bytes, aligned to 8; zeroes for a disk that never had a log. kFailedPrecondition: it holds something else than a
  // log of this shape, and the whole disk has to count as in doubt; Format makes a new one then.
  static Result<DoubtLog> Open(std::span<uint8_t> memory, const Shape& shape);
  static DoubtLog Format(std::span<uint8_t> memory, const Shape& shape);

  // All ranges that an engine before left, in no order. Those who read it record them as ghosts (Store), and then ForgetAttempts.
  std::vector<BlockRange> Read() const;
  void ForgetAttempts();

  // `slot`, which is free: an attempt on the range is about to be sent.
  void Begin(uint32_t reactor, uint32_t slot, const BlockRange& range);
  void End(uint32_t reactor, uint32_t slot);

  // In place of the ghosts before; at most shape.ghosts.
  void Store(std::span<const BlockRange> ghosts);

 private:
  struct Header {
    uint64_t magic;
    Shape shape;
    uint32_t reserved;
    uint64_t ghosts;  // which of the two lists is valid in bit 32, how many it has below
  };
  static_assert(sizeof(Header) == 32);

  DoubtLog(std::span<uint8_t> memory, const Shape& shape);
  BlockRange& AttemptAt(uint32_t reactor, uint32_t slot) const;
  BlockRange* GhostsAt(uint64_t list) const;

  Header* header_;
  BlockRange* places_;  // attempts, by reactor; the two lists of ghosts
  Shape shape_;
};

}  // namespace cleat::nvme::host
