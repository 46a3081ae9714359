// SPDX-License-Identifier: Apache-2.0
// A minimal vhost-user back end on one thread: answers the handshake, maps memory, serves rings from a
// FakeDevice. It hangs up on anything it doesn't like. Made with a connected socket; ends when the front end
// hangs up, when it has reached its request limit (as if it had been killed), or when it is destroyed.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "base/unique_fd.h"
#include "fake_device.h"
#include "perf/driver/blk_driver.h"
#include "perf/vhost_user/message_socket.h"

namespace cleat::perf {

struct FakeBackendOptions {
  uint16_t queues = 1;
  uint64_t features = kDefaultBlkFeatures | wire::kFeatureProtocolFeatures;
  uint64_t protocol_features = kDefaultProtocolFeatures;
  uint64_t dies_after_requests = UINT64_MAX;  // served completely; then one more is fetched and lost
  bool serves = true;                         // the rings at all
  bool calls = true;                          // when the driver wants it
};

class FakeBackend {
 public:
  static constexpr uint16_t kQueuesMax = 4;

  FakeBackend(UniqueFd connected, FakeDevice& device, const FakeBackendOptions& options = {});
  ~FakeBackend();

  void Join();  // until it has ended by itself
  // After Join:
  const std::vector<uint32_t>& requests() const { return requests_; }  // messages in order of arrival
  bool inflight_was_given() const { return inflight_given_; }
  uint64_t served() const { return served_; }
  const std::vector<uint32_t>& bases() const { return bases_; }  // of SET_VRING_BASE, in order of arrival
  bool any_ring_broken() const;

 private:
  struct Region {
    wire::MemoryRegion where{};
    UniqueFd fd;
    uint8_t* host = nullptr;
  };
  struct Queue {
    FakeRing ring;
    wire::VringAddr address{};
    uint16_t size = 0;
    uint16_t base = 0;
    bool started = false;
    bool enabled = false;
    UniqueFd kick, call;
  };

  void Run();
  bool Handle(Message& message);  // false: hang up
  bool HandleMemTable(Message& message);
  bool HandleVring(Message& message);
  bool HandleVringFd(Message& message);
  bool HandleConfig(const Message& message);
  bool HandleInflight(Message& message);
  bool Reply(const Message& to, std::span<const uint8_t> payload, std::span<const int> fds = {});
  bool StartRing(Queue& queue);
  bool Locate(const Queue& queue, FakeRing::Layout* layout) const;
  uint8_t* User(uint64_t address, uint64_t size_bytes) const;
  uint8_t* Gpa(uint64_t gpa, uint64_t size_bytes) const;
  bool ServeQueue(uint16_t index);  // false: dies
  void Unmap();

  MessageSocket socket_;
  UniqueFd stop_;
  FakeDevice& device_;
  const FakeBackendOptions options_;
  uint64_t features_ = 0;
  std::vector<Region> regions_;
  std::array<Queue, kQueuesMax> queues_;
  UniqueFd inflight_;
  UniqueFd backend_channel_;
  bool inflight_given_ = false;
  uint64_t served_ = 0;
  std::vector<uint32_t> requests_;
  std::vector<uint32_t> bases_;
  std::thread thread_;
};

// Both ends of a new socket pair.
std::array<UniqueFd, 2> SocketPair();

}  // namespace cleat::perf
