// SPDX-License-Identifier: Apache-2.0
// Many senders, one receiver, no lock and no allocation: Vyukov's intrusive queue. A Mail belongs to the
// mailbox from Send until `deliver` is called for it. Mails of one sender arrive in order.
#pragma once

#include <atomic>

namespace cleat {

struct Mail {
  using DeliverFn = void (*)(Mail&);  // may free or send the mail again
  explicit Mail(DeliverFn f) : deliver(f) {}

  DeliverFn deliver;
  std::atomic<Mail*> next{nullptr};
};

class Mailbox {
 public:
  Mailbox() : head_(&stub_), tail_(&stub_) {}
  Mailbox(const Mailbox&) = delete;
  Mailbox& operator=(const Mailbox&) = delete;

  // Any thread.
  void Send(Mail& mail) {
    mail.next.store(nullptr, std::memory_order_relaxed);
    // seq_cst, as MaybePending: the reactor's "I sleep" and the sender's "is it asleep?" hang on their order.
    Mail* previous = head_.exchange(&mail, std::memory_order_seq_cst);
    previous->next.store(&mail, std::memory_order_release);
  }

  // The receiver's thread. nullptr when empty, or when a sender is between its two steps; MaybePending tells.
  Mail* Receive() {
    Mail* tail = tail_;
    Mail* next = tail->next.load(std::memory_order_acquire);
    if (tail == &stub_) {
      if (next == nullptr) return nullptr;
      tail_ = tail = next;
      next = tail->next.load(std::memory_order_acquire);
    }
    if (next != nullptr) {
      tail_ = next;
      return tail;
    }
    if (tail != head_.load(std::memory_order_acquire)) return nullptr;
    Send(stub_);
    next = tail->next.load(std::memory_order_acquire);
    if (next == nullptr) return nullptr;
    tail_ = next;
    return tail;
  }

  // The receiver's thread. False only if nothing was sent and not received.
  bool MaybePending() const { return tail_ != &stub_ || head_.load(std::memory_order_seq_cst) != &stub_; }

 private:
  alignas(64) std::atomic<Mail*> head_;  // senders
  alignas(64) Mail* tail_;               // receiver
  Mail stub_{nullptr};
};

}  // namespace cleat
