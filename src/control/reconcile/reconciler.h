// SPDX-License-Identifier: Apache-2.0
// Brings what is to what should be. cleatd owns what should be (HostState), each engine owns what is, and
// tells it at hello (the inventory) and in status events. The reconciler compares the two and asks the engine
// for the difference, never for a blind replay: an engine that serves on while cleatd restarts is not asked
// for anything.
//
// It is driven by levels, not by events: whatever happens - a changed intent, a reply, an event, a lost
// connection - the controller concerned is looked at anew (PlanSteps) and every step taken that can be. One request
// at a time a target, and none beside one for the whole controller; different controllers at once. What failed is tried again with back-off, and its
// status says why.
//
// On the link's thread.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/clock.h"
#include "control/engine_link.h"
#include "control/host_state.h"
#include "control/memory_keeper.h"
#include "control/reconcile/engine_view.h"
#include "control/reconcile/move.h"

namespace cleat::control {

struct ReconcilerOptions {
  uint64_t retry_min_ns = 250 * kNsPerMs;
  uint64_t retry_max_ns = 30 * kNsPerSecond;
  // Moves: how long is waited for an engine that is to open what a controller has, as long as it gets nowhere; for the
  // answer of one that has to yield, after its time is over; of one that has to take.
  uint64_t prepare_ns = 30 * kNsPerSecond;
  uint64_t yield_grace_ns = 5 * kNsPerSecond;
  uint64_t take_ns = 30 * kNsPerSecond;
  // After an engine's death: from then on, what could not be taken is attached the ordinary way.
  uint64_t take_over_ns = 10 * kNsPerSecond;
  // After a restart of cleatd, how long the engine is waited for to which an upgrade was moving: it may have what the other
  // one is about to be asked for.
  uint64_t reunion_ns = 30 * kNsPerSecond;
  uint32_t preparing_max = 32;  // controllers that an upgrade has prepared at once
  uint32_t moving_max = 1;      // and that it moves at once
};

class Reconciler final : public EngineLink::Events {
 public:
  // All of them outlive it. Without `counters`, those of a controller begin anew when it was moved.
  Reconciler(HostState& state, MemoryKeeper& memory, EngineLink& link, const Clock& clock,
             ReconcilerOptions options, Counters* counters = nullptr)
      : state_(state),
        memory_(memory),
        link_(link),
        clock_(clock),
        options_(options),
        counters_(counters),
        started_ns_(clock.NowNs()),
        read_until_ns_(started_ns_),
        started_revision_(state.NewestRevision()),
        lost_(state.lost()) {}

  void OnEngine(const EngineInfo& info, engine::v1::Inventory inventory) override;
  void OnStatus(PeerId peer, const engine::v1::StatusEvent& event) override;
  void OnGone(PeerId peer, const std::string& why) override;
  void OnDead(const std::string& engine, uint64_t incarnation) override;
  void OnWake() override;
  uint64_t OnTimer(uint64_t read_until_ns) override;

 private:
  struct Retry {
    std::string controller;    // either
    std::string disk;          // or
    std::string group = {};    // or
    std::string cluster = {};  // or
  };

  // Lists of paths.
  void TakePathLists(EngineView& engine, const std::string& text);
  void AskReadPathLists(EngineView& engine);

  // Meeting and parting.
  void TakeInventory(EngineView& engine, const engine::v1::Inventory& inventory);
  bool IsForeign(const engine::v1::Inventory& inventory);
  void ReportUnknown(const std::string& engine, const std::string& controller);
  void ReportEngine(const EngineInfo& info, bool connected, const std::string& message);

  // Events.
  void OnControllerStatus(EngineView& engine, const engine::v1::ControllerStatus& status);
  void OnAttachmentStatus(EngineView& engine, const engine::v1::AttachmentStatus& status);

