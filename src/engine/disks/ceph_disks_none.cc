// SPDX-License-Identifier: Apache-2.0
// Of a build without Ceph.
#include <utility>

#include "engine/disks/ceph_disks.h"

namespace cleat::engine {

struct CephDisks::Core {};

CephDisks::CephDisks(const Parts& /*parts*/, const std::string& /*engine*/, std::vector<uint32_t> /*cpus*/) {}
CephDisks::~CephDisks() = default;

void CephDisks::SetOnReport(std::function<void(const CephReport&)> /*on_report*/) {}

Task<Result<std::unique_ptr<block::Device>>> CephDisks::Open(const DiskSpec& disk, const RbdBackend& /*rbd*/,
                                                             block::AccessMode /*mode*/,
                                                             DiskEvents /*events*/) {
  co_return Error(ErrorCode::kUnimplemented,
                  disk.name +
                      ": it is in a Ceph cluster, and this engine was built without "
                      "Ceph (CLEAT_RBD=OFF): attach it to a controller of another one");
}

Task<bool> CephDisks::End(uint64_t /*wait_ns*/) {
  co_return true;
}

}  // namespace cleat::engine
