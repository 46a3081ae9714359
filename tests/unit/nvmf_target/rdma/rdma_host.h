// SPDX-License-Identifier: Apache-2.0
// A host over RDMA of the tests' own, capsule by capsule: one queue, which sends what it is told to and shows what comes. For what no host that keeps the rules
// does, too.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "nvme/fabrics/commands.h"
#include "nvme/rdma/connect_data.h"
#include "rdma/connection_manager.h"
#include "tests/unit/nvmf_target/rdma/rdma_rig.h"

namespace cleat::test {

struct RdmaQueueOptions {
  uint16_t queue_id = 0;
  uint32_t entries = 32;
  std::string to = RdmaRig::AddressOf(0);
  uint32_t reads_served = 16;
  bool uses_windows =
      false;  // each command's data by a window of its own, which the answer closes; else by the registration's key
  std::optional<std::vector<uint8_t>> private_data = std::nullopt;  // in place of what it should say
};

enum class RdmaData : uint8_t { kNone, kToTarget, kInCapsule, kToHost };

class RdmaHostQueue final : private rdma::ConnectionOwner {
 public:
  static constexpr uint32_t kDataBytes = 64 << 10;  // of a command

  // Begins to connect.
  RdmaHostQueue(RdmaRig& rig, RdmaMachine& machine, const RdmaQueueOptions& options);
  ~RdmaHostQueue();
  RdmaHostQueue(const RdmaHostQueue&) = delete;
  RdmaHostQueue& operator=(const RdmaHostQueue&) = delete;

  // ---- The connection
  bool WaitUntilConnected();  // false: it has ended
  bool established() const { return established_; }
  bool ended() const { return ended_.has_value(); }
  std::optional<rdma::EndKind> end() const { return ended_; }
  // The status of a rejection by the target; 0: there was none.
  uint16_t reject_status() const { return reject_status_; }
  // By the target; 0: before it is established.
  uint32_t commands_max() const { return commands_max_; }
  // Whether the queue pair is broken: the target has ended the queue, or the connection.
  bool broken() const { return broken_ || ended(); }
  bool WaitUntilBroken();
  rdma::Connection* connection() { return connection_.get(); }
  // The host is gone from one moment to the next.
  void Vanish() { connection_.reset(); }
  // What was received is not received to again: answers find no memory soon.
  void BecomeDeaf() { deaf_ = true; }
  // The numbers of this end's queue pair, and the target's.
  uint32_t pair() { return connection_->queue_pair()->number(); }
  uint32_t target_pair() { return rig_.fabric.PeerOf(pair()); }

  // ---- Commands
  // Memory of the command that is sent next, or was with that identifier.
  std::span<uint8_t> data(uint16_t cid) {
    return std::span(memory_).subspan(size_t{cid} * kDataBytes, kDataBytes);
  }
  uint16_t next_cid() const;
  // Sends a capsule, and waits for nothing. Returns its command identifier.
  uint16_t Send(nvme::fabrics::SubmissionEntry entry, RdmaData where = RdmaData::kNone, uint32_t bytes = 0);
  // Data by the key of a window that was closed; both ways, as nobody gets so far.
  uint16_t SendStale(nvme::fabrics::SubmissionEntry entry, uint32_t bytes);
  // A capsule as it is.
  void SendCapsule(std::span<const uint8_t> capsule);
  // nullopt: the connection has ended.
  std::optional<nvme::fabrics::CompletionEntry> Answer(uint16_t cid);
  std::optional<nvme::fabrics::CompletionEntry> Do(const nvme::fabrics::SubmissionEntry& entry,
                                                   RdmaData where = RdmaData::kNone, uint32_t bytes = 0) {
    return Answer(Send(entry, where, bytes));
  }
  bool answered(uint16_t cid) const { return answers_.contains(cid); }
  size_t unanswered() const { return busy_.size(); }
  // Connect as it should be, but for `connect`.
  uint16_t SendConnect(const nvme::fabrics::ConnectOptions& connect, uint16_t controller_id,
                       const nvme::fabrics::HostIdentity& host = RdmaRig::Host());
  // Connects an admin queue and enables the controller; returns its identifier.
  uint16_t BecomeAdmin(uint32_t kato_ms = 5000, const nvme::fabrics::HostIdentity& host = RdmaRig::Host());
  // Writes, or reads, so many blocks of `fill`.
  uint16_t SendWrite(uint64_t block, uint32_t blocks, uint8_t fill, RdmaData where = RdmaData::kToTarget);
  bool Write(uint64_t block, uint32_t blocks, uint8_t fill, RdmaData where = RdmaData::kToTarget);
  bool ReadIs(uint64_t block, uint32_t blocks, uint8_t fill);

  // ---- For the machine
  void Pump();

 private:
  static constexpr uint64_t kReceiveId = 1U << 20;  // ... and the buffer's number
  static constexpr uint64_t kBindId = 1U << 21;
  static constexpr uint32_t kCapsuleBytes = 8192;
  static constexpr uint32_t kAnswerBytes = 64;

  void Established(rdma::Connection& connection, std::span<const uint8_t> private_data) override;
  void Ended(rdma::Connection& connection, const rdma::ConnectionEnd& end) override;
  void PostReceive(uint32_t buffer);
  void Came(const rdma::Completion& completion);
  uint16_t SendKeyed(nvme::fabrics::SubmissionEntry entry, uint32_t key, uint32_t bytes, bool closes);
  uint32_t ShowData(uint16_t cid, uint32_t bytes, bool to_host);
  void Post(const rdma::SendWork& work);

  RdmaRig& rig_;
  RdmaMachine& machine_;
  const RdmaQueueOptions options_;
  std::vector<uint8_t> memory_;
  std::vector<uint8_t> capsules_;
  std::vector<uint8_t> answers_memory_;
  std::unique_ptr<rdma::CompletionQueue> completions_;
  std::unique_ptr<rdma::Registration> data_registration_;
  std::unique_ptr<rdma::Registration> capsule_registration_;
  std::unique_ptr<rdma::Registration> answer_registration_;
  std::unique_ptr<rdma::ReceiveQueue> receives_;
  std::vector<std::unique_ptr<rdma::MemoryWindow>> windows_;  // by the command identifier
  std::unique_ptr<rdma::Connection> connection_;              // goes first
  bool established_ = false;
  bool broken_ = false;
  bool deaf_ = false;
  std::optional<rdma::EndKind> ended_;
  uint16_t reject_status_ = 0;
  uint32_t commands_max_ = 0;
  std::map<uint16_t, uint32_t>
      busy_;  // commands without an answer, and the key that it has to close; 0: none
  std::map<uint16_t, nvme::fabrics::CompletionEntry> answers_;
  uint16_t last_cid_ = 0;
  uint32_t next_capsule_ = 0;
};

// An association with one I/O queue.
struct RdmaAssociation {
  RdmaAssociation(RdmaRig& rig, RdmaMachine& machine, RdmaQueueOptions options = {}, uint32_t kato_ms = 5000,
                  uint8_t host = 0);
  RdmaHostQueue admin;
  uint16_t controller = 0;
  std::unique_ptr<RdmaHostQueue> queue;
};

}  // namespace cleat::test
