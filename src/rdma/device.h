// SPDX-License-Identifier: Apache-2.0
// An RDMA adapter that was opened: what it can do, and what is made on it. One object serves all reactors of a process.
//
// Threads: descriptor() and TakeEvents belong to one thread, the control reactor's; all else may be called by any. Whoever makes an object says which
// thread uses it (rdma/verbs.h). The device is destroyed last: after all that was made on it, and after the connections that have queue pairs on it
// (rdma/connection.h). That holds for one that is gone as well: destroying what was made on it works, and waits for nobody.
//
// Credentials. The kernel takes calls only from a process whose credentials are those with which the adapter was opened: who changes user or capabilities
// does so before (ib_safe_file_access of Linux, include/rdma/ib.h).
//
// Sources: ibv_query_device(3), ibv_alloc_pd(3), ibv_get_async_event(3); rdma_bind_addr(3), by which an address names an adapter.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "base/result.h"
#include "rdma/memory.h"
#include "rdma/verbs.h"

namespace cleat::rdma {

struct DeviceLimits {
  uint32_t queue_pairs = 0;
  uint32_t works = 0;        // posted and not done, of a queue pair
  uint32_t pieces = 0;       // of a work request
  uint32_t read_pieces = 0;  // of a kRead
  uint32_t receive_queues = 0;
  uint32_t receive_entries = 0;     // of a receive queue
  uint32_t completion_entries = 0;  // of a completion queue
  uint32_t reads_served = 0;        // READs of the peer outstanding, of a queue pair
  uint32_t reads_sent = 0;          // READs to the peer outstanding, of a queue pair
  uint32_t windows = 0;
  bool windows_of_type_2b = false;  // bound to a queue pair and invalidated by sends, as MemoryWindow is
};

class Device {
 public:
  virtual ~Device() = default;

  virtual const std::string& name() const = 0;  // as `rdma link` shows it, without the port: "mlx5_0"
  virtual const DeviceLimits& limits() const = 0;

  // Of at least one byte. An error of the process's limit for locked memory says so.
  virtual Result<std::unique_ptr<Registration>> Register(std::span<uint8_t> memory,
                                                         const MemoryAccess& access) = 0;
  virtual Result<std::unique_ptr<MemoryWindow>> MakeWindow() = 0;
  // entries: completions that were not polled, at most: one for each work of its queue pairs that may be outstanding, signaled or not (those that fail
  // have one too), and one for each ReceiveWork. `vector`: which of the adapter's interrupts wakes its thread; any number.
  virtual Result<std::unique_ptr<CompletionQueue>> MakeCompletionQueue(uint32_t entries,
                                                                       uint32_t vector = 0) = 0;
  // entries: ReceiveWorks that were posted and did not complete, at most. Destroyed after the queue pairs that receive by it.
  virtual Result<std::unique_ptr<ReceiveQueue>> MakeReceiveQueue(uint32_t entries) = 0;

  // Readable: TakeEvents.
  virtual int descriptor() const = 0;
  // An error: the adapter was removed or has failed, now or before. Nothing posted on it completes any more, and all that was made on it is to go.
  virtual Status TakeEvents() = 0;
};

// The name of the adapter that has this local address, IPv4 or IPv6: nothing is opened that stays so. Errors as OpenDevice's.
Result<std::string> DeviceNameAt(const std::string& local_address);

// The adapter that has this local address; each adapter is opened once, whatever number of addresses it has, as two objects would take
// failures from each other. Blocks for milliseconds. Errors: no library (kUnavailable; names the package), no adapter
// (kUnavailable), none with that address (kNotFound).
Result<std::unique_ptr<Device>> OpenDevice(const std::string& local_address);

}  // namespace cleat::rdma
