// SPDX-License-Identifier: Apache-2.0
// Sees by Watch when attachments become READY. It reads on a thread of its own from construction to destruction; the
// rest is for its owner's thread.
#pragma once

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <set>
#include <string>
#include <thread>

#include "base/result.h"
#include "cleat/v1/cleat.grpc.pb.h"

namespace cleat::bench {

class ReadyWatch {
 public:
  explicit ReadyWatch(v1::Cleat::Stub& stub);
  ~ReadyWatch();
  ReadyWatch(const ReadyWatch&) = delete;
  ReadyWatch& operator=(const ReadyWatch&) = delete;

  // Until the snapshot is complete: what changes from now on will be seen.
  Status WaitSynced(const std::atomic<bool>& stop);
  // Until so many attachments are READY; when the last one became that (CLOCK_MONOTONIC).
  Result<uint64_t> WaitReady(size_t count, const std::atomic<bool>& stop);

 private:
  void Read();
  template <typename Done>
  Status WaitFor(const std::atomic<bool>& stop, const std::string& what, Done done);

  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReader<v1::WatchResponse>> stream_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool synced_ = false;
  bool ended_ = false;
  std::string failed_;  // what a FAILED attachment says
  std::set<std::string> ready_;
  uint64_t last_ready_ns_ = 0;
  std::thread thread_;
};

}  // namespace cleat::bench
