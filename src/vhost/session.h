// SPDX-License-Identifier: Apache-2.0
// The state of one vhost-user connection, without its socket: negotiated features, the guest's memory,
// in-flight and dirty logs, the rings. It holds every resource itself (mappings, descriptors), so nothing
// that the protocol library does to its own copies touches a running ring.
//
// On the control reactor; one call at a time: each Task is awaited before the next call. A Task returns when
// the change has taken effect on the I/O reactors. An error means that the front end broke the protocol or
// that a resource is missing: the caller ends the connection, with End(). Life: made for a connection, End()
// exactly once, destroyed.
//
// A ring serves requests when its size, addresses, base and kick were given and - once protocol features are
// negotiated - it is enabled. SET_VRING_ENABLE 0 and GET_VRING_BASE stop it and wait until its requests are
// completed.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"
#include "reactor/blocking.h"
#include "reactor/reactor.h"
#include "reactor/sync.h"
#include "reactor/task.h"
#include "vhost/memory_table.h"
#include "vhost/ownership.h"
#include "vhost/protocol.h"
#include "vhost/ring.h"
#include "virtio/device_model.h"
#include "virtio/ring_format.h"

namespace cleat::vhost {

// What an engine of ours offers for a model: its features with the transport's, and the protocol features.
struct Offer {
  uint64_t features = 0;
  uint64_t protocol_features = 0;
  bool operator==(const Offer&) const = default;
};
Offer OfferFor(const virtio::DeviceModel& model);

class Session {
 public:
  struct Options {
    std::string name;                   // the controller's, for messages
    std::vector<Reactor*> io_reactors;  // ring r runs on io_reactors[r % size]; they outlive the session
    Ownership* ownership =
        nullptr;                 // asked before the first ring starts; nullptr: rings always may. Outlives it
    bool memory_pinned = false;  // the guest gives no memory back: it may be registered
  };
  // `on_change` is called on control after a ring went up, down or broke.
  Session(Options options, Reactor& control, BlockingPool& pool, virtio::DeviceModel& model,
          std::function<void()> on_change);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  const Offer& offer() const { return offer_; }
  uint32_t ring_count() const { return static_cast<uint32_t>(rings_.size()); }

  // ---- Negotiation. While a ring runs only LOG_ALL may change.
  Task<Status> SetFeatures(uint64_t features);
  Status SetProtocolFeatures(uint64_t protocol_features);

  // ---- Memory. Requests in flight keep what the new table lacks alive until they end.
  // Maps on the pool and keeps no descriptor; what the spans show outlives the task.
  Task<Status> MapMemory(std::span<const MemoryTableRegion> regions, std::span<const UniqueFd> files);
  Task<Status> SetMemory(std::shared_ptr<const MemoryTable> table);

  // ---- In-flight log ("Inflight I/O tracking"), laid out for the negotiated ring format; the larger of the two before
  // features are known. MakeInflight answers GET_INFLIGHT_FD with a new, sealed memfd; SetInflight takes what the front
  // end kept. Before the rings start; gone when the format changes. A ring that starts with a log that has requests in
  // flight runs these again; after StopRing the log is as good as new, since the front end knows where the ring stands.
  struct InflightArea {
    InflightDescription description{};
    UniqueFd file;
  };
  Result<InflightArea> MakeInflight(uint16_t queues, uint16_t queue_size);
  Task<Status> SetInflight(InflightDescription description, const UniqueFd& file);

  // ---- Dirty log of a migration: used while the features hold LOG_ALL.
  Task<Status> SetLog(LogDescription description, const UniqueFd& file);

  // ---- Rings
  Task<Status> SetRingSize(uint32_t index, uint32_t size);  // stopped
  Task<Status> SetRingBase(uint32_t index, uint32_t base);  // stopped
  Task<Status> SetRingAddresses(VringAddresses addresses);
  Task<Status> SetRingKick(uint32_t index, UniqueFd kick);  // invalid: the ring is to be polled
  Task<Status> SetRingCall(uint32_t index, UniqueFd call);  // invalid: no notifications
  Status SetRingError(uint32_t index, UniqueFd error);
  Task<Status> EnableRing(uint32_t index, bool enable);
  Task<Result<uint32_t>> StopRing(uint32_t index);              // GET_VRING_BASE: where to go on from
  Task<void> StopAllRings(StopFor stop_for = StopFor::kGuest);  // side by side; config.enabled goes
  // For another back end to go on with the rings: stops all of them side by side, and forgets nothing, neither their
  // configuration nor the in-flight logs. kDeadlineExceeded: not all had drained by then (on control's clock), and all run again.
  Task<Status> YieldRings(uint64_t deadline_ns);

