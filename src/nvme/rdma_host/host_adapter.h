// SPDX-License-Identifier: Apache-2.0
// What the queues of one reactor have of one adapter together: the completion queue, the receive queue with its memory, places for commands, windows,
// and memory for their data. The reactor calls Poll, in each turn.
//
// Memory. The data of a command goes by way of memory of the adapter's, which is registered: a write's is copied there when the command is posted, a read's is
// copied from there when it is over. A window shows that piece, and no more, to that queue's controller, from the command on until it is over. So a controller
// that writes or reads late, or where it may not, never reaches that of another command.
//
// Nothing is copied where the owner's memory is registered (direct_memory.h) and the command's is one piece of it: the window shows that. At the queue's end
// such a command comes back only when its window is gone for certain, with the queue pair.
//
// Places, windows and memory are shared: a command that lacks one of them waits, and has nothing of the adapter's meanwhile. There are two lines for each
// target, of small commands and of large ones (data_shares.h, waiting_lines.h), first come, first served. They take turns: the one whose turn it is and that
// has to wait gets what comes back first, and keeps its turn, so neither waits for ever for the other. Large ones never have all places, nor all memory.
//
// Before a queue pair is destroyed, Poll is called until nothing comes of it any more: what it has received and nobody has polled is lost with it, the memory
// of the messages too. receives_posted() says whether that has happened.
//
// One thread: the reactor's. Sources: ibv_post_srq_recv(3), ibv_poll_cq(3), ibv_bind_mw(3).
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/intrusive_list.h"
#include "base/result.h"
#include "nvme/fabrics/capsule.h"
#include "nvme/fabrics/memory/data_buffers.h"
#include "nvme/rdma_host/data_shares.h"
#include "nvme/rdma_host/direct_memory.h"
#include "nvme/rdma_host/host_command.h"
#include "nvme/rdma_host/waiting_lines.h"
#include "nvme/rdma_host/work_chain.h"
#include "rdma/memory.h"
#include "rdma/verbs.h"

namespace cleat::nvme::rdma_host {

struct HostAdapterOptions {
  // Under way at once, of all queues together, at most. Where queues have more entries than that together, a controller that does not answer may have
  // all of them until its queue has ended and is destroyed.
  uint32_t commands = 0;
  uint32_t in_capsule_bytes = 0;  // that a capsule may have behind its entry, at most
  // SlotMemoryBytes of it, registered for local writes; outlives the receive queue and the queue pairs.
  verbs::LocalPiece slot_memory;
  // The whole region of `data`, registered for local writes and windows. Outlives the queue pairs.
  const verbs::Registration* data_registration = nullptr;
  // nullptr: all data that is not in a capsule is copied. Outlives the adapter's queues.
  DirectMemory* direct = nullptr;
  // For commands whose data is not in their capsule: at least one, no more than commands. They outlive this, or are replaced (HostQueue::Destroyed).
  std::vector<verbs::MemoryWindow*> windows;
  uint32_t completions_max = 0;  // that the completion queue has room for: CompletionEntries
  // Queues at a time. A queue may have commands under way all the time, as an admin queue has event requests: each such command keeps a place.
  uint32_t queues_max = UINT32_MAX;
};

class HostAdapter {
 public:
  // Messages beyond one a command that are received, so that a controller which sends too many is heard and ended before it keeps others from sending.
  static constexpr uint32_t kSpareAnswers = 64;
  static constexpr uint64_t SlotMemoryBytes(uint32_t commands, uint32_t in_capsule_bytes) {
    return commands * CapsuleBytes(in_capsule_bytes) + ReceiveEntries(commands) * kAnswerBytes;
  }
  // Entries that the receive queue is to have room for.
  static constexpr uint32_t ReceiveEntries(uint32_t commands) { return commands + kSpareAnswers; }

  // Completions that may come between two polls: a command has a SEND, whichever queue it is one of, and one with a window a binding and its end.
  static constexpr uint32_t CompletionEntries(uint32_t commands, uint32_t windows) {
    return commands + 2 * windows + ReceiveEntries(commands);
  }

  // All outlive it. `data`: the queues' alone, of two slabs at least.
  HostAdapter(HostAdapterOptions options, fabrics::DataBuffers& data, verbs::CompletionQueue& completions,
              verbs::ReceiveQueue& receives);
  ~HostAdapter();  // without a queue
  HostAdapter(const HostAdapter&) = delete;
  HostAdapter& operator=(const HostAdapter&) = delete;

  // What a queue pair for a queue of so many entries is to be asked for. One that has room for fewer works, two at least, is slower and no less right.
  static verbs::SendLimits LimitsFor(uint32_t entries);
  // Whether there is room for such a queue, whose queue pair has these limits. kResourceExhausted: which limit there is.
  cleat::Status CheckRoom(uint32_t entries, const verbs::SendLimits& limits) const;

