// SPDX-License-Identifier: Apache-2.0
// Pieces of memory as libibverbs has them: the same as here, so that none is copied.
#pragma once

#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include "rdma/verbs.h"

namespace cleat::rdma {

// Works of one call of the adapter, which rings its doorbell once for them.
inline constexpr uint32_t kPostMax = 16;

static_assert(sizeof(LocalPiece) == sizeof(ibv_sge) && alignof(LocalPiece) == alignof(ibv_sge));
static_assert(offsetof(LocalPiece, address) == offsetof(ibv_sge, addr));
static_assert(offsetof(LocalPiece, length_bytes) == offsetof(ibv_sge, length));
static_assert(offsetof(LocalPiece, local_key) == offsetof(ibv_sge, lkey));

// libibverbs reads them alone, although it does not say so.
inline ibv_sge* AdapterPieces(std::span<const LocalPiece> pieces) {
  return reinterpret_cast<ibv_sge*>(const_cast<LocalPiece*>(pieces.data()));
}

}  // namespace cleat::rdma
