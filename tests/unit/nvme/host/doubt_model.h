// SPDX-License-Identifier: Apache-2.0
// A small model of one disk over several paths: two reactors that drive the real DoubtView and DoubtLedger as the headers' contracts ask,
// mail between them, a guest, and a target whose commands linger. One event at a time, each chosen by the test; a value that is copied, so
// that a search can try every event of a state.
//
// Target: an attempt that was sent is executed at any later moment, once or never, until a proof for its life: also after its life ended.
// Guest: gives each of its writes at any moment to the write's own reactor. Host: sends a request on any living life as soon as the view
// lets it, is answered or not, and learns on each reactor apart that a life is over. A life is opened when it is first used.
//
// What is checked (docs/nvmeof.md, "What holds, and what does not"). Strict linearizability of each block is too strong: a write that is
// retried may take effect several times before its answer. So, for each block:
//  1. Once a write was answered with success, no execution of an attempt of it changes a byte.
//  2. A read never returns a value of a write that had ended (answered, or failed) before a write B was submitted that was itself answered
//     before the read was submitted; nor, once any write was answered, what was there before all writes; nor bytes of no write at all.
//     Each state checks this for a read that is submitted and executed in that state. That covers every other read: one that was
//     submitted earlier returns what one submitted at its execution would, and has fewer writes to respect.
//  3. Where no event is left, every request has ended. Every schedule is finite, so nothing waits for ever.
//  4. A request that was never sent and overlaps nothing that was ever in doubt may be sent at once.
//  5. A proof is refused until every reactor has ended that life.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "nvme/host/doubt/doubt_ledger.h"
#include "nvme/host/doubt/doubt_log.h"
#include "nvme/host/doubt/doubt_view.h"

namespace cleat::nvme::host::model {

inline constexpr uint32_t kReactors = 2;

// The negative controls: what the driver below does wrong on purpose.
enum class Fault : uint8_t {
  kNone,
  kNoWaiting,      // never asks whether it may send
  kWaitsForATime,  // asks, and sends all the same when it was held for some events: a timer in place of a proof
  kRetryAsNew,     // MaySend instead of MayRetry
  kBarriersUntold,      // no writes under way in the answer to a table
  kProofOfAnotherLife,  // another life is proved than the one that the target has ended
  kProofTooEarly,       // a proof from before the last reactor's socket was dead
  kForgetOverCrash,     // a new engine that begins with nothing in doubt
  kUnloggedTooEarly,    // an attempt leaves the log when its life ends, before the ledger has it as a ghost
  kAnsweredTooEarly,    // answered while the old socket could still send from the guest's memory
  kFailedAtOnce,        // a request in doubt is failed before every reactor obeys its ghost
};

struct GuestWrite {
  uint32_t reactor = 0;
  BlockRange range;
  bool fails_in_doubt = false;  // as COMPARE AND WRITE does; the others are retried
};

struct Plan {
  std::vector<GuestWrite> writes;
  uint32_t mortal_lives = 1;  // of each engine; one more never ends
  uint32_t blocks = 1;
  bool may_crash = false;   // the engine, once
  bool has_log = false;     // that outlives it; else the whole disk is in doubt then
  bool may_unsend = false;  // an attempt of a dead life may be known not to have reached the target
  Fault fault = Fault::kNone;
};

struct Event {
  enum class Kind : uint8_t {
    kSubmit,
    kSend,
    kExecute,
    kAnswer,
    kEndLife,
    kEndLifeUnsent,
    kFail,
    kToLedger,
    kToView,
    kProve,
    kEarlyProof,
    kCrash
  };
  Kind kind = Kind::kSubmit;
  uint32_t what = 0;  // write, attempt, reactor or life
  uint32_t life = 0;
};

inline constexpr size_t kEventKinds = static_cast<size_t>(Event::Kind::kCrash) + 1;

class World {
 public:
  explicit World(const Plan& plan);

