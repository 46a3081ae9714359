// SPDX-License-Identifier: Apache-2.0
// A TCP connection to an NVMe/TCP target, initialised: ICReq and ICResp are exchanged, no command has been sent (NVMe/TCP 1.0, 3.5).
// A value that the queue on it owns; blocking, up to a deadline, in the calling thread. Afterwards the socket is non-blocking.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/result.h"
#include "base/unique_fd.h"
#include "perf/vhost_user/deadline.h"

namespace cleat::perf {

struct NvmeTcpDigests {
  bool header = false;
  bool data = false;
};

struct NvmeTcpConnection {
  UniqueFd socket;
  NvmeTcpDigests digests;             // as asked for: a target that does not grant them is an error
  uint32_t data_to_target_max = 0;    // of one PDU, as the target says
  uint32_t data_alignment_bytes = 4;  // of data that is sent to the target

  // `address` is host:port or [host]:port; a name is looked up. Errors begin with it.
  static Result<NvmeTcpConnection> Open(const std::string& address, NvmeTcpDigests digests,
                                        const Deadline& deadline);
};

// A TCP connection to `address` on which nothing was said yet: a non-blocking socket. Errors begin with the address.
Result<UniqueFd> ConnectSocket(const std::string& address, const Deadline& deadline);

// All bytes, over a non-blocking socket. Receiving: kUnavailable when the target has closed it.
Status SendWhole(int socket, std::span<const uint8_t> data, const Deadline& deadline);
Status ReceiveWhole(int socket, std::span<uint8_t> data, const Deadline& deadline);

// Until the socket has one of poll(2)'s events; kDeadlineExceeded when it does not come.
Status WaitForSocket(int socket, short events, const Deadline& deadline);

// What a termination PDU's reason stands for (NVMe/TCP 1.0, 3.6.2.4).
std::string_view TerminationReason(uint16_t reason);

}  // namespace cleat::perf
