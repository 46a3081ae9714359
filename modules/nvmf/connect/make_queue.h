// SPDX-License-Identifier: Apache-2.0
// A queue of the transport that its address names.
#pragma once

#include <memory>

#include "modules/nvmf/transport/transport_queue.h"
#include "nvme/fabrics/queues/queue_pair.h"
#include "reactor/reactor.h"

namespace cleat::modules {

// Not started. `reactor` and `owner` outlive it.
std::unique_ptr<TransportQueue> MakeQueue(TransportQueueOptions options, Reactor& reactor,
                                          nvme::fabrics::QueuePairOwner& owner);

}  // namespace cleat::modules
