// SPDX-License-Identifier: Apache-2.0
// A target in memory, as the other end of an admin queue: it answers each command once asked to, honestly unless a test says otherwise.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "block/segments.h"
#include "nvme/fabrics/queues/queue_pair.h"
#include "tests/unit/nvme/auth/controller.h"
#include "tests/unit/nvme/fabrics/target_pages.h"

namespace cleat::nvme::host {

struct FakeAnswer {
  uint64_t result = 0;
  uint8_t type = 0;  // of the status
  uint8_t code = 0;
  bool do_not_retry = false;
  std::vector<uint8_t> data;
};

class FakeTarget final : public fabrics::QueuePair {
 public:
  // What a test changes.
  uint32_t csts = 1;
  uint64_t capabilities = 127 | uint64_t{4} << 24 | uint64_t{1} << 37;  // ready within two seconds
  uint64_t connect_result = 7;
  fabrics::Page controller = fabrics::ControllerPage();
  fabrics::Page descriptors = fabrics::DescriptorsPage();
  fabrics::Page space = fabrics::NamespacePage();
  std::vector<uint32_t> namespaces = {1, 5};
  uint32_t nsid = 5;  // the one that `descriptors` and `space` are of
  uint8_t ana_state = 1;
  auth::TestController* chap = nullptr;  // the other side of authentication
  // Takes a command over: nullopt answers as usual. `mute`: not at all.
  std::function<std::optional<FakeAnswer>(const fabrics::SubmissionEntry&)> instead;
  std::function<bool(const fabrics::SubmissionEntry&)> mute;

  fabrics::QueuePairOwner* owner = nullptr;
  std::vector<fabrics::SubmissionEntry> seen;
  std::deque<uint64_t> event_requests;  // cookies
  std::optional<Error> aborted;
  bool full = false;  // takes no command, as at its end

  uint32_t room() const override { return full ? 0 : 32 - static_cast<uint32_t>(queue_.size()); }
  void Submit(const fabrics::QueuedCommand& command) override {
    seen.push_back(command.entry);
    if (command.entry.opcode == 0x0c) {
      event_requests.push_back(command.cookie);
    } else {
      queue_.push_back(command);
    }
  }
  void Abort(const Error& reason) override {
    if (aborted) return;
    aborted = reason;
    for (const uint64_t cookie : event_requests) owner->Unanswered(cookie, fabrics::Reached::kPerhapsAll);
    for (const auto& command : queue_) owner->Unanswered(command.cookie, fabrics::Reached::kPerhapsAll);
    owner->Ended(reason);
  }

  // Answers what is there, and what that leads to.
  void Serve() {
    std::deque<fabrics::QueuedCommand> muted;
    while (!queue_.empty() && !aborted) {
      const fabrics::QueuedCommand command = queue_.front();
      queue_.pop_front();
      if (mute && mute(command.entry)) {
        muted.push_back(command);
        continue;
      }
      std::optional<FakeAnswer> answer;
      if (instead) answer = instead(command.entry);
      if (!answer && chap != nullptr) answer = OfChap(command);
      if (!answer) answer = Usual(command.entry);
      uint64_t bytes = 0;
      if (!command.from_target.empty()) {
        const block::Segment& room = command.from_target[0];
        bytes = std::min<uint64_t>(room.length_bytes, answer->data.size());
        std::copy_n(answer->data.begin(), bytes, room.data());
      }
      owner->Completed(command.cookie, EntryOf(*answer), bytes);
    }
    queue_.insert(queue_.end(), muted.begin(), muted.end());
  }

  // Tells an event by a request that the host has left. False: there is none.
  bool Tell(uint32_t event) {
    if (event_requests.empty()) return false;
    const uint64_t cookie = event_requests.front();
    event_requests.pop_front();
    owner->Completed(cookie, EntryOf({.result = event, .data = {}}), 0);
    return true;
  }

  // The same with an error.
  bool FailEventRequest(const FakeAnswer& answer) {
    if (event_requests.empty()) return false;
    const uint64_t cookie = event_requests.front();
    event_requests.pop_front();
    owner->Completed(cookie, EntryOf(answer), 0);
    return true;
  }

