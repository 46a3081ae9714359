// SPDX-License-Identifier: Apache-2.0
#include "rdma/ibverbs/receive_queue.h"

#include <algorithm>
#include <array>

#include "rdma/ibverbs/pieces.h"

namespace cleat::rdma {

uint32_t AdapterReceiveQueue::Post(std::span<const ReceiveWork> works) {
  std::array<ibv_recv_wr, kPostMax> chain;
  uint32_t posted = 0;
  while (posted < works.size()) {
    const std::span<const ReceiveWork> group =
        works.subspan(posted, std::min<size_t>(works.size() - posted, kPostMax));
    for (size_t i = 0; i < group.size(); ++i) {
      chain[i].wr_id = group[i].id;
      chain[i].next = i + 1 < group.size() ? &chain[i + 1] : nullptr;
      chain[i].sg_list = AdapterPieces({&group[i].piece, 1});
      chain[i].num_sge = 1;
    }
    ibv_recv_wr* refused = nullptr;
    if (ibv_post_srq_recv(&queue_, chain.data(), &refused) != 0)
      return posted + static_cast<uint32_t>(refused == nullptr ? 0 : refused - chain.data());
    posted += static_cast<uint32_t>(group.size());
  }
  return posted;
}

}  // namespace cleat::rdma
