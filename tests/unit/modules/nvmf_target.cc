// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/modules/nvmf_target.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <map>

#include "base/check.h"

namespace cleat::test {

using Bytes = std::vector<uint8_t>;

namespace {

uint64_t Get(const uint8_t* at, int bytes) {
  uint64_t value = 0;
  for (int i = bytes - 1; i >= 0; --i) value = value << 8 | at[i];
  return value;
}

void Put(Bytes& to, size_t at, uint64_t value, int bytes) {
  for (int i = 0; i < bytes; ++i) to[at + static_cast<size_t>(i)] = static_cast<uint8_t>(value >> (8 * i));
}

// CRC32C by its definition, a bit at a time.
uint32_t Crc32c(std::span<const uint8_t> data) {
  static const std::array<uint32_t, 256> table = [] {
    std::array<uint32_t, 256> t{};
    for (uint32_t n = 0; n < 256; ++n) {
      uint32_t c = n;
      for (int bit = 0; bit < 8; ++bit) c = (c & 1) != 0 ? c >> 1 ^ 0x82f63b78U : c >> 1;
      t[n] = c;
    }
    return t;
  }();
  uint32_t crc = ~0U;
  for (const uint8_t byte : data) crc = table[(crc ^ byte) & 0xff] ^ crc >> 8;
  return ~crc;
}

// PDU types (NVMe/TCP 1.0, 3.6.1).
constexpr uint8_t kIcReq = 0, kIcResp = 1, kHostTerm = 2, kCommand = 4, kResponse = 5, kToTarget = 6,
                  kToHost = 7, kReady = 9;
constexpr uint8_t kHeaderDigest = 1, kDataDigest = 2, kLast = 4, kSuccess = 8;  // FLAGS

constexpr uint16_t kInvalidField = 0x2, kInvalidOpcode = 0x1, kConnectInvalid = 0x182, kConnectBusy = 0x181,
                   kConnectInvalidHost = 0x184, kAuthenticationRequired = 0x191, kInvalidNamespace = 0xb,
                   kConflict = 0x83, kAnaInaccessible = 0x302;

constexpr uint32_t kAnaGroup = 3;

}  // namespace

struct NvmfTarget::Session {
  Session(NvmfTarget& t, int s) : target(t), socket(s), thread([this] { Run(); }) {}

  struct PendingWrite {
    Bytes entry;
    Bytes data;
    uint64_t got = 0;
    uint64_t asked = 0;
  };

  void Run() {
    while (OnePdu()) {
    }
    shutdown(socket, SHUT_RDWR);
    over = true;
  }

  bool ReadAll(uint8_t* to, size_t bytes) const {
    while (bytes > 0) {
      const ssize_t got = recv(socket, to, bytes, 0);
      if (got <= 0) return false;
      to += got;
      bytes -= static_cast<size_t>(got);
    }
    return true;
  }

  bool SendAll(const Bytes& data, size_t limit = SIZE_MAX) {
    size_t at = 0;
    const size_t end = std::min(data.size(), limit);
    const size_t step = target.faults.bytewise ? 1 : end;
    while (at < end) {
      const ssize_t sent = send(socket, data.data() + at, std::min(step, end - at), MSG_NOSIGNAL);
      if (sent <= 0) return false;
      at += static_cast<size_t>(sent);
    }
    return end == data.size();
  }

  // Header, its digest, data, its digest.
  bool SendPdu(uint8_t type, uint8_t flags, Bytes header, std::span<const uint8_t> data = {}) {
    const bool header_digest = digests_header && type != kIcResp;
    const bool data_digest = digests_data && !data.empty();
    const size_t data_at = header.size() + (header_digest ? 4 : 0);
    const size_t all = data_at + data.size() + (data_digest ? 4 : 0);
    header[0] = type;
    header[1] =
        static_cast<uint8_t>(flags | (header_digest ? kHeaderDigest : 0) | (data_digest ? kDataDigest : 0));
    header[2] = static_cast<uint8_t>(header.size());
    header[3] = data.empty() ? 0 : static_cast<uint8_t>(data_at);
    Put(header, 4, all, 4);
    Bytes pdu = header;
    pdu.resize(all);
    if (header_digest)
      Put(pdu, header.size(), Crc32c(header) ^ (target.faults.wrong_header_digest ? 1U : 0U), 4);
    std::copy(data.begin(), data.end(), pdu.begin() + static_cast<ptrdiff_t>(data_at));
    if (data_digest)
      Put(pdu, data_at + data.size(), Crc32c(data) ^ (target.faults.wrong_data_digest ? 1U : 0U), 4);
    const std::lock_guard lock(send_mutex);
    if (!data.empty() && target.faults.cut_in_data) return SendAll(pdu, data_at + data.size() / 2);
    return SendAll(pdu);
  }

