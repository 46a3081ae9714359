// SPDX-License-Identifier: Apache-2.0
// One of a disk's paths as the disk's core has it: the association by one address (nvmf_path.h), the present life with what the controller
// says of the namespace, the numbers of I/O queues that are free in that life, and what people hear of the path.
//
// Queue numbers are given to channels life by life. One that a channel has given back is used again last: its target may not have seen the
// end of that queue yet.
//
// Ownership: the core owns it, on the control reactor, and outlives it. The owner is called from within the callbacks of NvmfPath and may
// call each method from there.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>

#include "base/clock.h"
#include "base/result.h"
#include "modules/nvmf/channel/nvmf_channel.h"
#include "modules/nvmf/nvmf.h"
#include "modules/nvmf/path/nvmf_path.h"
#include "modules/nvmf/transport/transport_queue.h"
#include "nvme/host/association.h"
#include "nvme/host/doubt/doubt_ledger.h"
#include "nvme/host/requests/request_queue.h"

namespace cleat::modules {

class DiskPath;

// How the queues by the subsystem's address of that index are connected.
TransportOptions TransportOf(const NvmfOptions& options, uint32_t index);

class DiskPathOwner {
 public:
  // Whether a life may be used from its beginning on, or only once Admit is called.
  virtual bool AdmitsAtOnce() const = 0;
  // Whether the disk can be in the namespace that the controller at the end of this path has. A path that is refused tries again later.
  virtual Status MayBegin(const DiskPath& path, const nvme::host::AssociationInfo& info) const = 0;
  // A life has begun that may not be used yet.
  virtual void LifeBegan(DiskPath& path) = 0;
  // I/O queues of the present life may connect.
  virtual void LifeAdmitted(DiskPath& path) = 0;
  // `changed`: bits of nvme::host::Changed; state() and info() are new.
  virtual void LifeChanged(DiskPath& path, uint32_t changed, bool is_new_state) = 0;
  // Each channel has to end its I/O queue; the path goes on once the ledger has all reports (GoOnWhenReported).
  virtual void LifeEnded(DiskPath& path, nvme::host::LifeId life, const Error& reason) = 0;
  // A try to connect has come to nothing. `is_refusal`: as things are no other will do better. That is told once until a life
  // begins, and not before SetOpened.
  virtual void TryFailed(DiskPath& path, const Error& reason, bool is_refusal) = 0;
  virtual void PathOver() = 0;
  // Whether requests have a path to go by, for what people hear.
  virtual bool HasUsablePath() const = 0;

 protected:
  ~DiskPathOwner() = default;
};

class DiskPath final : private NvmfPathOwner {
 public:
  // I/O queues that a controller is asked for, each for one channel.
  static constexpr uint32_t kQueuesMax = 64;
  // Lines about the path in the log: one state is not logged before the line of another one is so old.
  static constexpr uint64_t kLogSpacingNs = kNsPerSecond;

  // The path by the subsystem's address of that index.
  DiskPath(const NvmfOptions& options, uint32_t index, Reactor& control, DiskPathOwner& owner);

  void Start();
  // PathOver follows. No I/O queue is in use.
  void End(bool shutdown);
  // Nothing is told to people before this: the disk is open.
  void SetOpened();

  uint32_t index() const { return index_; }
  const std::string& where() const { return where_; }  // "subsystems/a at 10.0.0.1:4420,from=10.0.0.9"
  nvme::host::LifeId life() const { return life_; }    // 0: none is live
  // Only while a life is live.
  const nvme::host::AssociationInfo& info() const { return *info_; }
  nvme::host::PathFormat format() const;
  nvme::host::PathState state() const { return state_; }
  bool is_admitted() const { return life_ != 0 && admitted_; }
  bool is_usable() const { return state_ != nvme::host::PathState::kUnusable; }
  // Why it is not usable, as far as is known.
  const std::optional<Error>& why_down() const { return why_down_; }
  // The path will not be usable as things are, and somebody has to see to it. Until a life begins.
  bool is_refused() const { return is_refused_; }

  // A number for an I/O queue of the present life; 0: all are taken.
  uint16_t TakeQueue();
  void GiveQueue(uint16_t queue) { free_queues_.push_back(queue); }
  IoQueuePlan PlanFor(uint16_t queue) const;
  IoQueueId IdFor(uint16_t queue) const;

  // The present life may be used.
  void Admit();
  // The present life can't be used, and ends.
  void Refuse(const Error& why);
  // Both do nothing where `life` is not the present one.
  void Break(nvme::host::LifeId life, const Error& reason);
  void Recheck(nvme::host::LifeId life);
  // The ledger has taken reports.
  void GoOnWhenReported(const nvme::host::DoubtLedger& ledger);

 private:
  struct LogTimer : Timer {
    explicit LogTimer(DiskPath& p)
        : Timer([](Timer& timer) { static_cast<LogTimer&>(timer).path.LogState(); }), path(p) {}
    DiskPath& path;
  };

  // ---- NvmfPathOwner
  void PathLive(uint64_t life, const nvme::host::AssociationInfo& info) override;
  void PathChanged(uint64_t life, uint32_t changed, const nvme::host::AssociationInfo& info) override;
  void PathLost(uint64_t life, const Error& reason) override;
  void TryFailed(const Error& reason) override;
  void PathOver() override;

  void SetState();
  void LogState();
  void LogTls();
  const char* Meanwhile() const;

  const std::string disk_;
  const uint32_t index_;
  const std::string where_;
  const nvme::fabrics::TransportType transport_;
  const nvme::fabrics::Uuid host_id_;  // without a family
  const uint64_t family_;
  Reactor& control_;
  DiskPathOwner& owner_;
  NvmfPath path_;

  nvme::host::LifeId life_ = 0;        // the channels know it
  nvme::host::LifeId ended_life_ = 0;  // that not all channels have reported yet
  std::optional<nvme::host::AssociationInfo> info_;
  bool admitted_ = false;
  nvme::host::PathState state_ = nvme::host::PathState::kUnusable;
  std::deque<uint16_t> free_queues_;  // the one that was free longest first
  std::optional<Error> why_down_;
  bool is_refused_ = false;

  bool tells_ = false;  // between SetOpened and End
  bool refusal_told_ = false;
  bool logged_usable_ = true;
  std::string logged_tls_;
  uint64_t log_after_ns_ = 0;
  LogTimer log_later_{*this};
};

}  // namespace cleat::modules