  std::vector<Event> Enabled() const;
  void Do(const Event& event);
  // What was found wrong, or nothing.
  const std::string& wrong() const { return wrong_; }
  bool HasEnded() const;
  // Two worlds with the same text have the same future. It holds what the ledger and the views were told since it last mattered, as both
  // are functions of that.
  std::string Text() const;
  std::string Describe(const Event& event) const;

 private:
  using Mail = std::variant<LifeReport, DoubtAck, BarrierEnded>;
  enum class Stage : uint8_t { kUnborn, kWaiting, kSent, kAnswered, kFailed };
  struct Request {
    Stage stage = Stage::kUnborn;
    bool in_doubt = false;
    uint32_t ended_before = 0;  // the writes that had ended when this one was submitted
  };
  struct Sent {
    uint32_t write = 0;
    uint32_t life = 0;
    bool executed = false;
    bool is_ghost = false;  // its life is over
    bool in_socket = false;
    bool spoilt = false;  // its bytes are others by now
    auto operator<=>(const Sent&) const = default;
  };
  struct Reported {
    LifeId life = 0;
    uint32_t reactor = 0;
    uint32_t writes = 0;
    auto operator<=>(const Reported&) const = default;
  };

  Attempt AttemptOf(uint32_t write) const;
  LifeId IdOf(uint32_t life) const { return (100 * engine_) + life + 1; }
  LifeId PastLife() const { return 1000 + engine_; }
  uint32_t LivesOf(uint32_t engine) const { return engine * (plan_->mortal_lives + 1); }
  bool IsOver(uint32_t reactor, uint32_t life) const {
    return life < LivesOf(engine_) || (over_[reactor] >> life & 1) != 0;
  }
  bool MaySend(uint32_t write) const;
  bool ViewLets(uint32_t write) const;
  void CountHeld();
  bool MayProve(LifeId life) const;

  void Send(uint32_t write, uint32_t life);
  void Execute(uint32_t attempt);
  void Answer(uint32_t attempt);
  void EndLife(uint32_t reactor, uint32_t life, bool unsent);
  void EndBarrier(uint32_t write);
  void ToLedger(uint32_t reactor);
  void ToView(uint32_t reactor);
  void Prove(uint32_t life);
  void Crash();
  void Start();
  void Publish();
  DoubtLog Log();
  void LeaveLog(uint32_t write);
  void Fail(const std::string& what) { wrong_ = wrong_.empty() ? what : wrong_; }
  void Check();

  const Plan* plan_;
  uint32_t engine_ = 0;
  std::vector<uint64_t> log_memory_;  // a write's slot is its number
  std::optional<DoubtLedger> ledger_;
  std::array<std::optional<DoubtView>, kReactors> views_;
  std::array<std::vector<Mail>, kReactors> to_ledger_;
  std::array<std::vector<DoubtTable>, kReactors> to_view_;
  uint64_t published_ = 0;
  uint32_t known_over_ =
      0;  // lives of which the ledger was told that they are over: a function of what it was told

  std::vector<Request> requests_;
  std::vector<uint32_t> held_;   // how many events each request is held for already; kWaitsForATime alone
  std::vector<Sent> sent_;       // not yet answered, and, once its life is over, not yet executed
  std::vector<uint32_t> bytes_;  // of each block: 1 + the write; 0: before all writes
  std::array<uint32_t, kReactors> over_{};
  uint32_t proved_early_ = 0;
  uint32_t blocks_ever_in_doubt_ = 0;
  std::string wrong_;

  // What the ledger and the views were told, for Text().
  std::vector<Reported> reported_;
  std::array<DoubtAck, kReactors> acks_;
  std::array<std::vector<OriginId>, kReactors> barriers_;
  std::array<DoubtTable, kReactors> tables_;
  std::array<uint64_t, kReactors> reports_sent_{};
  std::vector<uint64_t> since_;  // the version from which on a write is in doubt
};

}  // namespace cleat::nvme::host::model
