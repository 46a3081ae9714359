// SPDX-License-Identifier: Apache-2.0
// Which disk a guest's requests were for: a number that no other disk of the host is ever given, whatever its name. cleatd makes it
// when the disk is made; it goes to the engine with the disk, and into the in-flight logs, so that what was under way to one disk never
// runs on another. A value; any thread.
//
//   bits 63..40  the host's store. A store that was made anew counts from the beginning: its numbers say nothing of the old one's
//   bits 39..0   the disk's revision in it (control/model/model.h)
#pragma once

#include <cstdint>

namespace cleat {

class DiskIdentity {
 public:
  static constexpr uint64_t kStoreMax = (uint64_t{1} << 24) - 1;
  static constexpr uint64_t kRevisionMax = (uint64_t{1} << 40) - 1;

  constexpr DiskIdentity() = default;  // not known
  constexpr explicit DiskIdentity(uint64_t value) : value_(value) {}
  // `store`: 1 to kStoreMax.
  static constexpr DiskIdentity Of(uint64_t store, uint64_t revision) {
    return DiskIdentity(store << 40 | (revision & kRevisionMax));
  }
  // In the log of a device with several disks, whose entries say which: no disk's, since no store is 0.
  static constexpr DiskIdentity Several() { return DiskIdentity(1); }
  // A disk of that store, but it is not known which: another one than any.
  static constexpr DiskIdentity SomeOf(uint64_t store) { return Of(store, kRevisionMax); }

  constexpr uint64_t value() const { return value_; }
  constexpr bool known() const { return value_ != 0; }
  constexpr uint64_t store() const { return value_ >> 40; }
  // Short enough for an entry of a log; 0 for one that is not known, and only then. Two disks of a host that share one were made
  // 2^32 changes of its store apart.
  constexpr uint32_t tag() const {
    if (!known()) return 0;
    const auto tag = static_cast<uint32_t>(value_ ^ value_ >> 40 << 8);
    return tag != 0 ? tag : UINT32_MAX;
  }
  constexpr bool operator==(const DiskIdentity&) const = default;

 private:
  uint64_t value_ = 0;
};

}  // namespace cleat
