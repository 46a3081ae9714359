// SPDX-License-Identifier: Apache-2.0
// The stages of a request's way through an engine, in their order. A stage is reached at one time, its stamp; its duration is
// the time since the last stage before it that the request came through. The order is part of the counters' format
// (observe/layout.h).
#pragma once

#include <cstddef>
#include <cstdint>

namespace cleat {

enum class RequestStage : uint32_t {
  kSeen,       // the engine noticed that the guest had offered it
  kFetched,    // taken from the ring
  kQosOut,     // limits let it pass
  kCryptoOut,  // encrypted
  kSubmitted,  // given to the storage
  kDone,  // the storage has answered; one that answers at once has neither of these two, its time is in kUsed
  kCryptoIn,  // decrypted
  kUsed,      // the answer is in the used ring
  kCalled,    // the guest was notified; many are not, it polls or has been notified already
  kTotal,     // no stage of its own: from kSeen to kUsed
};
// So many of them, the first ones, have their stamps in the request (block/stage_stamps.h); the others are its queue's.
inline constexpr size_t kCarriedStages = 7;
static_assert(kCarriedStages == static_cast<size_t>(RequestStage::kUsed));

}  // namespace cleat