  // Controllers.
  void Look(const std::string& controller);
  void LookAtThoseThatStandBy();
  void LookAt(EngineView& engine, const std::string& controller);
  void LookAtSide(EngineView& engine, const std::string& controller);
  void LookAtSteps(EngineView& engine, const std::string& controller);
  // Whether another engine has this of the controller, open or being opened; without a target, the controller itself.
  bool IsElsewhere(const EngineView& engine, const std::string& controller,
                   std::optional<uint32_t> target) const;
  // False: the rest of the steps must wait for this one.
  bool Take(EngineView& engine, const std::string& controller, ControllerView& view,
            const ControllerIntent& intent, const Step& step);
  void AskDetach(EngineView& engine, const std::string& controller, uint32_t target);
  void AskDeleteController(EngineView& engine, const std::string& controller);
  void AskPutController(EngineView& engine, const std::string& controller, const ControllerIntent& intent,
                        bool standby);
  void AskKeepMemory(EngineView& engine, const std::string& controller, const AttachmentIntent& intent);
  void FailAttachment(EngineView& engine, ControllerView& view, const AttachmentKey& key, const Status& why);
  void AskAttach(EngineView& engine, const std::string& controller, const AttachmentIntent& intent);
  void AskServeController(EngineView& engine, const std::string& controller);
  void FailController(EngineView& engine, ControllerView& view, const std::string& controller,
                      const std::string& what, const Status& why);
  // About a target, or about the controller itself: one of each kind at a time.
  void Ask(EngineView& engine, const std::string& controller, engine::v1::Envelope envelope, UniqueFd fd,
           std::optional<uint32_t> target,
           std::function<void(EngineView&, ControllerView&, const Status&)> done);
  void AskFor(EngineView& engine, const std::string& controller, engine::v1::Envelope envelope, UniqueFd fd,
              std::optional<uint32_t> target,
              std::function<void(EngineView&, ControllerView&, const engine::v1::Reply&)> done);

  // Moves: what is served where after an engine or cleatd was restarted, and each controller's way.
  bool IsHeld(const EngineView& engine, const std::string& controller) const;
  bool IsMoving(const std::vector<std::string>& controllers) const;
  bool Adopt(EngineView& engine, const std::string& controller, const ControllerView& view,
             const ControllerIntent& intent);
  bool MayBeElsewhere(const EngineView& engine, const ControllerRow& row, const ControllerView& view);
  void BeginMove(const std::string& controller, const std::string& from, const std::string& to,
                 uint32_t drain_ms);
  void LookAtMove(const std::string& controller);
  void LookAtPreparing(const std::string& controller, Move& move);
  void LookAtCrash(const std::string& controller, Move& move);
  void LookAtYield(const std::string& controller, Move& move);
  void LookAtTake(const std::string& controller, Move& move);
  void LookAtCommit(const std::string& controller, Move& move);
  void LookAtTakeBack(const std::string& controller, Move& move);
  void StartYield(const std::string& controller, Move& move, EngineView& from);
  bool MayServe(const std::string& controller, Move& move);
  void StartTake(const std::string& controller, Move& move);
  void StartCommit(const std::string& controller, Move& move);
  void StartTakeBack(const std::string& controller, Move& move, const std::string& why);
  void OnYielded(EngineView& from, const std::string& controller, const engine::v1::Reply& reply);
  void OnTaken(EngineView& engine, const std::string& controller, const Status& status);
  void AskTake(EngineView& engine, const std::string& controller,
               const std::optional<engine::v1::HandOver>& hand_over, UniqueFd counters);
  void FailIfLate(const std::string& controller, Move& move, const std::string& why);
  void EndMove(const std::string& controller, const Status& status);
  void WakeFor(const std::string& controller, Move& move);
  void ReportView(EngineView& engine, const std::string& controller);

  // After the store was restored.
  void ReportHeld(const std::string& engine, const engine::v1::Inventory& inventory);
  // Of the controller as the engine has it, with a word of its being left alone.
  v1::ControllerStatus StatusOf(const EngineView& engine, const std::string& controller,
                                const ControllerView& view) const;
  // True: nothing is to be done about it in that engine.
  bool LeaveAlone(EngineView& engine, const std::string& controller, const ControllerIntent& intent);
  void ReportAlone(const EngineView& engine, const std::string& controller, const ControllerView& view,
                   const ControllerIntent& intent);
  void TellLeftAlone(const EngineView& engine);
  void ReportAloneGone(const EngineView& engine);  // it is connected no more
  // Fills in the status, and returns what there is to say of those that the store does not know.
  std::string NameLeftAlone(const EngineView& engine, v1::EngineStatus& status);
  // An attachment of the disk, or of another one of its name, to a controller that is left alone there.
  static const engine::v1::Attachment* HeldAlone(const EngineView& engine, const std::string& disk);
  bool HoldsAnother(const EngineView& engine, const DiskRow& row) const;
  // True: a controller that is left alone has the disk.
  bool WaitsForHolder(EngineView& engine, const std::string& controller, const AttachmentIntent& intent);
  void LookAfterRelease(EngineView& engine, const std::string& disk);
  static bool UsesClusterAlone(const EngineView& engine, const std::string& cluster);

