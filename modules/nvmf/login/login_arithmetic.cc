// SPDX-License-Identifier: Apache-2.0
#include "modules/nvmf/login/login_arithmetic.h"

#include <sys/random.h>

#include <algorithm>
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

LoginArithmetic::LoginArithmetic(nvmf::LoginLine* line, LoginNames names, Reactor& reactor,
                                 std::function<void()> done, nvmf::LoginPlace place)
    : line_(line), names_(std::move(names)), reactor_(reactor), done_(std::move(done)), place_(place) {}

LoginArithmetic::~LoginArithmetic() {
  Cancel();
}

nvme::host::HostChap LoginArithmetic::ChapWith(std::shared_ptr<const nvme::auth::ChapSecrets> secrets) {
  nvme::host::HostChap chap;
  if (secrets == nullptr) return chap;
  CLEAT_CHECK(line_ != nullptr);
  chap.secrets = std::move(secrets);
  chap.random = DrawBytes;
  chap.compute = [this](const std::shared_ptr<Authentication>& authentication) { Begin(authentication); };
  return chap;
}

void LoginArithmetic::Begin(const std::shared_ptr<Authentication>& authentication) {
  CLEAT_CHECK(job_ == nullptr && !computed_);
  job_ = std::make_shared<Job>(*this);
  place_ = line_->Enter(names_.subsystem, place_, [job = job_, weak = std::weak_ptr(authentication)] {
    const auto held = weak.lock();
    if (held == nullptr || !job->is_awaited()) return;
    held->Compute();
    const MutexLock lock(job->mutex);
    if (job->reactor != nullptr) job->reactor->PostCall([job] { Tell(*job); });
  });
}

void LoginArithmetic::Tell(const Job& job) {
  LoginArithmetic* const self = job.arithmetic;
  if (self == nullptr) return;
  self->job_ = nullptr;
  self->place_ = 0;
  self->computed_ = true;
  self->done_();
}

bool LoginArithmetic::End() {
  ended_in_line_ = false;
  const std::shared_ptr<Job> job = std::move(job_);
  if (job == nullptr) return std::exchange(computed_, false);
  job->arithmetic = nullptr;
  {
    const MutexLock lock(job->mutex);
    job->reactor = nullptr;
  }
  ended_in_line_ = line_->Leave(names_.subsystem, place_);
  if (!ended_in_line_) place_ = 0;
  return !ended_in_line_;
}

void LoginArithmetic::Succeed() {
  CLEAT_CHECK(job_ == nullptr);
  if (End()) line_->Succeeded(names_.path);
}

void LoginArithmetic::Lose(const Error& reason) {
  const bool is_late = job_ != nullptr && reason.code == ErrorCode::kDeadlineExceeded;
  const bool had_turn = End();
  ended_in_line_ |= is_late;
  if (had_turn && !is_late) line_->Failed(names_.path);
}

void LoginArithmetic::Cancel() {
  (void)End();
}

uint64_t LoginArithmetic::PauseNs() const {
  const uint64_t turn_ns = ended_in_line_ ? nvmf::LoginLine::kTurnPauseNs : 0;
  return line_ == nullptr ? 0 : std::max(turn_ns, line_->PauseNs(names_.path));
}

}  // namespace cleat::modules
