// SPDX-License-Identifier: Apache-2.0
// How the storage of one attached disk does: whether it fails requests, has space for them, and answers them; and, where it is reached over
// paths, how those do, and whether requests are stuck since writes are in doubt. Tells of each episode once
// in the log when it begins and once when it ends, and meanwhile in the attachment's status.
//
//   a request fails, is slow, or waits for space --mail--> a look each second --> nothing failed for a while, and nothing is old: no look any more
//
// An I/O reactor counts in a StorageCell of its own, only when a request has failed, and wakes the control reactor once for an
// episode. A disk that is well, or idle, has no timer and sends no mail.
//
// Of an AttachedDisk, on the control reactor; ends before the disk's places do.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "block/device.h"
#include "block/in_doubt.h"
#include "block/pipeline.h"
#include "engine/protocol/spec.h"
#include "observe/disk_counters.h"
#include "observe/reactor_counters.h"
#include "reactor/reactor.h"

namespace cleat::engine {

class StorageWatch;

// One reactor's part. Shared with the mail that is under way.
class StorageCell final : public block::FailureListener,
                          public observe::SlowListener,
                          public std::enable_shared_from_this<StorageCell> {
 public:
  struct Failure {
    block::Op op = block::Op::kRead;
    block::IoStatus status = block::IoStatus::kOk;
    uint16_t error_number = 0;
    uint64_t offset_bytes = 0;
  };

  StorageCell(Reactor& control, StorageWatch& watch) : control_(control), watch_(&watch), mail_(*this) {}

  // ---- On the I/O reactor.
  void Failed(const block::Request& request) override;
  void WaitForSpace(uint32_t requests) override;
  void BecameSlow() override { Tell(); }

  // ---- On control.
  uint64_t failed() const { return failed_.load(); }
  uint32_t waiting() const { return waiting_.load(); }
  Failure last()
      const;  // of two failures at the same time it may have the place of the one and the reason of the other
  // The next one that fails, is slow, or waits, wakes the watch again.
  void Listen();
  void Forget() { watch_ = nullptr; }

 private:
  struct Wake : Mail {
    explicit Wake(StorageCell& c) : Mail(&Deliver), cell(c) {}
    static void Deliver(Mail& mail);
    StorageCell& cell;
    std::shared_ptr<StorageCell> keeps;  // the cell, while the mail is under way
  };
  void Tell();

  Reactor& control_;
  StorageWatch* watch_;  // control's
  bool told_ = false;    // control's: the mail has come, and Listen was not called
  std::atomic<bool> listening_{true};
  std::atomic<uint64_t> failed_{0};
  std::atomic<uint32_t> waiting_{0};
  std::atomic<uint32_t> last_what_{0};  // op, status and errno
  std::atomic<uint64_t> last_offset_{0};
  Wake mail_;
};

class StorageWatch {
 public:
  static constexpr uint64_t kLookEveryNs = kNsPerSecond;
  // An episode of failures ends after so long without one, if other requests went well ...
  static constexpr uint64_t kQuietNs = 10 * kNsPerSecond;
  // ... or without any: a guest may have given the disk up.
  static constexpr uint64_t kGivenUpNs = 60 * kNsPerSecond;
  // Requests wait for space no more when none has for so long.
  static constexpr uint64_t kSpaceQuietNs = 3 * kNsPerSecond;
  // A request that the storage has had for so long is not answered.
  static constexpr uint64_t kUnansweredNs = 5 * kNsPerSecond;
  // Opening a disk takes so long only if the storage does not answer.
  static constexpr uint64_t kOpeningNs = 2 * kNsPerSecond;
  // A request that has waited for writes in doubt for so long is stuck: what every lost path costs for a moment is over by then.
  static constexpr uint64_t kStuckNs = kNsPerSecond;
  // How often a status that stays the same but for its numbers is told again; how many wait for space is told at each look.
  static constexpr uint64_t kRepeatNs = 10 * kNsPerSecond;

  // `on_change` after each change of state() or message().
  StorageWatch(Reactor& control, const AttachmentSpec& spec, std::function<void()> on_change);
  ~StorageWatch();  // ended

