// SPDX-License-Identifier: Apache-2.0
// A host's connection to the target of the tests (nvmf_target.h): owned by the target, with a thread that reads PDUs until the connection
// ends and answers each before it reads the next. Only Respond is called by others, by the target that tells events.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "tests/unit/modules/nvmf_target.h"

namespace cleat::test {

struct NvmfTarget::Session {
  using Bytes = std::vector<uint8_t>;

  // PDU types (NVMe/TCP 1.0, 3.6.1).
  static constexpr uint8_t kIcReq = 0, kIcResp = 1, kHostTerm = 2, kCommand = 4, kResponse = 5, kToTarget = 6,
                           kToHost = 7, kReady = 9;
  static constexpr uint8_t kHeaderDigest = 1, kDataDigest = 2, kLast = 4, kSuccess = 8;  // FLAGS

  static constexpr uint16_t kInvalidField = 0x2, kInvalidOpcode = 0x1, kConnectInvalid = 0x182,
                            kConnectBusy = 0x181, kConnectInvalidHost = 0x184,
                            kAuthenticationRequired = 0x191, kInvalidNamespace = 0xb, kConflict = 0x83,
                            kOutOfRange = 0x80, kSequence = 0x0c, kSglLength = 0x0f, kAnaInaccessible = 0x302;

  static constexpr uint32_t kAnaGroup = 3;

  static uint64_t Get(const uint8_t* at, int bytes) {
    uint64_t value = 0;
    for (int i = bytes - 1; i >= 0; --i) value = value << 8 | at[i];
    return value;
  }

  static void Put(Bytes& to, size_t at, uint64_t value, int bytes) {
    for (int i = 0; i < bytes; ++i) to[at + static_cast<size_t>(i)] = static_cast<uint8_t>(value >> (8 * i));
  }

  Session(NvmfTarget& t, int s) : target(t), socket(s), thread([this] { Run(); }) {}

  struct PendingWrite {
    Bytes entry;
    Bytes data;
    uint64_t got = 0;
    uint64_t asked = 0;
  };

  // PDUs (nvmf_target_session.cc).
  void Run();
  bool ReadAll(uint8_t* to, size_t bytes) const;
  bool SendAll(const Bytes& data, size_t limit = SIZE_MAX);
  bool SendPdu(uint8_t type, uint8_t flags, Bytes header, std::span<const uint8_t> data = {});
  bool OnePdu();
  bool Bad();
  bool Initialize(const Bytes& request);
  bool Respond(const Bytes& entry, uint64_t result = 0, uint16_t status = 0);
  bool SendData(const Bytes& entry, const Bytes& data);
  bool Return(const Bytes& entry, Bytes data);
  bool Command(const Bytes& entry, const Bytes& data);

  // What is refused beyond what the initiators need (nvmf_target_strict.cc).
  bool IsInOrder(const Bytes& header) const;
  uint16_t WrongWith(const Bytes& entry, const Bytes& data) const;
  bool IsHostOf(const Bytes& entry, const Bytes& data) const;

  // Fabrics (nvmf_target_fabrics.cc).
  bool Fabrics(const Bytes& entry, const Bytes& data);
  bool Authentication(const Bytes& entry, const Bytes& data);
  void MeetHost(const Bytes& connect_data);
  bool Property(const Bytes& entry);
  bool Connect(const Bytes& entry, const Bytes& data);

  // The admin queue (nvmf_target_identify.cc).
  bool Admin(const Bytes& entry);
  Bytes DiscoveryLog();
  bool DiscoveryPage(const Bytes& entry);
  bool LogPage(const Bytes& entry);
  bool Identify(const Bytes& entry);
  void Controller(Bytes& data) const;

  // I/O (nvmf_target_io.cc).
  bool Io(const Bytes& entry, const Bytes& data);
  Bytes ReadData(uint64_t at, uint64_t bytes) const;
  uint64_t SizeBytes() const;
  bool LetsIn(const Bytes& entry);
  bool Reserve(const Bytes& entry, const Bytes& data);
  void Longest(uint64_t bytes) const;
  bool Discard(const Bytes& entry, const Bytes& data);
  bool Store(const Bytes& entry, const Bytes& data, uint64_t bytes);
  bool Ask(const Bytes& entry, uint64_t bytes);
  bool AskMore(uint16_t tag, PendingWrite& write);
  bool DataCame(const Bytes& header, const Bytes& data);

  NvmfTarget& target;
  const int socket;
  bool initialized = false;
  bool connected = false;
  bool digests_header = false;
  bool digests_data = false;
  uint16_t queue = 0;
  uint16_t sq_size = 31;
  uint16_t controller = 0;
  std::array<uint8_t, 16> host{};  // its identifier
  std::atomic<uint16_t> head{0};
  bool is_discovery = false;
  uint32_t configuration = 0;
  uint32_t next_tag = 100;
  std::vector<Bytes> event_requests;  // under the target's mutex_
  std::unique_ptr<nvme::auth::TestController> chap;
  bool chap_due = false;  // the host has to authenticate itself first
  std::mutex send_mutex;
  std::map<uint16_t, PendingWrite> writes;
  std::atomic<bool> over{false};
  std::thread thread;  // last: it uses all of them
};

}  // namespace cleat::test
