// SPDX-License-Identifier: Apache-2.0
// In which order a target over RDMA fetches the data of writes from its hosts.
//
// That data comes by RDMA READs: one for each descriptor of the host's SGL, more where the buffer here has more pieces than a READ may
// (max_send_sge). A queue pair may have only so many READs outstanding, its read credits: max_rd_atomic of ibv_modify_qp(3), the lesser of what the
// adapter can do (max_qp_init_rd_atom of ibv_query_device(3)) and what the host's connect request offers (rdma_accept(3)). The adapter holds back a
// READ that is posted beyond them, and with it all that stands behind it in the send queue, answers too. So a READ waits here, not there:
//
//   - all READs of a queue pair wait in one FIFO, READ by READ: whichever completes, the first one that waits takes its credit at once, whichever
//     write it belongs to. No write is overtaken, and no credit of a queue pair is idle while a READ of it waits and the limit below has room;
//   - queue pairs that share a limit take turns, a READ each, however many they have waiting. Turns count READs, not bytes.
//
// Pure code: the caller posts what Next() says, and tells of each completion. Nothing is allocated; each call takes constant time. One thread.
// docs/nvmeof.md compares this order with others.
#pragma once

#include <cstdint>

#include "base/check.h"
#include "base/intrusive_list.h"

namespace cleat::nvme::rdma_target {

class ReadQueue;
class ReadScheduler;

// The READs of one command. The command owns it, and keeps it and its buffer while it is not idle: the adapter writes to the buffer until the last READ
// that was posted is over, whatever becomes of the queue pair.
class ReadRequest {
 public:
  ReadRequest() = default;
  ~ReadRequest() { CLEAT_CHECK(idle()); }
  ReadRequest(const ReadRequest&) = delete;
  ReadRequest& operator=(const ReadRequest&) = delete;

  bool idle() const { return waiting_ == 0 && outstanding_ == 0; }

 private:
  friend class ReadQueue;
  friend class ReadScheduler;
  ListHook hook_;  // in its queue, while a READ of it waits
  ReadQueue* queue_ = nullptr;
  uint32_t next_ = 0;         // which READ of the command is posted next
  uint32_t waiting_ = 0;      // READs from next_ on that are not posted yet
  uint32_t outstanding_ = 0;  // READs that Next() gave and that are not over
  bool failed_ = false;       // not all of the data has come, or will come
};

// Of a request, once one of its READs is over.
enum class ReadProgress : uint8_t {
  kMore,      // others of it wait or are outstanding
  kAllCame,   // idle, and all of its data is in the buffer
  kCutShort,  // idle, and not all of its data is there: a READ failed, or its queue ended
};

// The READs of a queue pair. It outlives its last completion, and its scheduler outlives it.
class ReadQueue {
 public:
  // credits: READs that may be outstanding, at least 1. A queue pair whose host grants none can only have data in capsules. The send queue has room
  // for so many READs beside all answers, so that READs never take an answer's place.
  ReadQueue(ReadScheduler& scheduler, uint32_t credits) : scheduler_(scheduler), credits_(credits) {
    CLEAT_CHECK(credits > 0);
  }
  ~ReadQueue() { CLEAT_CHECK(outstanding_ == 0 && waiting_.empty()); }
  ReadQueue(const ReadQueue&) = delete;
  ReadQueue& operator=(const ReadQueue&) = delete;

  // The request, which is idle, is to have so many READs, at least 1. The queue has not ended.
  void Add(ReadRequest& request, uint32_t reads);

  // The queue pair has failed or is to go: Next() gives nothing more of it. Requests that have READs outstanding come back by Completed, the others by
  // TakeUnposted. Again is no error.
  void End();
  // The next request of an ended queue of which no READ is outstanding, idle now; nullptr: there is none left.
  ReadRequest* TakeUnposted();

  uint32_t outstanding() const { return outstanding_; }
  bool ended() const { return ended_; }

 private:
  friend class ReadScheduler;
  bool may_post() const { return !ended_ && outstanding_ < credits_ && !waiting_.empty(); }
  void LineUp();

  ReadScheduler& scheduler_;
  ListHook turn_;  // in the scheduler, while it may post
  IntrusiveList<ReadRequest, &ReadRequest::hook_> waiting_;
  const uint32_t credits_;
  uint32_t outstanding_ = 0;
  bool ended_ = false;
};

// A READ to post: number `index` of its request's, from 0.
struct Read {
  ReadQueue* queue = nullptr;
  ReadRequest* request = nullptr;
  uint32_t index = 0;
};

// The queues of the queue pairs that one reactor has on an adapter.
class ReadScheduler {
 public:
  // outstanding_max: READs of all its queues together, at least 1: what the completion queue that they share has room for. A host that does not answer
  // keeps its queues' part of it until the adapter gives up, so one queue's credits are to be few beside it.
  explicit ReadScheduler(uint32_t outstanding_max) : outstanding_max_(outstanding_max) {
    CLEAT_CHECK(outstanding_max > 0);
  }
  ~ReadScheduler() { CLEAT_CHECK(outstanding_ == 0 && turns_.empty()); }
  ReadScheduler(const ReadScheduler&) = delete;
  ReadScheduler& operator=(const ReadScheduler&) = delete;

  // The next READ. The caller asks until there is none, then posts what it was given as one chain a queue pair, with one doorbell; and again after
  // completions, new requests or an end.
  bool Next(Read& read);

  // A READ that Next gave is over, once each: it has completed, with its data (`ok`) or in error; or it was flushed, refused by the adapter, not posted
  // by the time its queue ended, or lost with its queue pair, which is destroyed by now.
  ReadProgress Completed(ReadRequest& request, bool ok);

  uint32_t outstanding() const { return outstanding_; }

 private:
  friend class ReadQueue;
  IntrusiveList<ReadQueue, &ReadQueue::turn_> turns_;
  const uint32_t outstanding_max_;
  uint32_t outstanding_ = 0;
};

}  // namespace cleat::nvme::rdma_target
