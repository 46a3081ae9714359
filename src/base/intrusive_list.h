// SPDX-License-Identifier: Apache-2.0
// The one list: doubly linked, intrusive, no allocation, O(1) everywhere. The list does not own its elements.
// An element is in at most one list through a given hook; a hook unlinks itself when it is destroyed, so that
// an object that dies while it is queued leaves no dangling pointer. One thread.
//
//   struct Timer { ListHook hook; ... };
//   IntrusiveList<Timer, &Timer::hook> timers;
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#include "base/check.h"

namespace cleat {

class ListHook {
 public:
  ListHook() = default;
  ~ListHook() { Unlink(); }
  ListHook(const ListHook&) = delete;
  ListHook& operator=(const ListHook&) = delete;

  bool linked() const { return next_ != nullptr; }

  void Unlink() {
    if (next_ == nullptr) return;
    prev_->next_ = next_;
    next_->prev_ = prev_;
    next_ = prev_ = nullptr;
  }

 private:
  template <typename T, ListHook T::*hook>
  friend class IntrusiveList;

  ListHook* next_ = nullptr;
  ListHook* prev_ = nullptr;
};

template <typename T, ListHook T::*hook>
class IntrusiveList {
 public:
  IntrusiveList() { head_.next_ = head_.prev_ = &head_; }
  ~IntrusiveList() {
    while (!empty()) head_.next_->Unlink();
    head_.next_ = head_.prev_ = nullptr;
  }
  IntrusiveList(const IntrusiveList&) = delete;
  IntrusiveList& operator=(const IntrusiveList&) = delete;

  bool empty() const { return head_.next_ == &head_; }
  T* front() { return empty() ? nullptr : Owner(head_.next_); }

  void PushBack(T& element) { InsertBefore(&head_, element); }
  void PushFront(T& element) { InsertBefore(head_.next_, element); }

  T* PopFront() {
    if (empty()) return nullptr;
    T* element = Owner(head_.next_);
    (element->*hook).Unlink();
    return element;
  }

  // The element after `element`, or nullptr at the end.
  T* Next(T& element) {
    ListHook* next = (element.*hook).next_;
    CLEAT_DCHECK(next != nullptr);
    return next == &head_ ? nullptr : Owner(next);
  }

  // Moves all of `other` behind this list's end.
  void Splice(IntrusiveList& other) {
    if (other.empty()) return;
    ListHook* first = other.head_.next_;
    ListHook* last = other.head_.prev_;
    other.head_.next_ = other.head_.prev_ = &other.head_;
    first->prev_ = head_.prev_;
    head_.prev_->next_ = first;
    last->next_ = &head_;
    head_.prev_ = last;
  }

 private:
  void InsertBefore(ListHook* position, T& element) {
    ListHook* node = &(element.*hook);
    CLEAT_CHECK(node->next_ == nullptr);
    node->next_ = position;
    node->prev_ = position->prev_;
    position->prev_->next_ = node;
    position->prev_ = node;
  }

  static T* Owner(ListHook* node) {
    // offsetof for a pointer to member: under the Itanium C++ ABI (2.3) such a pointer is the member's
    // offset.
    const auto offset = std::bit_cast<std::ptrdiff_t>(hook);
    return reinterpret_cast<T*>(reinterpret_cast<unsigned char*>(node) - offset);
  }

  ListHook head_;
};

}  // namespace cleat