  bool OnePdu() {
    Bytes header(8);
    if (!ReadAll(header.data(), 8)) return false;
    const size_t header_bytes = header[2];
    const uint64_t all = Get(&header[4], 4);
    if (header_bytes < 8 || all < header_bytes || all > (uint64_t{8} << 20)) return false;
    Bytes pdu = header;
    pdu.resize(all);
    if (!ReadAll(pdu.data() + 8, all - 8)) return false;
    header.assign(pdu.begin(), pdu.begin() + static_cast<ptrdiff_t>(header_bytes));
    if (header[0] == kIcReq) return Initialize(header);
    if (header[0] == kHostTerm) return false;
    if (((header[1] & kHeaderDigest) != 0) != digests_header) return Bad();
    if (digests_header && Get(&pdu[header_bytes], 4) != Crc32c(header)) return Bad();
    Bytes data;
    if (header[3] != 0) {
      const bool digest = (header[1] & kDataDigest) != 0;
      const size_t end = all - (digest ? 4 : 0);
      if (header[3] > end || digest != digests_data) return Bad();
      data.assign(pdu.begin() + header[3], pdu.begin() + static_cast<ptrdiff_t>(end));
      if (digest && Get(&pdu[end], 4) != Crc32c(data)) return Bad();
    }
    if (header[0] == kCommand && header_bytes == 72)
      return Command(Bytes(header.begin() + 8, header.end()), data);
    if (header[0] == kToTarget && header_bytes == 24) return DataCame(header, data);
    return Bad();
  }

  bool Bad() {
    ++target.counts.digest_errors;
    return false;
  }

  bool Initialize(const Bytes& request) {
    ++target.counts.ic_requests;
    if (target.faults.never_icresp) return true;
    const bool grant = target.options_.digests;
    const bool header_digest = grant && (request[11] & 1) != 0;
    const bool data_digest = grant && (request[11] & 2) != 0;
    Bytes response(128);
    response[11] = static_cast<uint8_t>((header_digest ? 1 : 0) | (data_digest ? 2 : 0));
    Put(response, 12, target.options_.h2c_bytes_max, 4);
    const bool sent = SendPdu(kIcResp, 0, response);
    digests_header = header_digest;
    digests_data = data_digest;
    return sent;
  }

  bool Respond(const Bytes& entry, uint64_t result = 0, uint16_t status = 0) {
    Bytes header(24);
    Put(header, 8, result, 8);
    Put(header, 16, (head = static_cast<uint16_t>((head + 1) % (sq_size + 1U))), 2);
    Put(header, 20, Get(&entry[2], 2), 2);
    Put(header, 22, status << 1, 2);
    return SendPdu(kResponse, 0, header);
  }

  bool SendData(const Bytes& entry, const Bytes& data) {
    for (size_t at = 0; at < data.size();) {
      const size_t piece = std::min<size_t>(data.size() - at, target.options_.c2h_bytes);
      Bytes header(24);
      Put(header, 8, Get(&entry[2], 2), 2);
      Put(header, 12, at, 4);
      Put(header, 16, piece, 4);
      const bool last = at + piece == data.size();
      const bool success = last && target.options_.success_flag;
      if (!SendPdu(kToHost, static_cast<uint8_t>((last ? kLast : 0) | (success ? kSuccess : 0)), header,
                   std::span(data).subspan(at, piece)))
        return false;
      at += piece;
      if (success) head = static_cast<uint16_t>((head + 1) % (sq_size + 1U));
      if (success) return true;
    }
    return Respond(entry);
  }

  // The data that the host has asked for, as much of it as it has asked for.
  bool Return(const Bytes& entry, Bytes data) {
    data.resize(std::min<uint64_t>(data.size(), Get(&entry[32], 4)));
    return SendData(entry, data);
  }

