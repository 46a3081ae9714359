// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/target_cost/fake_adapter.h"

#include <sys/eventfd.h>

#include <cstring>
#include <string>
#include <utility>

#include "base/unique_fd.h"

namespace cleat::bench {
namespace {

using rdma::Completion;
using rdma::SendOp;

uint8_t* At(uint64_t address) {
  return reinterpret_cast<uint8_t*>(address);
}

class FakeRegistration final : public rdma::Registration {
 public:
  FakeRegistration() : Registration(1, 2) {}
};

class FakePair final : public rdma::QueuePair {
 public:
  FakePair(FakeAdapter& adapter, uint32_t number, const rdma::SendLimits& limits)
      : adapter_(adapter), number_(number), limits_(limits) {}
  uint32_t number() const override { return number_; }
  const rdma::SendLimits& limits() const override { return limits_; }
  uint32_t Post(std::span<const rdma::SendWork> works) override {
    for (const rdma::SendWork& work : works) Do(work);
    return static_cast<uint32_t>(works.size());
  }
  void Break() override {}

 private:
  void Do(const rdma::SendWork& work) {
    if (work.op == SendOp::kRead) {
      uint64_t from = work.remote_address;
      for (const rdma::LocalPiece& piece : work.pieces) {
        std::memcpy(At(piece.address), At(from), piece.length_bytes);
        from += piece.length_bytes;
      }
    } else if (work.op != SendOp::kWrite) {
      std::memcpy(&adapter_.answers.emplace_back(), At(work.pieces[0].address),
                  sizeof(nvme::fabrics::CompletionEntry));
    }
    if (work.signaled) adapter_.completions.Push({.id = work.id, .queue_pair = number_});
  }

  FakeAdapter& adapter_;
  const uint32_t number_;
  const rdma::SendLimits limits_;
};

class FakeReceiveQueue final : public rdma::ReceiveQueue {
 public:
  explicit FakeReceiveQueue(FakeAdapter& adapter) : adapter_(adapter) {}
  uint32_t Post(std::span<const rdma::ReceiveWork> works) override {
    for (const rdma::ReceiveWork& work : works) adapter_.receives.Push(work);
    return static_cast<uint32_t>(works.size());
  }

 private:
  FakeAdapter& adapter_;
};

class FakeCompletionQueue final : public rdma::CompletionQueue {
 public:
  explicit FakeCompletionQueue(FakeAdapter& adapter) : adapter_(adapter) {}
  uint32_t Poll(std::span<Completion> completions) override {
    uint32_t count = 0;
    while (count < completions.size() && !adapter_.completions.empty())
      completions[count++] = adapter_.completions.Pop();
    return count;
  }
  Status Arm() override {
    adapter_.armed = true;
    return {};
  }
  int descriptor() const override { return adapter_.event.get(); }
  void TakeEvents() override {
    eventfd_t count = 0;
    eventfd_read(adapter_.event.get(), &count);
  }

 private:
  FakeAdapter& adapter_;
};

class FakeDevice final : public rdma::Device {
 public:
  explicit FakeDevice(FakeAdapter& adapter) : adapter_(adapter) {}
  const std::string& name() const override { return name_; }
  const rdma::DeviceLimits& limits() const override { return limits_; }
  Result<std::unique_ptr<rdma::Registration>> Register(std::span<uint8_t> /*memory*/,
                                                       const rdma::MemoryAccess& /*access*/) override {
    return std::unique_ptr<rdma::Registration>(std::make_unique<FakeRegistration>());
  }
  Result<std::unique_ptr<rdma::MemoryWindow>> MakeWindow() override {
    return Error(ErrorCode::kUnavailable, "a target needs no windows");
  }
  Result<std::unique_ptr<rdma::CompletionQueue>> MakeCompletionQueue(uint32_t /*entries*/,
                                                                     uint32_t /*vector*/) override {
    return std::unique_ptr<rdma::CompletionQueue>(std::make_unique<FakeCompletionQueue>(adapter_));
  }
  Result<std::unique_ptr<rdma::ReceiveQueue>> MakeReceiveQueue(uint32_t /*entries*/) override {
    return std::unique_ptr<rdma::ReceiveQueue>(std::make_unique<FakeReceiveQueue>(adapter_));
  }
  int descriptor() const override { return event_.get(); }
  Status TakeEvents() override { return {}; }

