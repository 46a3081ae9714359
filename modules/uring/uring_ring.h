// SPDX-License-Identifier: Apache-2.0
// One reactor's io_uring: takes operations from the channels on this reactor, submits them in batches (one
// system call a turn), reaps completions. Sleeps when only slow storage is waited for: completions then write
// an eventfd.
//
// A request needs nothing but its frame: user_data is the Request, whose topmost frame's layer is the UringClient. Which of a request's
// operations is over, if it has several under way, nobody can tell. What finds no room waits in line and is never lost. On its reactor's
// thread; owned by the UringHub.
#pragma once

#include <liburing.h>
#include <sys/uio.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"
#include "block/request.h"
#include "modules/uring/io_lifetime.h"
#include "modules/uring/memory_registrar.h"
#include "reactor/poller.h"
#include "reactor/reactor.h"

namespace cleat::modules {

// A channel, as the ring sees it.
class UringClient {
 public:
  virtual ~UringClient() = default;
  // Fills in the request's next operation: the whole entry, all 128 bytes of it in a ring for commands. `iovecs`, at most as many as the
  // request has segments, are good until the ring has submitted it, in a ring for commands until it is over. True: there is one more to
  // prepare, at once or when there is room.
  virtual bool Prepare(block::Request& request, io_uring_sqe& sqe, std::span<iovec> iovecs) = 0;
  // The operation is over: `result` as the system call would have it, -errno for an error.
  virtual void Finished(block::Request& request, int32_t result) = 0;
  // A bounce buffer has come free for a request that waited for one.
  virtual void BounceReady(block::Request& request, uint8_t* buffer) = 0;
};

class UringRing final : private Poller, public BufferTable {
 public:
  static constexpr uint32_t kSubmitMax = 256;       // operations a system call takes
  static constexpr uint32_t kUnderWayMax = 2048;    // in the kernel or on their way; more wait in line
  static constexpr uint32_t kIovecsMax = 1024;      // of one operation: the kernel's limit (IOV_MAX)
  static constexpr uint32_t kBounceBytes = 131072;  // a request takes larger I/O in steps of this
  static constexpr uint32_t kBounceBuffers = 64;    // 8 MiB a reactor, taken from the host as they are used
  static constexpr uint32_t kZeroBytes = 1 << 20;

  // What its entries hold: operations on files, or a device's own commands as well (IORING_OP_URING_CMD), which takes twice the memory.
  enum class Kind : uint8_t { kFiles, kCommands };
  // Of a ring for commands, the places for files that it keeps open as long as it has I/O; the first is the lifetime's. A place takes the
  // kernel 16 bytes.
  static constexpr uint32_t kKeptFilesMax = 16384;
  // Commands of memory in pieces that are under way at once, and pieces of one: 1 MiB a ring. The kernel may read a command's iovecs long
  // after it was submitted, when a queue of the drive was full or stopped.
  static constexpr uint32_t kVectors = 512;
  static constexpr uint32_t kVectorIovecs = 128;

  // Before the reactor's thread starts, or on it. `lifetime`: what the ring keeps open as long as it has I/O (UringHub). `kept_files`: how
  // many places a ring for commands gets, at most as many as the process may have files open.
  static Result<std::unique_ptr<UringRing>> Make(Reactor& reactor, const IoLifetime* lifetime = nullptr,
                                                 Kind kind = Kind::kFiles, uint32_t kept_files = 1);
  ~UringRing() override;  // nothing under way

  Reactor& reactor() { return reactor_; }

  // Has the client prepare an operation for `request`, now or when there is room.
  void Start(block::Request& request);

  // A buffer of kBounceBytes, page-aligned, until GiveBounce. nullptr: none is free; the request waits (its
  // `link` is the ring's) and BounceReady will be called.
  uint8_t* TakeBounce(block::Request& request);
  void GiveBounce(uint8_t* buffer);

  uint8_t* zeroes() { return zeroes_; }  // kZeroBytes of them, for writing only

  // Of a ring for commands, on any thread; may wait for the reactor's present system call. Keeps the open file, and with it its locks, until
  // the last request that was begun before it is dropped has ended, also when this process is killed. Commands name the file by `place`
  // (IOSQE_FIXED_FILE): 1 and up, below `kept_files`. `fd` -1: drops what is there.
  Status KeepFile(uint32_t place, int fd);

  // ---- Of a ring for commands: memory that they name by its place (IORING_URING_CMD_FIXED)
  Status MakeBufferPlaces(uint32_t places) override;
  Status SetBuffer(uint32_t place, const iovec& memory) override;
  // A command that names such memory is about to be submitted.
  void CountRegistered() { registered_commands_.store(registered_commands() + 1, std::memory_order_relaxed); }
  uint64_t registered_commands() const {  // any thread
    return registered_commands_.load(std::memory_order_relaxed);
  }

 private:
  class RingWatch : public FdWatch {
   public:
    explicit RingWatch(UringRing& r);
    UringRing& ring;
  };

  UringRing(Reactor& reactor, Kind kind, uint32_t kept_files)
      : reactor_(reactor), kind_(kind), kept_files_(kept_files), watch_(*this) {}
  Status SetUp();
  Status MakeRing();
  Status MakePlaces();
  Status Keep(const IoLifetime& lifetime);
  bool Poll() override;
  bool Arm() override;
  void Disarm() override;

  static UringClient& ClientOf(block::Request& request) {
    return *static_cast<UringClient*>(request.top().layer);
  }
  // The next entry, and the memory for its iovecs.
  struct Entry {
    io_uring_sqe* sqe = nullptr;
    std::span<iovec> iovecs;
    uint64_t vector = 0;  // of a ring for commands: which of the vectors, from 1 up; 0: none
  };
  bool TryIssue(block::Request& request);
  Entry NextEntry(const block::Request& request);
  std::optional<Entry> FindIovecs(const block::Request& request);
  void IssueWaiting();
  bool SubmitPrepared();
  bool Reap();

  Reactor& reactor_;
  const Kind kind_;
  const uint32_t kept_files_;  // places
  io_uring ring_{};
  bool ring_made_ = false;
  UniqueFd event_;  // written by the kernel on a completion while armed
  RingWatch watch_;
  uint32_t under_way_ = 0;      // prepared or in the kernel
  block::RequestList waiting_;  // in line for room

  uint8_t* vector_memory_ = nullptr;    // of a ring for commands
  std::vector<uint64_t> vectors_free_;  // numbers, from 1 up
  std::atomic<uint64_t> registered_commands_{0};
  std::array<iovec, 4 * kIovecsMax> iovecs_;
  uint32_t iovecs_used_ = 0;  // by operations that are not submitted yet

  uint8_t* bounce_memory_ = nullptr;
  std::vector<uint8_t*> bounce_free_;
  block::RequestList bounce_waiting_;
  uint8_t* zeroes_ = nullptr;
};

}  // namespace cleat::modules
