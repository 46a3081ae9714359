// SPDX-License-Identifier: Apache-2.0
#include "nvme/rdma_host/data_shares.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"

namespace cleat::nvme::rdma_host {

DataShares::DataShares(fabrics::DataBuffers& data)
    : data_(data),
      slabs_max_(data.slabs() - std::max(data.slabs() / kLeftParts, 1U)),
      owners_(data.region()->size_bytes() / kPageBytes) {
  CLEAT_CHECK(data.slabs() >= 2 && data.slabs_in_use() == 0);
}

bool DataShares::Take(uint32_t bytes, block::Segment& piece) {
  uint32_t& slabs = slabs_[KindOf(bytes)];
  if (!data_.HasPiece(bytes) && slabs == slabs_max_) return false;
  const uint32_t before = data_.slabs_in_use();
  if (!data_.Take(bytes, piece)) return false;
  slabs += data_.slabs_in_use() - before;
  bytes_[KindOf(bytes)] += PieceBytes(bytes);
  return true;
}

void DataShares::Give(const block::Segment& piece) {
  const uint32_t before = data_.slabs_in_use();
  data_.Give(piece);
  bytes_[KindOf(piece.length_bytes)] -= PieceBytes(piece.length_bytes);
  slabs_[KindOf(piece.length_bytes)] -= before - data_.slabs_in_use();
}

void DataShares::Clear(const block::Segment& piece, uint32_t kept_bytes, uint32_t owner) {
  const uint64_t first = piece.offset_bytes / kPageBytes;
  for (uint32_t at = 0; at < piece.length_bytes; at += kPageBytes) {
    uint32_t& before = owners_[first + at / kPageBytes];
    if (before == owner) continue;
    before = owner;
    const uint32_t kept = std::clamp(kept_bytes, at, at + kPageBytes) - at;
    std::memset(piece.data() + at + kept, 0, kPageBytes - kept);
  }
}

}  // namespace cleat::nvme::rdma_host
