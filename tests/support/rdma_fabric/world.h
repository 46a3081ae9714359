// SPDX-License-Identifier: Apache-2.0
// What the objects of a fabric share: adapters, devices, queues and queue pairs, and the rules by which works are done. All of it under one mutex.
//
// The states are kept by shared_ptr, so that an object which is destroyed in a wrong order is recorded as wrong, and breaks no test's memory.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "base/unique_fd.h"
#include "rdma/connection.h"
#include "rdma/device.h"
#include "rdma/memory.h"
#include "rdma/verbs.h"
#include "tests/support/rdma_fabric/rdma_fabric.h"

namespace cleat::test::rdma_fabric {

// An eventfd; readable from Set to Clear.
class EventFd {
 public:
  EventFd();
  int get() const { return fd_.get(); }
  void Set() const;
  void Clear() const;

 private:
  const UniqueFd fd_;
};

struct AdapterState {
  std::string name;
  std::vector<std::string> addresses;
  rdma::DeviceLimits limits;
  uint32_t windows_left = UINT32_MAX;
  bool sends_plainly = false;
  bool gone = false;  // does nothing any more
  uint32_t devices = 0;
  uint32_t queue_pairs = 0;
  uint64_t region_max = UINT64_MAX;  // bytes
};

struct Region {
  uint64_t address = 0;
  uint64_t bytes = 0;
  rdma::MemoryAccess access;
  uint32_t remote_key = 0;
};

struct PairState;

struct WindowState {
  PairState* pair = nullptr;  // to which it is bound; nullptr: it is not
  uint32_t key = 0;           // of the last binding
  uint32_t local_key = 0;     // of the registration
  rdma::WindowBinding binding;
};

struct ReceiveState;

struct DeviceState {
  std::shared_ptr<AdapterState> adapter;
  EventFd events;
  std::map<uint32_t, Region> regions;       // by the local key
  std::map<uint32_t, WindowState> windows;  // by what stays of their keys
  std::vector<ReceiveState*> receive_queues;
  uint32_t completion_queues = 0;
  uint32_t queue_pairs = 0;
};

struct CompletionState {
  struct Entry {
    rdma::Completion completion;
    uint32_t frees = 0;  // works of the send queue, once it is polled
  };
  std::shared_ptr<DeviceState> device;
  uint32_t entries_max = 0;
  std::deque<Entry> entries;
  bool armed = false;
  EventFd event;
  uint32_t queue_pairs = 0;
};

struct ReceiveState {
  std::shared_ptr<DeviceState> device;
  uint32_t entries_max = 0;
  std::deque<rdma::ReceiveWork> posted;
  uint32_t queue_pairs = 0;
};

struct Work {
  rdma::SendWork work;  // without what it points to
  std::vector<rdma::LocalPiece> pieces;
  std::vector<uint8_t> copied;
  std::optional<rdma::WindowBinding> binding;
  uint32_t bytes = 0;
};

struct PairState {
  uint32_t number = 0;
  std::shared_ptr<DeviceState> device;
  std::shared_ptr<CompletionState> completions;
  std::shared_ptr<ReceiveState> receives;
  rdma::SendLimits limits;
  PairState* peer = nullptr;  // once the connection is established, as long as it is there
  std::deque<Work> pending;
  uint32_t used = 0;        // of the send queue, until completions are polled
  uint32_t unsignaled = 0;  // done, of which no completion has come
  bool was_connected = false;
  bool broken = false;
  bool keeps_works = false;  // though it is broken
  bool held = false;
  uint32_t released = 0;  // works, while it is held
  RdmaSilence silence = RdmaSilence::kNone;
};

class World {
 public:
  mutable Mutex mutex;

  void Wrong(std::string what) CLEAT_REQUIRES(mutex);
  std::vector<std::string> TakeWrong() CLEAT_REQUIRES(mutex);

