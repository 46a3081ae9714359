// SPDX-License-Identifier: Apache-2.0
// A Device (rdma/device.h) by libibverbs.
//
// librdmacm opens adapters: the device's own identifier, which is bound to the adapter's address and does nothing else, keeps the adapter open for as long as the
// device lives, and hears of the removal. librdmacm closes one that was removed once nobody has an identifier on it any more, and it has looked which adapters
// there are, which it does when it meets one that it does not know. Until then the kernel keeps soft-RoCE's, and has no other one on that network device.
#pragma once

#include <memory>
#include <string>

#include "base/unique_fd.h"
#include "rdma/device.h"
#include "rdma/ibverbs/library.h"

namespace cleat::rdma {

class AdapterDevice final : public Device {
 public:
  static Result<std::unique_ptr<Device>> Open(const Library& library, const std::string& local_address);
  ~AdapterDevice() override;
  AdapterDevice(const AdapterDevice&) = delete;
  AdapterDevice& operator=(const AdapterDevice&) = delete;

  const std::string& name() const override { return name_; }
  const DeviceLimits& limits() const override { return limits_; }
  Result<std::unique_ptr<Registration>> Register(std::span<uint8_t> memory,
                                                 const MemoryAccess& access) override;
  Result<std::unique_ptr<MemoryWindow>> MakeWindow() override;
  Result<std::unique_ptr<CompletionQueue>> MakeCompletionQueue(uint32_t entries, uint32_t vector) override;
  Result<std::unique_ptr<ReceiveQueue>> MakeReceiveQueue(uint32_t entries) override;
  int descriptor() const override { return events_.get(); }
  Status TakeEvents() override;

  ibv_context* context() const { return id_->verbs; }
  ibv_pd* domain() const { return domain_; }

 private:
  AdapterDevice(const Library& library, EventChannel channel, CmId id, ibv_pd& domain,
                const ibv_device_attr& attributes, UniqueFd events);
  void TakeManagerEvents();
  void TakeAdapterEvents();
  void End(const char* why);

  const Library& library_;
  const EventChannel channel_;
  const CmId id_;
  ibv_pd* const domain_;
  const std::string name_;
  const DeviceLimits limits_;
  const unsigned int invalidated_flag_;  // completion_queue.h
  const UniqueFd events_;                // readable when the channel's or the adapter's descriptor is
  Status state_;
};

}  // namespace cleat::rdma
