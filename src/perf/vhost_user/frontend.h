// SPDX-License-Identifier: Apache-2.0
// The vhost-user front end: QEMU's role. It has the socket (as its server, or connecting to a back end that
// listens), speaks the protocol step by step or as the sequences QEMU uses, and keeps what QEMU keeps between
// two connections: the in-flight memory and what was negotiated. Every step can be called alone, in a wrong
// order and with wrong arguments, which is what tests are for; the sequences (Open, Start, Stop) are what
// QEMU 10 sends.
//
// Owned by a test or cleat-perf; one thread. It ends its connection when it is destroyed, without a word, as
// a killed QEMU does; Stop() first for a clean end. Errors: kUnavailable - the back end closed the
// connection; kDeadlineExceeded - it did not answer in time; kFailedPrecondition - it answered no.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "base/unique_fd.h"
#include "perf/vhost_user/guest_memory.h"
#include "perf/vhost_user/message_socket.h"
#include "perf/wire/vhost_user.h"
#include "perf/wire/virtio_blk.h"

namespace cleat::perf {

inline constexpr uint64_t kDefaultAcceptTimeoutNs = 60 * kNsPerSecond;
inline constexpr uint64_t kDefaultMessageTimeoutNs = 60 * kNsPerSecond;

// Which messages ask for an acknowledgement, when REPLY_ACK is negotiated.
enum class AckMode : uint8_t {
  kNever,
  kLikeQemu,  // SET_MEM_TABLE and SET_VRING_ENABLE
  kAlways,
};

// The protocol features that a front end here would use.
inline constexpr uint64_t kDefaultProtocolFeatures =
    wire::kProtocolMq | wire::kProtocolLogShmfd | wire::kProtocolReplyAck | wire::kProtocolBackendReq |
    wire::kProtocolConfig | wire::kProtocolInflightShmfd | wire::kProtocolResetDevice;

struct FrontendOptions {
  uint64_t accept_timeout_ns = kDefaultAcceptTimeoutNs;
  uint64_t message_timeout_ns = kDefaultMessageTimeoutNs;
  AckMode ack = AckMode::kLikeQemu;
  uint64_t protocol_features = kDefaultProtocolFeatures;  // masked with what the back end offers
};

// What SET_VRING_* say of one ring. Addresses are user addresses (GuestMemory::UserAddress).
struct RingSetup {
  uint16_t size = 0;
  uint32_t base = 0;  // DriverRing::first_base for one that begins
  uint64_t desc_user = 0;
  uint64_t avail_user = 0;
  uint64_t used_user = 0;
  uint64_t log_gpa = 0;  // of the used ring; looked at with `log` only
  bool log = false;
  bool enable = true;
  int kick_fd = -1;
  int call_fd = -1;
  int err_fd = -1;  // -1: none is sent
};

// Memory shared with the back end that outlives a connection.
struct SharedArea {
  UniqueFd fd;
  uint64_t size_bytes = 0;
  uint64_t offset_bytes = 0;
  uint16_t num_queues = 0;  // in-flight memory only
  uint16_t queue_size = 0;
};

class Frontend {
 public:
  static Result<std::unique_ptr<Frontend>> Listen(std::string path, const FrontendOptions& options = {});
  static Result<std::unique_ptr<Frontend>> Connect(std::string path, const FrontendOptions& options = {});
  // On one end of a socketpair. Can't reconnect, except by Adopt on the same object.
  static std::unique_ptr<Frontend> Wrap(UniqueFd connected, const FrontendOptions& options = {});
  ~Frontend();
  Frontend(const Frontend&) = delete;
  Frontend& operator=(const Frontend&) = delete;

  // ---- The connection. What was kept (in-flight memory, features) survives its end.
  Status Accept();  // as server: takes the next connection; as client: connects anew
  void Adopt(UniqueFd connected);
  int listener_fd() const {
    return listener_.get();
  }                   // readable when Accept need not wait; -1 unless it listens
  void Disconnect();  // at once; descriptors and memory are left to their owners
  bool connected() const { return socket_.open(); }
  bool PeerGone() const { return socket_.PeerGone(); }
  Status WaitPeerGone(uint64_t timeout_ns);  // until the back end has closed its end
  // The connection is cut instead of sending message number `count` + 1 from now on.
  void DisconnectAfter(uint64_t count) { messages_left_ = count; }
  uint64_t messages_sent() const { return messages_sent_; }

