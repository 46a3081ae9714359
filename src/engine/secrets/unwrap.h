// SPDX-License-Identifier: Apache-2.0
// The secrets of NVMe-oF, unwrapped: only while a disk is opened, or a discovery service is asked.
#pragma once

#include <memory>
#include <string>

#include "base/result.h"
#include "engine/protocol/nvmf_secrets.h"
#include "keys/keyring.h"
#include "nvme/auth/chap_secret.h"
#include "nvme/tls/psk.h"
#include "reactor/blocking.h"
#include "reactor/task.h"

namespace cleat::engine {

struct NvmfKeys {
  std::shared_ptr<const nvme::auth::ChapSecrets> chap;  // nullptr: there are none
  std::shared_ptr<const nvme::tls::Psk> psk;            // nullptr: there is none
};

// On a thread of `blocking`, as the keyring may read its files again, and the parsers allocate. All but `whose`, which begins errors, outlive
// the task.
Task<Result<NvmfKeys>> Unwrap(const NvmfSecrets& secrets, std::string whose, keys::Keyring& keyring,
                              BlockingPool& blocking);

}  // namespace cleat::engine
