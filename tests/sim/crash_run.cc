// SPDX-License-Identifier: Apache-2.0
#include "crash_run.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "crash_guest.h"
#include "crash_medium.h"
#include "engine_process.h"
#include "kill_switch.h"
#include "world.h"

namespace cleat::sim {
namespace {

constexpr uint64_t kDiskBlocks = 64;
constexpr uint64_t kLimitNs = 20 * kNsPerSecond;  // of anything that is waited for
constexpr uint32_t kKillsMax = 4;
constexpr uint64_t kStoresOfRequest = 8;  // about

bool OfStoreOrder(Defect defect) {
  return defect >= Defect::kLogWhenUsed && defect <= Defect::kTakenBeforeNoted;
}
bool OfPackedRings(Defect defect) {
  return defect >= Defect::kNoteAfterUsed && defect <= Defect::kTakenBeforeNoted;
}

class CrashRun {
 public:
  explicit CrashRun(const CrashConfig& config);
  ~CrashRun() {
    for (const auto& guest : guests_) guest->GiveUp();
  }
  CrashResult Run();

 private:
  void AddVm(uint32_t index);
  CrashMedium::Plan DrawPlan();
  void OnDeath();
  // Until `done`, or the process is dead, or something is wrong. False: the last.
  template <typename Done>
  bool RunUntil(Done done, const std::string& what);
  void LiveAndDie(std::optional<uint64_t> dies_before_store);
  void LiveOn();
  void Begin(uint64_t dies_before_store);
  void AddLoad(uint64_t requests);
  void EndBySignal();
  void TearDown();
  bool Settled() const;