  bool Command(const Bytes& entry, const Bytes& data) {
    const bool is_chap = entry[0] == 0x7f && (entry[4] == 0x05 || entry[4] == 0x06);
    if (is_chap) return Authentication(entry, data);
    if (chap_due) {
      ++target.counts.too_early;
      return Respond(entry, 0, kAuthenticationRequired);
    }
    if (entry[0] == 0x7f) return Fabrics(entry, data);
    if (queue == 0) return Admin(entry);
    ++target.counts.io_commands;
    if (target.faults.cut_io.exchange(false)) return false;
    const bool is_write = entry[0] != 0x00 && entry[0] != 0x02;
    if (target.faults.mute_io || (target.faults.mute_writes && is_write)) {
      ++target.counts.muted;
      return true;
    }
    return Io(entry, data);
  }

  bool Fabrics(const Bytes& entry, const Bytes& data) {
    switch (entry[4]) {
      case 0x01:
        return Connect(entry, data);
      case 0x00: {  // Property Set
        if (Get(&entry[44], 4) != 0x14) return Respond(entry, 0, kInvalidField);
        configuration = static_cast<uint32_t>(Get(&entry[48], 4));
        if ((configuration >> 14 & 3) != 0) ++target.counts.farewells;
        return Respond(entry);
      }
      case 0x04:  // Property Get
        return Property(entry);
      default:
        return Respond(entry, 0, kInvalidOpcode);
    }
  }

  bool Authentication(const Bytes& entry, const Bytes& data) {
    if (chap == nullptr) return Respond(entry, 0, kInvalidOpcode);
    if (entry[4] == 0x05) {
      chap->TakeMessage(data);
      if (chap->success2) ++target.counts.proofs;  // the last message
      return Respond(entry);
    }
    if (target.faults.mute_chap) return true;
    const Bytes message = chap->GiveMessage(Get(&entry[44], 4));
    const bool is_challenge = message.at(0) == 1 && message.at(1) == 1;
    if (is_challenge) ++target.counts.challenges;
    if (chap->host_accepted) {
      ++target.counts.accepted_hosts;
      chap_due = false;
    }
    return Return(entry, message) && !(is_challenge && target.faults.cut_in_chap);
  }

  void MeetHost(const Bytes& connect_data) {
    using nvme::auth::kTestSecrets;
    if (!target.options_.chap) return;
    chap = std::make_unique<nvme::auth::TestController>();
    chap->host_nqn = reinterpret_cast<const char*>(&connect_data[512]);
    chap->subsystem_nqn = kSubsystem;
    chap->group = target.faults.chap_group;
    chap->host_secret = nvme::auth::RawSecret(kTestSecrets[1].size_bytes);
    chap->host_transformation = kTestSecrets[1].transformation;
    chap->own_secret = nvme::auth::RawSecret(kTestSecrets[3].size_bytes);
    chap->own_transformation = kTestSecrets[3].transformation;
    if (target.faults.other_host_secret) chap->host_secret[0] ^= 1;
    if (target.faults.other_own_secret) (*chap->own_secret)[0] ^= 1;
    chap_due = queue == 0 ? target.faults.asks_on_admin : target.faults.asks_on_io;
  }

  bool Property(const Bytes& entry) {
    switch (Get(&entry[44], 4)) {
      case 0x00:  // CAP: 128 entries, CQR, 7.5 s, the NVM command set
        return Respond(entry, 127 | 1U << 16 | 15U << 24 | uint64_t{1} << 37);
      case 0x08:
        return Respond(entry, 0x00010400);
      case 0x14:
        return Respond(entry, configuration);
      case 0x1c:  // CSTS: ready as long as enabled, shut down at once
        return Respond(entry, (configuration & 1) | ((configuration >> 14 & 3) != 0 ? 8U : 0U));
      default:
        return Respond(entry, 0, kInvalidField);
    }
  }

