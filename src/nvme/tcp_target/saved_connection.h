// SPDX-License-Identifier: Apache-2.0
// What one process tells the next of a controller's end of an NVMe/TCP connection that it hands over with its socket: all that is not in the
// socket itself. Plain values; any thread.
//
// Nothing of the commands here has had an effect, and none was answered: the next process does them. A PDU that has come in part is in `received`
// from its first byte on, so that it begins anew there; an answer that the socket has taken in part is in `unsent` with its rest.
#pragma once

#include <cstdint>
#include <vector>

#include "base/result.h"
#include "nvme/fabrics/capsule.h"
#include "nvme/tcp/pdu.h"

namespace cleat::nvme::tcp {

struct SavedCommand {
  // What the next process has to do with it: execute it; await the rest of its data, which the host was asked for; execute it with that data,
  // which is there; or keep it for an event (an Asynchronous Event Request).
  enum class Next : uint8_t { kRun, kAwaitData, kRunWithData, kHold };
  fabrics::SubmissionEntry entry;
  Next next = Next::kRun;
  bool in_capsule = false;       // `data` came along with it
  uint16_t tag = 0;              // by which the host sends its data (TTAG), of kAwaitData
  std::vector<uint8_t> data;     // that has come: of kAwaitData a part, else nothing or all of it
  bool digest_is_wrong = false;  // of kAwaitData: of what has come
};

struct SavedConnection {
  uint32_t entries = 0;  // of the queue
  uint32_t in_capsule_bytes = 0;
  uint16_t sq_head = 0;
  bool flow_control = true;
  bool header_digest = false;
  bool data_digest = false;
  uint32_t data_align_bytes = kDataAlignUnitBytes;  // the host's HPDA
  std::vector<uint8_t> received;       // from the socket, of PDUs that were not begun or are not whole
  std::vector<uint8_t> unsent;         // to be sent before anything else
  std::vector<SavedCommand> commands;  // in the order in which they came
};

// `received`, at most: a PDU that has come but for a byte, or what a receive buffer holds behind one that waits.
inline constexpr size_t kSavedReceivedBytesMax = 2 << 20;

// Whether a connection may go on so, whoever says it: kInvalidArgument else, with what is wrong. `entries_max` and `in_capsule_bytes_max`: of the
// queue that it becomes.
cleat::Status Check(const SavedConnection& saved, uint32_t entries_max, uint32_t in_capsule_bytes_max);
// What is handed over.
uint64_t BytesOf(const SavedConnection& saved);
// The room that the data of its commands has here until they are answered, most of which may be still to come.
uint64_t RoomOf(const SavedConnection& saved);

}  // namespace cleat::nvme::tcp
