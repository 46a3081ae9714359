// SPDX-License-Identifier: Apache-2.0
// Envelopes over a SOCK_SEQPACKET unix socket: one a datagram, descriptors beside it (SCM_RIGHTS). Never
// blocks.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"
#include "cleat/engine/v1/engine.pb.h"

namespace cleat::control {

inline constexpr size_t kDatagramBytesMax = size_t{64} * 1024;
inline constexpr size_t kDatagramFdsMax = 4;

struct Datagram {
  engine::v1::Envelope envelope;
  std::vector<UniqueFd> fds;
};

// A list of the one descriptor; empty if it is invalid.
std::vector<UniqueFd> FdsOf(UniqueFd fd);

// False: the socket takes nothing now, try again when it is writable. kInvalidArgument when the message is
// too large; any other error means that the peer is gone.
Result<bool> SendDatagram(int socket, const Datagram& datagram);

// Nothing: try again when the socket is readable. kUnavailable when the peer closed, kInvalidArgument when
// what came is no envelope: the connection is of no more use.
Result<std::optional<Datagram>> ReceiveDatagram(int socket);

// A listening socket, non-blocking, of mode 0600. Takes the place of a dead one; kFailedPrecondition when
// somebody listens there.
Result<UniqueFd> ListenSeqpacket(const std::string& path);
// A connected one, non-blocking.
Result<UniqueFd> ConnectSeqpacket(const std::string& path);

}  // namespace cleat::control
