// SPDX-License-Identifier: Apache-2.0
// What an engine hands to the next one of an export's hosts, as one descriptor that cleatd passes on without a look: a unix socket in which all of it
// waits - a memfd with what is known of the connections (host_connections.h), then their sockets - and whose other end is closed. Whoever closes
// the descriptor closes them all: so does the kernel, when cleatd or the next engine dies before it has taken them. On the control reactor.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "base/descriptor_budget.h"
#include "base/result.h"
#include "base/unique_fd.h"
#include "nvmf_target/hand_over/saved_association.h"

namespace cleat::engine {

// Takes the sockets; after an error they are closed, and their hosts connect again.
//   kResourceExhausted, kUnavailable  no descriptors or memory are left, more of them are under way than the kernel allows this user
//                                     (RLIMIT_NOFILE), or there is more to tell than a limit allows
Result<UniqueFd> MakeBundle(std::vector<nvmf_target::SavedAssociation> associations);

// Of so many descriptors, before they are opened (DescriptorBudget::Reserve).
using ReserveDescriptors = std::function<Result<DescriptorBudget::Reservation>(uint64_t count)>;
// After an error all that was in it is closed.
//   kInvalidArgument    it is none, was cut short, is of a later version than can be read, or its parts do not fit together
//   kResourceExhausted  this process may not have so many descriptors
Result<std::vector<nvmf_target::SavedAssociation>> OpenBundle(const UniqueFd& bundle,
                                                              const ReserveDescriptors& reserve);

}  // namespace cleat::engine
