// SPDX-License-Identifier: Apache-2.0
// What makes an NVMe/TCP queue fast, each to be switched off on its own, so that what it spares can be measured (tests/bench/nvmf_loop.cc). The
// defaults are what every disk has. Plain values; any thread.
#pragma once

#include <cstdint>

namespace cleat::modules {

struct TcpTuning {
  // Commands and data that are there at a poll go out in one system call. Off: each piece of memory in one of its own.
  bool batches_sends = true;
  // A poll with commands in flight reads from the socket, whether an event has come or not. Off: it waits for the event.
  bool reads_without_event = true;
  // What one system call reads at most, beside data that goes to its place: from nvme::tcp::kReceiveBufferLeastBytes on. What fits in the
  // processor's second cache is copied from there.
  uint32_t receive_buffer_bytes = 64 * 1024;
  // What the kernel keeps of what has come and was not read yet, from the first byte on, where this host allows so much (net.core.rmem_max).
  // Otherwise, and with 0, it begins with little and allows more as the connection is used. A target whose congestion control is BBR takes
  // the little for what the network can do, and may stay there: with 128 requests in flight that was half of the requests a second.
  uint32_t unread_bytes = 4 << 20;
  // Records of TLS are made by the kernel where it can (kernel_tls.h), which takes targets that are trusted. Off: by this process. Of admin
  // queues as well.
  bool kernel_tls = false;
};

}  // namespace cleat::modules