  // ---- Adapters (world.cc). nullptr: there is none.
  std::shared_ptr<AdapterState> AdapterAt(const std::string& address) CLEAT_REQUIRES(mutex);
  std::shared_ptr<AdapterState> AdapterOf(const std::string& name) CLEAT_REQUIRES(mutex);
  std::shared_ptr<DeviceState> LastDeviceOf(const std::string& name) const CLEAT_REQUIRES(mutex);
  // Takes it from those that are there.
  void Lose(const std::shared_ptr<AdapterState>& adapter) CLEAT_REQUIRES(mutex);
  PairState* FindPair(uint32_t number) const CLEAT_REQUIRES(mutex);
  uint32_t LastPairOn(const std::string& adapter) const CLEAT_REQUIRES(mutex);  // 0: none
  uint32_t NextKey() CLEAT_REQUIRES(mutex) { return ++keys_ << 8; }
  Status CheckRoom(const DeviceState& device, const rdma::SendLimits& wanted) CLEAT_REQUIRES(mutex);
  std::shared_ptr<PairState> MakePair(std::shared_ptr<DeviceState> device,
                                      std::shared_ptr<CompletionState> completions,
                                      std::shared_ptr<ReceiveState> receives, const rdma::SendLimits& wanted)
      CLEAT_REQUIRES(mutex);
  void DestroyPair(PairState& pair) CLEAT_REQUIRES(mutex);
  void Link(PairState& one, PairState& other) CLEAT_REQUIRES(mutex);

  // ---- Works (works.cc)
  uint32_t PostSends(PairState& pair, std::span<const rdma::SendWork> works) CLEAT_REQUIRES(mutex);
  uint32_t PostReceives(ReceiveState& receives, std::span<const rdma::ReceiveWork> works)
      CLEAT_REQUIRES(mutex);
  uint32_t Poll(CompletionState& queue, std::span<rdma::Completion> completions) CLEAT_REQUIRES(mutex);
  void Break(PairState& pair) CLEAT_REQUIRES(mutex);
  void PumpAll() CLEAT_REQUIRES(mutex);
  void GiveUpWorks() CLEAT_REQUIRES(mutex);
  bool IsNamedByWork(const DeviceState& device, uint32_t local_key) const CLEAT_REQUIRES(mutex);
  bool IsNamedByWork(const rdma::MemoryWindow& window) const CLEAT_REQUIRES(mutex);

  // ---- Connections (connections.cc)
  uint16_t NextPort() CLEAT_REQUIRES(mutex) { return next_port_++; }

  std::vector<std::shared_ptr<AdapterState>> adapters CLEAT_GUARDED_BY(mutex);  // that are there
  std::vector<std::weak_ptr<DeviceState>> devices CLEAT_GUARDED_BY(mutex);

 private:
  bool MayPost(PairState& pair, const rdma::SendWork& work) CLEAT_REQUIRES(mutex);
  void Pump(PairState& pair) CLEAT_REQUIRES(mutex);
  static bool Reaches(const PairState& pair);
  std::optional<rdma::WorkStatus> Execute(PairState& pair, const Work& work) CLEAT_REQUIRES(mutex);
  std::optional<rdma::WorkStatus> Send(PairState& pair, const Work& work) CLEAT_REQUIRES(mutex);
  rdma::WorkStatus Bind(PairState& pair, const rdma::WindowBinding& binding) CLEAT_REQUIRES(mutex);
  static rdma::WorkStatus Move(PairState& pair, const Work& work);
  void Complete(PairState& pair, rdma::WorkStatus status) CLEAT_REQUIRES(mutex);
  void Flush(PairState& pair) CLEAT_REQUIRES(mutex);
  void Push(CompletionState& queue, const CompletionState::Entry& entry) CLEAT_REQUIRES(mutex);

  std::map<uint32_t, PairState*> pairs_ CLEAT_GUARDED_BY(mutex);
  std::vector<std::string> wrong_ CLEAT_GUARDED_BY(mutex);
  uint32_t keys_ CLEAT_GUARDED_BY(mutex) = 0;
  uint32_t last_pair_ CLEAT_GUARDED_BY(mutex) = 0;
  uint16_t next_port_ CLEAT_GUARDED_BY(mutex) = 40000;
};

}  // namespace cleat::test::rdma_fabric
