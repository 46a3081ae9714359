// SPDX-License-Identifier: Apache-2.0
// One TCP socket's sends without a copy (MSG_ZEROCOPY; Linux, Documentation/networking/msg_zerocopy.rst): which data is sent so
// (zero_copy_choice.h), and the memory that the kernel needs until its notification (sent_memory.h).
//
// Until then the kernel reads what it sends, and sends again, from our memory: were that used for another host meanwhile, the first host would get the
// other's data. A connection that ends does not wait for notifications, which a host can hold back for ever: GiveUp gives the pieces back to an owner
// that puts other pages in their place, while the kernel keeps those that it has.
//
// One thread. Some 3 KiB; allocates nothing.
#pragma once

#include <sys/uio.h>

#include <cstdint>
#include <functional>
#include <span>

#include "block/memory.h"
#include "nvmf_target/socket/sent_memory.h"
#include "nvmf_target/socket/zero_copy_choice.h"

namespace cleat::nvmf_target {

// Which data a connection in plain TCP sends without a copy.
enum class ZeroCopy : uint8_t {
  kNone,
  kLearned,  // of the sizes for which that has turned out to be cheaper
  kAll,      // from ZeroCopyChoice::kLeastBytes on: for tests and measurements
};

class ZeroCopySends {
 public:
  // Takes a piece back. `in_kernel`: the kernel may still be sending from it.
  using Give = std::function<void(const block::Segment& piece, bool in_kernel)>;

  // `next`: the number that the kernel gives the socket's next send without a copy. On a socket without MSG_ZEROCOPY all data is copied.
  ZeroCopySends(int socket, ZeroCopy which, uint32_t next);

  // Data of that size or more is to be sent by itself next.
  uint32_t AloneFrom(uint64_t now_ns) {
    if (!can_ || sent_.full()) return ZeroCopyChoice::kNever;
    return all_ ? ZeroCopyChoice::kLeastBytes : choice_.AloneFrom(now_ns);
  }
  // Whether data that is sent by itself goes without a copy, if it is `bytes` long.
  bool Takes(uint32_t bytes) const { return all_ || choice_.WayOf(bytes) == ZeroCopyChoice::Way::kZeroCopy; }
  // Sends without a copy as much of `pieces` as the kernel takes. 0: nothing; the caller may send a copy.
  size_t Send(std::span<iovec> pieces, uint64_t now_ns);
  // Whether the next send is a trial, whose cost the caller measures and tells to Tried.
  bool tries() const { return !all_ && choice_.tries(); }
  void Tried(bool zero_copy, uint32_t bytes, uint64_t cost_ns, uint64_t now_ns) {
    choice_.Tried(zero_copy ? ZeroCopyChoice::Way::kZeroCopy : ZeroCopyChoice::Way::kCopy, bytes, cost_ns,
                  now_ns);
  }

  // Keeps `piece`, which was sent last, until the kernel does not need it any more. False: the kernel does not, and nothing is kept.
  bool Keep(const block::Segment& piece) { return sent_.Keep(piece); }
  // Reads notifications, a limited number of them; `give` gets the pieces that they end. Returns whether there was any: more may be there then.
  bool Collect(const Give& give);
  // Tells what the last Collect has cost. Returns how many bytes the sends had that it has heard of.
  uint64_t Heard(uint64_t cost_ns, uint64_t now_ns);
  // Before the socket is closed, or once another process has it: `give` gets all pieces.
  void GiveUp(const Give& give) {
    sent_.GiveUp([&give](const block::Segment& piece) { give(piece, true); });
  }

  uint32_t next() const { return sent_.next(); }
  // How many sends the kernel has not told to be over.
  uint32_t in_kernel() const { return sent_.sends(); }

 private:
  static constexpr uint32_t kNotificationsMax = 16;  // of one Collect

  const int socket_;
  const bool all_;
  bool can_ = false;
  uint64_t heard_bytes_ = 0;  // this and the next two: of sends that are over, since Heard
  uint32_t heard_sends_ = 0;
  uint32_t heard_copies_ = 0;
  SentMemory sent_;
  ZeroCopyChoice choice_;
};

}  // namespace cleat::nvmf_target
