// SPDX-License-Identifier: Apache-2.0
// The reservation of one namespace: executes what hosts ask for, one command after the other, and sees to it that all reactors keep to it.
//
//   a command --> stored --> known to all reactors --> nothing is in the storage that it forbids --> hosts that lost by it are told --> answered
//
// So when a host hears that another one is shut out, no command of that one will change anything any more, and that holds in the next process too.
// What is in the storage already ends when it does, which has no bound: the command that shuts its host out is answered no sooner.
//
// While nobody knows whom to keep out - what is stored can't be read - nobody may use the namespace, and it is tried again.
//
// Of the control reactor.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "nvme/fabrics/names.h"
#include "nvme/target/reservations/reservation.h"
#include "nvme/target/target.h"
#include "nvmf_target/io/io_port.h"
#include "nvmf_target/io/io_queue.h"
#include "nvmf_target/reservations/reservation_store.h"
#include "reactor/sync.h"
#include "reactor/task.h"

namespace cleat::nvmf_target {

class ReservationKeeper {
 public:
  // Commands of one host that wait at most; more are answered that the host may try again.
  static constexpr size_t kCallsOfOneMax = 16;
  static constexpr uint64_t kLoadAgainNs = kNsPerSecond;

  // The namespace on one reactor.
  struct Place {
    IoPort* port = nullptr;
    std::shared_ptr<SubsystemPort> subsystem;
  };
  struct Parts {
    Reactor& control;
    nvme::target::Target& target;  // these outlive it
    ReservationStore& store;
    std::string nqn;
    std::string name;  // for messages
    uint32_t nsid = 0;
    nvme::fabrics::Uuid uuid{};  // of the namespace
    std::vector<Place> places;
    std::function<void()> on_change;  // another host holds it, or none; or it is shut, or no more
    std::function<bool()> may_log;    // of what hosts can cause as often as they like
  };
  explicit ReservationKeeper(Parts parts);
  ~ReservationKeeper();  // closed
  ReservationKeeper(const ReservationKeeper&) = delete;
  ReservationKeeper& operator=(const ReservationKeeper&) = delete;

  const nvme::target::Reservation& reservation() const { return reservation_; }
  // What the process has stored that served the namespace last is in force. While no host's command can come. After an error nothing is.
  Task<Status> Load();
  // The same; where it can't be read it is tried again, and nobody may use the namespace until then.
  Task<void> LoadOrShut();
  // Whether nobody may use it.
  bool shut() const { return shut_; }
  // `call.answer` comes later.
  void Execute(ReservationCall call);
  // The namespace goes: what waits is answered so, and what is under way is waited for.
  Task<void> Close();

 private:
  using Hosts = std::vector<nvme::fabrics::Uuid>;
  struct AgainTimer : Timer {
    explicit AgainTimer(ReservationKeeper& k) : Timer(&Fire), keeper(k) {}
    static void Fire(Timer& timer);
    ReservationKeeper& keeper;
  };

  // One thing at a time; between two of them the reactor does others.
  void Begin();
  Task<void> DoNext();
  void GoOn();
  Task<nvme::target::Answer> ExecuteOne(const ReservationCall& call);
  nvme::target::Answer Report(const ReservationCall& call) const;
  Task<bool> IsStoredAllTheSame(const nvme::target::Reservation& after);
  Task<void> Adopt(const nvme::target::Reservation& after, const Hosts& to_abort);
  Task<void> Open(nvme::target::Reservation loaded);
  void ReadLater();
  Task<void> ReadAgain();
  // All reactors keep to reservation_, and what it forbids, and what the hosts of `to_abort` have in the storage, has ended.
  Task<void> Publish(const Hosts& to_abort);
  Task<void> AwaitForbidden();
  std::shared_ptr<const nvme::target::Reservation> InForce() const;

  const Parts parts_;
  nvme::target::Reservation reservation_;
  std::deque<ReservationCall> calls_;
  bool busy_ = false;
  bool closing_ = false;
  bool shut_ = false;
  bool reads_again_ = false;
  // What is stored instead of reservation_, perhaps: storing it has failed, and so has looking.
  std::optional<nvme::target::Reservation> in_doubt_;
  Event idle_;
  AgainTimer again_{*this};
};

}  // namespace cleat::nvmf_target
