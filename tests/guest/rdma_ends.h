// SPDX-License-Identifier: Apache-2.0
// Both ends of RDMA connections, in one process and one thread, over the adapters that a program has: real ones (rdma_verbs.cc), or those of a fabric in memory
// (tests/unit/rdma/fabric_verbs_test.cc).
#pragma once

#include <gtest/gtest.h>
#include <poll.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "rdma/connection_manager.h"
#include "rdma/device.h"
#include "rdma/verbs.h"

namespace cleat::rdma::rdma_verbs {

constexpr int kHangSeconds = 30;  // for what can only hang
constexpr uint32_t kBufferBytes = 4096;
constexpr uint32_t kBuffers = 8;  // of each end's receive queue
constexpr uint32_t kMemoryBytes = 64 << 10;
constexpr uint64_t kReceiveId = 1000;  // ... and the buffer's number
constexpr SendLimits kWanted{.works = 64, .pieces = 4, .inline_bytes = 64, .read_credits = 4};

// The adapters of this program.
class AdaptersUnderTest {
 public:
  virtual ~AdaptersUnderTest() = default;
  virtual std::string own_address() const = 0;
  // An address of another adapter; nullptr: there is none.
  virtual const char* other_address() const = 0;
  virtual Result<std::unique_ptr<Device>> Open(const std::string& local_address) = 0;
  virtual Result<std::unique_ptr<ConnectionManager>> OpenManager() = 0;
  // Behind each test, when nothing of it is left.
  virtual void Check() {}
};
AdaptersUnderTest& UnderTest();  // each program's own

inline std::string OwnAddress() {
  return UnderTest().own_address();
}
inline const char* OtherAddress() {
  return UnderTest().other_address();
}

inline std::vector<uint8_t> Bytes(const std::string& text) {
  return {text.begin(), text.end()};
}
// Without the zeros that fill up private data.
inline std::string Text(std::span<const uint8_t> bytes) {
  return {bytes.begin(), std::ranges::find(bytes, 0)};
}

inline bool ReadableWithin(int fd, int timeout_ms) {
  pollfd one{fd, POLLIN, 0};
  return poll(&one, 1, timeout_ms) == 1;
}

// Until `there` holds, `step` by step.
inline bool Until(const std::function<bool()>& there, const std::function<void()>& step) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(kHangSeconds);
  while (!there()) {
    if (std::chrono::steady_clock::now() > end) return false;
    step();
  }
  return true;
}

template <typename T>
T Must(Result<T> result) {
  if (!result.ok()) {
    std::fprintf(stderr, "%s\n", result.error().message.c_str());
    std::abort();
  }
  return std::move(result).value();
}

// One end: its queues, its memory, its connection.
class End final : public ConnectionOwner {
 public:
  explicit End(Device& adapter, bool receives = true) : device(adapter) {
    completions = Must(device.MakeCompletionQueue(256));
    receive_queue = Must(device.MakeReceiveQueue(kBuffers * 2));
    buffers.resize(static_cast<size_t>(kBuffers) * kBufferBytes);
    memory.resize(kMemoryBytes);
    received_in = Must(device.Register(buffers, {.local_write = true}));
    registration = Must(device.Register(
        memory, {.local_write = true, .peer_may_read = true, .peer_may_write = true, .windows = true}));
    for (uint32_t i = 0; receives && i < kBuffers; ++i) Receive(i);
  }

  void Established(Connection& /*connection*/, std::span<const uint8_t> private_data) override {
    established = true;
    data = Text(private_data);
  }
  void Ended(Connection& /*connection*/, const ConnectionEnd& end) override {
    EXPECT_FALSE(ended.has_value());
    ended = end.kind;
    error = end.error.message;
    data = Text(end.private_data);
    if (goes_when_ended) connection.reset();
  }

  QueuePairParts parts() { return {&device, completions.get(), receive_queue.get(), kWanted}; }
  QueuePair& pair() { return *connection->queue_pair(); }
  LocalPiece Piece(uint32_t offset, uint32_t length) const {
    return {reinterpret_cast<uint64_t>(memory.data()) + offset, length, registration->local_key()};
  }
  uint64_t AddressAt(uint32_t offset) const { return reinterpret_cast<uint64_t>(memory.data()) + offset; }

