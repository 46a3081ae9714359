// SPDX-License-Identifier: Apache-2.0
// The sends of one TCP socket that the kernel makes from where the data is (MSG_ZEROCOPY; Linux, Documentation/networking/msg_zerocopy.rst), in
// place of a copy: which these are (zero_copy_choice.h), and what memory they need until the kernel's notification (sent_memory.h).
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

// What data is sent from where it is, by a connection in plain TCP.
enum class ZeroCopy : uint8_t {
  kNone,
  kLearned,  // of the sizes for which that has turned out to be cheaper
  kAll,      // from ZeroCopyChoice::kLeastBytes on: for tests and measurements
};

class ZeroCopySends {
 public:
  // For a piece that is given back. `in_kernel`: which may still be sending from it.
  using Give = std::function<void(const block::Segment& piece, bool in_kernel)>;

  // `next`: the number that the kernel gives the socket's next such send. Where the socket can do no such thing none is tried.
  ZeroCopySends(int socket, ZeroCopy which, uint32_t next);

  // Data of that size or more is to be sent by itself next.
  uint32_t AloneFrom(uint64_t now_ns) {
    if (!can_ || sent_.full()) return ZeroCopyChoice::kNever;
    return all_ ? ZeroCopyChoice::kLeastBytes : choice_.AloneFrom(now_ns);
  }
  // Whether such data goes without a copy.
  bool Takes(uint32_t bytes) const { return all_ || choice_.WayOf(bytes) == ZeroCopyChoice::Way::kZeroCopy; }
  // Sends it so, as much as the kernel takes. 0: it takes nothing now; a copy may go.
  size_t Send(std::span<iovec> pieces, uint64_t now_ns);
  // What is sent next is measured (ZeroCopyChoice).
  bool tries() const { return !all_ && choice_.tries(); }
  void Tried(bool zero_copy, uint32_t bytes, uint64_t cost_ns, uint64_t now_ns) {
    choice_.Tried(zero_copy ? ZeroCopyChoice::Way::kZeroCopy : ZeroCopyChoice::Way::kCopy, bytes, cost_ns,
                  now_ns);
  }

  // The piece that was sent last, in several sends perhaps, is kept until the kernel is through with it. False: it is.
  bool Keep(const block::Segment& piece) { return sent_.Keep(piece); }
  // Hears what the kernel is through with. Returns whether it had anything to say; then it may have more.
  bool Collect(const Give& give);
  // After Collect: what that has cost. Returns how many bytes were sent.
  uint64_t Heard(uint64_t cost_ns, uint64_t now_ns);
  // The socket is another's now, or closed.
  void GiveUp(const Give& give) {
    sent_.GiveUp([&give](const block::Segment& piece) { give(piece, true); });
  }

  uint32_t next() const { return sent_.next(); }
  // Sends that the kernel is not through with.
  uint32_t in_kernel() const { return sent_.sends(); }
  uint32_t learned_bytes() const { return choice_.from_bytes(); }

 private:
  static constexpr uint32_t kNotificationsMax = 16;  // that are heard at a time

  const int socket_;
  const bool all_;
  bool can_ = false;
  uint64_t heard_bytes_ = 0;  // since Heard, as the next two
  uint32_t heard_sends_ = 0;
  uint32_t heard_copies_ = 0;
  SentMemory sent_;
  ZeroCopyChoice choice_;
};

}  // namespace cleat::nvmf_target
