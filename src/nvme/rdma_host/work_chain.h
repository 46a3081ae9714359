// SPDX-License-Identifier: Apache-2.0
// Works on their way to a send queue, which takes them by one doorbell: a place for them, their pieces and their bindings. A reactor's queues have one in
// turn. One thread.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "base/check.h"
#include "rdma/verbs.h"

namespace cleat::nvme::rdma_host {

namespace verbs = ::cleat::rdma;

class WorkChain {
 public:
  static constexpr uint32_t kWorksMax = 64;

  void Clear() { count_ = 0; }
  uint32_t room() const { return kWorksMax - count_; }
  std::span<const verbs::SendWork> works() const { return {works_.data(), count_}; }

  // room() > 0, in all three.
  void AddBinding(uint64_t id, const verbs::WindowBinding& binding) {
    verbs::SendWork& work = Add(id, verbs::SendOp::kBindWindow);
    bindings_[count_ - 1] = binding;
    work.binding = &bindings_[count_ - 1];
    work.signaled = false;
  }
  void AddSend(uint64_t id, const verbs::LocalPiece& piece, bool copies_data) {
    verbs::SendWork& work = Add(id, verbs::SendOp::kSend);
    pieces_[count_ - 1] = piece;
    work.pieces = {&pieces_[count_ - 1], 1};
    work.copies_data = copies_data;
  }
  void AddInvalidate(uint64_t id, uint32_t key) { Add(id, verbs::SendOp::kInvalidateWindow).key = key; }

 private:
  verbs::SendWork& Add(uint64_t id, verbs::SendOp op) {
    CLEAT_CHECK(room() > 0);
    verbs::SendWork& work = works_[count_++];
    work = {};
    work.id = id;
    work.op = op;
    return work;
  }

  std::array<verbs::SendWork, kWorksMax> works_;
  std::array<verbs::LocalPiece, kWorksMax> pieces_;
  std::array<verbs::WindowBinding, kWorksMax> bindings_;
  uint32_t count_ = 0;
};

}  // namespace cleat::nvme::rdma_host
