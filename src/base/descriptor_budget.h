// SPDX-License-Identifier: Apache-2.0
// How many file descriptors this process may still promise: of those that it may have open (RLIMIT_NOFILE), a part is its own, and the
// rest is reserved by what it serves, for all that it will ever have open, before it is served. So what was taken can always go on: a guest
// that connects finds the descriptors that its connection needs. Only numbers are kept here; nothing is opened.
//
// One thread. A budget outlives its reservations.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/result.h"

namespace cleat {

class DescriptorBudget {
 public:
  // What a process opens for a while, beside what it has and what is reserved: the descriptors of one message (253), files that
  // are read, connections that are refused.
  static constexpr uint64_t kTransient = 320;

  // Given back when it goes; one that was made by default is of nothing.
  class Reservation {
   public:
    Reservation() = default;
    ~Reservation() { Reset(); }
    Reservation(Reservation&& other) noexcept
        : budget_(std::exchange(other.budget_, nullptr)), count_(std::exchange(other.count_, 0)) {}
    Reservation& operator=(Reservation&& other) noexcept {
      if (this == &other) return *this;
      Reset();
      budget_ = std::exchange(other.budget_, nullptr);
      count_ = std::exchange(other.count_, 0);
      return *this;
    }
    Reservation(const Reservation&) = delete;
    Reservation& operator=(const Reservation&) = delete;
    uint64_t count() const { return count_; }

   private:
    friend class DescriptorBudget;
    Reservation(DescriptorBudget& budget, uint64_t count) : budget_(&budget), count_(count) {}
    void Reset();
    DescriptorBudget* budget_ = nullptr;
    uint64_t count_ = 0;
  };

  // `limit`: of the process; `own`: what it keeps open for itself, and opens for a while.
  DescriptorBudget(uint64_t limit, uint64_t own) : limit_(limit), own_(own) {}
  ~DescriptorBudget() { CLEAT_CHECK(reserved_ == 0); }
  DescriptorBudget(const DescriptorBudget&) = delete;
  DescriptorBudget& operator=(const DescriptorBudget&) = delete;

  // The budget by the process' soft limit, with what it has open now as its own.
  static DescriptorBudget OfProcess();

  // kResourceExhausted when there are not so many left; `who` begins the message: "controllers/vm1".
  Result<Reservation> Reserve(uint64_t count, const std::string& who);

  uint64_t reserved() const { return reserved_; }
  uint64_t left() const { return limit_ > own_ + reserved_ ? limit_ - own_ - reserved_ : 0; }

 private:
  const uint64_t limit_;
  const uint64_t own_;
  uint64_t reserved_ = 0;
};

}  // namespace cleat
