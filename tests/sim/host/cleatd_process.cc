// SPDX-License-Identifier: Apache-2.0
#include "cleatd_process.h"

#include <poll.h>

#include <filesystem>
#include <utility>
#include <vector>

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
  SetSyncHook([this](int fd) { return Sync(fd); });
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
  life_->synced = dir_ / (std::to_string(lives_) + "-synced");
  std::filesystem::create_directories(life_->folder);
  std::filesystem::copy(life_->folder, life_->synced);
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
  life.reconciler = std::make_unique<control::Reconciler>(
      *life.state, life.memory, *life.link, world_.clock(),
      control::ReconcilerOptions{.heartbeat = {.interval_ns = kNsPerSecond, .limit_ns = 2 * kNsPerSecond}});
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

// A store that refused a write, at the start perhaps, is looked at until it takes one, as cleatd's listener does it.
void CleatdProcess::WatchHealth(Life& life) {
  if (!life.store->writable()) life.write_failed = true;
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
  threads_.DieAt(point, [this] { Die(End::kKilled); });
}

void CleatdProcess::DieNow(End end) {
  Die(end);
}

void CleatdProcess::Die(End end) {
  ++deaths_;
  const bool synced_only = end == End::kPowerFailed;
  world_.Note((synced_only ? "power fails at point " : "cleatd dies at point ") +
              std::to_string(threads_.points()));
  std::filesystem::copy(synced_only ? life_->synced : life_->folder, dir_ / std::to_string(lives_ + 1));
  if (life_->link != nullptr) life_->link->Cut();
  threads_.RunOut();
  parts_.connecting.clear();
  std::filesystem::remove_all(life_->folder);
  std::filesystem::remove_all(life_->synced);
  life_.reset();
  parts_.on_dead();
}

// ---- Syncs

void CleatdProcess::SetSyncs(uint64_t ns_max, uint32_t fail_percent) {
  sync_ns_max_ = ns_max;
  sync_fail_percent_ = fail_percent;
}

// What a power failure leaves of the folder. Files that were removed before a sync are gone with it, as file systems with a journal of their
// own have it.
void CleatdProcess::KeepSynced(const std::filesystem::path& file) {
  const std::filesystem::path synced = life_->synced;
  if (std::filesystem::is_regular_file(file))
    std::filesystem::copy_file(file, synced / file.filename(),
                               std::filesystem::copy_options::overwrite_existing);
  std::vector<std::filesystem::path> removed;
  for (const auto& kept : std::filesystem::directory_iterator(synced)) {
    if (!std::filesystem::exists(life_->folder / kept.path().filename())) removed.push_back(kept.path());
  }
  for (const auto& kept : removed) std::filesystem::remove(kept);
}

bool CleatdProcess::Sync(int fd) {
  ++syncs_;
  const bool fails = random_.Chance(sync_fail_percent_, 100);
  life_->sync_failed |= fails;
  threads_.SleepFor(sync_ns_max_ == 0 ? 0 : random_.Below(sync_ns_max_));
  if (dead() || fails) return false;
  if (!disk_lies_) KeepSynced(std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(fd)));
  if (life_->up) parts_.on_stored();  // what the life before had failed to write was read by then
  return true;
}

}  // namespace cleat::sim
