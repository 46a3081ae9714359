// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/rdma/far_adapter.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

namespace cleat::sim::rdma {
namespace {

using verbs::SendOp;
using verbs::WorkStatus;

constexpr uint64_t kFlushNs = 6'000;  // at most, from Break to the flush

}  // namespace

uint32_t FarAdapter::Poll(std::span<verbs::Completion> completions) {
  uint32_t count = 0;
  for (; count < completions.size() && !completions_.empty(); ++count) {
    completions[count] = completions_.front();
    completions_.pop_front();
  }
  return count;
}

uint32_t FarAdapter::Post(std::span<const verbs::ReceiveWork> works) {
  receives_.insert(receives_.end(), works.begin(), works.end());
  return static_cast<uint32_t>(works.size());
}

FarPair::~FarPair() {
  *alive_ = false;
  std::erase_if(adapter_.completions_,
                [&](const verbs::Completion& completion) { return completion.queue_pair == number_; });
}

uint32_t FarPair::Post(std::span<const verbs::SendWork> works) {
  for (const verbs::SendWork& posted : works) {
    auto work = std::make_shared<Work>();
    work->work = posted;
    work->pieces.assign(posted.pieces.begin(), posted.pieces.end());
    works_.push_back(work);
    if (!broken_) Go(work);
  }
  if (broken_) Flush();
  return static_cast<uint32_t>(works.size());
}

void FarPair::Go(const WorkPtr& work) {
  if (host_ == nullptr) return;
  FarWork far;
  far.key = work->work.key;
  far.address = work->work.remote_address;
  far.op = work->work.op == SendOp::kRead    ? FarWork::Op::kRead
           : work->work.op == SendOp::kWrite ? FarWork::Op::kWrite
                                             : FarWork::Op::kSend;
  far.invalidates = work->work.op == SendOp::kSendAndInvalidate;
  for (const verbs::LocalPiece& piece : work->pieces) {
    far.read_bytes += piece.length_bytes;
    const auto* const bytes = std::bit_cast<const uint8_t*>(piece.address);
    if (far.op != FarWork::Op::kRead) far.data.insert(far.data.end(), bytes, bytes + piece.length_bytes);
  }
  far.done = [this, alive = alive_, work](const std::vector<uint8_t>& read) {
    if (*alive) Done(work, read);
  };
  host_->Far(std::move(far));
}

void FarPair::Done(const WorkPtr& work, const std::vector<uint8_t>& read) {
  if (work->over) return;
  size_t at = 0;
  for (const verbs::LocalPiece& piece : work->pieces) {
    if (read.empty()) break;
    std::memcpy(std::bit_cast<uint8_t*>(piece.address), read.data() + at, piece.length_bytes);
    at += piece.length_bytes;
  }
  work->over = true;
  EmitDone();
}

void FarPair::EmitDone() {
  while (!works_.empty() && works_.front()->over) {
    const WorkPtr work = works_.front();
    works_.pop_front();
    if (!work->work.signaled && work->status == WorkStatus::kDone) continue;
    adapter_.completions_.push_back({.id = work->work.id, .queue_pair = number_, .status = work->status});
  }
}

void FarPair::Break() {
  if (std::exchange(broken_, true)) return;
  Flush();
  if (host_ != nullptr) host_->FarDisconnects();
}

void FarPair::Broken() {
  Break();
  world_.After(0, [this, alive = alive_] {
    if (*alive) disconnected();
  });
}

void FarPair::Flush() {
  world_.After(1 + world_.random.Below(kFlushNs), [this, alive = alive_] {
    if (!*alive) return;
    for (const WorkPtr& work : works_) {
      if (!work->over) work->status = WorkStatus::kFlushed;
      work->over = true;
    }
    EmitDone();
  });
}

void FarPair::Arrived(std::vector<uint8_t> capsule) {
  const verbs::ReceiveWork receive = adapter_.receives_.front();
  adapter_.receives_.pop_front();
  if (capsule.size() > receive.piece.length_bytes)
    return world_.Wrong("a capsule that is longer than the target's memory for it");
  std::memcpy(std::bit_cast<uint8_t*>(receive.piece.address), capsule.data(), capsule.size());
  adapter_.completions_.push_back(
      {.id = receive.id, .queue_pair = number_, .received_bytes = static_cast<uint32_t>(capsule.size())});
}

}  // namespace cleat::sim::rdma
