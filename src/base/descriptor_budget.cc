// SPDX-License-Identifier: Apache-2.0
#include "base/descriptor_budget.h"

#include <sys/resource.h>

#include <filesystem>
#include <system_error>

namespace cleat {
namespace {

// What a process whose /proc can't be read is taken to have open: what engines have at their start, and more.
constexpr uint64_t kOpenUnknown = 128;

uint64_t CountOpen() {
  std::error_code failed;
  uint64_t count = 0;
  for (std::filesystem::directory_iterator at("/proc/self/fd", failed), end; !failed && at != end;
       at.increment(failed))
    ++count;
  return failed ? kOpenUnknown : count;
}

}  // namespace

DescriptorBudget DescriptorBudget::OfProcess() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) limit.rlim_cur = RLIM_INFINITY;
  return {limit.rlim_cur, CountOpen() + kTransient};
}

Result<DescriptorBudget::Reservation> DescriptorBudget::Reserve(uint64_t count, const std::string& who) {
  if (count > left()) {
    return Error(
        ErrorCode::kResourceExhausted,
        who + ": up to " + std::to_string(count) + " more file descriptors are needed for it, and " +
            std::to_string(left()) + " are left: of the " + std::to_string(limit_) +
            " that this process may open (RLIMIT_NOFILE), " + std::to_string(own_) + " are its own and " +
            std::to_string(reserved_) +
            " are reserved for what it serves; raise LimitNOFILE= of its service, or serve less with it");
  }
  reserved_ += count;
  return Reservation(*this, count);
}

void DescriptorBudget::Reservation::Reset() {
  if (budget_ == nullptr) return;
  CLEAT_CHECK(budget_->reserved_ >= count_);
  budget_->reserved_ -= count_;
  budget_ = nullptr;
  count_ = 0;
}

}  // namespace cleat
