// SPDX-License-Identifier: Apache-2.0
// What has to be true of the descriptors that a front end sends, and how one is written to. Another kind of file may be
// one that is slow to write to, to close (close_aside.h), or to tell whether it is ready: a disk, a socket that lingers, an epoll
// of epolls. Never waits itself; any thread.
#pragma once

#include "base/result.h"
#include "base/unique_fd.h"

namespace cleat::vhost {

// kInvalidArgument when it is no eventfd. Makes it non-blocking, though the peer may take that back: see SignalEventfd.
Status CheckEventfd(const UniqueFd& fd);
// kInvalidArgument when it is no unix socket.
Status CheckUnixSocket(const UniqueFd& fd);

// False: it was blocking and full, and the wait was interrupted (reactor/stall_breaker.h), so the peer means harm.
// Otherwise it can fail only when the counter is full, and then the other side has yet to look at it.
bool SignalEventfd(const UniqueFd& fd);

}  // namespace cleat::vhost
