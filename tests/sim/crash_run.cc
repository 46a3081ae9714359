// SPDX-License-Identifier: Apache-2.0
#include "crash_run.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "crash_guest.h"
#include "crash_medium.h"
#include "crash_swaps.h"
#include "engine_process.h"
#include "kill_switch.h"
#include "world.h"

namespace cleat::sim {
namespace {

constexpr uint64_t kDiskBlocks = 64;
constexpr uint32_t kDisksOfVm = 2;                // that take one another's place
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
  void AddMedium(CrashVm& vm, const CrashMedium::Plan& plan);
  CrashMedium::Plan DrawPlan();
  void OnDeath();
  // Until `done`, or the process is dead, or something is wrong. False: the last.
  template <typename Done>
  bool RunUntil(Done done, const std::string& what);
  enum class Ending : uint8_t { kByItself, kBetweenTurns, kBySignal, kUpgraded, kSwapped };
  Ending DrawEnding(bool store_given);
  void LiveAndDie(std::optional<uint64_t> dies_before_store);
  void LiveForAWhile();
  void LiveOn();
  void Begin(uint64_t dies_before_store);
  void AddLoad(uint64_t requests);
  void EndBySignal();
  std::unique_ptr<EngineProcess> MakeProcess(uint64_t number);
  // As cleatd does it: another process has everything prepared, the controllers go to it one after the other, and then
  // the first one ends.
  void Upgrade();
  void Swap();
  bool MaySwap(bool store_given);
  Task<void> MoveAll();
  Task<void> Move(const CrashVm& vm, EngineProcess& from, EngineProcess& to);
  Task<void> Take(const CrashVm& vm, engine::Yielded yielded, EngineProcess& to);
  bool Unhappy() const { return kill_.dead() || world_.failed(); }
  void TearDown();
  bool Settled() const;

