// SPDX-License-Identifier: Apache-2.0
#include "nvmf_target/rdma/rdma_transport.h"

#include <utility>

#include "base/check.h"

namespace cleat::nvmf_target {

RdmaTransport::RdmaTransport(Reactor& control, std::shared_ptr<RdmaLink> link, std::string peer,
                             const TransportTraits::Announced& announced)
    : control_(control),
      link_(std::move(link)),
      peer_(std::move(peer)),
      traits_{.uses_registered_memory = true,
              .always_receives = true,
              .reactor = &link_->port().reactor(),
              .announced = announced} {}

RdmaTransport::~RdmaTransport() {
  CLEAT_CHECK(!turn.linked());
  link_->relay()->Stop();
}

nvme::fabrics::TargetQueue& RdmaTransport::queue() {
  if (relays_) return *link_->relay();
  return link_->queue();
}

Status RdmaTransport::Start(Reactor& reactor, TransportOwner& owner, Kind kind) {
  CLEAT_CHECK(relays_ ? &reactor == &control_ : &reactor == traits_.reactor);
  if (relays_) {
    link_->relay()->Start(owner);
    return {};
  }
  CLEAT_CHECK(kind == Kind::kIo);
  if (link_->queue().ended()) return Error(ErrorCode::kUnavailable, peer_ + ": the host has left");
  owner_ = &owner;
  return {};
}

void RdmaTransport::Stop() {
  if (relays_) {
    link_->relay()->Stop();
    relays_ = false;
  } else {
    if (turn.linked()) turn.Unlink();
    owner_ = nullptr;
  }
}

// While the queue is on the control reactor, the port's reactor hears of its end by mail.
void RdmaTransport::Close() {
  const Error reason(ErrorCode::kUnavailable, peer_ + ": closed");
  if (relays_) {
    link_->relay()->Stop();
    traits_.reactor->PostCall([link = link_, reason] { link->EndQueue(reason); });
  } else {
    link_->EndQueue(reason);
    Stop();
  }
}

void RdmaTransport::Wake() {
  if (relays_) return link_->relay()->Wake();
  if (owner_ != nullptr) link_->port().Wake(*this);
}

void RdmaTransport::EndTurn() {
  if (owner_ != nullptr) owner_->EndTurn();
}

SavedQueue RdmaTransport::Save() {
  CLEAT_CHECK(false);  // may_be_saved
  return {};
}

void RdmaTransport::TakeBack(nvme::fabrics::TargetCommand& /*command*/, nvme::tcp::SavedCommand& /*saved*/) {
  CLEAT_CHECK(false);  // of no queue that was saved
}

}  // namespace cleat::nvmf_target
