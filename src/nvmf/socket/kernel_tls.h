// SPDX-License-Identifier: Apache-2.0
// TLS's records made by the kernel (kTLS): what there is of it on a connected TCP socket, system call by system call. Once a socket has the keys
// of both directions, plain send and receive calls carry data, and the kernel makes records of it and opens those that come.
//
// Needs the kernel's module `tls` (CONFIG_TLS), from Linux 5.1 on, and its cipher. The kernel loads a module that is missing for whoever has
// CAP_NET_ADMIN alone. Keys are wiped from here before a function returns.
//
// What is sent is encrypted, in the system call that sends it, into pages of the kernel's own, or copied there first where the cipher or the
// network card works on its own time: no page of the caller's is read any more when the call has returned. (TLS_TX_ZEROCOPY_RO, which
// would change that, is for sendfile alone and is left off.) What is received is opened in the kernel's pages and copied out once its tag is
// right (TLS_RX_EXPECT_NO_PAD, which would open it in the caller's, is left off).
//
// Numbers of errors are errno's; 0 is none. Any thread that has the socket.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "nvme/tls/record_cipher.h"

namespace cleat::nvmf::kernel_tls {

enum class Direction : uint8_t { kSeal, kOpen };

// The kernel's TLS is there for this socket, and does nothing yet. ENOENT: it has none.
int Attach(int socket_fd);
// From its next byte on the direction's records are the kernel's. Nothing changes where that is an error.
int GiveKeys(int socket_fd, Direction direction, const nvme::tls::RecordKeys& keys);

struct Record {
  nvme::tls::ContentType type;
  size_t bytes;
};
// A record without data, which stands next and for which a plain receive call has failed with EIO; or the beginning of one that is longer than
// `to`, and the rest the next time. nullopt: none is there.
std::optional<Record> TakeDataless(int socket_fd, std::span<uint8_t> to);
// If the kernel takes it at once.
void SendAlert(int socket_fd, uint8_t level, uint8_t alert);

}  // namespace cleat::nvmf::kernel_tls
