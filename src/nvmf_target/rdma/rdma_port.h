// SPDX-License-Identifier: Apache-2.0
// What the queues over RDMA on one reactor have of one adapter: its completion queue, which the reactor polls, memory for capsules, and the keys of the
// memory that commands have there.
//
// Memory, pinned as long as this lives: kSlots capsules, kQueuesMax times the staging memory of a queue, and the reactor's pool for registered data
// (IoPort::registered); some 105 MiB where the adapter has room for as many capsules.
//
// Made and destroyed on the control reactor, without queues then; used on its own one between Start and Stop.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/intrusive_list.h"
#include "base/result.h"
#include "nvme/rdma_target/target_adapter.h"
#include "nvmf/rdma/port_poller.h"
#include "nvmf_target/io/io_port.h"
#include "rdma/device.h"
#include "reactor/reactor.h"

namespace cleat::nvmf_target {

// Hears of a turn of the port's in which it has asked for one.
class RdmaTurn {
 public:
  virtual void EndTurn() = 0;
  ListHook turn;

 protected:
  ~RdmaTurn() = default;
};

class RdmaPort final : public nvmf::RdmaPortPoller {
 public:
  static constexpr uint32_t kQueuesMax = 1024;
  static constexpr uint32_t kSlots = 8192;            // capsules: the entries of all queues together
  static constexpr uint32_t kInCapsuleBytes = 4096;   // of data in a capsule
  static constexpr uint32_t kStagingBytes = 4096;     // of a queue, each way
  static constexpr uint32_t kEntriesBytes = 1024;     // of a queue: 64 answers that are being sent
  static constexpr uint32_t kCompletionsMax = 65536;  // that may be outstanding
  static constexpr uint32_t kReadsMax = 2048;         // outstanding, of all queues

  // What a queue has of the port's memory.
  struct Staging {
    uint32_t number = 0;
    rdma::LocalPiece in, out;
    rdma::LocalPiece entries;  // for completion entries
  };

  // Blocks for as long as it takes to pin the memory. `device` outlives it. `on_failed`: once, on the reactor, when the adapter does nothing any more.
  static Result<std::unique_ptr<RdmaPort>> Make(rdma::Device& device, IoPort& port,
                                                std::function<void()> on_failed);
  ~RdmaPort() override;
  RdmaPort(const RdmaPort&) = delete;
  RdmaPort& operator=(const RdmaPort&) = delete;

  rdma::Device& device() const { return device_; }
  rdma::CompletionQueue& completions() { return *completions_; }
  rdma::ReceiveQueue& receives() { return *receives_; }
  // Of a queue that is asked for.
  rdma::SendLimits LimitsFor(uint32_t entries) const;
  // Control reactor. kResourceExhausted: there are kQueuesMax.
  Result<Staging> TakeStaging();
  void GiveStaging(const Staging& staging) { free_staging_.push_back(staging.number); }

  // ---- On the reactor
  nvme::rdma_target::TargetAdapter& adapter() { return *adapter_; }
  // `who` has its turn at the end of this one, or of the next.
  void Wake(RdmaTurn& who);
  using RdmaPortPoller::Wake;

 private:
  // The device's completion queue, behind each look into which the reactor's time is that of the look: what has come may have come too late.
  class TimedCompletions final : public rdma::CompletionQueue {
   public:
    TimedCompletions(rdma::CompletionQueue& of_device, Reactor& reactor)
        : of_device_(of_device), reactor_(reactor) {}
    uint32_t Poll(std::span<rdma::Completion> completions) override {
      const uint32_t count = of_device_.Poll(completions);
      if (count > 0) reactor_.RefreshNow();
      return count;
    }
    Status Arm() override { return of_device_.Arm(); }
    int descriptor() const override { return of_device_.descriptor(); }
    void TakeEvents() override { of_device_.TakeEvents(); }

   private:
    rdma::CompletionQueue& of_device_;
    Reactor& reactor_;
  };
  RdmaPort(rdma::Device& device, IoPort& port, std::function<void()> on_failed)
      : RdmaPortPoller(port.reactor(), std::move(on_failed)), device_(device), port_(port) {}
  Status MakeMemory();
  rdma::LocalPiece PieceAt(uint64_t offset_bytes, uint32_t bytes) const;
  bool Poll() override;
  bool Turn();

  rdma::Device& device_;
  IoPort& port_;
  std::unique_ptr<uint8_t[], void (*)(uint8_t*)> memory_{nullptr, [](uint8_t*) {}};
  std::unique_ptr<rdma::Registration> memory_registration_;
  std::unique_ptr<rdma::Registration> data_registration_;
  std::unique_ptr<rdma::CompletionQueue> completions_;
  std::unique_ptr<TimedCompletions> timed_completions_;
  std::unique_ptr<rdma::ReceiveQueue> receives_;
  std::unique_ptr<nvme::rdma_target::TargetAdapter> adapter_;
  uint32_t slots_ = 0;
  std::vector<uint32_t> free_staging_;
  IntrusiveList<RdmaTurn, &RdmaTurn::turn> turns_;
};

}  // namespace cleat::nvmf_target
