// SPDX-License-Identifier: Apache-2.0
// What stands around the vhost front end in tests: a control reactor and I/O reactors on threads of their
// own, a disk in memory that can be made to hang, and a pretend protocol library.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "block/pipeline.h"
#include "reactor/blocking.h"
#include "reactor/reactor.h"
#include "vhost/endpoint.h"
#include "vhost/framing.h"
#include "vhost/protocol_library.h"
#include "virtio/blk_model.h"

namespace cleat::vhost::test {

inline constexpr uint64_t kTestTimeoutNs = 60 * kNsPerSecond;

// Waits for `done` in real time, without a load on the machine. False after kTestTimeoutNs.
bool WaitFor(const std::function<bool()>& done);
// What each descriptor of this process leads to, sorted.
std::vector<std::string> OpenDescriptors();

class ReactorThread {
 public:
  ReactorThread(std::string name, uint32_t index);
  ~ReactorThread();
  Reactor& reactor() { return *reactor_; }

  // Runs it there and waits for its end.
  void Call(const std::function<void()>& function);
  template <typename T>
  T Await(const std::function<Task<T>()>& make) {
    std::promise<T> result;
    reactor_->PostCall([&] { Spawn(Keep<T>(make, &result)); });
    return result.get_future().get();
  }

 private:
  template <typename T>
  static Task<void> Keep(const std::function<Task<T>()>& make, std::promise<T>* result) {
    auto task = make();
    if constexpr (std::is_void_v<T>) {
      co_await std::move(task);
      result->set_value();
    } else {
      result->set_value(co_await std::move(task));
    }
  }
  MonotonicClock clock_;
  std::unique_ptr<Reactor> reactor_;
  std::thread thread_;
};

// 4 MiB in memory; Hold() keeps its requests until LetGo().
class TestDisk final : public block::Device {
 public:
  static constexpr uint64_t kBytes = 4 << 20;
  TestDisk();

  void Hold() { held_ = true; }
  void LetGo() { held_ = false; }
  uint32_t in_storage() const { return in_storage_; }

  uint32_t frames() const override { return 0; }
  Result<std::unique_ptr<block::Channel>> OpenChannel(Reactor& reactor) override;

 private:
  friend class TestChannel;
  std::vector<std::atomic<uint8_t>> bytes_;
  std::atomic<bool> held_{false};
  std::atomic<uint32_t> in_storage_{0};
};

class Host {
 public:
  explicit Host(uint32_t io_reactors = 2);
  ~Host();

  Reactor& control() { return control_.reactor(); }
  ReactorThread& control_thread() { return control_; }
  std::vector<Reactor*> io_reactors();
  BlockingPool& pool() { return pool_; }
  TestDisk& disk() { return *disk_; }
  // A virtio-blk device on the disk; lives as long as the host.
  virtio::BlkModel& AddModel(uint32_t queues, DiskIdentity disk = {});

 private:
  std::vector<std::unique_ptr<ReactorThread>> io_;
  ReactorThread control_;
  BlockingPool pool_{1};
  TestDisk* disk_ = nullptr;
  std::unique_ptr<block::Pipeline> pipeline_;
  std::map<Reactor*, std::unique_ptr<block::PipelineChannel>> channels_;
  std::vector<std::unique_ptr<virtio::BlkModel>> models_;
};

// Answers like librte_vhost, on a thread for each connection. It fails the test when it gets what the relay
// should have kept from it.
class PretendLibrary final : public ProtocolLibrary {
 public:
  ~PretendLibrary() override;
  uint32_t devices_max() const override { return 100; }
  Result<UniqueFd> Connect(const Offer& offer) override;

  void RefuseRequest(Request request) { refused_ = static_cast<uint32_t>(request); }
  void FallSilent() { silent_ = true; }  // it reads on, and answers nothing
  void FailConnects(int count) { failing_connects_ = count; }
  uint64_t messages() const { return messages_; }

 private:
  void Serve(UniqueFd fd);
  bool Answer(const UniqueFd& fd, const Message& message);
  std::vector<std::thread> threads_;
  std::atomic<uint32_t> refused_{0};
  std::atomic<bool> silent_{false};
  std::atomic<int> failing_connects_{0};
  std::atomic<uint64_t> messages_{0};
};

// A directory that goes with the test.
class TemporaryDirectory {
 public:
  TemporaryDirectory();
  ~TemporaryDirectory();
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// An endpoint on the control reactor, stopped when it goes.
class RunningEndpoint {
 public:
  RunningEndpoint(Host& host, EndpointFactory& factory, virtio::DeviceModel& model, const std::string& path,
                  SocketMode mode = SocketMode::kClient);
  ~RunningEndpoint();

  void Stop();
  Status Yield(uint64_t within_ns);
  EndpointStatus status();
  bool WaitState(EndpointState state);
  bool WaitMessage(const std::string& part);

 private:
  Host& host_;
  std::unique_ptr<Endpoint> endpoint_;
};

}  // namespace cleat::vhost::test
