// SPDX-License-Identifier: Apache-2.0
// What one life does for the reservation of its disk's namespace (nvme/host/reservation/reservation.h), with the I/O queue that it does it
// over: reservations have I/O commands. The queue is on the control reactor, and there only while a task needs it and a moment longer, as
// most disks have nothing to say for days.
//
// Ownership: the disk's core owns it, on the control reactor, which outlives it; it goes with the life, or before, and not from within a
// callback. The owner may begin the next task from within one.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "base/clock.h"
#include "base/result.h"
#include "modules/nvmf/channel/io_queue.h"
#include "nvme/host/reservation/reservation.h"
#include "reactor/reactor.h"

namespace cleat::modules {

class PathReservationOwner {
 public:
  // Each task ends with one of these, once.
  virtual void Joined(nvme::host::LifeId life, const Status& status) = 0;
  virtual void Seen(nvme::host::LifeId life, const Result<nvme::host::ReservationReport>& report) = 0;
  virtual void ShutOutEnded(nvme::host::LifeId life, nvme::host::LifeId dead,
                            const nvme::host::ShutOutResult& result) = 0;
  virtual void Left(nvme::host::LifeId life, const Status& status) = 0;
  // The queue has broken with a command that was not answered: the life has to end. The task that was under way has ended before.
  virtual void ReservationBroken(nvme::host::LifeId life, const Error& reason) = 0;

 protected:
  ~PathReservationOwner() = default;
};

class PathReservation final : private nvme::host::ReservationOwner {
 public:
  // Commands under way there: one of the reservation's. A queue has two entries at least (base specification 2.0, 3.3.1).
  static constexpr uint32_t kEntries = 2;
  static constexpr uint64_t kTickNs = 100 * kNsPerMs;
  // How long the queue stays after the last task.
  static constexpr uint64_t kIdleNs = kNsPerSecond;

  // `target` and `owner` outlive it. `queue`: nobody else's in this life; its entries are chosen here.
  PathReservation(nvme::host::ReservationConfig config, const IoQueueTarget& target, const IoQueueId& queue,
                  Reactor& control, PathReservationOwner& owner);
  ~PathReservation();
  PathReservation(const PathReservation&) = delete;
  PathReservation& operator=(const PathReservation&) = delete;

  // ---- As the reservation has them; while not busy()
  void Join();
  void See();
  void ShutOut(nvme::host::LifeId dead);
  void Leave();

  bool busy() const { return reservation_.busy(); }
  bool begun() const { return reservation_.begun(); }
  bool joined() const { return reservation_.joined(); }
  bool may_be_registered() const { return reservation_.may_be_registered(); }
  nvme::host::LifeId life() const { return queue_id_.life; }

 private:
  class Queue final : public IoQueue {
   public:
    Queue(PathReservation& reservation, const IoQueueTarget& target, const IoQueueId& id)
        : IoQueue(target, id, reservation.control_), reservation_(reservation) {}

    // ---- QueuePairOwner
    void Completed(uint64_t cookie, const nvme::fabrics::CompletionEntry& entry,
                   uint64_t data_bytes) override;
    void Unanswered(uint64_t cookie, nvme::fabrics::Reached reached) override;
    void Ended(const Error& reason) override;

   private:
    PathReservation& reservation_;
  };
  struct TickTimer : Timer {
    explicit TickTimer(PathReservation& r)
        : Timer([](Timer& timer) { static_cast<TickTimer&>(timer).reservation.Tick(); }), reservation(r) {}
    PathReservation& reservation;
  };

  // ---- ReservationOwner
  void SendReservation(nvme::host::LifeId life, const nvme::fabrics::QueuedCommand& command) override;
  void Joined(nvme::host::LifeId life, const Status& status) override;
  void Seen(nvme::host::LifeId life, const Result<nvme::host::ReservationReport>& report) override;
  void ShutOutEnded(nvme::host::LifeId life, nvme::host::LifeId dead,
                    const nvme::host::ShutOutResult& result) override;
  void Left(nvme::host::LifeId life, const Status& status) override;

  // The next Tick comes now.
  void Wake();
  void Tick();
  void CloseIdleQueue();
  void TryQueue();
  void QueueReady();
  void QueueEnded(const Error& reason);

  const IoQueueTarget& target_;
  IoQueueId queue_id_;
  Reactor& control_;
  PathReservationOwner& owner_;
  nvme::host::Reservation reservation_;
  std::optional<nvme::fabrics::QueuedCommand> waits_;  // for the queue
  std::unique_ptr<Queue> queue_;                       // nullptr: none is needed, or between two tries
  uint32_t tries_ = 0;                                 // to connect it
  uint64_t try_at_ns_ = 0;
  uint64_t used_ns_ = 0;  // the last task's end
  bool is_lost_ = false;  // a command was not answered
  bool over_ = false;
  std::optional<Error> broken_;  // the owner is to hear of it, outside of the queue's callback
  TickTimer tick_{*this};
};

}  // namespace cleat::modules
