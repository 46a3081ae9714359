// SPDX-License-Identifier: Apache-2.0
#include "tests/guest/soak_tenants.h"

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "perf/vhost_user/deadline.h"

namespace cleat::nvme_soak {
namespace {

using system_test::kWaitTimeoutNs;
using system_test::Model;
using system_test::Peer;

constexpr uint64_t kTenantsMax = 2;
constexpr uint64_t kExtentsMax = 2;
constexpr uint32_t kBlockBytes = 4096;
constexpr uint64_t kPieceBytes = uint64_t{64} << 10;
constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr size_t kFindingsMax = 8;
constexpr int kAgainMs = 20;  // no event tells that a call may be said again

// Of each extent every tenant reads and writes the same: both ends, and some between.
std::vector<uint64_t> PiecesOf(uint64_t extents, uint64_t extent_bytes) {
  std::vector<uint64_t> pieces;
  for (uint64_t extent = 0; extent < extents; ++extent) {
    for (const uint64_t at :
         {uint64_t{0}, kMiB, extent_bytes / 3 / kPieceBytes * kPieceBytes, extent_bytes - kPieceBytes})
      pieces.push_back(extent * extent_bytes + at);
  }
  return pieces;
}

bool IsZero(const std::vector<uint8_t>& data) {
  return data.front() == 0 && std::memcmp(data.data(), data.data() + 1, data.size() - 1) == 0;
}

}  // namespace

void Tenants::Step() {
  if (present_.size() < kTenantsMax && Make(random_.Between(1, kExtentsMax))) return;
  if (!present_.empty()) PurgeOldest();
}

bool Tenants::Make(uint64_t extents) {
  const Tenant tenant{.number = made_ + 1, .extents = extents};
  auto spec = system_test::PoolDisk(extents * extent_bytes_, pool_);
  spec.set_logical_block_bytes(kBlockBytes);
  if (!Insist("create " + tenant.id(), [&] { return host_.api().CreateDisk(tenant.id(), spec).status; }))
    return false;
  ++made_;
  Look(tenant, Visit::kNew);
  present_.push_back(tenant);
  return true;
}

void Tenants::PurgeOldest() {
  const Tenant tenant = present_.front();
  present_.pop_front();
  Look(tenant, Visit::kLast);
  Insist("purge " + tenant.id(), [&] { return host_.api().DeleteDisk(tenant.id(), true); });
  ++purged_;
}

void Tenants::Look(const Tenant& tenant, Visit visit) {
  const std::string id = tenant.id();
  const std::string socket = host_.SocketPath(id);
  Insist("controller of " + id,
         [&] { return host_.api().CreateController(id, system_test::BlkController(socket)).status; });
  Insist("attach " + id, [&] { return host_.api().Attach(id, id).status; });
  {
    auto peer = Peer::Listen(socket);
    Status seen = peer ? (*peer)->Boot() : Status(std::move(peer).error());
    if (seen) seen = ReadAndWrite(**peer, tenant, visit);
    if (!seen) Find(id + ": " + seen.error().message);
  }
  Insist("detach " + id, [&] { return host_.api().Detach(id, id); });
  const bool gone = host_.api().WaitUntil([&](const Model& model) {
    return model.AttachmentStateOf(id, id) == v1::ATTACHMENT_STATE_UNSPECIFIED;
  });
  if (!gone) Find(id + " is not detached");
  Insist("delete controller of " + id, [&] { return host_.api().DeleteController(id); });
}

Status Tenants::ReadAndWrite(Peer& peer, const Tenant& tenant, Visit visit) {
  std::vector<uint8_t> data(kPieceBytes);
  for (const uint64_t at : PiecesOf(tenant.extents, extent_bytes_)) {
    CLEAT_TRY(peer.driver().ReadSync(at, data));
    if (visit == Visit::kNew && !IsZero(data)) {
      ++foreign_;
      Find(fmt::format("{} is new, and has foreign bytes at {}", tenant.id(), at));
    }
    if (visit == Visit::kLast && data != PieceOf(tenant, at))
      Find(fmt::format("{} does not have what it was written, at {}", tenant.id(), at));
    if (visit == Visit::kNew) CLEAT_TRY(peer.driver().WriteSync(at, PieceOf(tenant, at)));
  }
  return visit == Visit::kNew ? peer.driver().FlushSync() : Status(Ok{});
}

std::vector<uint8_t> Tenants::PieceOf(const Tenant& tenant, uint64_t at) {
  std::vector<uint64_t> words(kPieceBytes / sizeof(uint64_t));
  std::iota(words.begin(), words.end(), tenant.number << 48U | at);
  std::vector<uint8_t> piece(kPieceBytes);
  std::memcpy(piece.data(), words.data(), piece.size());
  return piece;
}

template <typename Call>
bool Tenants::Insist(const std::string& what, Call call) {
  const perf::Deadline deadline(kWaitTimeoutNs);
  for (;;) {
    const grpc::Status status = call();
    if (status.ok()) return true;
    if (status.error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED) return false;
    const bool again = status.error_code() == grpc::StatusCode::UNAVAILABLE ||
                       status.error_code() == grpc::StatusCode::ABORTED;
    if (!again || deadline.passed()) {
      Find(fmt::format("{}: code {}: {}", what, static_cast<int>(status.error_code()),
                       status.error_message()));
      return false;
    }
    poll(nullptr, 0, kAgainMs);
  }
}

void Tenants::Find(std::string what) {
  if (findings_.size() < kFindingsMax) findings_.push_back(std::move(what));
}

}  // namespace cleat::nvme_soak
