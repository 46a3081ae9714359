// SPDX-License-Identifier: Apache-2.0
// The admin queue: what controller and namespace say of themselves, and the logs.
#include <algorithm>
#include <cstring>
#include <string>

#include "tests/unit/modules/nvmf_target_session.h"

namespace cleat::test {

bool NvmfTarget::Session::Admin(const Bytes& entry) {
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
NvmfTarget::Session::Bytes NvmfTarget::Session::DiscoveryLog() {
  Bytes log(3072);
  {
    const std::lock_guard lock(target.mutex_);
    if (target.faults.changing_log) ++target.log_generation_;
    Put(log, 0, target.log_generation_, 8);
  }
  Put(log, 8, target.faults.log_records, 8);
  for (const size_t at : {1024U, 2048U}) {
    log[at] = at == 1024 ? target.faults.log_transport.load() : 3;  // TCP
    log[at + 1] = 1;                                                // IPv4
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
bool NvmfTarget::Session::DiscoveryPage(const Bytes& entry) {
  if (target.faults.mute_log) return true;
  Bytes log = DiscoveryLog();
  const uint64_t bytes = (Get(&entry[42], 2) + 1) * 4;
  log.resize(std::max<uint64_t>(log.size(), Get(&entry[48], 8) + bytes));
  const auto from = log.begin() + static_cast<ptrdiff_t>(Get(&entry[48], 8));
  return Return(entry, Bytes(from, from + static_cast<ptrdiff_t>(bytes)));
}

// The ANA log with its one group; any other page has no entries.
bool NvmfTarget::Session::LogPage(const Bytes& entry) {
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

bool NvmfTarget::Session::Identify(const Bytes& entry) {
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

void NvmfTarget::Session::Controller(Bytes& data) const {
  std::fill_n(data.begin() + 4, 60, ' ');
  std::memcpy(&data[4], "SERIAL", 6);
  std::memcpy(&data[24], "test target", 11);
  data[77] = target.options_.mdts;
  Put(data, 78, controller, 2);
  Put(data, 80, 0x00010400, 4);
  // OAES: namespaces, ANA states that change; or the discovery log
  const uint32_t events = 1U << 8 | (target.options_.ana ? 1U << 11 : 0U);
  Put(data, 92, is_discovery ? 1U << 31 : events, 4);
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
  Put(data, 386, target.options_.command_quiesce_ms, 2);
  data[512] = 0x66;
  data[513] = 0x44;
  Put(data, 514, 128, 2);
  Put(data, 516, 1, 4);
  // ONCS: Dataset Management, Write Zeroes, reservations
  Put(data, 520,
      1U << 2 | (target.options_.write_zeroes ? 1U << 3 : 0U) | (target.options_.reservations ? 1U << 5 : 0U),
      2);
  data[525] = target.options_.write_cache || target.faults.write_cache_appears ? 1 : 0;
  Put(data, 536, 1U | 1U << 20, 4);  // SGLs, offsets into the capsule
  std::strcpy(reinterpret_cast<char*>(&data[768]), kSubsystem);
  Put(data, 1792, (64 + target.options_.capsule_data_bytes) / 16, 4);
  Put(data, 1796, 1, 4);
  data[1803] = 1;
}

}  // namespace cleat::test
