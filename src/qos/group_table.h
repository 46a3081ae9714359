// SPDX-License-Identifier: Apache-2.0
// The memory in which all engines of a host keep what their groups have used, so that a group has its limits over all of
// them, also while one engine takes over from another: a memfd with a header and a slot (Accounts) for each group. Whoever
// makes it (cleatd; without it each engine its own) gives its descriptor to the engines. It can't shrink, so that no
// engine dies of another's mistake. Unmapped when the last slot is let go.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "base/result.h"
#include "base/unique_fd.h"
#include "qos/accounts.h"

namespace cleat::qos {

struct GroupTableHeader {
  static constexpr uint64_t kMagic = 0x534f515441454c43;  // "CLEATQOS"
  static constexpr uint32_t kVersion = 1;  // changes with the layout, or with the meaning of a word

  uint64_t magic;
  uint32_t version;
  uint32_t slot_bytes;
  uint32_t slot_count;
  uint32_t slots_offset_bytes;
};

class GroupTable : public std::enable_shared_from_this<GroupTable> {
 public:
  static Result<std::shared_ptr<GroupTable>> Make();
  // Memory as MakeGroupMemory gives it becomes a table. kInvalidArgument: it is no such table, of another version, or can shrink.
  static Result<std::shared_ptr<GroupTable>> Map(UniqueFd fd);
  ~GroupTable();
  GroupTable(const GroupTable&) = delete;
  GroupTable& operator=(const GroupTable&) = delete;

  Result<UniqueFd> Duplicate() const;
  // Below kGroupsMax. Keeps the table mapped.
  std::shared_ptr<Accounts> Slot(uint32_t slot);

 private:
  GroupTable(UniqueFd fd, void* base) : fd_(std::move(fd)), base_(static_cast<uint8_t*>(base)) {}
  static Result<std::shared_ptr<GroupTable>> MapWhole(UniqueFd fd);
  void MakeHeader();

  const UniqueFd fd_;
  uint8_t* const base_;
};

}  // namespace cleat::qos