  bool Connect(const Bytes& entry, const Bytes& data) {
    if (data.size() != 1024) return Respond(entry, 0, kConnectInvalid);
    const auto* const asked = reinterpret_cast<const char*>(&data[256]);
    is_discovery = std::strcmp(asked, kDiscovery) == 0 && Get(&entry[42], 2) == 0;
    if (!is_discovery && std::strcmp(asked, kSubsystem) != 0) return Respond(entry, 0, kConnectInvalid);
    if (target.faults.refuse_host) return Respond(entry, 0, kConnectInvalidHost);
    if (Get(&entry[42], 2) != 0 && target.faults.refuse_queue.exchange(false))
      return Respond(entry, 0, kConnectBusy);
    queue = static_cast<uint16_t>(Get(&entry[42], 2));
    sq_size = static_cast<uint16_t>(Get(&entry[44], 2));
    controller = static_cast<uint16_t>(Get(&data[16], 2));
    if (queue == 0) {
      const std::lock_guard lock(target.mutex_);
      controller = target.next_controller_++;
      ++target.counts.admin_queues;
      if (is_discovery) ++target.counts.discoveries;
    } else {
      ++target.counts.io_queues;
    }
    std::copy_n(data.begin(), host.size(), host.begin());
    MeetHost(data);
    return Respond(entry, controller | (chap_due ? 1U << 17 : 0U));
  }

  bool Admin(const Bytes& entry) {
    switch (entry[0]) {
      case 0x06:
        return Identify(entry);
      case 0x02:
        return LogPage(entry);
      case 0x09: {  // Set Features: so many queues of each kind
        const uint32_t queues = target.faults.io_queues - 1;
        return Respond(entry, (Get(&entry[40], 1)) == 7 ? queues << 16 | queues : 0);
      }
      case 0x0a:
        return Respond(entry);
      case 0x0c: {  // Asynchronous Event Request: answered by NotifyNamespace
        const std::lock_guard lock(target.mutex_);
        event_requests.push_back(entry);
        return true;
      }
      case 0x18:
        ++target.counts.keep_alives;
        return Respond(entry);
      default:
        return Respond(entry, 0, kInvalidOpcode);
    }
  }

  // This subsystem at this port, and a referral.
  Bytes DiscoveryLog() {
    Bytes log(3072);
    {
      const std::lock_guard lock(target.mutex_);
      if (target.faults.changing_log) ++target.log_generation_;
      Put(log, 0, target.log_generation_, 8);
    }
    Put(log, 8, target.faults.log_records, 8);
    for (const size_t at : {1024U, 2048U}) {
      log[at] = 3;      // TCP
      log[at + 1] = 1;  // IPv4
      log[at + 2] = at == 1024 ? 2 : 1;
      Put(log, at + 4, at / 1024, 2);
      Put(log, at + 6, 0xffff, 2);
      Put(log, at + 8, 32, 2);
      const std::string port = at == 1024 ? std::to_string(target.port_) : "8009";
      std::copy(port.begin(), port.end(), log.begin() + static_cast<ptrdiff_t>(at) + 32);
      const std::string name = at == 1024 ? kSubsystem : kDiscovery;
      std::copy(name.begin(), name.end(), log.begin() + static_cast<ptrdiff_t>(at) + 256);
      const std::string address = at == 1024 ? "127.0.0.1" : "192.0.2.1";
      std::copy(address.begin(), address.end(), log.begin() + static_cast<ptrdiff_t>(at) + 512);
    }
    return log;
  }

  // As much as was asked for, from where it was asked.
  bool DiscoveryPage(const Bytes& entry) {
    if (target.faults.mute_log) return true;
    Bytes log = DiscoveryLog();
    const uint64_t bytes = (Get(&entry[42], 2) + 1) * 4;
    log.resize(std::max<uint64_t>(log.size(), Get(&entry[48], 8) + bytes));
    const auto from = log.begin() + static_cast<ptrdiff_t>(Get(&entry[48], 8));
    return Return(entry, Bytes(from, from + static_cast<ptrdiff_t>(bytes)));
  }

  // The ANA log with its one group; any other page has no entries.
  bool LogPage(const Bytes& entry) {
    if (entry[40] == 0x70 && is_discovery) return DiscoveryPage(entry);
    Bytes data(4096);
    if (entry[40] == 0x0c) {
      const std::lock_guard lock(target.mutex_);
      Put(data, 0, target.ana_changes_, 8);
      Put(data, 8, 1, 2);
      Put(data, 16, kAnaGroup, 4);
      Put(data, 20, 1, 4);
      Put(data, 24, target.ana_changes_, 8);
      data[32] = target.faults.ana_state;
      Put(data, 48, kNsid, 4);
    }
    return Return(entry, data);
  }

