// SPDX-License-Identifier: Apache-2.0
// What the queues to targets on one reactor have of one RDMA adapter: its completion queue, which the reactor polls, places for commands with their windows,
// and memory for their data.
//
// Memory, pinned as long as this lives: some 73 MiB on an I/O reactor, 10 MiB on the control reactor. Commands that find none of it wait.
//
// Made on any thread; destroyed on the control reactor, without queues then; used on its own one between Start and Stop.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/result.h"
#include "nvme/fabrics/memory/data_buffers.h"
#include "nvme/rdma_host/direct_memory.h"
#include "nvme/rdma_host/host_adapter.h"
#include "nvmf/rdma/port_poller.h"
#include "rdma/device.h"
#include "reactor/reactor.h"

namespace cleat::modules {

class HostPort final : public nvmf::RdmaPortPoller {
 public:
  // How much of it there is: for I/O queues, or for admin queues, which have event requests under way all the time and hardly any data. Where an adapter has
  // room for less, there is less.
  struct Size {
    uint32_t commands = 0;  // under way at once
    uint32_t windows = 0;   // of these with data that is not in their capsule
    uint32_t slabs = 0;     // MiB for data
    uint32_t in_capsule_bytes = 0;
    uint32_t queue_commands = 0;  // that each queue has under way all the time; 0: none
  };
  static constexpr Size kForIo{2048, 2048, 64, 4096, 0};
  // An admin queue has three: an event request, a Keep Alive, and the command that the association is at.
  static constexpr Size kForAdmin{16384, 256, 8, 0, 3};

  // Blocks for as long as it takes to pin the memory. `device` outlives it, and `direct`, of the adapter's (HostAdapterOptions). `on_failed`: once, on the
  // reactor, when the adapter does nothing any more. kUnimplemented: the adapter has no windows of type 2B. kUnavailable: too little room.
  static Result<std::unique_ptr<HostPort>> Make(rdma::Device& device, Reactor& reactor, const Size& size,
                                                nvme::rdma_host::DirectMemory* direct,
                                                std::function<void()> on_failed);
  ~HostPort() override = default;
  HostPort(const HostPort&) = delete;
  HostPort& operator=(const HostPort&) = delete;

  rdma::Device& device() const { return device_; }
  rdma::CompletionQueue& completions() { return *completions_; }
  rdma::ReceiveQueue& receives() { return *receives_; }
  // Control reactor: destroys windows that were bound to a queue pair which is broken, and makes others in their place; nullptr where there is none to be had.
  std::vector<rdma::MemoryWindow*> Replace(std::span<rdma::MemoryWindow* const> windows);

  // ---- On the reactor
  nvme::rdma_host::HostAdapter& adapter() { return *adapter_; }

 private:
  HostPort(rdma::Device& device, Reactor& reactor, const Size& size, std::function<void()> on_failed);
  Status FitToDevice();
  Status MakeMemory();
  Status MakeWindows();
  bool Poll() override;

  rdma::Device& device_;
  Size size_;
  nvme::fabrics::DataBuffers data_;
  std::unique_ptr<uint8_t[], void (*)(uint8_t*)> slots_{nullptr, [](uint8_t*) {}};
  std::unique_ptr<rdma::Registration> slots_registration_;
  std::unique_ptr<rdma::Registration> data_registration_;
  std::vector<std::unique_ptr<rdma::MemoryWindow>> windows_;
  std::unique_ptr<rdma::CompletionQueue> completions_;
  std::unique_ptr<rdma::ReceiveQueue> receives_;
  std::unique_ptr<nvme::rdma_host::HostAdapter> adapter_;
};

}  // namespace cleat::modules
