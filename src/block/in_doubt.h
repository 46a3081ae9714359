// SPDX-License-Identifier: Apache-2.0
// What whoever has a disk attached says to, and hears of, a back end that reaches its storage over several paths and may have writes in
// doubt (docs/nvmeof.md, "Writes in doubt"): plain values. Other back ends know nothing of them (device.h).
#pragma once

#include <cstdint>
#include <string>

namespace cleat::block {

// What becomes of a request that waits since an older write, left on a path that broke, may still overwrite it.
struct InDoubt {
  enum class Policy : uint8_t {
    kHold,       // it waits until there is proof that nothing older will be executed
    kFailAfter,  // it fails once it has waited for `fail_after_ns`
    kAccept      // it does not wait: the older write may overwrite it later, without an error
  };
  Policy policy = Policy::kHold;
  uint64_t fail_after_ns = 0;  // of kFailAfter: more than 0
  bool operator==(const InDoubt&) const = default;
};

// How the paths do. Totals are of one open device.
struct PathsReport {
  // Paths, by the state of their access to the storage (ANA).
  uint32_t optimized = 0;
  uint32_t non_optimized = 0;
  uint32_t unusable = 0;
  uint64_t losses = 0;     // connections that broke
  uint64_t failovers = 0;  // ... of those after which requests went on by another path at once
  uint64_t doubt_ranges = 0;
  uint64_t doubt_bytes = 0;  // in these ranges, of which some may overlap
  uint64_t waiting = 0;      // requests that wait for writes in doubt
  uint64_t waiting_since_ns =
      0;                  // the oldest of these, on the reactors' clock; 0: none, or it has just begun
  uint64_t failed = 0;    // that had waited too long
  uint64_t accepted = 0;  // paths that broke and left writes in doubt which later ones did not wait for
  bool accepts = false;   // InDoubt::Policy::kAccept
  std::string
      doubt_left_by;  // for people: "left by subsystems/a at 10.0.0.1:4420, ..."; empty: nothing is in doubt
  bool operator==(const PathsReport&) const = default;

  bool has_usable() const { return optimized + non_optimized > 0; }
};

}  // namespace cleat::block