  bool Identify(const Bytes& entry) {
    Bytes data(4096);
    const uint64_t kind = Get(&entry[40], 1);
    const bool present = !target.faults.detached;
    if (kind == 0) {
      const uint64_t blocks = SizeBytes() / kBlockBytes;
      if (Get(&entry[4], 4) != kNsid || !present) return Return(entry, data);
      data[99] = target.faults.write_protected ? 1 : 0;  // NSATTR
      for (const size_t at : {0U, 8U, 16U}) Put(data, at, blocks, 8);
      if (target.options_.ana) Put(data, 92, kAnaGroup, 4);
      data[31] = target.options_.reservations ? 1U << 5 : 0;  // RESCAP: Write Exclusive - All Registrants
      data[33] = 0x9;  // DLFEAT: what is deallocated reads as zeroes, and Write Zeroes may deallocate
      std::copy(kNguid.begin(), kNguid.end(), data.begin() + 104);
      data[130] = 9;
    } else if (kind == 1) {
      Controller(data);
    } else if (kind == 2) {
      Put(data, 0, present ? kNsid : 0, 4);
    } else if (kind == 3) {
      if (!present) return Respond(entry, 0, kInvalidNamespace);
      data[0] = 3;
      data[1] = 16;
      std::copy(kUuid.begin(), kUuid.end(), data.begin() + 4);
      data[20] = 2;
      data[21] = 16;
      std::copy(kNguid.begin(), kNguid.end(), data.begin() + 24);
    } else {
      return Respond(entry, 0, kInvalidField);
    }
    return Return(entry, data);
  }

  void Controller(Bytes& data) const {
    std::fill_n(data.begin() + 4, 60, ' ');
    std::memcpy(&data[4], "SERIAL", 6);
    std::memcpy(&data[24], "test target", 11);
    data[77] = target.options_.mdts;
    Put(data, 78, controller, 2);
    Put(data, 80, 0x00010400, 4);
    Put(data, 92, 1U << 8 | (target.options_.ana ? 1U << 11 : 0U),
        4);  // OAES: namespaces, ANA states that change
    if (target.options_.ana) {
      data[76] = 0x0a;        // CMIC: several controllers, ANA
      data[342] = 10;         // ANATT: seconds
      data[343] = 0x1f;       // ANACAP: all states
      Put(data, 344, 32, 4);  // ANAGRPMAX
      Put(data, 348, 32, 4);  // NANAGRPID
    }
    data[96] = target.options_.reservations ? 1 : 0;  // CTRATT: host identifiers of 128 bits
    data[111] = 1;                                    // an I/O controller
    Put(data, 320, 10, 2);                            // KAS: seconds
    data[512] = 0x66;
    data[513] = 0x44;
    Put(data, 514, 128, 2);
    Put(data, 516, 1, 4);
    // ONCS: Dataset Management, Write Zeroes, reservations
    Put(data, 520,
        1U << 2 | (target.options_.write_zeroes ? 1U << 3 : 0U) |
            (target.options_.reservations ? 1U << 5 : 0U),
        2);
    data[525] = target.options_.write_cache || target.faults.write_cache_appears ? 1 : 0;
    Put(data, 536, 1U | 1U << 20, 4);  // SGLs, offsets into the capsule
    std::strcpy(reinterpret_cast<char*>(&data[768]), kSubsystem);
    Put(data, 1792, (64 + target.options_.capsule_data_bytes) / 16, 4);
    Put(data, 1796, 1, 4);
    data[1803] = 1;
  }

