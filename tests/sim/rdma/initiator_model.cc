// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/rdma/initiator_model.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

namespace cleat::sim::rdma {
namespace {

using verbs::SendOp;
using verbs::WorkStatus;

constexpr uint64_t kHopNs = 1'000;        // at most, to the other end
constexpr uint64_t kReadNs = 8'000;       // at most, until the memory of a READ is read
constexpr uint64_t kFlushNs = 6'000;      // at most, from Break to the flush
constexpr uint64_t kAgainNs = 2'000;      // to the next try where there is no memory for a message
constexpr uint64_t kSilenceNs = 300'000;  // until the adapter gives a peer up that does not answer
constexpr uint32_t kTriesMax = 200;
constexpr uint32_t kIndexShift = 8;  // of a key

uint8_t* MemoryAt(uint64_t address) {
  return std::bit_cast<uint8_t*>(address);
}

}  // namespace

// ---- ModelWindow

ModelWindow::ModelWindow(InitiatorModel& model, uint32_t index)
    : MemoryWindow(index << kIndexShift), model_(model), index_(index) {
  if (!model.windows_.emplace(index, this).second) model.world_.Wrong("two windows of one index");
}

ModelWindow::~ModelWindow() {
  model_.windows_.erase(index_);
}

// ---- InitiatorPair: works of this end

InitiatorPair::InitiatorPair(InitiatorModel& model, uint32_t number, const verbs::SendLimits& limits,
                             TargetEnd& target)
    : model_(model), world_(model.world_), number_(number), limits_(limits), told_(limits), target_(target) {
  if (model.defect_ == InitiatorDefect::kOneWorkTooMany) ++told_.works;
}

InitiatorPair::~InitiatorPair() {
  *alive_ = false;
  if (!broken_) world_.Wrong("a queue pair is destroyed that goes on");
  for (const WorkPtr& work : works_) {
    if (!work->over) CheckUnchanged(*work);
  }
  for (const auto& [index, window] : model_.windows_) {
    if (window->pair_ != this) continue;
    window->pair_ = nullptr;
    if (!model_.keeps_windows()) world_.Wrong("a queue pair is destroyed to which a window is bound");
  }
  auto& completions = model_.completions_;
  for (const InitiatorModel::Entry& entry : completions)
    model_.lost_receives_ += entry.pair == this && entry.receive ? 1 : 0;
  std::erase_if(completions, [&](const InitiatorModel::Entry& entry) { return entry.pair == this; });
}

void InitiatorPair::After(uint64_t ns, std::function<void()> what) {
  world_.After(ns, [alive = alive_, what = std::move(what)] {
    if (*alive) what();
  });
}

void InitiatorPair::CheckWork(const verbs::SendWork& work) {
  if (++used_ > limits_.works) world_.Wrong("more works than the send queue has room for");
  if (work.op == SendOp::kBindWindow) {
    const auto* const registration = static_cast<const ModelRegistration*>(work.binding->registration);
    if (work.binding->address < registration->address || work.binding->length_bytes == 0 ||
        work.binding->address + work.binding->length_bytes > registration->address + registration->bytes)
      world_.Wrong("a window of memory that is not registered");
    return;
  }
  if (work.op == SendOp::kInvalidateWindow) return;
  if (work.op != SendOp::kSend) return world_.Wrong("a work of a kind that the host has no use for");
  if (work.pieces.size() != 1 || limits_.pieces == 0)
    return world_.Wrong("a work with more pieces than it may have");
  if (work.copies_data && work.pieces[0].length_bytes > limits_.inline_bytes)
    world_.Wrong("more bytes to be copied than may be");
  if (!work.copies_data && !model_.Registered(work.pieces[0]))
    world_.Wrong("a work with memory that is not registered");
}

uint32_t InitiatorPair::Post(std::span<const verbs::SendWork> works) {
  uint32_t count = static_cast<uint32_t>(works.size());
  if (count > 0 && world_.Chance(model_.short_post_percent))
    count = static_cast<uint32_t>(world_.random.Below(count));
  for (const verbs::SendWork& posted : works.first(count)) {
    CheckWork(posted);
    auto work = std::make_shared<Work>();
    work->work = posted;
    if (posted.binding != nullptr) work->binding = *posted.binding;
    if (!posted.pieces.empty()) {
      work->piece = posted.pieces[0];
      const uint8_t* const memory = MemoryAt(work->piece.address);
      work->bytes.assign(memory, memory + work->piece.length_bytes);
    }
    works_.push_back(work);
    to_land_.push_back(work);
  }
  if (broken_) {
    Flush();
  } else {
    PumpSends();
  }
  return count;
}

void InitiatorPair::PumpSends() {
  if (landing_ || to_land_.empty() || broken_) return;
  landing_ = true;
  const WorkPtr work = to_land_.front();
  After(1 + world_.random.Below(kHopNs), [this, work] { Land(work, 0); });
}

void InitiatorPair::Land(const WorkPtr& work, uint32_t tries) {
  if (broken_) return;
  const SendOp op = work->work.op;
  if (op == SendOp::kSend) return LandSend(work, tries);
  const bool ok = op == SendOp::kBindWindow
                      ? Bind(work->binding)
                      : Invalidate(work->work.key, model_.defect_ == InitiatorDefect::kWindowNotInvalidated);
  if (!ok) return Fail(work, WorkStatus::kLocalError);
  to_land_.pop_front();
  landing_ = false;
  After(world_.random.Below(kHopNs), [this, work] { LetGo(work, WorkStatus::kDone); });
  PumpSends();
}

void InitiatorPair::LandSend(const WorkPtr& work, uint32_t tries) {
  if (target_.silent()) {
    After(kSilenceNs, [this, work] { Fail(work, WorkStatus::kRetriesExceeded); });
    return;
  }
  if (!target_.TakeReceive()) {
    if (tries == kTriesMax) return Fail(work, WorkStatus::kRetriesExceeded);
    return After(kAgainNs, [this, work, tries] { Land(work, tries + 1); });
  }
  std::vector<uint8_t> message = work->bytes;
  if (!work->work.copies_data) std::memcpy(message.data(), MemoryAt(work->piece.address), message.size());
  to_land_.pop_front();
  landing_ = false;
  After(world_.random.Below(kHopNs * 3), [this, work] { LetGo(work, WorkStatus::kDone); });
  PumpSends();
  target_.Arrived(std::move(message));
}

bool InitiatorPair::Bind(const verbs::WindowBinding& binding) {
  auto& window = static_cast<ModelWindow&>(*binding.window);
  if (!model_.keeps_windows()) {
    if (window.pair_ != nullptr) world_.Wrong("a window is bound that is bound already");
    for (const auto& [index, other] : model_.windows_) {
      if (other->Overlaps(binding.address, binding.length_bytes)) world_.Wrong("memory behind two windows");
    }
  }
  if (binding.key >> kIndexShift != window.index_ || binding.key == window.bound_key_)
    world_.Wrong("a window is bound by a key that is not another one of its own");
  if (binding.peer_may_read == binding.peer_may_write) world_.Wrong("a window for both ways, or for none");
  window.pair_ = this;
  window.bound_key_ = binding.key;
  window.address_ = binding.address;
  window.bytes_ = binding.length_bytes;
  window.may_read_ = binding.peer_may_read;
  window.may_write_ = binding.peer_may_write;
  return true;
}

bool InitiatorPair::Invalidate(uint32_t key, bool defect) {
  const auto found = model_.windows_.find(key >> kIndexShift);
  if (found == model_.windows_.end()) return false;
  ModelWindow& window = *found->second;
  if (window.pair_ != this || window.bound_key_ != key) return false;
  if (!defect) window.pair_ = nullptr;
  return true;
}

// A packet that is lost is sent again from the same memory, until it is acknowledged.
void InitiatorPair::CheckUnchanged(const Work& work) {
  if (work.work.op != SendOp::kSend || work.work.copies_data) return;
  if (std::memcmp(MemoryAt(work.piece.address), work.bytes.data(), work.bytes.size()) != 0)
    world_.Wrong("memory changes while the adapter may send it again");
}

void InitiatorPair::LetGo(const WorkPtr& work, WorkStatus status) {
  if (work->over) return;
  CheckUnchanged(*work);
  work->over = true;
  work->status = status;
  EmitDone();
}

void InitiatorPair::Fail(const WorkPtr& work, WorkStatus status) {
  if (work->over) return;
  Enter();
  LetGo(work, status);
}

// The error state.
void InitiatorPair::Enter() {
  if (broken_) return;
  broken_ = true;
  // It may have taken memory for a message that does not come any more.
  auto& receives = model_.receives_;
  if (!receives.empty() && world_.Chance(30)) {
    const uint64_t id = receives.front().id;
    receives.pop_front();
    model_.Push({{.id = id, .queue_pair = number_, .status = WorkStatus::kFlushed}, this, 0, true});
  }
  Flush();
  far_landing_ = false;
  PumpFar();
  After(1 + world_.random.Below(kHopNs), [this] { target_.Broken(); });
}

void InitiatorPair::Flush() {
  After(1 + world_.random.Below(kFlushNs), [this] {
    const auto works = works_;
    for (const WorkPtr& work : works) LetGo(work, WorkStatus::kFlushed);
  });
}

void InitiatorPair::EmitDone() {
  while (!works_.empty() && works_.front()->over) {
    const WorkPtr work = works_.front();
    works_.pop_front();
    ++silent_works_;
    if (!work->work.signaled && work->status == WorkStatus::kDone) continue;
    model_.Push({{.id = work->work.id, .queue_pair = number_, .status = work->status},
                 this,
                 std::exchange(silent_works_, 0),
                 false});
  }
}

// ---- Works of the far end

uint8_t* InitiatorPair::Access(uint32_t key, uint64_t address, uint64_t bytes, bool write) {
  const auto found = model_.windows_.find(key >> kIndexShift);
  if (found == model_.windows_.end()) return nullptr;
  const ModelWindow& window = *found->second;
  const bool has_right = write ? window.may_write_ : window.may_read_;
  if (window.pair_ != this || window.bound_key_ != key || !has_right || address < window.address_ ||
      address - window.address_ > window.bytes_ || bytes > window.bytes_ - (address - window.address_))
    return nullptr;
  return MemoryAt(address);
}

void InitiatorPair::Far(FarWork work) {
  const bool overtakes = model_.defect_ == InitiatorDefect::kSendOvertakesData &&
                         work.op == FarWork::Op::kSend && !far_.empty() && !far_landing_;
  far_.push_back(std::make_shared<FarWork>(std::move(work)));
  if (overtakes) std::swap(far_[far_.size() - 1], far_[far_.size() - 2]);
  After(0, [this] { PumpFar(); });
}

void InitiatorPair::PumpFar() {
  if (far_landing_ || far_.empty()) return;
  far_landing_ = true;
  const FarPtr work = far_.front();
  const uint64_t ns = 1 + world_.random.Below(kHopNs);
  // A part of the data may be there long before.
  if (work->op == FarWork::Op::kWrite && world_.Chance(50)) {
    After(world_.random.Below(ns), [this, work] { FarWrite(*work, work->data.size() / 2); });
  }
  After(ns, [this, work] { LandFar(work, 0); });
}

void InitiatorPair::LandFar(const FarPtr& work, uint32_t tries) {
  if (far_.empty() || far_.front() != work) return;
  if (work->op == FarWork::Op::kSend && !broken_ && model_.receives_.empty()) {
    if (tries == kTriesMax) return Enter();
    return After(kAgainNs, [this, work, tries] { LandFar(work, tries + 1); });
  }
  far_.pop_front();
  far_landing_ = false;
  bool ok = true;
  if (work->op == FarWork::Op::kWrite) {
    ok = FarWrite(*work, work->data.size());
    if (ok && work->done) After(1 + world_.random.Below(kHopNs), [work] { work->done({}); });
  } else if (work->op == FarWork::Op::kRead) {
    ok = Access(work->key, work->address, work->read_bytes, false) != nullptr;
    if (ok) FarRead(work);
  } else if (!broken_) {
    Deliver(work, tries);
  }
  if (!ok) {
    ++model_.refused_;
    if (!broken_) return Enter();
  }
  PumpFar();
}

bool InitiatorPair::FarWrite(const FarWork& work, size_t bytes) {
  uint8_t* const to = Access(work.key, work.address, work.data.size(), true);
  if (to == nullptr) return false;
  std::memcpy(to, work.data.data(), bytes);
  return true;
}

// The request has arrived.
void InitiatorPair::FarRead(const FarPtr& work) {
  After(1 + world_.random.Below(kReadNs), [this, work] {
    const uint8_t* const from = Access(work->key, work->address, work->read_bytes, false);
    if (from == nullptr) {
      ++model_.refused_;
      return Enter();
    }
    std::vector<uint8_t> data(from, from + work->read_bytes);
    After(1 + world_.random.Below(kHopNs), [work, data = std::move(data)] {
      if (work->done) work->done(data);
    });
  });
}

void InitiatorPair::Deliver(const FarPtr& work, uint32_t /*tries*/) {
  // A key that is not valid here is the far end's fault, and costs it the connection.
  if (work->invalidates && !Invalidate(work->key, model_.defect_ == InitiatorDefect::kKeyNotInvalidated)) {
    ++model_.refused_;
    return Enter();
  }
  const verbs::ReceiveWork receive = model_.receives_.front();
  model_.receives_.pop_front();
  const bool fits = work->data.size() <= receive.piece.length_bytes;
  if (fits && !work->data.empty())
    std::memcpy(MemoryAt(receive.piece.address), work->data.data(), work->data.size());
  model_.Push({{.id = receive.id,
                .queue_pair = number_,
                .status = fits ? WorkStatus::kDone : WorkStatus::kLocalError,
                .received_bytes = static_cast<uint32_t>(work->data.size()),
                .key_was_invalidated = work->invalidates,
                .invalidated_key = work->invalidates ? work->key : 0},
               this,
               0,
               true});
  if (!fits) return Enter();
  if (work->done) After(1 + world_.random.Below(kHopNs), [work] { work->done({}); });
}

// ---- InitiatorModel

bool InitiatorModel::Registered(const verbs::LocalPiece& piece) const {
  return piece.local_key == registered_.local_key && piece.address >= registered_.address &&
         piece.address + piece.length_bytes <= registered_.address + registered_.length_bytes;
}

uint32_t InitiatorModel::Post(std::span<const verbs::ReceiveWork> works) {
  for (const verbs::ReceiveWork& work : works) {
    if (!Registered(work.piece)) world_.Wrong("memory for messages that is not registered");
    receives_.push_back(work);
  }
  if (receives_.size() > receives_max_) world_.Wrong("more memory for messages than the queue has room for");
  return static_cast<uint32_t>(works.size());
}

void InitiatorModel::Push(const Entry& entry) {
  completions_.push_back(entry);
  if (completions_.size() > completions_max_) world_.Wrong("more completions than their queue has room for");
  if (entry.completion.status == WorkStatus::kDone) return;
  // A completion of failed work has nothing else that is valid.
  verbs::Completion& completion = completions_.back().completion;
  completion.received_bytes = static_cast<uint32_t>(world_.random.Next());
  completion.invalidated_key = static_cast<uint32_t>(world_.random.Next());
  completion.key_was_invalidated = world_.Chance(50);
}

uint32_t InitiatorModel::Poll(std::span<verbs::Completion> completions) {
  uint32_t count = 0;
  while (count < completions.size() && !completions_.empty()) {
    completions[count++] = completions_.front().completion;
    completions_.front().pair->used_ -= completions_.front().frees;
    completions_.pop_front();
  }
  return count;
}

}  // namespace cleat::sim::rdma
