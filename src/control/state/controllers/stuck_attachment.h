// SPDX-License-Identifier: Apache-2.0
// Whether an attachment's requests wait at its storage, why, and what an operator can do about it: by its status. Pure functions.
#pragma once

#include <optional>

#include "cleat/v1/cleat.pb.h"

namespace cleat::control {

// Nothing, if none is known to wait. `engine` is left to the caller; and what the status has no number of, to who knows the engine's
// counters: what waits for another reason than writes in doubt, and since when.
std::optional<v1::StuckAttachment> StuckOf(const v1::Attachment& attachment, const v1::DiskSpec& disk);

}  // namespace cleat::control
