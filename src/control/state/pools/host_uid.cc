// SPDX-License-Identifier: Apache-2.0
#include "control/state/pools/host_uid.h"

#include <openssl/sha.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <string>

namespace cleat::control {
namespace {

pool::Uid ReadHostUid() {
  std::ifstream file("/etc/machine-id");
  std::string text;
  if (!(file >> text)) return {};
  text += " cleat pool";
  std::array<uint8_t, SHA256_DIGEST_LENGTH> digest{};
  SHA256(reinterpret_cast<const uint8_t*>(text.data()), text.size(), digest.data());
  pool::Uid uid{};
  std::copy_n(digest.begin(), uid.size(), uid.begin());
  return uid;
}

}  // namespace

const pool::Uid& HostUid() {
  static const pool::Uid uid = ReadHostUid();
  return uid;
}

bool IsThisHost(const pool::Uid& uid) {
  return uid != pool::Uid() && uid == HostUid();
}

bool IsAnotherHosts(const pool::Uid& uid) {
  return HostUid() != pool::Uid() && uid != HostUid();
}

}  // namespace cleat::control