  // ---- Ownership. Rings that are complete wait until the disks are theirs (Options::ownership); `wake` is called then,
  // and StartWaiting is the next call to make.
  void OnOwned(std::function<void()> wake) { wake_ = std::move(wake); }
  bool may_start() const { return may_start_; }
  Task<Status> StartWaiting();

  // Stops and drains all rings side by side, closes the queues on their reactors, lets go of every resource. kSuccessor: somebody
  // will go on with the rings, this process' next connection or another engine.
  Task<void> End(StopFor stop_for = StopFor::kGuest);

  // ---- State
  uint32_t rings_up() const;           // serving and not broken
  uint32_t draining_requests() const;  // still in the storage while rings are being stopped
  std::string broken() const;          // "ring 2: ...", or empty
  bool blocked() const;  // an eventfd of a ring made a reactor wait; no ring is signalled any more
  // A ring is up whose requests in flight nobody will know of when this process dies. Only the front end can keep the
  // log: whoever else did would not know that the guest was reset meanwhile, and write what it had in flight before over
  // what it has written since.
  bool untracked() const;
  // Rings are complete and wait for their disks; what for, for people.
  bool waits() const { return acquire_requested_ && !options_.ownership->owned(); }
  std::string pending_reason() const {
    return waits() ? options_.ownership->pending_reason() : std::string();
  }
  std::string broken_memory()
      const;  // whose pages the peer has taken away (see block/memory_guard.h), or empty
  uint64_t features() const { return features_; }
  uint64_t protocol_features() const { return protocol_features_; }

 private:
  Result<Ring*> FindRing(uint32_t index);
  Error RingError(uint32_t index, const std::string& what) const;
  bool packed() const { return virtio::IsPacked(features_); }
  Status CheckRingSize(uint32_t index, uint32_t size) const;
  Status CheckRingBase(const Ring& ring) const;
  Result<virtio::RingMemory> RingMemoryOf(const Ring& ring, const MemoryTable& table) const;
  virtio::InflightMemory InflightOf(uint32_t index) const;
  bool Complete(const Ring& ring) const;
  bool AnyRunning() const;
  bool logging() const { return (features_ & kFeatureLogAll) != 0 && log_.base != nullptr; }
  Task<Status> StartIfComplete(Ring& ring);
  Task<Status> StartAll();
  Task<void> StopOne(Ring& ring, StopFor stop_for = StopFor::kGuest);
  Task<void> UpdateDirtyLog();
  bool MayStart();
  DriverMemory WhatDriverRemembers() const;
  void OnRingsStopped(bool migrating);  // a ring was stopped or disabled
  Task<Result<std::shared_ptr<block::MemoryRegion>>> MapFile(const UniqueFd& file, uint64_t offset_bytes,
                                                             uint64_t size_bytes);

  const Options options_;
  Reactor& control_;
  BlockingPool& pool_;
  const std::function<void()> on_change_;
  const Offer offer_;
  const DiskIdentity log_disk_;

  uint64_t features_ = 0;
  uint64_t protocol_features_ = 0;
  std::shared_ptr<const MemoryTable> memory_;
  std::shared_ptr<block::MemoryRegion> inflight_;
  InflightDescription inflight_description_{};
  virtio::DirtyLogMemory log_;
  std::atomic<bool> blocked_{false};  // set by the rings, on any reactor
  std::vector<std::unique_ptr<Ring>> rings_;
  std::function<void()> wake_ = [] {};
  bool acquire_requested_ = false;  // by AcquireAsync: a ring wants to run, or runs
  bool may_start_ = false;          // what was waited for is there
  bool ended_ = false;
};

}  // namespace cleat::vhost