  // Takes at most `budget` completions, calls the queues and by them their owners, then posts. Returns how many completions there were. Not from within.
  uint32_t Poll(uint32_t budget);
  // Posts what there is to be posted: at the end of a turn in which owners have submitted outside of Poll. From within it does nothing, as
  // it is done later anyway.
  void Post();
  bool wants_to_post() const { return wants_to_post_; }
  // The adapter has refused memory for messages: it is gone, and its queues are to be aborted.
  bool failed() const { return failed_; }
  // Messages that can be received now; when nothing is under way, ReceiveEntries of the options.
  uint32_t receives_posted() const { return receives_posted_; }
  // Completions of queue pairs that are gone.
  uint64_t ignored() const { return ignored_; }
  // Places and memory that no command has.
  uint32_t places_free() const { return places_free_; }
  uint32_t places() const { return options_.commands; }
  // Windows that no command has, and all that were not lost (HostQueue::Destroyed).
  uint32_t windows_free() const { return windows_free_; }
  uint32_t windows() const { return windows_; }

  // ---- For queues
  // Returns a number that none before it had, of which the low bits are the queue's generation. `target`: whose it is, until Detach.
  uint32_t Attach(HostQueue& queue, const std::string& target);
  // Its queue pair is destroyed.
  void Detach(HostQueue& queue);
  // To be asked for what it posts.
  void Line(HostQueue& queue);
  // The command waits for a place, and memory where it needs any; HostQueue::Placed comes later, not from within.
  void Wait(HostCommand& command);
  // What the command has, which no work refers to. Waits no longer.
  void Give(HostCommand& command);
  // The same of a command whose window is destroyed: `window` takes its place, nullptr: none does.
  void Give(HostCommand& command, verbs::MemoryWindow* window);
  uint8_t* CapsuleOf(const Place& place) const;
  DataShares& data() { return data_; }
  const HostAdapterOptions& options() const { return options_; }

 private:
  // A command with data takes a binding and a SEND, and its window's end another work.
  static constexpr uint32_t kWorksOfCommand = 3;
  static constexpr uint32_t kAnswerBytes = sizeof(fabrics::CompletionEntry);
  static constexpr uint32_t kCapsuleAlign = 64;
  static constexpr uint32_t kBatch = 32;
  static constexpr uint64_t CapsuleBytes(uint32_t in_capsule_bytes) {
    return (sizeof(fabrics::SubmissionEntry) + uint64_t{in_capsule_bytes} + kCapsuleAlign - 1) /
           kCapsuleAlign * kCapsuleAlign;
  }

  // `at`: below twice the ring's size.
  uint32_t AtRing(uint32_t at) const {
    const auto size = static_cast<uint32_t>(free_windows_.size());
    return at < size ? at : at - size;
  }
  HostQueue* Find(uint32_t queue_pair);
  void Dispatch(const verbs::Completion& completion);
  void Received(const verbs::Completion& completion);
  uint64_t AnswerAddress(uint32_t receive) const;
  void Serve();
  bool ServeFirst(uint32_t kind);
  bool MayServe(const HostCommand& command, const Target& target) const;
  void PostReceives();

  const HostAdapterOptions options_;
  DataShares data_;
  verbs::CompletionQueue& completions_;
  verbs::ReceiveQueue& receives_;
  WorkChain chain_;
  std::unique_ptr<Place[]> all_places_;
  IntrusiveList<Place, &Place::hook> free_places_;
  uint32_t places_free_ = 0;
  // A ring, of which so many are free from the first one on. The one that came back first is used first: so a window has a key again after 256 times as many
  // commands as there are windows.
  std::vector<verbs::MemoryWindow*> free_windows_;
  uint32_t first_window_ = 0;
  uint32_t windows_free_;
  uint32_t windows_;           // free ones, and those of commands
  uint32_t places_large_ = 0;  // that large commands have
  WaitingLines waiting_;
  uint32_t turn_ = 0;
  std::vector<uint32_t> free_receives_;  // memory for messages that is to be posted
  std::vector<bool> is_posted_;
  uint32_t receives_posted_ = 0;
  // Queues that have something to post.
  struct Turns;
  std::unique_ptr<Turns> turns_;
  std::unordered_map<uint32_t, HostQueue*> queues_;  // by the number of the queue pair
  HostQueue* last_ = nullptr;                        // that a completion was of
  std::array<verbs::Completion, kBatch> batch_;
  uint32_t batch_at_ = 0;
  uint32_t batch_end_ = 0;
  uint32_t attached_ = 0;
  uint64_t ignored_ = 0;
  bool wants_to_post_ = true;
  bool posting_ = false;
  bool failed_ = false;
};

}  // namespace cleat::nvme::rdma_host