  uint64_t Count(uint8_t opcode) const {
    uint64_t count = 0;
    for (const auto& entry : seen) count += entry.opcode == opcode ? 1 : 0;
    return count;
  }
  std::vector<uint8_t> AnaLog() const {
    std::vector<uint8_t> log(16 + 4 * 32);
    const uint16_t groups = 4;
    std::memcpy(&log[8], &groups, sizeof(groups));
    for (uint8_t i = 0; i < groups; ++i) {
      log[16 + 32U * i] = static_cast<uint8_t>(i + 1);
      log[16 + 32U * i + 16] = i == 1 ? ana_state : 3;
    }
    return log;
  }

 private:
  static fabrics::CompletionEntry EntryOf(const FakeAnswer& answer) {
    fabrics::CompletionEntry entry;
    entry.result = answer.result;
    entry.status_field =
        static_cast<uint16_t>(((answer.do_not_retry ? 1 << 14 : 0) | answer.type << 8 | answer.code) << 1);
    return entry;
  }
  static FakeAnswer Value(uint64_t result) { return {.result = result, .data = {}}; }
  static FakeAnswer Data(const fabrics::Page& page) {
    return {.data = std::vector<uint8_t>(page.bytes.begin(), page.bytes.end())};
  }

  // Authentication Send and Receive.
  std::optional<FakeAnswer> OfChap(const fabrics::QueuedCommand& command) {
    if (command.entry.opcode != 0x7f) return std::nullopt;
    if (command.entry.nsid == 5) {
      auth::Bytes message(block::SumBytes(command.to_target));
      block::Gather(command.to_target, 0, message.data(), message.size());
      chap->TakeMessage(message);
      return FakeAnswer{.data = {}};
    }
    if (command.entry.nsid != 6) return std::nullopt;
    return FakeAnswer{.data = chap->GiveMessage(block::SumBytes(command.from_target))};
  }
  // A target that does not authenticate knows no such command.
  FakeAnswer Property(const fabrics::SubmissionEntry& entry) {
    if (entry.nsid == 5 || entry.nsid == 6) return {.code = 1, .data = {}};
    if (entry.nsid == 1) return Value(connect_result);
    if (entry.nsid == 0) {
      if ((entry.cdw12 & 0xc000) != 0) csts = (csts & ~0xcU) | 8;
      return Value(0);
    }
    if (entry.cdw11 == 0) return Value(capabilities);
    return Value(entry.cdw11 == 8 ? 0x00010400 : csts);
  }
  FakeAnswer Identified(const fabrics::SubmissionEntry& entry) {
    if (entry.cdw10 == 1) return Data(controller);
    if (entry.cdw10 == 2) {
      fabrics::Page page;
      size_t at = 0;
      for (const uint32_t id : namespaces) {
        if (id > entry.nsid && at < kIdentifyBytes) page.Put<uint32_t>(std::exchange(at, at + 4), id);
      }
      return Data(page);
    }
    if (entry.cdw10 == 6) return {.code = 2, .data = {}};
    if (entry.nsid != nsid) {
      fabrics::Uuid other{};
      std::memcpy(other.data(), &entry.nsid, sizeof(entry.nsid));
      other[15] = 0xee;
      return Data(entry.cdw10 == 3 ? fabrics::DescriptorsPage(other) : fabrics::NamespacePage());
    }
    return Data(entry.cdw10 == 3 ? descriptors : space);
  }
  FakeAnswer Usual(const fabrics::SubmissionEntry& entry) {
    switch (entry.opcode) {
      case 0x7f:
        return Property(entry);
      case 0x06:
        return Identified(entry);
      case 0x02:
        return {.data = (entry.cdw10 & 0xff) == 0x0c ? AnaLog() : std::vector<uint8_t>(kIdentifyBytes)};
      case 0x09:
        return Value(1U << 16 | 3);  // four submission queues, two completion queues
      default:
        return Value(0);
    }
  }

  std::deque<fabrics::QueuedCommand> queue_;
};

}  // namespace cleat::nvme::host
