// SPDX-License-Identifier: Apache-2.0
// An association with an NVMe/TCP controller: the admin queue, what the controller says of itself and of a namespace, the connections of
// its I/O queues, and a thread that keeps it alive (NVMe base 2.0, 3.5, 3.9, 5.17, 6.3). Owned by a driver. Everything is called on one
// thread; between StartKeepAlive and Stop the admin queue is the keep alive thread's.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>

#include "base/clock.h"
#include "base/mutex.h"
#include "base/result.h"
#include "base/unique_fd.h"
#include "perf/nvme_tcp/queue.h"

namespace cleat::perf {

struct NvmeTcpOptions {
  std::string address;  // host:port
  std::string subsystem_nqn;
  std::string namespace_name;  // its number or its UUID; empty: the only one that there is
  std::string host_nqn;        // empty: made of the host identifier
  std::string host_id;         // a UUID; empty: another one each time
  NvmeTcpDigests digests;
  uint16_t queues = 1;
  uint16_t depth = 1;                       // commands in flight a queue
  uint64_t timeout_ns = 60 * kNsPerSecond;  // for each step, and for a keep alive
};

inline constexpr uint16_t kNvmeQueuesMax = 256;
inline constexpr uint32_t kKeepAliveMs = 15'000;

// "6f1c0a52-...": the bytes in the order of the text, as NVMe has them. Nothing when it is no UUID.
using NvmeUuid = std::array<uint8_t, wire::kUuidBytes>;
std::optional<NvmeUuid> ParseUuid(std::string_view text);
std::string UuidText(const NvmeUuid& uuid);

class NvmeTcpController {
 public:
  struct Facts {
    uint32_t transfer_bytes_max = UINT32_MAX;  // of a command
    uint32_t capsule_data_bytes = 0;           // of an I/O queue's command
    uint16_t depth_max = 0;                    // commands in flight a queue
    bool deallocates = false;                  // Dataset Management
    bool writes_zeroes = false;
  };
  struct Namespace {
    uint32_t nsid = 0;
    uint64_t blocks = 0;
    uint32_t block_bytes = 0;
    bool write_protected = false;
  };

  // Connects, enables and identifies. `options` are copied.
  static Result<std::unique_ptr<NvmeTcpController>> Open(const NvmeTcpOptions& options);
  ~NvmeTcpController();
  NvmeTcpController(const NvmeTcpController&) = delete;
  NvmeTcpController& operator=(const NvmeTcpController&) = delete;

  const Facts& facts() const { return facts_; }
  // The namespace of the options.
  Result<Namespace> FindNamespace();
  // Asks for so many I/O queues.
  Status ReserveQueues(uint16_t queues);
  // An I/O queue, from 1.
  Result<std::unique_ptr<NvmeTcpQueue>> OpenQueue(uint16_t number);

  Status StartKeepAlive();
  // Ends the keep alive and shuts the controller down.
  Status Stop();

  int admin_socket() const { return admin_->socket(); }
  const NvmeTcpConnection& admin_connection() const { return admin_->connection(); }

 private:
  using Identity = std::array<uint8_t, wire::kIdentifyBytes>;

  explicit NvmeTcpController(const NvmeTcpOptions& options) : options_(options) {}
  Status Begin();
  Status ResolveNames();
  Status Enable();
  Status IdentifySelf(uint64_t capabilities);
  Result<uint16_t> Connect(NvmeTcpQueue& queue, uint16_t number, uint16_t entries);
  Result<NvmeAnswer> Command(NvmeTcpQueue& queue, const wire::NvmeCommand& command, std::span<uint8_t> data,
                             bool to_host, std::string_view what);
  Result<uint64_t> GetProperty(uint32_t offset, bool eight_bytes);
  Status SetProperty(uint32_t offset, uint64_t value);
  Result<std::unique_ptr<Identity>> Identify(uint32_t what, uint32_t nsid, std::string_view name);
  Result<uint32_t> FindNsid();
  Result<bool> HasUuid(uint32_t nsid, const NvmeUuid& uuid);
  bool IsAdminBroken();
  void KeepAlive();
  Error About(const Error& error) const;

  NvmeTcpOptions options_;
  NvmeUuid host_id_{};
  Facts facts_;
  Mutex commands_;  // one at a time: the keep alive thread has some too
  std::unique_ptr<NvmeTcpQueue> admin_;
  uint16_t controller_id_ = wire::kAnyController;
  UniqueFd stop_;  // an eventfd that ends the keep alive thread
  std::thread keep_alive_;
};

}  // namespace cleat::perf
