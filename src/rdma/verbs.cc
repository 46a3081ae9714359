// SPDX-License-Identifier: Apache-2.0
#include "rdma/verbs.h"

namespace cleat::rdma {

const char* NameOf(WorkStatus status) {
  switch (status) {
    case WorkStatus::kDone:
      return "done";
    case WorkStatus::kFlushed:
      return "flushed";
    case WorkStatus::kRetriesExceeded:
      return "no answer after all retries";
    case WorkStatus::kRemoteRefused:
      return "refused by the peer's adapter";
    case WorkStatus::kLocalError:
      return "an error of this end";
    case WorkStatus::kOther:
      break;
  }
  return "an error of the adapter";
}

}  // namespace cleat::rdma