  // ---- Sequences.
  // The back end's initialisation: features, protocol features, queue count, owner.
  Status Open();
  // A driver that came up: calls, features, in-flight memory, memory table, rings, enable. `features` is what
  // the driver acknowledged. In-flight memory that is kept is sent again if it fits, otherwise made anew.
  Status Start(uint64_t features, const GuestMemory& memory, std::span<const RingSetup> rings);
  // Disables and stops each ring. `bases`: one for each, set as it is answered, as QEMU keeps it: also where a later one is not.
  Status Stop(std::span<uint32_t> bases);

  // ---- Steps.
  Result<uint64_t> GetFeatures();
  Status SetFeatures(uint64_t features);
  Result<uint64_t> GetProtocolFeatures();
  Status SetProtocolFeatures(uint64_t features);
  Result<uint64_t> GetQueueNum();
  Status SetOwner();
  Status ResetOwner();
  Status ResetDevice();
  Result<wire::BlkConfig> GetBlkConfig();
  Result<std::vector<uint8_t>> GetConfig(uint32_t offset, uint32_t size_bytes);
  Status SetConfig(uint32_t offset, std::span<const uint8_t> bytes);
  Result<SharedArea> GetInflightFd(uint16_t num_queues, uint16_t queue_size);
  Status SetInflightFd(const SharedArea& area);
  Status SetMemTable(const GuestMemory& memory);
  Status SetMemTable(std::span<const wire::MemoryRegion> regions, std::span<const int> fds);
  Status SetLogBase(const SharedArea& area);
  Status SetVringNum(uint32_t index, uint32_t size);
  Status SetVringAddr(uint32_t index, const RingSetup& ring);
  Status SetVringBase(uint32_t index, uint32_t base);
  Result<uint32_t> GetVringBase(uint32_t index);
  Status SetVringKick(uint32_t index, int fd);  // -1: sent with the no-descriptor bit
  Status SetVringCall(uint32_t index, int fd);
  Status SetVringErr(uint32_t index, int fd);
  Status SetVringEnable(uint32_t index, bool enable);
  Status SetBackendReqFd();
  // The next message on the back end's own channel (kBackendConfigChange...); acknowledged if it asks for
  // that.
  Result<Message> ReceiveBackendRequest(uint64_t timeout_ns);

  // ---- Raw.
  Status Send(uint32_t request, std::span<const uint8_t> payload, std::span<const int> fds = {});
  Result<Message> Call(uint32_t request, std::span<const uint8_t> payload, std::span<const int> fds = {});
  Result<Message> Receive();  // whatever comes next
  MessageSocket& socket() { return socket_; }

  // ---- What is known.
  uint64_t offered_features() const { return offered_features_; }
  uint64_t protocol_features() const { return protocol_features_; }  // negotiated
  uint16_t queues_max() const { return queues_max_; }
  const FrontendOptions& options() const { return options_; }
  const SharedArea* inflight() const { return inflight_ ? &*inflight_ : nullptr; }
  void DropInflight() { inflight_.reset(); }  // a guest's reset does that
  void set_ack(AckMode ack) { options_.ack = ack; }

 private:
  enum class Role : uint8_t { kServer, kClient, kWrapped };

  Frontend(Role role, std::string path, const FrontendOptions& options)
      : role_(role), path_(std::move(path)), options_(options) {}
  Status Transmit(uint32_t request, uint32_t flags, std::span<const uint8_t> payload,
                  std::span<const int> fds);
  Status SendAcked(uint32_t request, std::span<const uint8_t> payload, std::span<const int> fds,
                   bool qemu_asks);
  Result<uint64_t> CallU64(uint32_t request);
  Status SetVringFd(uint32_t request, uint32_t index, int fd);
  Status SetUpInflight(std::span<const RingSetup> rings);
  Status SetUpRing(uint32_t index, const RingSetup& ring);

  const Role role_;
  const std::string path_;
  FrontendOptions options_;
  UniqueFd listener_;
  MessageSocket socket_;
  MessageSocket backend_channel_;
  uint64_t offered_features_ = 0;
  uint64_t protocol_features_ = 0;
  uint16_t queues_max_ = 1;
  std::optional<SharedArea> inflight_;
  uint64_t messages_sent_ = 0;
  uint64_t messages_left_ = UINT64_MAX;
};

}  // namespace cleat::perf