  // Upgrades, and what a dead engine leaves behind.
  void LookAtUpgrade();
  void BeginUpgrade(UpgradeIntent intent);
  void EndUpgrade();
  void TellPrepared(const std::string& controller);
  void TellMoved(const std::string& controller, const Move& move, const Status& status);
  bool GuestWaits() const;
  void ReportUpgrade();
  std::vector<Placement> HeirsOf(const std::string& engine);
  void StartCrash(const std::string& engine, const Placement& heir);
  void TakeOverFrom(const std::string& engine);
  void TellTaken(const std::string& controller, const Move& move, bool taken);
  void LookAtTakeOvers();
  void CommitTakeOver(const std::string& engine);
  uint64_t CountStandbys(uint64_t now_ns);

  // Limits of disks.
  void LookAtLimits(const std::string& disk);
  void AskLimit(EngineView& engine, const DiskRow& row);

  // Clusters.
  void LookAtCluster(const std::string& cluster);
  void LookAtCluster(EngineView& engine, const std::string& cluster);
  void LookAtClusters(EngineView& engine);
  void AskPutCluster(EngineView& engine, const ClusterRow& row);
  void AskDropCluster(EngineView& engine, const std::string& cluster);
  void AskAboutCluster(EngineView& engine, const std::string& cluster, engine::v1::Envelope envelope,
                       std::function<void(EngineView&)> done);
  void FailWaiting(EngineView& engine, const std::string& cluster, const Status& why);

  // Groups, and the memory in which they count.
  void LookAtGroup(const std::string& group);
  void LookAtGroup(EngineView& engine, const std::string& group);
  void LookAtGroups(EngineView& engine);
  void AskShareGroups(EngineView& engine);
  void AskPutGroup(EngineView& engine, const GroupRow& row);
  void AskDropGroup(EngineView& engine, const std::string& group);
  void AskAboutGroup(EngineView& engine, const std::string& group, engine::v1::Envelope envelope,
                     std::function<void(EngineView&)> done);

  // Disks that grew.
  void LookAtDisk(const std::string& disk);  // its memory, its size and its limits
  void LookAtSize(const std::string& disk);
  void AskResize(EngineView& engine, const std::string& disk, uint64_t size_bytes);
  // Of the disk's attachments, as they are known to be now.
  void ReportAttachments(const EngineView& engine, const std::string& disk, const std::string& message);

  // Memory disks.
  void LookAtMemory(const std::string& disk);
  void LookAtMemoryLater();
  void AskDropMemory(EngineView& engine, const std::string& disk);
  void AskFetchMemory(EngineView& engine, const DiskRow& row);
  void AskAboutMemory(EngineView& engine, const std::string& disk, engine::v1::Envelope envelope,
                      std::function<Status(EngineView&, const Status&, UniqueFd)> done);
  bool IsSuperfluous(const EngineView& engine, const std::string& disk);
  void ReportMemory(const DiskRow& row);

  // When the store can't be written: it may be later.
  void Later(const Status& status, Retry retry);
  // Returns in how many seconds it is tried again.
  double Fail(Backoff& backoff, Retry retry);
  EngineView* Find(PeerId peer);
  EngineView* FindByName(const std::string& engine);

  HostState& state_;
  MemoryKeeper& memory_;
  EngineLink& link_;
  const Clock& clock_;
  const ReconcilerOptions options_;
  Counters* const counters_;
  const uint64_t started_ns_;
  uint64_t
      read_until_ns_;  // as of the last OnTimer. Deadlines of answers are compared with it, pauses with clock_
  const uint64_t started_revision_;  // what is younger was made under this cleatd
  const std::vector<LostRevisions> lost_;
  std::map<PeerId, EngineView> engines_;
  UniqueFd group_memory_;                   // made when the first group needs it
  std::multimap<uint64_t, Retry> retries_;  // by the time when they are due
  std::map<std::string, Move> moves_;       // by controller
  std::optional<Upgrade> upgrade_;
  std::set<std::string> memory_later_;          // disks to be looked at when no guest waits for a move
  std::map<std::string, TakeOver> take_overs_;  // by the dead engine
  std::map<std::string, EngineInfo> known_;     // engines as they last connected
  std::set<std::string> dead_;                  // those whose process has ended, and that have not come back
  bool reunited_ = false;                       // or those that were awaited have had their time
  uint64_t recount_ns_ = 0;                     // not before then
};

}  // namespace cleat::control
