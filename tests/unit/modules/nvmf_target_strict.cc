// SPDX-License-Identifier: Apache-2.0
// What a strict target refuses (NvmfTarget::Options::strict).
#include <algorithm>

#include "tests/unit/modules/nvmf_target_session.h"

namespace cleat::test {

// ICReq comes first, once and in its length; data lies behind its header.
bool NvmfTarget::Session::IsInOrder(const Bytes& header) const {
  if ((header[0] == kIcReq) == initialized) return false;
  if (header[0] == kIcReq) return Get(&header[4], 4) == header.size();
  return header[3] == 0 || header[3] >= header[2] + (digests_header ? 4 : 0);
}

// What is wrong with a command that no initiator of ours would send, or 0.
uint16_t NvmfTarget::Session::WrongWith(const Bytes& entry, const Bytes& data) const {
  const bool is_connect = entry[0] == 0x7f && entry[4] == 0x01;
  if (is_connect == connected) return kSequence;
  if (is_connect) {
    const bool fits = Get(&entry[40], 2) == 0 && Get(&entry[44], 2) != 0 && IsHostOf(entry, data);
    return fits ? 0 : kConnectInvalid;
  }
  if (entry[0] == 0x7f || queue == 0) return 0;
  if (Get(&entry[4], 4) != kNsid) return kInvalidNamespace;
  const uint64_t bytes = (Get(&entry[48], 2) + 1) * kBlockBytes;
  const bool has_data = entry[0] == 0x01 || entry[0] == 0x02;
  const bool in_capsule = entry[39] == 0x01;
  if (has_data && Get(&entry[32], 4) != bytes) return kSglLength;
  if (in_capsule && Get(&entry[24], 8) != 0) return kInvalidField;
  if (has_data && !in_capsule && entry[39] != 0x5a) return kInvalidField;
  return data.size() > target.options_.capsule_data_bytes ? kInvalidField : 0;
}

// An I/O queue is for a controller of the same host.
bool NvmfTarget::Session::IsHostOf(const Bytes& entry, const Bytes& data) const {
  if (Get(&entry[42], 2) == 0 || data.size() < 1024) return true;
  const std::lock_guard lock(target.mutex_);
  const auto known = target.hosts_.find(static_cast<uint16_t>(Get(&data[16], 2)));
  return known != target.hosts_.end() && std::equal(known->second.begin(), known->second.end(), data.begin());
}

}  // namespace cleat::test
