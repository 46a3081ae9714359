// SPDX-License-Identifier: Apache-2.0
// A disk in a namespace of an NVMe-oF subsystem, over NVMe/TCP or NVMe/RDMA: an association for its admin commands on the control reactor, and an I/O
// queue for each channel on the channel's reactor; both for each of the subsystem's addresses, which are the disk's paths. Requests go by the
// best paths that there are (ANA). One that breaks is connected again, with pauses that grow; while there is none requests wait, however
// long. What a dead connection may have left at the target is in doubt (docs/nvmeof.md, "Writes in doubt").
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "base/unique_fd.h"
#include "block/device.h"
#include "modules/nvmf/transport/tcp_tuning.h"
#include "nvme/auth/chap_secret.h"
#include "nvme/fabrics/names.h"
#include "nvme/host/doubt/doubt.h"
#include "nvme/tls/psk.h"
#include "nvmf/login/login_line.h"
#include "reactor/task.h"

namespace cleat::modules {

class RdmaPorts;  // modules/nvmf/rdma/rdma_ports.h

// What disks of one subsystem share. Does not change while disks have it.
struct NvmfSubsystem {
  std::string name;                                   // "subsystems/a": what errors call it
  std::string nqn;                                    // has passed CheckNqn
  std::vector<nvme::fabrics::PathAddress> addresses;  // one for each path; up to 8, no two alike
  nvme::fabrics::HostIdentity host;                   // who this host is to it
  uint8_t dscp = 0;  // of all packets of its connections: 0 to nvme::fabrics::kDscpMax
  bool header_digest = false;
  bool data_digest = false;
  uint32_t kato_ms = 5000;  // keep alive timeout: 1000 to 600 000
  nvme::host::ProofPolicy proofs;
  // The secrets with which host and subsystem prove themselves on each queue; nullptr: this host has none.
  std::shared_ptr<const nvme::auth::ChapSecrets> chap;
  std::shared_ptr<const nvme::tls::Psk>
      psk;           // nullptr: plain TCP. Without addresses over RDMA, which has no TLS
  TcpTuning tuning;  // of I/O queues, unless it says otherwise; for measurements
};

// Called on the control reactor, between OpenNvmf's return and Close's; the owner of the device may close it from there.
struct NvmfEvents {
  // The namespace has another size now; once for each change that is seen, the last one for certain.
  std::function<void(uint64_t size_bytes)> resized;
  // There is a path again, or there is none any more, and why, for people. Once for each change; `broken` once more while there is none,
  // when a target answers again and can't be used as it is.
  std::function<void()> connected;
  std::function<void(const Error& why)> broken;
  // The device's paths() says something else by now: the state of a path, or what is in doubt. Not called for requests that begin to wait.
  std::function<void()> paths_changed;
};

struct NvmfOptions {
  NvmfOptions(block::DiskShape s, std::shared_ptr<const NvmfSubsystem> of, nvme::fabrics::Uuid uuid,
              block::AccessMode mode)
      : shape(std::move(s)), subsystem(std::move(of)), name_space(uuid), access(mode) {}

  block::DiskShape shape;
  std::shared_ptr<const NvmfSubsystem> subsystem;
  nvme::fabrics::Uuid name_space;
  block::AccessMode access;
  NvmfEvents events;
  // A sealed file of nvme::host::kDoubtLogBytes that outlives this engine and comes back with the disk (nvme/host/doubt/doubt_log.h):
  // zeroes for a new disk, kDoubtLogLost where the file is gone. Invalid: nothing outlives the engine, as in tests and tools. A read-only
  // disk leaves it alone.
  UniqueFd doubt_log;
  // Not 0: the disk takes part in a reservation of its namespace, which keeps all other hosts from writing. The number is this host's in
  // this subsystem, and nobody else's for ever (nvme/host/reservation/reservation.h). Each life is a host of its own to the target then,
  // and leaves at the detach.
  uint64_t reservation_family = 0;
  // For how long the reservation is held after a life was shut out, as that proves nothing once nobody is registered: what the life sent may be
  // in the network for two minutes (RFC 9293, maximum segment lifetime), and a target that answers reads what it has.
  uint64_t proof_needs_ns = 120 * kNsPerSecond;
  // The line of authentication's arithmetic, which many disks share (login_line.h). It outlives the disk. nullptr only
  // where the subsystem has no secrets.
  nvmf::LoginLine* arithmetic = nullptr;
  // By which targets are reached over RDMA; outlives the disk. nullptr only where the subsystem has no such address.
  RdmaPorts* rdma = nullptr;
  // The time in which OpenNvmf has to find the namespace.
  uint64_t open_timeout_ns = 15 * kNsPerSecond;
};

// What OpenNvmf opens.
class NvmfDevice : public block::Device {
 public:
  // An operator says that the target executes nothing any more of what was sent on paths that are broken by now: what waits for writes in
  // doubt goes on. A wrong word may cost data: a write that was left behind would then overwrite a newer one. On the control reactor.
  // kFailedPrecondition while a reactor has not closed its socket of such a path yet: try again.
  virtual Status ConfirmDead() = 0;

 protected:
  using block::Device::Device;
};

// Opens an NvmfDevice, on the control reactor.
//   kInvalidArgument     options that make no sense
//   kNotFound            the subsystem has no such namespace for this host
//   kPermissionDenied    the subsystem does not let this host in or does not take its pre-shared key, or one of the two has not authenticated
//                        itself to the other
//   kFailedPrecondition  the namespace is smaller than the disk, has blocks of another size, or is write-protected and the disk is not
//                        read-only
//   kUnimplemented       a namespace or a controller that Cleat can't use
//   kResourceExhausted   a limit of this host, or of the search for the namespace
//   kUnavailable         nobody answers there, or not by this transport; the last error says what
// Without a reservation_family nobody else is kept out. With a log of doubt the first write goes after Acquire, which finds what
// the engine before left in doubt, and the last one has ended before Release or Close; the disk's other engine may open it at any time.
Task<Result<std::unique_ptr<block::Device>>> OpenNvmf(NvmfOptions options);

}  // namespace cleat::modules