 private:
  FakeAdapter& adapter_;
  const std::string name_ = "fake0";
  // The limits are those of usual adapters.
  const rdma::DeviceLimits limits_{.queue_pairs = 4096,
                                   .works = 4096,
                                   .pieces = 16,
                                   .read_pieces = 16,
                                   .receive_queues = 1024,
                                   .receive_entries = 16384,
                                   .completion_entries = 65536,
                                   .reads_served = 16,
                                   .reads_sent = 16,
                                   .windows = 4096,
                                   .windows_of_type_2b = true};
  const UniqueFd event_{eventfd(0, EFD_CLOEXEC)};
};

// ---- Connections

class FakeConnection final : public rdma::Connection {
 public:
  FakeConnection(FakeAdapter& adapter, const rdma::SendLimits& limits)
      : adapter_(adapter), pair_(std::make_unique<FakePair>(adapter, ++adapter.pairs, limits)) {}
  rdma::Endpoint local() const override { return {kFakeAddress, 4420}; }
  rdma::Endpoint peer() const override { return {"192.0.2.2", 40000}; }
  rdma::QueuePair* queue_pair() override { return pair_.get(); }
  Status Accept(std::span<const uint8_t> /*private_data*/) override {
    ++adapter_.accepted;
    return {};
  }
  void DestroyQueuePair() override { pair_.reset(); }
  void Disconnect() override {}

 private:
  FakeAdapter& adapter_;
  std::unique_ptr<FakePair> pair_;
};

class FakeRequest final : public rdma::ConnectRequest {
 public:
  FakeRequest(FakeAdapter& adapter, std::span<const uint8_t> private_data)
      : adapter_(adapter), private_data_(private_data.begin(), private_data.end()) {}
  rdma::Endpoint local() const override { return {kFakeAddress, 4420}; }
  rdma::Endpoint peer() const override { return {"192.0.2.2", 40000}; }
  const std::string& device_name() const override { return name_; }
  bool IsOn(const rdma::Device& /*device*/) const override { return true; }
  std::span<const uint8_t> private_data() const override { return private_data_; }
  uint32_t peer_serves_reads() const override { return 16; }
  uint32_t peer_sends_reads() const override { return 0; }
  Result<std::unique_ptr<rdma::Connection>> MakeConnection(const rdma::QueuePairParts& parts,
                                                           rdma::ConnectionOwner& /*owner*/) override {
    return std::unique_ptr<rdma::Connection>(std::make_unique<FakeConnection>(adapter_, parts.wanted));
  }
  void Reject(std::span<const uint8_t> /*private_data*/) override {}

 private:
  FakeAdapter& adapter_;
  const std::vector<uint8_t> private_data_;
  const std::string name_ = "fake0";
};

class FakeListener final : public rdma::Listener {
 public:
  rdma::Endpoint local() const override { return {kFakeAddress, 4420}; }
};

class FakeManager final : public rdma::ConnectionManager {
 public:
  explicit FakeManager(FakeAdapter& adapter) : adapter_(adapter) {}
  int descriptor() const override { return event_.get(); }
  void HandleEvents() override {}
  Result<std::unique_ptr<rdma::Listener>> Listen(const rdma::Endpoint& /*at*/, int /*backlog*/,
                                                 rdma::ListenerOwner& owner) override {
    auto listener = std::make_unique<FakeListener>();
    adapter_.listener = listener.get();
    adapter_.listener_owner = &owner;
    return std::unique_ptr<rdma::Listener>(std::move(listener));
  }
  Result<std::unique_ptr<rdma::Connection>> Connect(const rdma::ConnectOptions& /*options*/,
                                                    rdma::ConnectionOwner& /*owner*/) override {
    return Error(ErrorCode::kUnavailable, "a target does not connect");
  }

 private:
  FakeAdapter& adapter_;
  const UniqueFd event_{eventfd(0, EFD_CLOEXEC)};
};

}  // namespace

void FakeAdapter::Ask(std::span<const uint8_t> private_data) {
  listener_owner->Requested(*listener, std::make_unique<FakeRequest>(*this, private_data));
}

void FakeAdapter::SendCapsule(uint32_t pair, const nvme::fabrics::SubmissionEntry& entry) {
  const rdma::ReceiveWork receive = receives.Pop();
  std::memcpy(At(receive.piece.address), &entry, sizeof(entry));
  completions.Push({.id = receive.id, .queue_pair = pair, .received_bytes = sizeof(entry)});
  if (std::exchange(armed, false)) eventfd_write(event.get(), 1);
}

nvmf::RdmaLibrary MakeFakeLibrary(FakeAdapter& adapter) {
  nvmf::RdmaLibrary library;
  library.open_manager = [&adapter]() -> Result<std::unique_ptr<rdma::ConnectionManager>> {
    return std::unique_ptr<rdma::ConnectionManager>(std::make_unique<FakeManager>(adapter));
  };
  library.device_name_at = [](const std::string&) -> Result<std::string> { return std::string("fake0"); };
  library.open_device = [&adapter](const std::string&) -> Result<std::unique_ptr<rdma::Device>> {
    return std::unique_ptr<rdma::Device>(std::make_unique<FakeDevice>(adapter));
  };
  return library;
}

}  // namespace cleat::bench
