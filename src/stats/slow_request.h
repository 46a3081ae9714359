// SPDX-License-Identifier: Apache-2.0
// A slow request as the API's message, and in words. Pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "cleat/v1/cleat.pb.h"
#include "observe/reader.h"

namespace cleat::stats {

// `now_ns`: CLOCK_MONOTONIC, at the same moment as `now_unix_ns`.
v1::SlowRequest ToApi(const observe::SegmentReader& reader, const observe::SlowSeen& slow, uint64_t now_ns,
                      int64_t now_unix_ns);

// "a read of 4096 bytes at 8192 took 0.71 s (fetched 2 us, submitted 1 us, done 0.71 s)"
std::string InWords(const v1::SlowRequest& request);
// "a read of 4096 bytes at 8192"
std::string RequestInWords(std::string_view operation, uint64_t length_bytes, uint64_t offset_bytes);
// What a request that has reached this stage last waits for: "for the storage".
std::string_view WaitsFor(std::string_view stage);
// "0.71 s", "3.2 us"
std::string TimeInWords(uint64_t ns);

}  // namespace cleat::stats
