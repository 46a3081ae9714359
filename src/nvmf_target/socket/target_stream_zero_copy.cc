// SPDX-License-Identifier: Apache-2.0
// Large data of a connection in plain TCP, sent by itself from where it is, or copied where that is cheaper.
#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <memory>
#include <utility>

#include "nvmf_target/socket/target_stream.h"

namespace cleat::nvmf_target {

uint32_t TargetStream::AloneFrom() {
  if (zero_copy_ != nullptr)
    return owner_->MayLend() ? zero_copy_->AloneFrom(reactor_->now_ns()) : ZeroCopyChoice::kNever;
  const bool may = kind_ == Kind::kIo && tuning_.zero_copy != ZeroCopy::kNone && zero_copy_next_.has_value();
  return may ? ZeroCopyChoice::kLeastBytes : ZeroCopyChoice::kNever;
}

// The kernel waits for the data then, as it would for pieces of the same call.
size_t TargetStream::SendBeforeAlone(std::span<iovec> pieces) {
  if (zero_copy_ == nullptr)
    zero_copy_ = std::make_unique<ZeroCopySends>(fd_.get(), tuning_.zero_copy, *zero_copy_next_);
  // The cost counts only where the header goes alone: smaller answers before it would have been sent in any case.
  const bool measures = zero_copy_->tries() && pieces.size() == 1;
  if (measures) reactor_->RefreshNow();
  const uint64_t began_ns = reactor_->now_ns();
  const size_t sent = Write(pieces, MSG_MORE);
  if (measures) {
    reactor_->RefreshNow();
    before_cost_ns_ = reactor_->now_ns() - began_ns;
  }
  begins_alone_ = true;
  return sent;
}

size_t TargetStream::SendAlone(nvme::fabrics::TargetCommand& command, std::span<iovec> data) {
  const bool tries = zero_copy_->tries();
  if (tries) reactor_->RefreshNow();
  const uint64_t began_ns = reactor_->now_ns();
  uint64_t bytes = 0;
  for (const iovec& piece : data) bytes += piece.iov_len;
  const bool is_first_part = std::exchange(begins_alone_, false);
  const bool takes = zero_copy_->Takes(static_cast<uint32_t>(bytes));
  size_t sent = takes ? zero_copy_->Send(data, began_ns) : 0;
  const bool is_lent = sent > 0;
  if (is_lent) {
    command.lent = true;
    moved_bytes_ += sent;
  } else {
    sent = Write(data);
  }
  if (tries && sent > 0 && is_lent == takes) {
    reactor_->RefreshNow();
    const uint64_t now_ns = reactor_->now_ns();
    // A copy would have gone along with what went before.
    const uint64_t cost_ns = now_ns - began_ns + (is_lent && is_first_part ? before_cost_ns_ : 0);
    zero_copy_->Tried(is_lent, static_cast<uint32_t>(sent), cost_ns, now_ns);
  }
  return sent;
}

bool TargetStream::CollectSends() {
  reactor_->RefreshNow();
  const uint64_t began_ns = reactor_->now_ns();
  const bool heard = zero_copy_->Collect(
      [this](const block::Segment& piece, bool in_kernel) { owner_->GiveKept(piece, in_kernel); });
  reactor_->RefreshNow();
  moved_bytes_ += zero_copy_->Heard(reactor_->now_ns() - began_ns, reactor_->now_ns());
  return heard;
}

bool TargetStream::HostHasAll() const {
  int bytes = 0;
  return ioctl(fd_.get(), SIOCOUTQ, &bytes) == 0 && bytes == 0;
}

// Data that the host has not acknowledged by then is dropped, with a reset. Otherwise a host that takes nothing, and connects again and again, could
// have ever more pages locked, and RLIMIT_MEMLOCK is one account for all processes of the user.
void TargetStream::EndSends() {
  while (sends_in_kernel() && CollectSends()) {
  }
  if (!sends_in_kernel()) return;
  const linger none{.l_onoff = 1, .l_linger = 0};
  if (!HostHasAll()) (void)setsockopt(fd_.get(), SOL_SOCKET, SO_LINGER, &none, sizeof(none));
  GiveUpKept();
}

void TargetStream::GiveUpKept() {
  if (!sends_in_kernel()) return;
  zero_copy_->GiveUp(
      [this](const block::Segment& piece, bool in_kernel) { owner_->GiveKept(piece, in_kernel); });
}

}  // namespace cleat::nvmf_target
