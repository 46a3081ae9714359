// SPDX-License-Identifier: Apache-2.0
// A disk's requests on one reactor: cuts each into commands, gives them to the queue pair of a path, tries again what may do better, and
// asks the disk's view of writes in doubt (doubt_view.h) before any command that changes the namespace.
//
// A request belongs to one life at a time: its next command goes where its others are; path_set.h says where its first one goes. When that
// life ends the request begins anew, elsewhere or later; if a command of it that writes may have reached the target its whole range is in
// doubt. Without a path requests wait, however long. A path that refuses a command (status type 3) is left alone for a while, and its
// request begins anew on another path at once, or as soon as there is one.
//
// A log of doubt, if there is one, has each command that writes from before the queue pair has it: the blocks of that command alone, as
// those of its request's other commands are not sent yet, or were answered. A command's slot is its place in the log. Where the command
// came back unanswered the slot stays taken until a table was adopted that knows of all reports, as the ledger has stored its ghost by
// then.
//
// A request that waits for doubt waits without limit, or as the disk's rule says (block/in_doubt.h): it fails after a time, where none has
// begun before the first table, since what it waits for until then is the disk; or it does not wait.
//
// Not here: COMPARE AND WRITE, a read and a write with the range held (block/compare_and_write.h); its write is in doubt as any other.
//
// Ownership and thread: the disk's channel owns it, on its reactor. Pure: time comes in by Tick, news of paths and of the ledger by calls.
// Nothing is allocated for a request, with one exception (command_maker.h). May complete requests from within each of its methods;
// completing one may destroy no queue, and ends no path. Source: NVM Command Set Specification 1.0, 3.2; docs/nvmeof.md, "Writes in doubt".
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/clock.h"
#include "block/in_doubt.h"
#include "block/request.h"
#include "nvme/fabrics/capsule.h"
#include "nvme/fabrics/queues/queue_pair.h"
#include "nvme/host/doubt/doubt.h"
#include "nvme/host/doubt/doubt_log.h"
#include "nvme/host/doubt/doubt_view.h"
#include "nvme/host/requests/command_maker.h"
#include "nvme/host/requests/doubt_waits.h"
#include "nvme/host/requests/path_set.h"
#include "nvme/host/requests/request_line.h"
#include "nvme/host/requests/request_queue_owner.h"
#include "nvme/status.h"

namespace cleat::nvme::host {

class RequestQueue {
 public:
  // Paths with a queue pair at a time.
  static constexpr size_t kPathsMax = PathSet::kMax;
  // Commands under way at once, over all paths; of one request, so that a large one leaves room for others.
  static constexpr uint32_t kCommandsMax = 128;
  static_assert(kCommandsMax <= kDoubtLogShape.attempts);
  static constexpr uint32_t kRequestCommandsMax = 8;
  // How often a request is tried again when the target says that it may help, and after what pause at least. A path that does not lead to
  // the namespace, as the target says, has the same pause; what it refused is tried again without limit.
  static constexpr uint32_t kTriesMax = 5;
  // How often over each path where controllers have no such namespace and associations find that they have.
  static constexpr uint32_t kGoneTriesMax = 32;
  static constexpr uint64_t kPauseNs = 50 * kNsPerMs;

  struct Config {
    uint32_t reactor = 0;       // its number in the disk's ledger
    OriginId first_origin = 0;  // above it, this queue's alone: 2^48 of them
    bool write_cache = false;   // false: flushes have nothing to do
    // Its row `reactor` is this queue's, open and empty when the first table comes; nothing is written to it while no request is here. The
    // memory lives longer.
    std::optional<DoubtLog> log = std::nullopt;
    DoubtWaits* waits = nullptr;  // told what waits for doubt, if anybody wants to know; lives longer
    // What a request that came by Submit ends with, which completes it, and the layer of its frame: whoever stamps times has a clock.
    block::Frame::DoneFn done = [](block::Request& request, const block::Frame&) {
      request.Complete(request.status);
    };
    void* layer = nullptr;
  };
  RequestQueue(const Config& config, RequestQueueOwner& owner);
  ~RequestQueue();  // no request is left
  RequestQueue(const RequestQueue&) = delete;
  RequestQueue& operator=(const RequestQueue&) = delete;

