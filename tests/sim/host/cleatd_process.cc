// SPDX-License-Identifier: Apache-2.0
#include "cleatd_process.h"

#include <poll.h>

#include <filesystem>
#include <utility>

#include "sync_hook.h"

namespace cleat::sim {
namespace {

constexpr uint64_t kHealthTickNs = kNsPerSecond;

bool IsReadable(int fd) {
  pollfd state{.fd = fd, .events = POLLIN, .revents = 0};
  return poll(&state, 1, 0) > 0;
}

}  // namespace

CleatdProcess::CleatdProcess(Parts parts)
    : parts_(std::move(parts)),
      world_(parts_.world),
      threads_(parts_.threads),
      random_(world_.random().Next()) {
  SetSyncHook([this] { return Sync(); });
}

CleatdProcess::~CleatdProcess() {
  CLEAT_CHECK(!running());
  SetSyncHook({});
}

// The next life begins with what the last one left behind.
void CleatdProcess::Start() {
  CLEAT_CHECK(!running());
  life_ = std::make_unique<Life>();
  life_->folder = dir_ / std::to_string(++lives_);
  std::filesystem::create_directories(life_->folder);
  world_.Note("cleatd begins life " + std::to_string(lives_));
  threads_.Start("cleatd", [this, life = life_.get()] { Run(*life); });
}

Status CleatdProcess::Open(Life& life) {
  CLEAT_ASSIGN(life.store, control::Store::Open(life.folder));
  CLEAT_ASSIGN(const control::Rows rows, life.store->Load());
  CLEAT_ASSIGN(life.state,
               control::HostState::Load(*life.store, life.memory, control::WatchHub::kQueueMax, nullptr));
  CLEAT_ASSIGN(life.link, control::EngineLink::Listen(parts_.socket_path, world_.clock()));
  life.link->SetOpenProcess([this](pid_t) { return TakeConnecting(); });
  life.reconciler = std::make_unique<control::Reconciler>(*life.state, life.memory, *life.link,
                                                          world_.clock(), control::ReconcilerOptions{});
  life.state->SetWake([link = life.link.get()] { link->Wake(); });
  life.link->Begin(*life.reconciler);
  life.link->Wake();
  life.store->SetOnFailure([&life] { life.write_failed = true; });
  if (!dead()) parts_.on_loaded(rows);
  return Ok{};
}

// The link's thread.
void CleatdProcess::Run(Life& life) {
  const Status opened = Open(life);
  if (dead()) return;
  life.failed = !opened.ok();
  life.up = opened.ok();
  if (life.failed && !life.sync_failed) world_.Violation("cleatd can't start: " + opened.error().message);
  if (life.failed) return;
  threads_.Start("health", [this, &life] { WatchHealth(life); });
  while (!dead()) {
    const uint64_t due_ns = life.link->ServeRound();
    if (dead()) return;
    threads_.AwaitReady([fd = life.link->wait_fd()] { return IsReadable(fd); }, due_ns);
  }
}

// A store that refused a write is looked at until it takes one, as cleatd's listener does it.
void CleatdProcess::WatchHealth(Life& life) {
  while (!dead()) {
    threads_.AwaitReady([&life] { return life.write_failed; }, SimThreads::kNever);
    life.write_failed = false;
    while (!dead() && !life.state->CheckStore()) threads_.SleepFor(kHealthTickNs);
  }
}

UniqueFd CleatdProcess::TakeConnecting() {
  CLEAT_CHECK(!parts_.connecting.empty());
  UniqueFd handle = std::move(parts_.connecting.front());
  parts_.connecting.pop_front();
  return handle;
}

void CleatdProcess::Call(const std::string& name, std::function<void(control::HostState&)> call) {
  CLEAT_CHECK(up());
  threads_.Start(name, [state = life_->state.get(), call = std::move(call)] { call(*state); });
}

// ---- Death

void CleatdProcess::DieAt(uint64_t point) {
  threads_.DieAt(point, [this] { Die(); });
}

void CleatdProcess::DieNow() {
  Die();
}

void CleatdProcess::Die() {
  ++deaths_;
  world_.Note("cleatd dies at point " + std::to_string(threads_.points()));
  const std::string next = dir_ / std::to_string(lives_ + 1);
  std::filesystem::copy(life_->folder, next);
  if (life_->link != nullptr) life_->link->Cut();
  threads_.RunOut();
  parts_.connecting.clear();
  std::filesystem::remove_all(life_->folder);
  life_.reset();
  parts_.on_dead();
}

// ---- Syncs

void CleatdProcess::SetSyncs(uint64_t ns_max, uint32_t fail_percent) {
  sync_ns_max_ = ns_max;
  sync_fail_percent_ = fail_percent;
}

bool CleatdProcess::Sync() {
  ++syncs_;
  const bool fails = random_.Chance(sync_fail_percent_, 100);
  life_->sync_failed |= fails;
  threads_.SleepFor(sync_ns_max_ == 0 ? 0 : random_.Below(sync_ns_max_));
  return !dead() && !fails;
}

}  // namespace cleat::sim
