// SPDX-License-Identifier: Apache-2.0
// Cuts a list into pages: a number of items that the caller asks for, and a size that a message can carry.
#pragma once

#include <fmt/format.h>

#include <cstddef>

#include "base/result.h"
#include "control/model/model.h"
#include "control/model/reasons.h"

namespace cleat::control {

class Page {
 public:
  static Result<Page> Of(int page_size) {
    if (page_size < 0) {
      return Refuse(v1::REASON_INVALID_PAGE, fmt::format("page_size is {}: it can't be negative", page_size));
    }
    return Page(page_size == 0 || page_size > kPageSizeMax ? kPageSizeMax : page_size);
  }

  // Whether an item of this size still fits; the first one always does.
  bool Take(size_t bytes) {
    if (items_ > 0 && (items_ == items_max_ || bytes_ + bytes > kPageBytesMax)) return false;
    ++items_;
    bytes_ += bytes;
    return true;
  }

 private:
  explicit Page(int items_max) : items_max_(items_max) {}

  int items_max_;
  int items_ = 0;
  size_t bytes_ = 0;
};

}  // namespace cleat::control
