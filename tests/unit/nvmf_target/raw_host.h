// SPDX-License-Identifier: Apache-2.0
// A host of the tests' own, byte by byte: one connection, in plain TCP or by OpenSSL's TLS, which sends what it is told to and shows what
// comes. For what no host that keeps the rules does.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/unique_fd.h"
#include "nvme/fabrics/commands.h"
#include "nvme/tcp/pdu.h"
#include "nvme/tls/psk.h"
#include "tests/unit/nvme/tls/server.h"
#include "tests/unit/nvmf_target/target_rig.h"

namespace cleat::test {

class RawHost {
 public:
  // Connected, with ICReq and ICResp exchanged.
  explicit RawHost(TargetRig& rig, nvme::fabrics::HostIdentity host = TargetRig::Host());
  // By TLS with that key. Where the target does not take it there is an end, and nothing else comes.
  RawHost(TargetRig& rig, nvme::tls::ConnectionKey key);
  RawHost(RawHost&&) = default;

  // Sends a capsule with what it brings along, and waits for nothing.
  void Send(nvme::fabrics::SubmissionEntry entry, const std::vector<uint8_t>& data = {});
  // Waits for a response, and returns its entry; data of reads before it is dropped. nullopt: the connection has ended.
  std::optional<nvme::fabrics::CompletionEntry> Answer();
  std::optional<nvme::fabrics::CompletionEntry> Do(const nvme::fabrics::SubmissionEntry& entry,
                                                   const std::vector<uint8_t>& data = {}) {
    Send(entry, data);
    return Answer();
  }
  // Nothing has come, and nothing comes in some turns of the other side.
  bool IsQuiet() const;
  // What the target has sent as data before the last answer.
  const std::vector<uint8_t>& data() const { return data_; }
  // Connect of an admin queue alone; returns the result.
  uint64_t ConnectAdmin(uint32_t kato_ms = 5000);
  // Connect of an admin queue, and what enables the controller; returns its identifier.
  uint16_t BecomeAdmin(uint32_t kato_ms = 5000);
  void Enable();
  // Connect of an admin queue alone. `host`: who it says that it is.
  std::optional<nvme::fabrics::CompletionEntry> Connect(const nvme::fabrics::HostIdentity& host,
                                                        uint32_t kato_ms = 5000);
  // Sends Connect of an I/O queue.
  void SendConnect(uint16_t queue_id, uint16_t controller_id);
  // Of the command that was sent last.
  uint16_t last_cid() const { return static_cast<uint16_t>(cid_ - 1); }
  // The next PDU is an R2T: its tag.
  uint16_t AskedTag();
  template <typename Pdu>
  void SendPdu(const Pdu& pdu, const std::vector<uint8_t>& data) {
    SendBytes(&pdu, sizeof(pdu));
    SendBytes(data.data(), data.size());
  }
  void Close() { fd_.Reset(); }
  bool established() const { return established_; }
  // OpenSSL's end of the TLS, and what it has to say is sent.
  TlsClient& tls() { return *tls_; }
  void SendRecords();
  // As they are, whatever the connection is.
  void SendWire(const void* data, size_t bytes) const;
  // Waits for the end of the connection; false: the peer has not said it by TLS' own word.
  bool WaitForGoodbye();

 private:
  void ShakeHands();
  // Waits until so many bytes are there; false: the end came before.
  bool Receive(size_t bytes, std::vector<uint8_t>& out);
  void SendBytes(const void* data, size_t bytes);
  // What has come into the buffer by now, as the wire has it or out of records. 0: nothing, < 0: the end.
  ssize_t ReceiveSome(uint8_t* to, size_t bytes);

  TargetRig& rig_;
  nvme::fabrics::HostIdentity host_ = TargetRig::Host();
  UniqueFd fd_;
  std::vector<uint8_t> data_;
  std::unique_ptr<TlsClient> tls_;  // nullptr: plain TCP
  bool established_ = false;
  std::vector<uint8_t> opened_;  // of records, and not taken yet
  uint16_t cid_ = 0;
};

// An association with one I/O queue.
struct Association {
  explicit Association(TargetRig& rig, uint32_t kato_ms = 5000)
      : Association(RawHost(rig), RawHost(rig), kato_ms) {}
  Association(TargetRig& rig, const nvme::fabrics::HostIdentity& host)
      : Association(RawHost(rig, host), RawHost(rig, host)) {}
  Association(RawHost of_admin, RawHost of_queue, uint32_t kato_ms = 5000)
      : admin(std::move(of_admin)), queue(std::move(of_queue)) {
    controller = admin.BecomeAdmin(kato_ms);
    queue.SendConnect(1, controller);
    const auto answer = queue.Answer();
    CLEAT_CHECK(answer && answer->status().ok());
  }
  RawHost admin;
  RawHost queue;
  uint16_t controller = 0;
};

// Reads or writes blocks of 512 bytes, with the data in the capsule or by the transport.
nvme::fabrics::SubmissionEntry BlocksEntry(nvme::Opcode opcode, uint64_t block, uint32_t blocks,
                                           bool in_capsule);

}  // namespace cleat::test
