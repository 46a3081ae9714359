// SPDX-License-Identifier: Apache-2.0
// The associations of an export's hosts as bytes (HostConnections of proto/cleat/engine/v1), without their sockets. What comes in is checked
// for form: lengths, known values, numbers that fit; whether a host may go on with it is for the target to say. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "base/result.h"
#include "engine/protocol/spec.h"
#include "nvmf_target/hand_over/saved_association.h"

namespace cleat::engine {

// Limits of what one engine hands to another with one export.
inline constexpr size_t kAssociationsMax = 1024;
inline constexpr size_t kAssociationQueuesMax = kQueuesMax + 1;  // with the admin queue
// What hosts had under way, 64 MiB at most (TargetService::HandOver), and as much again for what describes it.
inline constexpr size_t kHostConnectionsBytesMax = size_t{128} << 20;

// Calls `write` with the bytes, one piece after the other; an error of it ends that. kResourceExhausted: they are more than a limit allows.
Status PackConnections(std::span<const nvmf_target::SavedAssociation> associations,
                       const std::function<Status(std::span<const uint8_t>)>& write);
// The sockets are invalid. kInvalidArgument: no such bytes were packed by any version, or they are from a later one than can be read.
Result<std::vector<nvmf_target::SavedAssociation>> UnpackConnections(std::span<const uint8_t> bytes);

}  // namespace cleat::engine