  bool Io(const Bytes& entry, const Bytes& data) {
    const uint64_t at = Get(&entry[40], 8) * kBlockBytes;
    const uint64_t bytes = (Get(&entry[48], 2) + 1) * kBlockBytes;
    const bool ranged = entry[0] == 1 || entry[0] == 2 || entry[0] == 8;
    if (target.faults.detached) return Respond(entry, 0, kInvalidNamespace);
    if (target.options_.ana && target.faults.ana_state > 2) {
      ++target.counts.refused;
      return Respond(entry, 0, kAnaInaccessible);
    }
    if (ranged && at + bytes > SizeBytes()) return Respond(entry, 0, 0x80);
    if (target.options_.reservations && !LetsIn(entry)) return Respond(entry, 0, kConflict);
    switch (entry[0]) {
      case 0x0d:
      case 0x0e:
      case 0x11:
        return target.options_.reservations ? Reserve(entry, data) : Respond(entry, 0, kInvalidOpcode);
      case 0x00:
        ++target.counts.flushes;
        return Respond(entry);
      case 0x01:
        return entry[39] == 0x01 ? Store(entry, data, bytes) : Ask(entry, bytes);
      case 0x02:
        ++target.counts.reads;
        Longest(bytes);
        return Return(entry, target.Read(at, bytes));
      case 0x08:
        ++target.counts.zeroes;
        target.Write(at, Bytes(bytes));
        return Respond(entry);
      case 0x09:
        return Discard(entry, data);
      default:
        return Respond(entry, 0, kInvalidOpcode);
    }
  }

  uint64_t SizeBytes() const {
    const uint64_t shown = target.faults.shows_bytes;
    return shown != 0 ? shown : target.store_->size_bytes.load();
  }

  // Who is no registrant only reads.
  bool LetsIn(const Bytes& entry) {
    const bool writes_data = entry[0] == 1 || entry[0] == 8 || entry[0] == 9;
    if (!writes_data) return true;
    bool in = true;
    target.Reservations([&](auto& reservations) { in = reservations.LetsIn(host); });
    if (!in) ++target.counts.conflicts;
    return in;
  }

  bool Reserve(const Bytes& entry, const Bytes& data) {
    nvme::fabrics::SubmissionEntry command;
    static_assert(sizeof(command) == 64);
    std::memcpy(&command, entry.data(), sizeof(command));
    Bytes answer(entry[0] == 0x0e ? Get(&entry[32], 4) : 0);
    uint64_t bytes = 0;
    uint8_t status = 0;
    target.Reservations(
        [&](auto& reservations) { status = reservations.Execute(host, command, data, answer, bytes); });
    answer.resize(bytes);
    return status == 0 && !answer.empty() ? Return(entry, answer) : Respond(entry, 0, status);
  }

  void Longest(uint64_t bytes) const {
    uint64_t before = target.counts.longest_bytes;
    while (before < bytes && !target.counts.longest_bytes.compare_exchange_weak(before, bytes)) {
    }
  }

  bool Discard(const Bytes& entry, const Bytes& data) {
    const uint64_t ranges = Get(&entry[40], 1) + 1;
    if (data.size() < ranges * 16) return Respond(entry, 0, kInvalidField);
    for (uint64_t i = 0; i < ranges; ++i)
      target.Write(Get(&data[i * 16 + 8], 8) * kBlockBytes, Bytes(Get(&data[i * 16 + 4], 4) * kBlockBytes));
    ++target.counts.discards;
    return Respond(entry);
  }

  bool Store(const Bytes& entry, const Bytes& data, uint64_t bytes) {
    if (data.size() != bytes) return Respond(entry, 0, kInvalidField);
    Longest(bytes);
    if (!target.faults.lose_writes) target.Write(Get(&entry[40], 8) * kBlockBytes, data);
    ++target.counts.writes;
    return Respond(entry);
  }

  bool Ask(const Bytes& entry, uint64_t bytes) {
    if (target.faults.mute_r2t) return true;
    const auto tag = static_cast<uint16_t>(next_tag++);
    PendingWrite& write = writes[tag];
    write.entry = entry;
    write.data.resize(bytes);
    ++target.counts.r2t_writes;
    return AskMore(tag, write);
  }

  bool AskMore(uint16_t tag, PendingWrite& write) {
    const uint64_t bytes = std::min<uint64_t>(write.data.size() - write.got, target.options_.r2t_bytes);
    Bytes header(24);
    Put(header, 8, Get(&write.entry[2], 2), 2);
    Put(header, 10, tag, 2);
    Put(header, 12, write.got, 4);
    Put(header, 16, bytes, 4);
    write.asked = write.got + bytes;
    return SendPdu(kReady, 0, header);
  }

