// SPDX-License-Identifier: Apache-2.0
// The adapter of a host behind rdma/verbs.h in virtual time, with the wire and the adapter at the other end, which are as unhelpful as real ones may be. Works
// go out in order; a SEND is read again until it is acknowledged; completions come late. What the far end writes lands in parts, before what is behind it
// arrives; what it reads is read late, and holds up nothing. Access goes by windows alone: of that queue pair, within the window, with its rights, at the
// very time. What is under way goes on after Break until the queue pair is destroyed, but for messages.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "rdma/memory.h"
#include "rdma/verbs.h"
#include "tests/sim/rdma/model_adapter.h"

namespace cleat::sim::rdma {

// What is done wrong on purpose, so that it is seen that it would be noticed.
enum class InitiatorDefect : uint8_t {
  kNone,
  kKeyNotInvalidated,     // by the far end's SEND, though its completion says so
  kWindowNotInvalidated,  // by work of this end, though its completion says so
  kSendOvertakesData,     // what the far end sends arrives before what it wrote
  kOneWorkTooMany,        // the queue pair says that it has room for more works than it has
};

// What is behind the far adapter.
class TargetEnd {
 public:
  virtual bool TakeReceive() = 0;
  virtual void Arrived(std::vector<uint8_t> capsule) = 0;
  virtual bool silent() const = 0;
  // The connection is gone.
  virtual void Broken() = 0;

 protected:
  ~TargetEnd() = default;
};

// Work of the far end. It is done in order.
struct FarWork {
  enum class Op : uint8_t { kWrite, kRead, kSend };
  Op op = Op::kSend;
  uint32_t key = 0;
  uint64_t address = 0;
  uint32_t read_bytes = 0;
  std::vector<uint8_t> data;  // that is written or sent
  bool invalidates = false;   // the key, by a kSend
  // It is done; what was read. Not called where it fails, as the connection breaks.
  std::function<void(std::vector<uint8_t>)> done;
};

class InitiatorModel;
class InitiatorPair;

class ModelWindow final : public verbs::MemoryWindow {
 public:
  ModelWindow(InitiatorModel& model, uint32_t index);
  ~ModelWindow() override;

 private:
  friend class InitiatorModel;
  friend class InitiatorPair;
  bool Overlaps(uint64_t address, uint64_t bytes) const {
    return pair_ != nullptr && address < address_ + bytes_ && address_ < address + bytes;
  }
  InitiatorModel& model_;
  const uint32_t index_;
  const InitiatorPair* pair_ = nullptr;  // that it is bound to
  uint32_t bound_key_ = 0;
  uint64_t address_ = 0;
  uint64_t bytes_ = 0;
  bool may_read_ = false;
  bool may_write_ = false;
};

class ModelRegistration final : public verbs::Registration {
 public:
  ModelRegistration(uint32_t local_key, const void* base, uint64_t size_bytes)
      : Registration(local_key, 0), address(reinterpret_cast<uint64_t>(base)), bytes(size_bytes) {}
  const uint64_t address;
  const uint64_t bytes;
};

class InitiatorPair final : public verbs::QueuePair {
 public:
  InitiatorPair(InitiatorModel& model, uint32_t number, const verbs::SendLimits& limits, TargetEnd& target);
  ~InitiatorPair() override;
  uint32_t number() const override { return number_; }
  const verbs::SendLimits& limits() const override { return told_; }
  uint32_t Post(std::span<const verbs::SendWork> works) override;
  void Break() override { Enter(); }

  // ---- For the far end
  void Far(FarWork work);
  void FarDisconnects() { Enter(); }

 private:
  friend class InitiatorModel;
  struct Work {
    verbs::SendWork work;
    verbs::WindowBinding binding;
    verbs::LocalPiece piece;
    std::vector<uint8_t> bytes;  // as they were when the work was posted
    bool over = false;           // the adapter has let go of its memory
    verbs::WorkStatus status = verbs::WorkStatus::kDone;
  };
  using WorkPtr = std::shared_ptr<Work>;
  using FarPtr = std::shared_ptr<FarWork>;

  void After(uint64_t ns, std::function<void()> what);
  void CheckWork(const verbs::SendWork& work);
  void PumpSends();
  void Land(const WorkPtr& work, uint32_t tries);
  void LandSend(const WorkPtr& work, uint32_t tries);
  bool Bind(const verbs::WindowBinding& binding);
  bool Invalidate(uint32_t key, bool defect);
  void LetGo(const WorkPtr& work, verbs::WorkStatus status);
  void CheckUnchanged(const Work& work);
  void Fail(const WorkPtr& work, verbs::WorkStatus status);
  void Enter();
  void Flush();
  void EmitDone();
  uint8_t* Access(uint32_t key, uint64_t address, uint64_t bytes, bool write);
  void PumpFar();
  void LandFar(const FarPtr& work, uint32_t tries);
  bool FarWrite(const FarWork& work, size_t bytes);
  void FarRead(const FarPtr& work);
  void Deliver(const FarPtr& work, uint32_t tries);

  InitiatorModel& model_;
  ModelWorld& world_;
  const uint32_t number_;
  const verbs::SendLimits limits_;
  verbs::SendLimits told_;
  TargetEnd& target_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  std::deque<WorkPtr> works_;    // not reported
  std::deque<WorkPtr> to_land_;  // in the order in which they go out
  std::deque<FarPtr> far_;
  uint32_t used_ = 0;          // of the send queue
  uint32_t silent_works_ = 0;  // done, not signaled, and not freed
  bool landing_ = false;
  bool far_landing_ = false;
  bool broken_ = false;
};

class InitiatorModel final : public verbs::CompletionQueue, public verbs::ReceiveQueue {
 public:
  InitiatorModel(ModelWorld& world, InitiatorDefect defect, uint32_t completions_max, uint32_t receives_max)
      : world_(world), defect_(defect), completions_max_(completions_max), receives_max_(receives_max) {}

  void Register(const verbs::LocalPiece& piece) { registered_ = piece; }
  uint32_t Poll(std::span<verbs::Completion> completions) override;
  uint32_t Post(std::span<const verbs::ReceiveWork> works) override;
  Status Arm() override { return {}; }
  int descriptor() const override { return -1; }
  void TakeEvents() override {}

  bool empty() const { return completions_.empty(); }
  uint32_t lost_receives() const { return lost_receives_; }
  uint64_t refused() const { return refused_; }
  // A Post of any queue pair takes a part alone, by so much of a chance.
  uint32_t short_post_percent = 0;

 private:
  friend class InitiatorPair;
  friend class ModelWindow;
  struct Entry {
    verbs::Completion completion;
    InitiatorPair* pair;
    uint32_t frees;
    bool receive;
  };
  // By a defect of it.
  bool keeps_windows() const {
    return defect_ == InitiatorDefect::kKeyNotInvalidated ||
           defect_ == InitiatorDefect::kWindowNotInvalidated;
  }
  void Push(const Entry& entry);
  bool Registered(const verbs::LocalPiece& piece) const;

  ModelWorld& world_;
  const InitiatorDefect defect_;
  const uint32_t completions_max_;
  const uint32_t receives_max_;
  verbs::LocalPiece registered_;
  std::map<uint32_t, ModelWindow*> windows_;
  std::deque<Entry> completions_;
  std::deque<verbs::ReceiveWork> receives_;
  uint32_t lost_receives_ = 0;
  uint64_t refused_ = 0;
};

}  // namespace cleat::sim::rdma