  // ---- The block API, as block::Channel has it
  void Submit(block::Request& request);
  // Completes with kAborted the requests that wait, have no command under way and nothing in doubt; `only`: that one, nullptr: all of them.
  void AbortQueued(const block::Request* only);

  // ---- Paths
  // The queue pair takes I/O from now on. It outlives PathEnded, and each of its completions comes to Completed or Unanswered here. The
  // life is new to this queue; at most kPathsMax at a time. All formats have blocks of one size, up to CommandMaker::kZeroBytes.
  void PathReady(LifeId life, fabrics::QueuePair& queue, const PathFormat& format, PathState state);
  // For new commands; those under way stay. Ignored, as SetFormat, for a life that has no path here.
  void SetState(LifeId life, PathState state);
  // The association has looked at the namespace since PathRefused, and its state and format are told.
  void PathLooked(LifeId life);
  // The namespace has another size or other limits on it.
  void SetFormat(LifeId life, const PathFormat& format);
  // An answer to a write that only a host may give (3/70h to 3/7fh) aborts the queue pair, last: the path's whole end may come from within.
  void Completed(LifeId life, uint64_t cookie, const fabrics::CompletionEntry& entry, uint64_t data_bytes);
  void Unanswered(LifeId life, uint64_t cookie, fabrics::Reached reached);
  // Its queue pair is broken: it takes no command any more, though some of those under way come back later.
  void PathBreaks(LifeId life);
  // Each of its commands has come back, and its connection sends nothing of them any more; or the life has ended without a queue pair here. Once
  // for each life that the disk has had since this queue was made. Mails the report.
  void PathEnded(LifeId life);
  // Commands of others on the queue pair (Connect) have cookies from here on; they may come to Completed and Unanswered.
  static constexpr uint64_t kForeignCookies = uint64_t{1} << 32;

  // ---- The ledger
  // Before the first one no command that writes is sent. Mails the answer, then goes on with what it no longer holds.
  void Adopt(DoubtTable table);
  void SetInDoubt(const block::InDoubt& rule);  // from now on, for what waits too

  // ---- Time, at least every kPauseNs while wants_tick(); room for commands may come with it.
  void Tick(uint64_t now_ns);
  bool wants_tick() const { return !paused_.empty() || !held_.empty() || paths_.has_refused(); }

  // For people: requests that are here; that wait for a path, for doubt, for a pause.
  struct Counts {
    uint64_t requests = 0;
    uint64_t for_path = 0;
    uint64_t for_doubt = 0;
    uint64_t paused = 0;
    uint64_t in_doubt = 0;  // requests that had a ghost of their own; it may be proved by now
  };
  Counts counts() const;

 private:
  // What of a request is the queue's business stands in its frame's scratch.
  enum Scratch : uint8_t {
    kBegun,     // bytes that commands were made for; a flush has one
    kUnderWay,  // commands
    kFlags,     // Flag; from kPathShift on the place of the path that its commands under way are on
    kFailure,   // of the command that failed first: a Failure, perhaps with the status; 0: none has failed
    kTries,     // again, as the target said that it may help; above 32 bits those of MayBeGone
    kOrigin,    // of one that writes
    kResumeNs = kBegun,    // while it pauses: until when; 0: the next Tick says
    kSinceNs = kUnderWay,  // while it waits for doubt, without a command under way: since when; 0: likewise
  };
  enum Flag : uint8_t {
    kInDoubt = 1,  // has left a ghost
    kLost = 2,     // a command of it was not answered, and the life has not ended yet
    kPerhaps = 4,  // and may have reached the target
  };
  static constexpr uint32_t kPathShift = 8;
  static constexpr uint64_t kFlagsMask = (1U << kPathShift) - 1;
  enum Failure : uint32_t {
    kStatus = 1 << 16,   // the target's, in the bits below
    kShort = 1 << 17,    // success with less data than was asked for
    kLacking = 1 << 18,  // the target has no such command
    kTooLate = 1 << 19   // it waited for doubt for as long as it may
  };
  // What keeps a request from its next command.
  enum class Stop : uint8_t { kNothing, kRoom, kDoubt, kNoCommand };

