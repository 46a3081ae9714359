// SPDX-License-Identifier: Apache-2.0
#include "nvmf_target/login/host_login.h"

#include <fmt/format.h>
#include <sys/random.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/mutex.h"
#include "nvme/fabrics/commands.h"

namespace cleat::nvmf_target {

using nvme::auth::ControllerAuthentication;
using nvme::auth::Due;
using nvme::fabrics::FabricsType;
using nvme::fabrics::SubmissionEntry;
using nvme::target::Answer;

namespace {

void DrawRandom(std::span<uint8_t> bytes) {
  constexpr size_t kAtOnceMax = 256;  // what the kernel gives whole
  CLEAT_CHECK(bytes.size() <= kAtOnceMax);
  CLEAT_CHECK(getrandom(bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size()));
}

Answer Fails(uint16_t status) {
  return {.status = static_cast<uint16_t>(status | nvme::status_field::kDoNotRetry), .data = {}};
}

}  // namespace

// What the line's thread has of it. The reactor may go as soon as nobody waits.
struct HostLogin::Job {
  explicit Job(HostLogin& l) : reactor(&l.reactor_), login(&l) {}

  bool is_awaited() {
    const MutexLock lock(mutex);
    return reactor != nullptr;
  }

  Mutex mutex;
  Reactor* reactor CLEAT_GUARDED_BY(mutex);
  HostLogin* login;  // of the reactor's thread; both nullptr once nobody waits
};

uint64_t HostLogin::TimeoutNs(uint32_t kato_ms) {
  return std::clamp(kato_ms * kNsPerMs, kTimeoutMinNs, kTimeoutMaxNs);
}

HostLogin::HostLogin(Reactor& reactor, nvmf::LoginLine& line, Config config, HostLoginOwner& owner)
    : reactor_(reactor),
      line_(line),
      peer_(std::move(config.peer)),
      timeout_ns_(config.timeout_ns),
      owner_(owner),
      authentication_(std::make_shared<ControllerAuthentication>(
          nvme::auth::ControllerAuthenticationConfig{.host_nqn = std::move(config.host_nqn),
                                                     .subsystem_nqn = std::move(config.subsystem_nqn),
                                                     .secrets = std::move(config.secrets),
                                                     .random = DrawRandom})) {
  reactor_.AddTimer(deadline_, reactor_.now_ns() + timeout_ns_);
}

HostLogin::~HostLogin() {
  Stop();
}

void HostLogin::Stop() {
  deadline_.Cancel();
  const std::shared_ptr<Job> job = std::exchange(job_, nullptr);
  if (job == nullptr) return;
  job->login = nullptr;
  {
    const MutexLock lock(job->mutex);
    job->reactor = nullptr;
  }
  (void)line_.Leave(peer_, place_);
}

std::string HostLogin::how() const {
  return authentication_->chosen() + (authentication_->both_ways() ? ", both ways" : "");
}

void HostLogin::Deadline::Fire(Timer& timer) {
  HostLogin& login = static_cast<Deadline&>(timer).login;
  login.Fail(
      fmt::format("the host has not authenticated in {} s: see that it has a secret for this subsystem "
                  "(dhchap_secret)",
                  login.timeout_ns_ / kNsPerSecond));
  login.owner_.LoginIsLate();
}

// ---- Commands

Answer HostLogin::Execute(const SubmissionEntry& entry, std::span<const uint8_t> data) {
  CLEAT_CHECK(job_ == nullptr);
  if (entry.opcode == static_cast<uint8_t>(nvme::AdminOpcode::kFabrics)) {
    const auto type = static_cast<FabricsType>(entry.nsid & 0xff);
    if (type == FabricsType::kAuthenticationSend) return Send(entry, data);
    if (type == FabricsType::kAuthenticationReceive) return Receive(entry);
  }
  return Fails(nvme::status_field::kCommandSpecific | nvme::fabrics::kAuthenticationRequired);
}

Answer HostLogin::Send(const SubmissionEntry& entry, std::span<const uint8_t> data) {
  if (entry.cdw10 != nvme::fabrics::kAuthenticationProtocol || entry.cdw11 == 0 ||
      entry.cdw11 > nvme::auth::kMessageBytesMax)
    return Fails(nvme::status_field::kInvalidField);
  if (entry.cdw11 != entry.data.length_bytes || entry.cdw11 > data.size())
    return Fails(nvme::status_field::kSglLengthInvalid);
  const Due due = authentication_->Take(data.first(entry.cdw11));
  if (due != Due::kCompute) return AnswerOf(due);
  Compute();
  return {.kind = Answer::Kind::kHeld, .data = {}};
}

Answer HostLogin::Receive(const SubmissionEntry& entry) {
  if (entry.cdw10 != nvme::fabrics::kAuthenticationProtocol || entry.cdw11 == 0)
    return Fails(nvme::status_field::kInvalidField);
  if (entry.cdw11 > entry.data.length_bytes) return Fails(nvme::status_field::kSglLengthInvalid);
  ControllerAuthentication::Given given = authentication_->Give(entry.cdw11);
  if (given.message.empty()) return Fails(nvme::status_field::kInvalidField);  // no room for it
  Answer answer = AnswerOf(given.due);
  answer.data = std::move(given.message);
  return answer;
}

Answer HostLogin::AnswerOf(Due due) {
  if (authentication_->refusal()) Fail(*authentication_->refusal());
  if (due == Due::kProved) deadline_.Cancel();
  return {.kind = due == Due::kOver ? Answer::Kind::kDisconnect : Answer::Kind::kAnswer, .data = {}};
}

void HostLogin::Fail(const std::string& reason) {
  if (!std::exchange(failed_, true)) owner_.LoginFails(reason);
}

// ---- The arithmetic

void HostLogin::Compute() {
  left_ns_ = deadline_.deadline_ns() - std::min(deadline_.deadline_ns(), reactor_.now_ns());
  deadline_.Cancel();
  job_ = std::make_shared<Job>(*this);
  place_ = line_.Enter(peer_, 0, [job = job_, authentication = authentication_] {
    if (!job->is_awaited()) return;
    authentication->Compute();
    const MutexLock lock(job->mutex);
    if (job->reactor != nullptr) job->reactor->PostCall([job] { Computed(*job); });
  });
}

void HostLogin::Computed(const Job& job) {
  HostLogin* const self = job.login;
  if (self == nullptr) return;
  self->job_ = nullptr;
  self->reactor_.AddTimer(self->deadline_, self->reactor_.now_ns() + self->left_ns_);
  const Answer answer = self->AnswerOf(self->authentication_->Continue());
  self->owner_.LoginAnswers(answer);
}

}  // namespace cleat::nvmf_target