  const CrashConfig config_;
  World world_;
  Random random_;
  KillSwitch kill_;
  std::vector<std::unique_ptr<CrashGuest>> guests_;
  std::vector<std::unique_ptr<CrashMedium>> media_;
  std::vector<CrashVm> vms_;
  std::unique_ptr<EngineProcess> process_;
  uint64_t number_ = 0;  // of the process
  uint64_t open_ns_max_ = 0;
  CrashResult result_;
};

CrashRun::CrashRun(const CrashConfig& config)
    : config_(config),
      world_(config.seed, static_cast<uint32_t>(1 + config.seed % 3)),
      random_(world_.random().Next()),
      kill_(config.defect, [this] { OnDeath(); }) {
  world_.set_trace(config.trace);
  const uint64_t vms = config.kills.empty() && !OfStoreOrder(config.defect) ? random_.Between(1, 2) : 1;
  for (uint32_t i = 0; i < vms; ++i) AddVm(i);
  if (OfStoreOrder(config.defect)) kill_.order().SetPlaces([this] { return guests_.front()->places(); });
  open_ns_max_ = random_.Chance(1, 2) ? 0 : kNsPerMs;
  world_.AddDump([this] { return process_ != nullptr ? process_->Describe() : "no process"; });
}

CrashMedium::Plan CrashRun::DrawPlan() {
  CrashMedium::Plan plan;
  constexpr uint64_t kLand[] = {5 * kNsPerUs, 50 * kNsPerUs, 500 * kNsPerUs};
  plan.land_ns_max = kLand[random_.Below(std::size(kLand))];
  constexpr uint64_t kLate[] = {0, kNsPerMs, 10 * kNsPerMs};
  plan.late_ns_max = kLate[random_.Below(std::size(kLate))];
  constexpr uint32_t kAtOnce[] = {0, 0, 50, 100};
  plan.at_once_percent = kAtOnce[random_.Below(std::size(kAtOnce))];
  if (config_.defect == Defect::kNone && random_.Chance(1, 4)) plan.fail_percent = 5;
  return plan;
}

void CrashRun::AddVm(uint32_t index) {
  CrashGuest::Options options;
  options.name = "vm" + std::to_string(index);
  options.seed = random_.Next();
  options.packed = config_.packed.value_or(random_.Chance(1, 2));
  if (OfStoreOrder(config_.defect)) options.packed = OfPackedRings(config_.defect);
  const bool scsi = config_.scsi.value_or(random_.Chance(1, 3));
  if (scsi) options.device = GuestDevice::kScsi;
  if (scsi && config_.defect == Defect::kNone && random_.Chance(1, 3)) options.unit_resets_per_thousand = 20;
  options.defect = config_.defect;
  if (config_.defect == Defect::kNone && random_.Chance(1, 3)) options.resets_per_thousand = 20;
  guests_.push_back(std::make_unique<CrashGuest>(world_, kill_, options));
  const CrashMedium::Plan plan = DrawPlan();
  media_.push_back(std::make_unique<CrashMedium>(CrashMedium::Parts{world_, kill_, guests_.back()->memory()},
                                                 "disks/d" + std::to_string(index), kDiskBlocks, plan,
                                                 random_.Next(), config_.defect));
  guests_.back()->SetDisk({&media_.back()->model(), 1, false, plan.fail_percent > 0});
  const auto type = scsi ? engine::ControllerType::kScsi : engine::ControllerType::kBlk;
  vms_.push_back({options.name, static_cast<uint32_t>(random_.Between(1, 4)), type, media_.back().get(),
                  guests_.back().get()});
}

void CrashRun::OnDeath() {
  ++result_.kills;
  world_.Note("process " + std::to_string(number_) + " dies before store " + std::to_string(kill_.stores()));
  world_.Freeze();
  for (const auto& guest : guests_) guest->Freeze();
  for (const auto& medium : media_) medium->Gone(number_);
}

template <typename Done>
bool CrashRun::RunUntil(Done done, const std::string& what) {
  world_.RunUntil([&] { return kill_.dead() || world_.failed() || done(); }, kLimitNs, what);
  return !world_.failed();
}

bool CrashRun::Settled() const {
  return std::all_of(guests_.begin(), guests_.end(), [](const auto& guest) { return guest->settled(); }) &&
         std::all_of(media_.begin(), media_.end(), [](const auto& medium) { return medium->idle(); });
}

void CrashRun::Begin(uint64_t dies_before_store) {
  world_.set_step(++number_);
  world_.Note("process " + std::to_string(number_) + " begins");
  kill_.Begin(dies_before_store);
  process_ = std::make_unique<EngineProcess>(EngineProcess::Parts{world_, kill_, vms_, open_ns_max_}, number_,
                                             random_.Next());
  process_->Start();
}

void CrashRun::AddLoad(uint64_t requests) {
  for (const auto& guest : guests_) guest->AddLoad(requests);
}

void CrashRun::LiveAndDie(std::optional<uint64_t> dies_before_store) {
  const bool between_turns = !dies_before_store && random_.Chance(1, 8);
  const bool by_signal =
      !dies_before_store && (random_.Chance(1, 8) || config_.defect == Defect::kDrainCutShort ||
                             config_.defect == Defect::kFailAtStop);
  const uint64_t requests = random_.Between(1, 40);
  // Early, in the middle of the recovery, or with requests under way.
  const uint64_t drawn = 1 + random_.Below(random_.Chance(1, 2) ? 60 : 60 + kStoresOfRequest * requests);
  // One that is told to end may die on its way.
  const bool lives_on = between_turns || (by_signal && random_.Chance(2, 3));
  Begin(dies_before_store.value_or(lives_on ? KillSwitch::kNever : drawn));
  if (!dies_before_store || number_ == 1) AddLoad(requests);
  if (between_turns || by_signal) {
    const uint64_t until_ns = world_.now_ns() + random_.Below(3 * kNsPerMs);
    RunUntil([&] { return world_.now_ns() >= until_ns || Settled(); }, "living for a while");
    by_signal && !kill_.dead() ? EndBySignal() : kill_.Kill();
  } else {
    RunUntil([this] { return Settled(); }, "answering everything");
    if (!dies_before_store) kill_.Kill();
  }
}

void CrashRun::EndBySignal() {
  ++result_.terminations;
  world_.Note("process " + std::to_string(number_) + " is told to end");
  process_->Terminate();
  for (const auto& medium : media_) medium->Terminating(number_);
  RunUntil([this] { return process_->ended(); }, "ending by a signal");
}

void CrashRun::TearDown() {
  result_.stores.push_back(kill_.stores());
  if (!process_->ended()) {
    kill_.Kill();
    process_->Terminate();
    CLEAT_CHECK(world_.RunUntil([this] { return process_->ended(); }, kLimitNs, "taking down what is dead"));
  }
  process_.reset();
  world_.RestartReactors();
  world_.Thaw();
  if (!kill_.dead()) return;
  for (const auto& guest : guests_) guest->Thaw();
}

void CrashRun::LiveOn() {
  Begin(KillSwitch::kNever);
  AddLoad(10);
  if (!RunUntil([this] { return Settled(); }, "answering everything at last")) return;
  for (const auto& medium : media_) medium->CheckContent();
  for (const auto& guest : guests_) guest->CheckIdle();
  EndBySignal();
}

CrashResult CrashRun::Run() {
  const size_t kills = config_.kills.empty() ? random_.Between(1, kKillsMax) : config_.kills.size();
  for (size_t i = 0; i < kills && !world_.failed(); ++i) {
    LiveAndDie(config_.kills.empty() ? std::nullopt : std::optional(config_.kills[i]));
    TearDown();
  }
  if (!world_.failed()) {
    LiveOn();
    TearDown();
  }
  for (const std::string& violation : world_.violations()) result_.violated += violation + "\n";
  for (const auto& guest : guests_) result_.answered += guest->completed();
  for (const auto& medium : media_) {
    result_.landed_late += medium->landed_late();
    result_.replayed += medium->replayed();
  }
  result_.digest = world_.digest();
  return std::move(result_);
}

}  // namespace

CrashResult RunCrash(const CrashConfig& config) {
  CrashRun run(config);
  return run.Run();
}

}  // namespace cleat::sim
