// SPDX-License-Identifier: Apache-2.0
// The owner of a lock on an image, written beside it in the image's metadata, so that the next one after a crash can
// prove that the owner is dead. Read it with `rbd image-meta list`. Plain values; any thread.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"

namespace cleat::modules {

struct OwnerRecord {
  std::string machine;        // /etc/machine-id
  std::string boot;           // the kernel's boot_id: start times and process ids mean something within it
  std::string pid_namespace;  // ... and in the same namespace only
  pid_t pid = 0;
  uint64_t start_ticks =
      0;               // proc_pid_stat(5), field 22: a process id is used again, the two together are not
  std::string engine;  // its name, for people
  bool operator==(const OwnerRecord&) const = default;
};

// The key in the image's metadata, for the owner's client ("client.4123"). The client is in the key, so that a record
// stands before the lock is taken and can't be taken for another owner's.
std::string OwnerRecordKey(const std::string& client);

std::string EncodeOwnerRecord(const OwnerRecord& record);
std::optional<OwnerRecord> ParseOwnerRecord(std::string_view text);

// This process. kInternal when /proc can't be read.
Result<OwnerRecord> RecordOfThisProcess(const std::string& engine);

enum class OwnerState : uint8_t {
  kDead,       // proven: no thread of it can run any more
  kAlive,      // it runs, on this machine
  kElsewhere,  // on another machine, or where this process can't look
};

// `same_address`: the owner's client and our own have the same IP address. Asked for a boot that is over, since machine
// ids of cloned machines are the same.
OwnerState JudgeOwner(const OwnerRecord& owner, const OwnerRecord& self, bool same_address);

// "process 123 of engine blue on this machine"
std::string DescribeOwner(const OwnerRecord& owner, const OwnerRecord& self);

}  // namespace cleat::modules
