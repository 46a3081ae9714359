// SPDX-License-Identifier: Apache-2.0
// An engine's threads in a test: a control reactor and an I/O reactor that run, a pool of clients, and the test's own
// thread that asks them to do things and waits. It sleeps when they do.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "block/pipeline.h"
#include "modules/rbd/client_pool.h"
#include "modules/rbd/rbd.h"
#include "tests/ceph/running_reactor.h"
#include "tests/unit/modules/test_disk.h"

namespace cleat::test {

inline constexpr std::chrono::seconds kWaitMax{120};  // for what can only hang

class CephHost;

// A disk as an engine has it: opened, owned by a pipeline, with a channel on the I/O reactor.
class HostDisk {
 public:
  HostDisk(CephHost& host, std::unique_ptr<block::Device> device, block::AccessMode mode);
  ~HostDisk();  // closes it
  HostDisk(const HostDisk&) = delete;
  HostDisk& operator=(const HostDisk&) = delete;

  Status Acquire();
  Status Release();
  Status Resize(uint64_t bytes);
  Status Close();
  block::Pipeline& pipeline() { return *pipeline_; }
  block::PipelineChannel& channel() { return *channel_; }

  // Starts a request on the I/O reactor; `io` stays until it is over. One piece of memory, unless segments are set.
  std::future<block::IoStatus> Start(Io& io, block::Op op, uint64_t offset, uint64_t length);
  block::IoStatus Do(block::Op op, uint64_t offset, uint64_t length, Arena* arena = nullptr, uint64_t at = 0);

 private:
  CephHost& host_;
  std::unique_ptr<block::Pipeline> pipeline_;
  std::unique_ptr<block::PipelineChannel> channel_;
  bool open_ = true;
};

using OpenResult = Result<std::unique_ptr<block::Device>>;

class CephHost {
 public:
  explicit CephHost(const std::string& engine = "blue") {
    control_.Do([&] { pool_ = std::make_unique<modules::ClientPool>(*control_, engine); });
  }
  ~CephHost() {
    EXPECT_TRUE(End(120 * kNsPerSecond)) << "a client's thread does not end";
    control_.Do([&] { pool_.reset(); });
  }
  CephHost(const CephHost&) = delete;
  CephHost& operator=(const CephHost&) = delete;

  bool End(uint64_t wait_ns) {
    return control_.Await<bool>([&] { return pool_->End(wait_ns); });
  }
  RunningReactor& control() { return control_; }
  RunningReactor& io() { return io_; }
  modules::ClientPool& pool() { return *pool_; }  // on control

  static modules::RbdOptions Options(std::shared_ptr<const modules::ClusterOptions> cluster,
                                     const std::string& image, uint64_t bytes,
                                     block::AccessMode mode = block::AccessMode::kReadWrite,
                                     uint32_t logical_block = 512) {
    return {block::DiskShape("disks/" + image, bytes, logical_block, 4096), std::move(cluster), "rbd", image,
            mode};
  }
  std::future<OpenResult> BeginOpen(const modules::RbdOptions& options) {
    return control_.Begin<OpenResult>([this, options] { return modules::OpenRbd(options, *pool_); });
  }
  OpenResult Open(const modules::RbdOptions& options) { return BeginOpen(options).get(); }

  // Opened and with a channel; owned if it is to be written. nullptr, and a failure, when that does not work.
  std::unique_ptr<HostDisk> OpenDisk(const modules::RbdOptions& options) {
    auto opened = Open(options);
    if (!opened) {
      ADD_FAILURE() << opened.error().message;
      return nullptr;
    }
    auto disk = std::make_unique<HostDisk>(*this, std::move(opened).value(), options.access);
    const Status acquired = disk->Acquire();
    if (!acquired) ADD_FAILURE() << acquired.error().message;
    return disk;
  }

  std::vector<modules::RadosClientStatus> ClientStatus() {
    return control_.Call<std::vector<modules::RadosClientStatus>>([&] { return pool_->status(); });
  }

 private:
  const MonotonicClock clock_;
  RunningReactor control_{clock_, "control"};
  RunningReactor io_{clock_, "io0"};
  std::unique_ptr<modules::ClientPool> pool_;
};

inline HostDisk::HostDisk(CephHost& host, std::unique_ptr<block::Device> device, block::AccessMode mode)
    : host_(host) {
  auto pipeline = block::Pipeline::Make(std::move(device), mode);
  CLEAT_CHECK(pipeline.ok());
  pipeline_ = std::move(pipeline).value();
  host_.io().Do([&] { channel_ = std::move(pipeline_->OpenChannel(*host_.io())).value(); });
}

inline HostDisk::~HostDisk() {
  if (!open_) return;
  const Status closed = Close();
  EXPECT_TRUE(closed.ok()) << closed.error().message;
}

inline Status HostDisk::Acquire() {
  return host_.control().Await<Status>([&] { return pipeline_->Acquire(); });
}

inline Status HostDisk::Release() {
  return host_.control().Await<Status>([&] { return pipeline_->Release(); });
}

inline Status HostDisk::Resize(uint64_t bytes) {
  return host_.control().Await<Status>([&] { return pipeline_->Resize(bytes); });
}

inline Status HostDisk::Close() {
  open_ = false;
  host_.io().Do([&] { channel_.reset(); });
  Status closed = host_.control().Await<Status>([&] { return pipeline_->Close(); });
  host_.control().Do([&] { pipeline_.reset(); });
  return closed;
}

inline std::future<block::IoStatus> HostDisk::Start(Io& io, block::Op op, uint64_t offset, uint64_t length) {
  const auto promise = std::make_shared<std::promise<block::IoStatus>>();
  auto future = promise->get_future();
  io.on_done = [&io, promise] { promise->set_value(io.status()); };
  host_.io()->PostCall([this, &io, op, offset, length] { io.Submit(*channel_, op, offset, length); });
  return future;
}

inline block::IoStatus HostDisk::Do(block::Op op, uint64_t offset, uint64_t length, Arena* arena,
                                    uint64_t at) {
  Io io;
  if (arena != nullptr) io.segments = {{&arena->region(), at, static_cast<uint32_t>(length)}};
  auto future = Start(io, op, offset, length);
  return future.get();
}

}  // namespace cleat::test
