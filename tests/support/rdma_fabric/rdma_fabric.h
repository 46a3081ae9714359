// SPDX-License-Identifier: Apache-2.0
// RDMA adapters and the network between them, in memory, behind the interfaces of src/rdma: for tests of what runs over an adapter, with both ends in one
// process. Faults and orders that a real adapter shows once in a while are made by hand.
//
// What is done, and when. A work moves its data within QueuePair::Post, where nothing is in its way; else it waits, with all that was posted behind it: for
// memory to receive to (for ever), for a peer that is silent, broken or gone, or for Release. Events of the connection manager wait for HandleEvents.
// There is no clock: what ends after a time on a real adapter ends by GiveUp.
//
// What the headers of src/rdma forbid is done as an adapter does it, and recorded: WhatWasWrong. What a peer does wrong - a wrong key, a window that is
// closed, a message that is too long - is none of that: it breaks both queue pairs.
//
// Owned by the test, and outlives all that was made on it. Any thread; one mutex guards all of it. Sources: those of src/rdma's headers.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "rdma/connection_manager.h"
#include "rdma/device.h"
#include "rdma/endpoint.h"

namespace cleat::test {

namespace rdma_fabric {
class ConnectionWorld;
}  // namespace rdma_fabric

// How a queue pair's end does not answer any more: nothing that is sent to it or by it arrives, events of its connection neither.
enum class RdmaSilence : uint8_t {
  kNone,
  kUntilBreak,      // what its peer has posted is flushed when the peer breaks its queue pair
  kUntilDestroyed,  // ... and is not even then: the peer's adapter lets go of it when the queue pair is destroyed
};

// What a connection was begun with (rdma::ConnectOptions).
struct RdmaWay {
  std::string from;
  rdma::Endpoint to;
  uint8_t traffic_class = 0;
};

class RdmaFabric {
 public:
  RdmaFabric();
  ~RdmaFabric();
  RdmaFabric(const RdmaFabric&) = delete;
  RdmaFabric& operator=(const RdmaFabric&) = delete;

  // Limits of a usual adapter, and windows of type 2B.
  static rdma::DeviceLimits UsualLimits();

  // An adapter with these addresses, IPv4 or IPv6. The name, or an address, of one that was removed may be used again.
  void AddAdapter(const std::string& name, const std::vector<std::string>& addresses,
                  const rdma::DeviceLimits& limits = UsualLimits());
  // Devices, connections and listeners hear of it; the other ends of its connections are disconnected.
  void RemoveAdapter(const std::string& name);
  // The adapter does nothing any more, and its device alone says so.
  void FailAdapter(const std::string& name);
  // The adapter gives so many memory windows from now on, whatever it says that it has: others have taken the rest.
  void LeaveWindows(const std::string& name, uint32_t windows);
  // What is sent from the adapter invalidates no key of the peer's from now on, as with an end that has no SEND with invalidate.
  void SendPlainly(const std::string& name);

  // As rdma::OpenConnectionManager and rdma::OpenDevice. One adapter opened twice at a time is recorded as wrong.
  Result<std::unique_ptr<rdma::ConnectionManager>> OpenConnectionManager();
  Result<std::unique_ptr<rdma::Device>> OpenDevice(const std::string& local_address);
  // As rdma::DeviceNameAt.
  Result<std::string> DeviceNameAt(const std::string& local_address) const;

  // ---- Orders, by the numbers of queue pairs, which are those of the whole fabric
  // What is posted to the send queue of `pair` waits from now on, until Release.
  void Hold(uint32_t pair);
  // Lets `works` of what waits go on; all, and what comes later, where none are named.
  void Release(uint32_t pair, uint32_t works = UINT32_MAX);
  // Works that were posted and not done. 0 where there is no such queue pair.
  uint32_t waiting(uint32_t pair) const;
  // The one that was made last of those that an adapter has. 0: it has none.
  uint32_t LastPairOn(const std::string& adapter) const;
  // 0: there is none, or it is destroyed.
  uint32_t PeerOf(uint32_t pair) const;
  void SetSilence(uint32_t pair, RdmaSilence silence);
  // The queue pair breaks, as by an error of its adapter; its peer does not hear of that.
  void Break(uint32_t pair);
  // Time is over for all that waits for somebody who does not answer: works for peers that are silent, broken or gone (kRetriesExceeded), connections
  // that have no answer yet or end (kUnreachable, kDisconnected).
  void GiveUp();

  // ---- What there is on an adapter, or was on the last one of that name
  uint32_t receives_posted(const std::string& adapter) const;
  uint32_t queue_pairs(const std::string& adapter) const;
  uint32_t devices(const std::string& adapter) const;
  uint32_t registrations(const std::string& adapter) const;
  // Whether the peer of any queue pair reaches some of that memory by a window, now.
  bool IsShown(std::span<const uint8_t> memory) const;
  // No region larger than that is registered from now on, as by a limit for locked memory.
  void SetRegionMax(const std::string& adapter, uint64_t bytes);

  // All connections that were begun, since it was asked last.
  std::vector<RdmaWay> TakeWays();

  // Calls that src/rdma's headers forbid, since it was asked last.
  std::vector<std::string> WhatWasWrong();

 private:
  const std::shared_ptr<rdma_fabric::ConnectionWorld> connections_;
};

}  // namespace cleat::test
