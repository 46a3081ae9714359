// SPDX-License-Identifier: Apache-2.0
// Cancellation of control flows. Who may cancel owns a CancelToken and hands a pointer to it down; every wait
// honours it by ending early and saying so. Cancelling is for good. One reactor; the token outlives the waits
// on it.
#pragma once

#include "base/check.h"
#include "base/intrusive_list.h"

namespace cleat {

class CancelCallback {
 public:
  virtual ~CancelCallback() = default;
  virtual void Cancelled() = 0;  // once at most; already removed
  void Remove() { hook_.Unlink(); }

 private:
  friend class CancelToken;
  ListHook hook_;
};

class CancelToken {
 public:
  CancelToken() = default;
  ~CancelToken() { CLEAT_CHECK(callbacks_.empty()); }
  bool cancelled() const { return cancelled_; }
  void Add(CancelCallback& callback) {
    CLEAT_CHECK(!cancelled_);
    callbacks_.PushBack(callback);
  }
  void Cancel() {
    if (cancelled_) return;
    cancelled_ = true;
    while (CancelCallback* callback = callbacks_.PopFront()) callback->Cancelled();
  }

 private:
  bool cancelled_ = false;
  IntrusiveList<CancelCallback, &CancelCallback::hook_> callbacks_;
};

// While it is there, `other` is cancelled with `token`. Both outlive it.
class CancelToo final : private CancelCallback {
 public:
  CancelToo(CancelToken& token, CancelToken& other) : other_(other) {
    if (token.cancelled()) {
      other.Cancel();
    } else {
      token.Add(*this);
    }
  }
  ~CancelToo() override { Remove(); }
  CancelToo(const CancelToo&) = delete;
  CancelToo& operator=(const CancelToo&) = delete;

 private:
  void Cancelled() override { other_.Cancel(); }
  CancelToken& other_;
};

}  // namespace cleat
