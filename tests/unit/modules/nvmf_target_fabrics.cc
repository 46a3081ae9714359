// SPDX-License-Identifier: Apache-2.0
// Commands of fabrics: Connect, properties, and authentication.
#include <algorithm>
#include <cstring>

#include "tests/unit/modules/nvmf_target_session.h"

namespace cleat::test {

bool NvmfTarget::Session::Fabrics(const Bytes& entry, const Bytes& data) {
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

bool NvmfTarget::Session::Authentication(const Bytes& entry, const Bytes& data) {
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

void NvmfTarget::Session::MeetHost(const Bytes& connect_data) {
  using nvme::auth::kTestSecrets;
  if (!target.options_.chap) return;
  chap = std::make_unique<nvme::auth::TestController>();
  chap->host_nqn = reinterpret_cast<const char*>(&connect_data[512]);
  chap->subsystem_nqn = is_discovery ? kDiscovery : kSubsystem;
  chap->group = target.faults.chap_group;
  chap->host_secret = nvme::auth::RawSecret(kTestSecrets[1].size_bytes);
  chap->host_transformation = kTestSecrets[1].transformation;
  chap->own_secret = nvme::auth::RawSecret(kTestSecrets[3].size_bytes);
  chap->own_transformation = kTestSecrets[3].transformation;
  if (target.faults.other_host_secret) chap->host_secret[0] ^= 1;
  if (target.faults.other_own_secret) (*chap->own_secret)[0] ^= 1;
  chap_due = queue == 0 ? target.faults.asks_on_admin : target.faults.asks_on_io;
}

bool NvmfTarget::Session::Property(const Bytes& entry) {
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

bool NvmfTarget::Session::Connect(const Bytes& entry, const Bytes& data) {
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
  connected = true;
  if (queue == 0) {
    const std::lock_guard lock(target.mutex_);
    target.hosts_[controller] = host;
  }
  MeetHost(data);
  return Respond(entry, controller | (chap_due ? 1U << 17 : 0U));
}

}  // namespace cleat::test
