// SPDX-License-Identifier: Apache-2.0
// What the tests of the RBD back end speak of: the cluster, an engine's threads, and requests.
#pragma once

#include "tests/ceph/ceph_host.h"
#include "tests/ceph/mini_ceph.h"

namespace cleat::modules {

using block::AccessMode;
using block::IoStatus;
using block::Op;
using test::Arena;
using test::CephHost;
using test::Io;
using test::MiniCeph;

constexpr uint64_t kMiB = 1 << 20;

}  // namespace cleat::modules
