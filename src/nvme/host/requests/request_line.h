// SPDX-License-Identifier: Apache-2.0
// A line in which a disk's requests wait, of which none has a command under way: a list that knows how long it is. Owned by the request
// queue, on its reactor; the requests are linked by their own hook, so that nothing is allocated.
#pragma once

#include <cstdint>
#include <utility>

#include "block/request.h"

namespace cleat::nvme::host {

class RequestLine {
 public:
  bool empty() const { return requests_.empty(); }
  uint64_t count() const { return count_; }
  block::Request* front() { return requests_.front(); }
  block::Request* Next(block::Request& request) { return requests_.Next(request); }

  void Push(block::Request& request) {
    requests_.PushBack(request);
    ++count_;
  }
  void PushFront(block::Request& request) {
    requests_.PushFront(request);
    ++count_;
  }
  // `request` is in this line.
  void Remove(block::Request& request) {
    request.link.Unlink();
    --count_;
  }
  block::Request* Pop() {
    block::Request* const first = requests_.PopFront();
    if (first != nullptr) --count_;
    return first;
  }
  // Moves all of `other` behind this line's end.
  void TakeAll(RequestLine& other) {
    requests_.Splice(other.requests_);
    count_ += std::exchange(other.count_, 0);
  }

 private:
  block::RequestList requests_;
  uint64_t count_ = 0;
};

}  // namespace cleat::nvme::host