  // The disk is being opened from now on, and until the next of these calls.
  void BeginOpening();
  void EndOpening();
  // Whose paths are looked at, until End.
  void SetDevice(const block::Device& device) { device_ = &device; }
  // The device's paths are not as they were; looked at within kLookEveryNs.
  void PathsChanged();
  // A reactor's cell, before it has a channel.
  std::shared_ptr<StorageCell> AddCell();
  // Its counters, if there are any, until End. `reactor` is those of the cell's reactor.
  void AddCounters(observe::DiskCounters& disk, const observe::ReactorCounters& reactor);
  // Nothing comes any more: tells how it ended. Before the counters go.
  void End();

  StorageState state() const;
  std::string message() const;  // empty: nothing bad is known
  // UNIX time of what the reactors' clock says.
  uint64_t UnixSeconds(uint64_t at_ns) const;

 private:
  friend class StorageCell;
  struct Counted {
    observe::DiskCounters* disk;
    const observe::ReactorCounters* reactor;
  };
  struct LookTimer : Timer {
    explicit LookTimer(StorageWatch& w)
        : Timer([](Timer& timer) { static_cast<LookTimer&>(timer).watch.Look(); }), watch(w) {}
    StorageWatch& watch;
  };
  struct Oldest {
    uint64_t seen_ns = 0;     // 0: nothing is slow
    uint64_t storage_ns = 0;  // since when the storage has it; 0: it waits elsewhere
    uint64_t in_flight = 0;   // requests, wherever they wait
    bool unknown = false;     // a reactor with requests in flight has not looked at them lately
  };
  struct Failing {
    uint64_t since_ns = 0;  // 0: it does not
    uint64_t last_ns = 0;
    uint64_t failed_before = 0;      // requests of former episodes
    uint64_t succeeded_at_last = 0;  // requests that had gone well at the last failure
    std::string since;               // for people
    std::string last;                // what failed, and why
  };

  struct Full {
    uint64_t since_ns = 0;      // 0: nothing waits for space
    uint64_t last_ns = 0;       // when something was last seen to wait
    uint32_t waiting = 0;       // requests
    uint32_t most_waiting = 0;  // ... at any look
    std::string since;          // for people
  };

  void Wake();
  void Look();
  void LookAtFailures();
  void LookAtOldest();
  void LookAtSpace();
  void EndFull();
  void LookAtPaths();
  bool IsStuck() const;
  void EndStuck();
  std::string StuckMessage() const;
  std::string ConfirmStep() const;
  uint32_t CountWaiting() const;
  Oldest FindOldest() const;
  bool IsOldSinceStuck(const Oldest& oldest) const;
  uint64_t CountFailed() const;
  uint64_t CountSucceeded() const;
  bool WorksAgain() const;
  void BeginFailing(uint64_t failed);
  void EndFailing();
  void EndUnanswered();
  void Rest();
  void TellChange();
  std::string InDays(uint64_t at_ns) const;

  Reactor& control_;
  const std::string disk_;
  const std::string controller_;
  const std::string storage_;  // as messages call it
  const std::function<void()> on_change_;
  std::vector<std::shared_ptr<StorageCell>> cells_;
  std::vector<Counted> counted_;
  bool ended_ = false;
  Failing failing_;
  Full full_;
  uint64_t stuck_since_ns_ = 0;                   // 0: nothing waits for writes in doubt
  const block::Device* device_ = nullptr;         // until End
  std::optional<block::PathsReport> paths_;       // as of the last look
  std::optional<block::PathsReport> told_paths_;  // ... that was told
  uint64_t failed_ = 0;                           // of those that were seen
  uint64_t succeeded_ = 0;                        // requests, as of the last look
  uint64_t succeeded_at_ns_ = 0;      // when that was last another number, or nothing was in flight
  uint64_t unanswered_since_ns_ = 0;  // 0: it answers
  std::string unanswered_since_;
  bool slow_ = false;              // a request is old, wherever it waits, or may be
  uint64_t opening_since_ns_ = 0;  // 0: it is not being opened
  bool opening_late_ = false;
  std::string opening_since_;
  uint64_t told_ns_ = 0;
  uint32_t told_waiting_ = 0;
  LookTimer timer_{*this};
};

}  // namespace cleat::engine