  const CrashConfig config_;
  World world_;
  Random random_;
  KillSwitch kill_;
  std::vector<std::unique_ptr<CrashGuest>> guests_;
  std::vector<std::unique_ptr<CrashMedium>> media_;
  std::vector<CrashVm> vms_;
  std::optional<CrashSwaps> swaps_;
  std::unique_ptr<EngineProcess> process_;
  std::unique_ptr<EngineProcess> successor_;  // while there is an upgrade
  bool moving_ = false;
  uint64_t number_ = 0;  // of the process that was made last
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
  swaps_.emplace(world_, kill_, vms_, guests_, random_.Next());
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
  if (scsi) options.device = GuestDeviceType::kScsi;
  if (scsi && config_.defect == Defect::kNone && random_.Chance(1, 3)) options.unit_resets_per_thousand = 20;
  options.defect = config_.defect;
  if (config_.defect == Defect::kNone && random_.Chance(1, 3)) options.resets_per_thousand = 20;
  guests_.push_back(std::make_unique<CrashGuest>(world_, kill_, options));
  const auto type = scsi ? engine::ControllerType::kScsi : engine::ControllerType::kBlk;
  CrashVm vm{
      options.name, static_cast<uint32_t>(random_.Between(1, 4)), type, {}, 0, guests_.back().get(), {}};
  const CrashMedium::Plan plan = DrawPlan();
  for (uint32_t i = 0; i < kDisksOfVm; ++i) AddMedium(vm, plan);
  guests_.back()->SetDisk(CrashSwaps::DiskOf(vm.medium()));
  vms_.push_back(std::move(vm));
}

// Adds a disk to the VM whose guest was made last.
void CrashRun::AddMedium(CrashVm& vm, const CrashMedium::Plan& plan) {
  constexpr uint64_t kStore = 1;
  CrashGuest& guest = *guests_.back();
  const uint64_t number = media_.size() + 1;
  media_.push_back(std::make_unique<CrashMedium>(
      CrashMedium::Parts{world_, kill_, guest.memory(), [&guest] { return guest.known_disk(); }},
      "disks/d" + std::to_string(number), DiskIdentity::Of(kStore, number), kDiskBlocks, plan, random_.Next(),
      config_.defect));
  vm.media.push_back(media_.back().get());
}

void CrashRun::OnDeath() {
  ++result_.kills;
  world_.Note("process " + std::to_string(number_) + " dies before store " + std::to_string(kill_.stores()));
  world_.Freeze();
  for (const auto& guest : guests_) guest->Freeze();
  swaps_->OnDeath();
  for (const auto& medium : media_) {
    for (const auto* process : {process_.get(), successor_.get()}) {
      if (process != nullptr) medium->Gone(process->number());
    }
  }
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

std::unique_ptr<EngineProcess> CrashRun::MakeProcess(uint64_t number) {
  const auto on_report = [this](const CrashVm& vm, const engine::ControllerReport& report) {
    swaps_->OnReport(vm, report);
  };
  const bool identities = config_.defect != Defect::kNoIdentities;
  return std::make_unique<EngineProcess>(
      EngineProcess::Parts{world_, kill_, vms_, open_ns_max_, identities, on_report}, number, random_.Next());
}

void CrashRun::Begin(uint64_t dies_before_store) {
  world_.set_step(++number_);
  world_.Note("process " + std::to_string(number_) + " begins");
  kill_.Begin(dies_before_store);
  process_ = MakeProcess(number_);
  swaps_->SetProcesses({process_.get()});
  process_->Start(EngineProcess::Stance::kServe);
}

void CrashRun::AddLoad(uint64_t requests) {
  for (const auto& guest : guests_) guest->AddLoad(requests);
}

bool CrashRun::MaySwap(bool store_given) {
  const bool of_swaps = config_.defect == Defect::kNoIdentities;
  const bool drawn = config_.defect == Defect::kNone && !store_given && random_.Chance(1, 8);
  return config_.swapped.value_or(of_swaps || drawn);
}

CrashRun::Ending CrashRun::DrawEnding(bool store_given) {
  const bool of_signals = config_.defect == Defect::kDrainCutShort || config_.defect == Defect::kFailAtStop;
  const bool of_moves = config_.defect == Defect::kTakeBeforeYield;
  const bool may_move = config_.defect == Defect::kNone && !store_given && random_.Chance(1, 4);
  if (config_.upgraded.value_or(of_moves || may_move)) return Ending::kUpgraded;
  if (MaySwap(store_given)) return Ending::kSwapped;
  if (store_given) return Ending::kByItself;
  if (of_signals || random_.Chance(1, 8)) return Ending::kBySignal;
  return random_.Chance(1, 8) ? Ending::kBetweenTurns : Ending::kByItself;
}

void CrashRun::LiveAndDie(std::optional<uint64_t> dies_before_store) {
  const Ending ending = DrawEnding(dies_before_store.has_value());
  const uint64_t requests = random_.Between(1, 40);
  // Early, in the middle of the recovery, or with requests under way.
  const uint64_t drawn = 1 + random_.Below(random_.Chance(1, 2) ? 60 : 60 + kStoresOfRequest * requests);
  // One that is told to end, or to give its controllers away, may die on its way.
  const bool lives_on =
      ending == Ending::kBetweenTurns || (ending != Ending::kByItself && random_.Chance(2, 3));
  Begin(dies_before_store.value_or(lives_on ? KillSwitch::kNever : drawn));
  if (!dies_before_store || number_ == 1) AddLoad(requests);
  if (ending != Ending::kByItself) LiveForAWhile();
  if (ending == Ending::kUpgraded && !Unhappy()) Upgrade();
  if (ending == Ending::kSwapped && !Unhappy()) Swap();
  if (ending == Ending::kBySignal && !Unhappy()) return EndBySignal();
  if (ending != Ending::kBetweenTurns) RunUntil([this] { return Settled(); }, "answering everything");
  if (!dies_before_store || ending == Ending::kBetweenTurns) kill_.Kill();
}

void CrashRun::LiveForAWhile() {
  const uint64_t until_ns = world_.now_ns() + random_.Below(3 * kNsPerMs);
  RunUntil([&] { return world_.now_ns() >= until_ns || Settled(); }, "living for a while");
}

// ---- An upgrade

void CrashRun::Upgrade() {
  world_.Note("process " + std::to_string(++number_) + " stands by");
  successor_ = MakeProcess(number_);
  swaps_->SetProcesses({process_.get(), successor_.get()});
  successor_->Start(EngineProcess::Stance::kStandBy);
  RunUntil([this] { return process_->started() && successor_->started(); }, "preparing the controllers");
  if (Unhappy()) return;
  moving_ = true;
  Spawn(MoveAll());
  RunUntil([this] { return !moving_; }, "moving the controllers");
  if (Unhappy()) return;
  process_->Terminate();
  RunUntil([this] { return process_->ended(); }, "ending after an upgrade");
  if (Unhappy()) return;
  process_ = std::move(successor_);
  swaps_->SetProcesses({process_.get()});
}

Task<void> CrashRun::MoveAll() {
  for (const CrashVm& vm : vms_) {
    auto move = Move(vm, *process_, *successor_);
    co_await std::move(move);
    if (!random_.Chance(1, 4)) continue;
    auto back = Move(vm, *successor_, *process_);
    co_await std::move(back);
    auto again = Move(vm, *process_, *successor_);
    co_await std::move(again);
  }
  moving_ = false;
}

Task<void> CrashRun::Move(const CrashVm& vm, EngineProcess& from, EngineProcess& to) {
  if (config_.defect == Defect::kTakeBeforeYield) {
    auto take = Take(vm, {}, to);
    co_await std::move(take);
    co_await world_.control().SleepFor(random_.Below(kNsPerMs));
  }
  // Often too short for what is in flight, which then goes on where it is.
  for (uint64_t drain_ns = random_.Below(kNsPerMs); !Unhappy(); drain_ns = 2 * drain_ns + kNsPerUs) {
    auto yield = from.engine().YieldController(EngineProcess::ControllerOf(vm), drain_ns);
    Result<engine::Yielded> yielded = co_await std::move(yield);
    if (Unhappy()) break;
    if (yielded) {
      auto take = Take(vm, std::move(yielded).value(), to);
      co_await std::move(take);
      break;
    }
    ++result_.resumed;
    if (yielded.error().code != ErrorCode::kDeadlineExceeded)
      world_.Violation("giving " + vm.name + " away: " + yielded.error().message);
    co_await world_.control().SleepFor(random_.Below(kNsPerMs));
  }
}

Task<void> CrashRun::Take(const CrashVm& vm, engine::Yielded yielded, EngineProcess& to) {
  auto take = to.engine().TakeController(EngineProcess::ControllerOf(vm), std::move(yielded), UniqueFd());
  const Status taken = co_await std::move(take);
  if (!taken && !kill_.dead()) world_.Violation("taking " + vm.name + ": " + taken.error().message);
  ++result_.moves;
}

// ---- Disks that take one another's place

void CrashRun::Swap() {
  RunUntil([this] { return process_->started(); }, "preparing the controllers");
  if (Unhappy()) return;
  swaps_->SwapUnderGuests(*process_);
  RunUntil([this] { return !swaps_->busy(); }, "exchanging disks");
}

// ---- Ends

void CrashRun::EndBySignal() {
  ++result_.terminations;
  world_.Note("process " + std::to_string(number_) + " is told to end");
  process_->Terminate();
  for (const auto& medium : media_) medium->Terminating(number_);
  RunUntil([this] { return process_->ended(); }, "ending by a signal");
}

void CrashRun::TearDown() {
  result_.stores.push_back(kill_.stores());
  const auto gone = [this] {
    return !moving_ && !swaps_->busy() && process_->ended() && (successor_ == nullptr || successor_->ended());
  };
  if (!gone()) {
    kill_.Kill();
    process_->Terminate();
    if (successor_ != nullptr) successor_->Terminate();
    CLEAT_CHECK(world_.RunUntil(gone, kLimitNs, "taking down what is dead"));
  }
  swaps_->SetProcesses({});
  process_.reset();
  successor_.reset();
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
    if (world_.failed() || !MaySwap(!config_.kills.empty())) continue;
    if (random_.Chance(1, 2)) {
      for (const auto& medium : media_) medium->LandAll();
    }
    swaps_->SwapBetweenProcesses();
  }
  if (!world_.failed()) {
    LiveOn();
    TearDown();
  }
  for (const std::string& violation : world_.violations()) result_.violated += violation + "\n";
  for (const auto& guest : guests_) result_.answered += guest->completed();
  result_.swaps = swaps_->count();
  result_.swapped_back = swaps_->returned();
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
