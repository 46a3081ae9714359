// SPDX-License-Identifier: Apache-2.0
// cleatctl engine upgrade, cancel-upgrade.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "ctl/commands.h"

namespace cleat::ctl {
namespace {

using Stub = v1::Cleat::Stub;

constexpr std::chrono::milliseconds kLook{500};
// So often may cleatd not be there, as during its own restart, before the command gives up.
constexpr int kLooksInVainMax = 60;

struct UpgradeArguments {
  std::string id;
  std::string to;
  int drain_s = 0;
  bool dry_run = false;
  bool no_wait = false;
};

std::string IdText(std::string_view name) {
  return std::string(IdOf(name));
}

void ShowPlan(const Client& client, const v1::UpgradeEngineRequest& request,
              const v1::UpgradeEngineResponse& plan) {
  client.Show(plan, [&] {
    std::string text = fmt::format("{} of {} controllers would be moved to {}\n",
                                   plan.controllers_size() - plan.obstacles_size(), plan.controllers_size(),
                                   IdText(request.to()));
    for (const v1::UpgradeFailure& obstacle : plan.obstacles()) {
      text += fmt::format("{} would stay: {}\n", IdText(obstacle.controller()), obstacle.reason());
    }
    return text;
  });
}

// Tells what has changed since it was asked the last time.
class Progress {
 public:
  std::string Tell(const v1::UpgradeStatus& status) {
    std::string text;
    for (; failures_ < status.failed_size(); ++failures_) {
      text += fmt::format("{} stays: {}\n", IdText(status.failed(failures_).controller()),
                          status.failed(failures_).reason());
    }
    std::string line;
    if (status.moved() == 0 && status.prepared() < status.total()) {
      line = fmt::format("prepared {} of {}\n", status.prepared(), status.total());
    } else {
      line = fmt::format("moved {} of {}\n", status.moved(), status.total());
    }
    if (line != line_) text += line;
    line_ = std::move(line);
    return text;
  }

 private:
  int failures_ = 0;
  std::string line_;
};

ExitCode CodeOf(const v1::Engine& engine) {
  const v1::UpgradeStatus& status = engine.status().upgrade();
  const uint32_t stayed = status.total() - std::min(status.total(), status.moved());
  switch (status.state()) {
    case v1::UPGRADE_STATE_DONE:
      return kOk;
    case v1::UPGRADE_STATE_FAILED:
      return Fail(
          kFailed,
          fmt::format("{} of {} controllers stay on {}; repeat the command when the causes are mended",
                      stayed, status.total(), IdText(engine.name())));
    case v1::UPGRADE_STATE_CANCELLED:
      return Fail(kFailed, fmt::format("the upgrade was cancelled: {} of {} controllers stay on {}", stayed,
                                       status.total(), IdText(engine.name())));
    default:
      return Fail(kFailed, fmt::format("the upgrade was interrupted: {}", status.message()));
  }
}

ExitCode AwaitEnd(Client& client, const std::string& name) {
  v1::GetEngineRequest request;
  request.set_name(name);
  Progress progress;
  v1::Engine engine;
  for (int in_vain = 0;;) {
    const grpc::Status status = client.TryCall(&Stub::GetEngine, request, engine);
    if (!status.ok()) {
      if (status.error_code() != grpc::StatusCode::UNAVAILABLE || ++in_vain >= kLooksInVainMax)
        return client.Say(status);
    } else {
      in_vain = 0;
      if (client.format() == Format::kTable) Print(progress.Tell(engine.status().upgrade()));
      if (engine.status().upgrade().state() != v1::UPGRADE_STATE_RUNNING) break;
    }
    std::this_thread::sleep_for(kLook);
  }
  if (client.format() != Format::kTable) client.Show(engine, [] { return std::string(); });
  return CodeOf(engine);
}

ExitCode UpgradeAll(Client& client, const UpgradeArguments& arguments) {
  v1::UpgradeEngineRequest request;
  request.set_name(FullName("engines/", arguments.id));
  request.set_to(FullName("engines/", arguments.to));
  request.mutable_drain_timeout()->set_seconds(arguments.drain_s);
  request.set_dry_run(arguments.dry_run);
  v1::UpgradeEngineResponse plan;
  if (const ExitCode code = client.Call(&Stub::UpgradeEngine, request, plan); code != kOk) return code;
  if (arguments.dry_run) {
    ShowPlan(client, request, plan);
    return kOk;
  }
  if (arguments.no_wait) {
    client.Show(plan, [&] {
      return fmt::format(
          "{} controllers are being moved to {} (cleatctl engine get {} shows how far it is)\n",
          plan.controllers_size(), IdText(request.to()), IdText(request.name()));
    });
    return kOk;
  }
  return AwaitEnd(client, request.name());
}

ExitCode CancelAll(Client& client, const UpgradeArguments& arguments) {
  v1::CancelUpgradeRequest request;
  request.set_name(FullName("engines/", arguments.id));
  v1::Engine engine;
  if (const ExitCode code = client.Call(&Stub::CancelUpgrade, request, engine); code != kOk) return code;
  return ShowOne(client, engine, Detail::kLine);
}

}  // namespace

void AddUpgradeCommands(CLI::App& engine, Globals& globals) {
  constexpr int kDrainMaxS = 3600;
  const auto arguments = std::make_shared<UpgradeArguments>();
  CLI::App* upgrade =
      AddCommand(engine, "upgrade", "Move all controllers of an engine to another one, under their guests",
                 "cleatctl engine upgrade engine-0 --to engine-1 --dry-run\n"
                 "cleatctl engine upgrade engine-0 --to engine-1\n"
                 "cleatctl engine upgrade engine-1 --to engine-0     and back\n"
                 "What can't be moved stays where it is and is named; the exit code is 1 then, and the\n"
                 "same command tries the rest again.");
  upgrade->add_option(kEngineArgument, arguments->id, "NAME or engines/NAME, which is emptied")->required();
  upgrade->add_option("--to", arguments->to, "The engine that gets the controllers")
      ->required()
      ->type_name(kEngineArgument);
  upgrade
      ->add_option(
          "--drain-seconds", arguments->drain_s,
          "How long each controller's requests in flight may take to end, before it stays; 10 by default")
      ->check(CLI::Range(1, kDrainMaxS))
      ->type_name("N");
  upgrade->add_flag("--dry-run", arguments->dry_run,
                    "Only say what would be moved, and what stands in the way");
  upgrade->add_flag("--no-wait", arguments->no_wait, "Don't wait for the end");
  OnRun(*upgrade, globals, arguments, UpgradeAll);

  CLI::App* cancel =
      AddCommand(engine, "cancel-upgrade", "Leave the controllers that have not been moved where they are",
                 "cleatctl engine cancel-upgrade engine-0");
  cancel->add_option(kEngineArgument, arguments->id, "NAME or engines/NAME, which is being emptied")
      ->required();
  OnRun(*cancel, globals, arguments, CancelAll);
}

}  // namespace cleat::ctl
