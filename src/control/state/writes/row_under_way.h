// SPDX-License-Identifier: Apache-2.0
// A new row whose write is under way. The tables don't have it yet, and others run meanwhile who may want the last place that it is about
// to take. So a RowUnderWay counts it, from the moment at which it was let in until its write has ended, well or not, and limits and
// choices look at the table and this count together:
//
//   {
//     const RowUnderWay creating(creating_);
//     CLEAT_TRY(core_.writes.Write(names, {row}));
//   }
//   ... the table has it from here on ...
//
// Made and destroyed under the state's mutex, as the count is read. The count outlives it.
#pragma once

#include <cstddef>
#include <utility>

namespace cleat::control {

class [[nodiscard]] RowUnderWay {
 public:
  explicit RowUnderWay(size_t& count) : count_(&count) { ++count; }
  ~RowUnderWay() {
    if (count_ != nullptr) --*count_;
  }
  RowUnderWay(RowUnderWay&& other) noexcept : count_(std::exchange(other.count_, nullptr)) {}
  RowUnderWay(const RowUnderWay&) = delete;
  RowUnderWay& operator=(const RowUnderWay&) = delete;
  RowUnderWay& operator=(RowUnderWay&&) = delete;

 private:
  size_t* count_;  // nullptr: another one counts the row
};

}  // namespace cleat::control
