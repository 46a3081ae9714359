// SPDX-License-Identifier: Apache-2.0
#include "modules/nvmf/connect/make_queue.h"

#include <utility>

#include "modules/nvmf/rdma/rdma_queue.h"
#include "modules/nvmf/socket/tcp_queue.h"

namespace cleat::modules {

std::unique_ptr<TransportQueue> MakeQueue(TransportQueueOptions options, Reactor& reactor,
                                          nvme::fabrics::QueuePairOwner& owner) {
  if (options.transport.address.transport == nvme::fabrics::TransportType::kRdma)
    return std::make_unique<RdmaQueue>(std::move(options), reactor, owner);
  TransportOptions& transport = options.transport;
  nvme::tcp::HostConnectionOptions connection;
  connection.name = std::move(options.name);
  connection.depth = options.entries - 1;
  connection.digests = transport.digests;
  connection.receive_buffer_bytes = transport.tuning.receive_buffer_bytes;
  TcpQueueOptions tcp(transport.address, std::move(connection));
  tcp.source = transport.source;
  tcp.dscp = transport.dscp;
  tcp.tls = std::move(transport.tls);
  tcp.tuning = transport.tuning;
  tcp.connect_timeout_ns = options.connect_timeout_ns;
  return std::make_unique<TcpQueue>(tcp, reactor, owner);
}

}  // namespace cleat::modules
