// SPDX-License-Identifier: Apache-2.0
// The same for many at once, in coroutines of one reactor: starts a task for each element, in order, and ends when all of them
// have. One that fails stops none of the others; the error is that of the first element, in the order of the range, whose task
// failed, so that it does not depend on which was faster.
//
//   const auto close = [](std::unique_ptr<Disk>& disk) -> Task<Status> { ... };
//   const Status closed = co_await ForEachConcurrently(reactor, disks_, close);
//
// Range and function have names, and live until then; the range keeps its elements where they are, but may lose those whose tasks
// have ended if what it is made of allows that. Function: Task<Status>(element) or Task<void>(element), which is what is returned
// then. Each task ends on `reactor`. Cancelling is the tasks' own matter: one CancelToken that all of them wait with.
#pragma once

#include <cstddef>
#include <limits>
#include <type_traits>
#include <utility>

#include "base/result.h"
#include "reactor/sync.h"
#include "reactor/task.h"

namespace cleat {
namespace internal {

struct FirstError {
  void Note(size_t index, Status status) {
    if (status.ok() || index > first) return;
    first = index;
    error = std::move(status);
  }

  size_t first = std::numeric_limits<size_t>::max();
  Status error;
};

// `running` ends with the coroutine's frame, after everything that the function's task refers to.
template <typename Function, typename Element>
Task<void> RunOneOfMany(Function& function, Element& element, size_t index, FirstError& errors,
                        [[maybe_unused]] Gate::Holder running) {
  auto task = function(element);
  if constexpr (std::is_same_v<decltype(task), Task<void>>) {
    co_await std::move(task);
  } else {
    Status status = co_await std::move(task);
    errors.Note(index, std::move(status));
  }
}

}  // namespace internal

template <typename Range, typename Function,
          typename Returned = std::invoke_result_t<Function&, decltype(*std::declval<Range&>().begin())>>
Returned ForEachConcurrently(Reactor& reactor, Range& range, Function& function) {
  static_assert(std::is_same_v<Returned, Task<void>> || std::is_same_v<Returned, Task<Status>>);
  internal::FirstError errors;
  Gate running(reactor);
  size_t index = 0;
  for (auto& element : range) {
    Gate::Holder holder(running);
    Spawn(internal::RunOneOfMany(function, element, index++, errors, std::move(holder)));
  }
  co_await running.Close();
  if constexpr (std::is_same_v<Returned, Task<Status>>) co_return std::move(errors.error);
}

}  // namespace cleat
