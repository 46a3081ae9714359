// SPDX-License-Identifier: Apache-2.0
// An adapter behind rdma/verbs.h in virtual time, which is as unhelpful as a real one may be: it reads and writes memory as late as it can, completes late, and
// says so of what its user may not do. Works go out in order. What a READ brings comes later, and holds up no SEND behind it; the data of a WRITE lands in
// parts before what is behind it arrives; completions of sends come in order. What was posted goes on after Break until it is flushed.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <queue>
#include <string>
#include <vector>

#include "base/random.h"
#include "rdma/verbs.h"

namespace cleat::sim::rdma {

namespace verbs = ::cleat::rdma;

// What is done wrong on purpose, so that it is seen that it would be noticed.
enum class AdapterDefect : uint8_t {
  kNone,
  kOneCreditTooMany,  // the queue pair says that it has more read credits than it has
  kReadCompletesBeforeItsData,
  kSendOvertakesData,
  kKeyNotInvalidated,
};

// Virtual time, chance, and the first thing that went wrong.
class ModelWorld {
 public:
  explicit ModelWorld(uint64_t seed) : random(seed) {}
  uint64_t now() const { return now_ns_; }
  void After(uint64_t ns, std::function<void()> what);
  // The next event; false: there is none.
  bool Step();
  void Wrong(const std::string& what) {
    if (wrong.empty()) wrong = what;
  }
  bool Chance(uint64_t percent) { return random.Chance(percent, 100); }

  Random random;
  std::string wrong;

 private:
  struct Event {
    uint64_t at_ns;
    uint64_t number;
    std::function<void()> what;
    bool operator<(const Event& other) const {
      return at_ns != other.at_ns ? at_ns > other.at_ns : number > other.number;
    }
  };
  std::priority_queue<Event> events_;
  uint64_t now_ns_ = 0;
  uint64_t events_count_ = 0;
};

// What a host's adapter does, and its host.
class HostEnd {
 public:
  // The memory, or nullptr: the adapter refuses.
  virtual uint8_t* Access(uint32_t key, uint64_t address, uint32_t bytes, bool write) = 0;
  virtual bool TakeReceive() = 0;
  // `key`: that is invalidated, 0: none.
  virtual void Arrived(std::span<const uint8_t> message, uint32_t key) = 0;
  virtual bool silent() const = 0;
  // The connection is gone.
  virtual void Broken() = 0;

 protected:
  ~HostEnd() = default;
};

class ModelAdapter;

class ModelQueuePair final : public verbs::QueuePair {
 public:
  ModelQueuePair(ModelAdapter& adapter, uint32_t number, const verbs::SendLimits& limits, HostEnd& host);
  ~ModelQueuePair() override;
  uint32_t number() const override { return number_; }
  const verbs::SendLimits& limits() const override { return told_; }
  uint32_t Post(std::span<const verbs::SendWork> works) override;
  void Break() override;

  // ---- For the host
  void HostSends(std::vector<uint8_t> message);
  void HostDisconnects() { Break(); }

 private:
  friend class ModelAdapter;
  struct Work {
    uint64_t id = 0;
    verbs::SendOp op = verbs::SendOp::kSend;
    bool signaled = true;
    bool copied = false;
    std::vector<verbs::LocalPiece> pieces;
    std::vector<uint8_t> bytes;  // as they were when the work was posted
    uint64_t remote_address = 0;
    uint32_t key = 0;
    uint32_t length = 0;
    bool over = false;  // the adapter has let go of its memory
    verbs::WorkStatus status = verbs::WorkStatus::kDone;
  };
  using WorkPtr = std::shared_ptr<Work>;

  void After(uint64_t ns, std::function<void()> what);
  void PumpSends();
  void Land(const WorkPtr& work, uint32_t tries);
  void LandSend(const WorkPtr& work, uint32_t tries);
  void LandRead(const WorkPtr& work);
  void MoveRead(Work& work, uint32_t bytes);
  bool MoveWrite(Work& work, uint32_t bytes);
  void LetGo(const WorkPtr& work, verbs::WorkStatus status);
  void CheckUnchanged(const Work& work);
  void Fail(const WorkPtr& work, verbs::WorkStatus status);
  void Enter();
  void Flush();
  void EmitDone();
  void PumpMessages();
  void Deliver(uint32_t tries);

  ModelAdapter& adapter_;
  ModelWorld& world_;
  const uint32_t number_;
  const verbs::SendLimits limits_;
  verbs::SendLimits told_;
  HostEnd& host_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  std::deque<WorkPtr> works_;    // not reported
  std::deque<WorkPtr> to_land_;  // in the order in which they go out
  std::deque<std::vector<uint8_t>> messages_;
  uint32_t used_ = 0;          // of the send queue
  uint32_t silent_works_ = 0;  // done, not signaled, and not freed
  uint32_t reads_ = 0;         // outstanding
  uint64_t read_done_ns_ = 0;
  bool landing_ = false;
  bool delivering_ = false;
  bool broken_ = false;
};

class ModelAdapter final : public verbs::CompletionQueue, public verbs::ReceiveQueue {
 public:
  ModelAdapter(ModelWorld& world, AdapterDefect defect, uint32_t completions_max, uint32_t receives_max)
      : world_(world), defect_(defect), completions_max_(completions_max), receives_max_(receives_max) {}

  void Register(const void* base, uint64_t bytes, uint32_t key);
  uint32_t Poll(std::span<verbs::Completion> completions) override;
  uint32_t Post(std::span<const verbs::ReceiveWork> works) override;
  Status Arm() override { return {}; }
  int descriptor() const override { return -1; }
  void TakeEvents() override {}

  bool empty() const { return completions_.empty(); }
  uint32_t lost_receives() const { return lost_receives_; }
  // A Post of any queue pair takes a part alone, by so much of a chance.
  uint32_t short_post_percent = 0;

 private:
  friend class ModelQueuePair;
  struct Entry {
    verbs::Completion completion;
    ModelQueuePair* pair;
    uint32_t frees;
    bool receive;
  };
  void Push(const Entry& entry);
  bool Registered(const verbs::LocalPiece& piece) const;

  ModelWorld& world_;
  const AdapterDefect defect_;
  const uint32_t completions_max_;
  const uint32_t receives_max_;
  struct Region {
    uint64_t address;
    uint64_t bytes;
  };
  std::map<uint32_t, Region> regions_;
  std::deque<Entry> completions_;
  std::deque<verbs::ReceiveWork> receives_;
  uint32_t lost_receives_ = 0;
};

}  // namespace cleat::sim::rdma
