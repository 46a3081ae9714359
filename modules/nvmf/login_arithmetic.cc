// SPDX-License-Identifier: Apache-2.0
#include "modules/nvmf/login_arithmetic.h"

#include <sys/random.h>

#include <utility>

#include "base/check.h"
#include "base/mutex.h"

namespace cleat::modules {

using nvme::auth::Authentication;

namespace {

void DrawBytes(std::span<uint8_t> bytes) {
  constexpr size_t kAtOnceMax = 256;  // what the kernel gives whole
  CLEAT_CHECK(bytes.size() <= kAtOnceMax);
  CLEAT_CHECK(getrandom(bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size()));
}

}  // namespace

// What the pool's thread has of it. The reactor may go as soon as nobody waits.
struct LoginArithmetic::Job {
  explicit Job(LoginArithmetic& a) : reactor(&a.reactor_), arithmetic(&a) {}

  bool is_awaited() {
    const MutexLock lock(mutex);
    return reactor != nullptr;
  }

  Mutex mutex;
  Reactor* reactor CLEAT_GUARDED_BY(mutex);
  LoginArithmetic* arithmetic;  // of the reactor's thread; both nullptr once nobody waits
};

LoginArithmetic::LoginArithmetic(BlockingPool* pool, Reactor& reactor,
                                 std::function<void(const Status&)> done, uint64_t wait_max_ns)
    : pool_(pool), reactor_(reactor), done_(std::move(done)), wait_max_ns_(wait_max_ns) {}

LoginArithmetic::~LoginArithmetic() {
  Cancel();
}

nvme::host::HostChap LoginArithmetic::ChapWith(std::shared_ptr<const nvme::auth::ChapSecrets> secrets) {
  nvme::host::HostChap chap;
  if (secrets == nullptr) return chap;
  CLEAT_CHECK(pool_ != nullptr);
  chap.secrets = std::move(secrets);
  chap.random = DrawBytes;
  chap.compute = [this](const std::shared_ptr<Authentication>& authentication) { Begin(authentication); };
  return chap;
}

void LoginArithmetic::Begin(const std::shared_ptr<Authentication>& authentication) {
  CLEAT_CHECK(job_ == nullptr);
  job_ = std::make_shared<Job>(*this);
  const MonotonicClock clock;
  const uint64_t late_ns = clock.NowNs() + wait_max_ns_;
  pool_->Post([job = job_, weak = std::weak_ptr(authentication), clock, late_ns] {
    const auto held = weak.lock();
    if (held == nullptr || !job->is_awaited()) return;
    const bool is_late = clock.NowNs() >= late_ns;
    if (!is_late) held->Compute();
    const MutexLock lock(job->mutex);
    if (job->reactor != nullptr) job->reactor->PostCall([job, is_late] { Tell(*job, is_late); });
  });
}

void LoginArithmetic::Tell(const Job& job, bool is_late) {
  LoginArithmetic* const self = job.arithmetic;
  if (self == nullptr) return;
  self->job_ = nullptr;
  self->done_(
      is_late ? Status(Error(ErrorCode::kUnavailable,
                             "this host has more queues to authenticate than it can compute answers for at "
                             "once; it is tried again"))
              : Status(Ok{}));
}

void LoginArithmetic::Cancel() {
  const std::shared_ptr<Job> job = std::move(job_);
  if (job == nullptr) return;
  job->arithmetic = nullptr;
  const MutexLock lock(job->mutex);
  job->reactor = nullptr;
}

}  // namespace cleat::modules