  // Why a slot without a command is not free.
  enum class Kept : uint8_t { kNo, kUntilReport, kUntilTable };
  // A command under way; its place is the cookie.
  struct Slot {
    block::Request* request = nullptr;  // nullptr: free, or kept
    uint32_t data_bytes = 0;            // that are to come
    uint8_t path = 0;
    uint8_t list = CommandMaker::kNoList;
    Kept kept = Kept::kNo;
  };

  static uint64_t& WordOf(block::Request& request, Scratch word) { return request.top().scratch[word]; }
  static uint64_t WordOf(const block::Request& request, Scratch word) { return request.top().scratch[word]; }
  static bool Has(const block::Request& request, Flag flag) { return (WordOf(request, kFlags) & flag) != 0; }
  static bool Writes(const block::Request& request) {
    return request.op != block::Op::kRead && request.op != block::Op::kFlush;
  }
  static bool IsSpent(const block::Request& request) {
    return WordOf(request, kBegun) == (request.op == block::Op::kFlush ? 1 : request.length_bytes);
  }
  static Attempt AttemptOf(const block::Request& request) {
    return {.origin = WordOf(request, kOrigin),
            .range = {.first = request.offset_bytes / kDoubtBlockBytes,
                      .blocks = request.length_bytes / kDoubtBlockBytes}};
  }

  // ---- A request's way
  // `since_ns`: since when it has waited for doubt, where it has; for the case that it goes on doing so.
  void GoOn(block::Request& request, uint64_t since_ns = 0) { Settle(request, SendSome(request), since_ns); }
  Stop SendSome(block::Request& request);
  bool SendNext(block::Request& request, uint32_t place);
  void Settle(block::Request& request, Stop stop, uint64_t since_ns = 0);
  void Serve();
  bool MayGo(const block::Request& request) const;
  uint32_t FindPath(const block::Request& request) const;
  void Record(const block::Request& request, uint32_t slot, uint64_t bytes);
  Slot TakeBack(LifeId life, uint64_t cookie);
  void FreeSlot(uint64_t slot, bool writes);
  void AfterCommand(block::Request& request);
  void EndAttempt(const block::Request& request);
  void End(block::Request& request, block::IoStatus status);

  // ---- What failed
  void NoteFailure(block::Request& request, uint64_t failure);
  void NoteStatus(const Slot& slot, const fabrics::CompletionEntry& entry);
  void EndFor(LifeId life, uint64_t cookie, Status status);
  void Failed(block::Request& request);
  bool MayTryAgain(block::Request& request);
  bool MayBeGone(block::Request& request);
  void GiveUp(block::Request& request, uint64_t since_ns = 0);
  void BeginAnew(block::RequestList& lost);

  // ---- What waits for doubt
  void Hold(block::Request& request, uint64_t since_ns);
  void TryHeld();
  void AgeHeld(uint64_t now_ns);
  bool IsTooLate(const block::Request& request, uint64_t now_ns) const;
  void NoteHeld(uint64_t since_ns);

  // ---- Paths
  void SetFormat(PathSet::Path& path, const PathFormat& format);
  std::vector<Attempt> AttemptsUnderWay();
  bool FreeKeptSlots();

  const Config config_;
  RequestQueueOwner& owner_;
  std::optional<DoubtLog> log_;
  DoubtView view_;
  CommandMaker maker_;
  OriginId last_origin_;
  uint64_t requests_ = 0;
  uint64_t in_doubt_ = 0;
  uint64_t fail_after_ns_ = 0;  // 0: what waits for doubt never fails
  uint64_t aged_ns_ = 0;        // the last AgeHeld's time
  uint32_t block_bytes_ = 0;    // 0: no path yet

  RequestLine waiting_;    // for a path with room, a slot, or a list for the next command's data
  RequestLine held_;       // for the view; those with a failure, to be failed
  RequestLine looked_at_;  // those of held_ while they are tried again, or failed
  RequestLine paused_;

  PathSet paths_{kPauseNs};
  std::array<Slot, kCommandsMax> slots_;
  std::array<uint8_t, kCommandsMax> free_slots_;
  uint32_t free_slot_count_ = kCommandsMax;
  uint32_t kept_slot_count_ = 0;
};

}  // namespace cleat::nvme::host
