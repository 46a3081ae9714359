// SPDX-License-Identifier: Apache-2.0
#include "nvme/target/access/host_access.h"

namespace cleat::nvme::target {
namespace {

template <typename Secrets>
bool AreSame(const std::shared_ptr<const Secrets>& one, const std::shared_ptr<const Secrets>& other) {
  if (one == nullptr || other == nullptr) return one == other;
  return *one == *other;
}

}  // namespace

bool AskTheSame(const HostAccess& one, const HostAccess& other) {
  return AreSame(one.chap, other.chap) && AreSame(one.psk, other.psk);
}

}  // namespace cleat::nvme::target