  void Receive(uint32_t buffer) {
    ReceiveWork work{
        kReceiveId + buffer,
        {reinterpret_cast<uint64_t>(buffers.data()) + static_cast<uint64_t>(buffer) * kBufferBytes,
         kBufferBytes, received_in->local_key()}};
    ASSERT_EQ(receive_queue->Post({&work, 1}), 1U);
  }
  // What came there, which is posted again.
  std::string Received(const Completion& completion) {
    const auto buffer = static_cast<uint32_t>(completion.id - kReceiveId);
    std::string text(
        reinterpret_cast<const char*>(buffers.data()) + static_cast<size_t>(buffer) * kBufferBytes,
        completion.received_bytes);
    Receive(buffer);
    return text;
  }

  void Post(const SendWork& work) { ASSERT_EQ(pair().Post({&work, 1}), 1U); }
  void Put(uint32_t offset, const std::string& text) {
    std::memcpy(memory.data() + offset, text.data(), text.size());
  }
  std::string At(uint32_t offset, size_t bytes) const {
    return {reinterpret_cast<const char*>(memory.data()) + offset, bytes};
  }

  // The next completion; of the id 0 where none comes.
  Completion Next() {
    Completion completion;
    EXPECT_TRUE(Until([&] { return completions->Poll({&completion, 1}) == 1; }, [] {}));
    return completion;
  }
  // Of that work, which succeeds.
  void Done(uint64_t id) {
    const Completion completion = Next();
    EXPECT_EQ(completion.id, id);
    EXPECT_EQ(completion.status, WorkStatus::kDone) << NameOf(completion.status);
  }

  Device& device;
  std::vector<uint8_t> buffers;
  std::vector<uint8_t> memory;
  std::unique_ptr<CompletionQueue> completions;
  std::unique_ptr<Registration> received_in;
  std::unique_ptr<ReceiveQueue> receive_queue;  // goes before the memory that its works name
  std::unique_ptr<Registration> registration;
  std::unique_ptr<Connection> connection;  // goes first
  bool goes_when_ended = false;
  bool established = false;
  std::optional<EndKind> ended;
  std::string error;
  std::string data;
};

class Door final : public ListenerOwner {
 public:
  void Requested(Listener& /*listener*/, std::unique_ptr<ConnectRequest> request) override {
    requests.push_back(std::move(request));
  }
  void Ended(Listener& /*listener*/, const Error& why) override { ended = why.message; }

  std::vector<std::unique_ptr<ConnectRequest>> requests;
  std::string ended;
};

// The adapter, its connection manager and a listener.
class Adapter {
 public:
  Adapter() {
    device = Must(UnderTest().Open(OwnAddress()));
    manager = Must(UnderTest().OpenManager());
    listener = Must(manager->Listen({OwnAddress(), 0}, 16, door));
  }

  bool PumpUntil(const std::function<bool()>& there) {
    return Until(there, [&] {
      if (ReadableWithin(manager->descriptor(), 50)) manager->HandleEvents();
    });
  }

  void BeginToConnect(End& from, const Endpoint& to, const std::string& data = "",
                      uint32_t timeout_ms = kHangSeconds * 1000, const std::string& own = OwnAddress()) {
    ConnectOptions options;
    options.from = own;
    options.to = to;
    options.parts = from.parts();
    const std::vector<uint8_t> bytes = Bytes(data);
    options.private_data = bytes;
    options.reads_served = 8;
    options.traffic_class = 26 << 2;
    options.timeout_ms = timeout_ms;
    from.connection = Must(manager->Connect(options, from));
  }

  // From `from` to `to`, both established.
  void Connect(End& from, End& to, const std::string& asked = "", const std::string& answered = "") {
    BeginToConnect(from, listener->local(), asked);
    ASSERT_TRUE(PumpUntil([&] { return !door.requests.empty(); }));
    to.connection = Must(door.requests.front()->Accept(to.parts(), Bytes(answered), to));
    door.requests.clear();
    ASSERT_TRUE(PumpUntil([&] { return from.established && to.established; })) << from.error << to.error;
  }

  Door door;
  std::unique_ptr<Device> device;
  std::unique_ptr<ConnectionManager> manager;
  std::unique_ptr<Listener> listener;  // goes first
};

class VerbsTest : public testing::Test {
 protected:
  ~VerbsTest() override { UnderTest().Check(); }
};

}  // namespace cleat::rdma::rdma_verbs
