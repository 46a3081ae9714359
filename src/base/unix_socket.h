// SPDX-License-Identifier: Apache-2.0
// A message with file descriptors (SCM_RIGHTS) over a connected unix socket, sent and received without blocking. What a
// hostile peer can do with descriptors is dealt with here: one too many refuses the message and closes all that came with it.
//
// Any thread; nothing is owned. src/perf has its own (message_socket.h): it plays the peer, and sends what is refused here.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"

namespace cleat {

inline constexpr size_t kMessageFdsMax = 200;  // that any caller sends or takes with one message

// The parts one behind the other, the descriptors with the first byte; they stay the caller's. Returns how many bytes went: all
// of a datagram or nothing; of a stream perhaps the beginning. 0: the socket takes nothing now, try again when it is writable.
//   kUnavailable        the peer is gone
//   kResourceExhausted  the kernel has no memory for it now
Result<size_t> SendWithFds(int socket, std::span<const iovec> parts, std::span<const UniqueFd> fds);

struct ReceivedMessage {
  size_t bytes = 0;  // at the beginning of the buffer; 0: the peer has closed, or sent an empty datagram
  std::vector<UniqueFd> fds;
};

// A datagram, or what a stream has. Nothing: there is none now, try again when the socket is readable.
//   kInvalidArgument    a datagram is larger than the buffer, or came with more than `fds_max` descriptors (kMessageFdsMax at most):
//                       it is gone, and its descriptors are closed, or in `refused` if closing them may take long
//   kResourceExhausted  likewise, since this process may not open as many: no fault of the peer's
//   kUnavailable        the peer is gone
Result<std::optional<ReceivedMessage>> ReceiveWithFds(int socket, std::span<uint8_t> buffer, size_t fds_max,
                                                      std::vector<UniqueFd>* refused = nullptr);

}  // namespace cleat