  bool DataCame(const Bytes& header, const Bytes& data) {
    const auto tag = static_cast<uint16_t>(Get(&header[10], 2));
    const auto found = writes.find(tag);
    if (found == writes.end()) return Bad();
    PendingWrite& write = found->second;
    const bool fits = Get(&header[12], 4) == write.got && Get(&header[16], 4) == data.size() &&
                      write.got + data.size() <= write.asked &&
                      data.size() <= target.options_.h2c_bytes_max &&
                      Get(&header[8], 2) == Get(&write.entry[2], 2);
    if (!fits) return Bad();
    std::copy(data.begin(), data.end(), write.data.begin() + static_cast<ptrdiff_t>(write.got));
    write.got += data.size();
    if (((header[1] & kLast) != 0) != (write.got == write.asked)) return Bad();
    if (write.got < write.asked) return true;
    if (write.got < write.data.size()) return AskMore(tag, write);
    const PendingWrite whole = std::move(write);
    writes.erase(found);
    return Store(whole.entry, whole.data, whole.data.size());
  }

  NvmfTarget& target;
  const int socket;
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

NvmfTarget::NvmfTarget(const Options& options, const NvmfTarget* beside)
    : options_(options), store_(beside != nullptr ? beside->store_ : std::make_shared<Store>()) {
  if (beside == nullptr) {
    store_->bytes.resize(options.size_bytes);
    store_->size_bytes = options.size_bytes;
  }
  Start();
}

NvmfTarget::~NvmfTarget() {
  Stop();
}

void NvmfTarget::Start() {
  const int socket_fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int on = 1;
  CLEAT_CHECK(setsockopt(socket_fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) == 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port_);
  CLEAT_CHECK(bind(socket_fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0);
  CLEAT_CHECK(listen(socket_fd, 16) == 0);
  socklen_t bytes = sizeof(address);
  CLEAT_CHECK(getsockname(socket_fd, reinterpret_cast<sockaddr*>(&address), &bytes) == 0);
  port_ = ntohs(address.sin_port);
  {
    const std::lock_guard lock(mutex_);
    stopping_ = false;
  }
  listener_ = socket_fd;
  acceptor_ = std::thread([this] { Accept(); });
}

void NvmfTarget::Stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  shutdown(listener_, SHUT_RDWR);
  if (acceptor_.joinable()) acceptor_.join();
  close(listener_.exchange(-1));
  JoinAll();
}

void NvmfTarget::CutAll() {
  const std::lock_guard lock(mutex_);
  for (auto& session : sessions_) shutdown(session->socket, SHUT_RDWR);
}

void NvmfTarget::Grow(uint64_t size_bytes) {
  const std::lock_guard lock(store_->mutex);
  CLEAT_CHECK(size_bytes >= store_->bytes.size());
  store_->bytes.resize(size_bytes);
  store_->size_bytes = size_bytes;
}

// An event is told on each connection whose host has asked for events.
void NvmfTarget::Notify(uint32_t event) {
  const std::lock_guard lock(mutex_);
  ++ana_changes_;
  for (auto& session : sessions_) {
    if (session->event_requests.empty()) continue;
    const Bytes request = session->event_requests.back();
    session->event_requests.pop_back();
    session->Respond(request, event);
  }
}

void NvmfTarget::JoinAll() {
  std::list<std::unique_ptr<Session>> ended;
  {
    const std::lock_guard lock(mutex_);
    ended.swap(sessions_);
  }
  for (auto& session : ended) {
    shutdown(session->socket, SHUT_RDWR);
    session->thread.join();
    close(session->socket);
  }
}

void NvmfTarget::Accept() {
  for (;;) {
    const int accepted = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    const std::lock_guard lock(mutex_);
    if (accepted < 0 || stopping_) {
      if (accepted >= 0) close(accepted);
      return;
    }
    ++counts.accepted;
    const int on = 1;
    CLEAT_CHECK(setsockopt(accepted, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)) == 0);
    sessions_.push_back(std::make_unique<Session>(*this, accepted));
  }
}

std::vector<uint8_t> NvmfTarget::Read(uint64_t offset, uint64_t bytes) {
  const std::lock_guard lock(store_->mutex);
  const auto from = store_->bytes.begin() + static_cast<ptrdiff_t>(offset);
  return {from, from + static_cast<ptrdiff_t>(bytes)};
}

void NvmfTarget::Write(uint64_t offset, std::span<const uint8_t> data) {
  const std::lock_guard lock(store_->mutex);
  std::copy(data.begin(), data.end(), store_->bytes.begin() + static_cast<ptrdiff_t>(offset));
}

}  // namespace cleat::test
