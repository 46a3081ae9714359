// SPDX-License-Identifier: Apache-2.0
// stats, top, slow: what the engines have counted. With --engine from the engine's own memory, when cleatd is down.
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <ctime>
#include <limits>
#include <optional>

#include "ctl/commands.h"
#include "ctl/engine_counters.h"
#include "ctl/top.h"
#include "stats/slow_request.h"

namespace cleat::ctl {
namespace {

using Stub = v1::Cleat::Stub;

constexpr int kSlowDefault = 20;
constexpr int kSlowMax = 1024;  // cleatd keeps no more

struct StatsArguments {
  std::string name;
  int engine_pid = 0;  // 0: from cleatd
  bool histograms = false;
};

struct TopArguments {
  StatsArguments stats;
  std::string sort = "iops";
  int interval_s = 1;
  int count = 0;  // 0: until interrupted
  bool once = false;
  bool all = false;
};

struct SlowArguments {
  std::string name;
  int limit = kSlowDefault;
};

// Where the counters come from; the same over all of a command's answers.
class Source {
 public:
  Source(Client& client, const StatsArguments& arguments) : client_(client), arguments_(arguments) {}

  [[nodiscard]] ExitCode Get(bool histograms, v1::GetStatsResponse& all) {
    all.Clear();
    if (arguments_.engine_pid != 0) return GetFromEngine(histograms, all);
    v1::GetStatsRequest request;
    request.set_histograms(histograms);
    request.set_name(name_.value_or(FirstGuess()));
    for (;;) {
      v1::GetStatsResponse page;
      const grpc::Status status = client_.TryCall(&Stub::GetStats, request, page);
      // An id alone: of a disk, or else of a controller.
      if (status.error_code() == grpc::StatusCode::NOT_FOUND && !name_ && request.name() != arguments_.name) {
        request.set_name("controllers/" + arguments_.name);
        name_ = request.name();
        continue;
      }
      if (const ExitCode code = client_.Say(status); code != kOk) return code;
      name_ = request.name();
      request.set_page_token(page.next_page_token());
      page.clear_next_page_token();
      // Each page has all engines.
      if (all.engines_size() > 0) page.clear_engines();
      if (all.time_ns() != 0) page.set_time_ns(all.time_ns());
      all.MergeFrom(page);
      if (request.page_token().empty()) return kOk;
    }
  }

 private:
  std::string FirstGuess() const {
    const bool full = arguments_.name.empty() || arguments_.name.find('/') != std::string::npos;
    return full ? arguments_.name : "disks/" + arguments_.name;
  }
  ExitCode GetFromEngine(bool histograms, v1::GetStatsResponse& all) {
    if (!reader_) {
      auto reader = OpenCountersOf(arguments_.engine_pid);
      if (!reader.ok()) {
        const bool wrong = reader.error().code == ErrorCode::kNotFound;
        return Fail(wrong ? kUsage : kFailed, reader.error().message);
      }
      reader_ = std::move(*reader);
    }
    all = StatsOf(*reader_, arguments_.name, histograms);
    if (all.disks_size() > 0 || arguments_.name.empty()) return kOk;
    return Fail(kFailed, fmt::format("engines/{} serves no '{}'", reader_->engine(), arguments_.name));
  }

  Client& client_;
  const StatsArguments& arguments_;
  std::optional<std::string> name_;  // that was found
  std::unique_ptr<observe::SegmentReader> reader_;
};

std::string TimeOf(uint64_t ns) {
  return ns == 0 ? std::string() : stats::TimeInWords(ns);
}

std::string CountersTable(const v1::GetStatsResponse& response) {
  Table table({{"DISK"},
               {"CONTROLLER"},
               {"TARGET"},
               {"OPERATION"},
               {"COUNT"},
               {"BYTES"},
               {"ERRORS"},
               {"IN FLIGHT"},
               {"OLDEST"},
               {"STAGE"}});
  for (const v1::DiskStats& disk : response.disks()) {
    const std::string name(IdOf(disk.disk()));
    const std::string controller(IdOf(disk.controller()));
    const std::string target = std::to_string(disk.target());
    // What is in flight stands in the disk's first line.
    std::string in_flight = std::to_string(disk.in_flight());
    std::string oldest = TimeOf(disk.oldest().age_ns());
    std::string stage = disk.oldest().stage() + (disk.stuck() ? " STUCK" : "");
    for (const v1::OperationStats& operation : disk.operations()) {
      table.Add({name, controller, target, operation.operation(), std::to_string(operation.count()),
                 std::to_string(operation.bytes()), std::to_string(operation.errors()),
                 std::exchange(in_flight, {}), std::exchange(oldest, {}), std::exchange(stage, {})});
    }
    if (disk.operations().empty()) {
      table.Add({name, controller, target, "none", "0", "0", "0", in_flight, oldest, stage});
    }
  }
  return table.Rows();
}

std::string HistogramsTable(const v1::GetStatsResponse& response) {
  Table table({{"DISK"},
               {"CONTROLLER"},
               {"TARGET"},
               {"OPERATION"},
               {"STAGE"},
               {"COUNT"},
               {"MEAN"},
               {"P50"},
               {"P90"},
               {"P99"},
               {"P99.9"},
               {"MAX"}});
  for (const v1::DiskStats& disk : response.disks()) {
    for (const v1::OperationStats& operation : disk.operations()) {
      for (const v1::StageStats& stage : operation.stages()) {
        const auto time = [](uint64_t ns) { return stats::TimeInWords(ns); };
        table.Add({std::string(IdOf(disk.disk())), std::string(IdOf(disk.controller())),
                   std::to_string(disk.target()), operation.operation(), stage.stage(),
                   std::to_string(stage.count()), time(stage.sum_ns() / std::max<uint64_t>(1, stage.count())),
                   time(stage.p50_ns()), time(stage.p90_ns()), time(stage.p99_ns()), time(stage.p999_ns()),
                   time(stage.max_ns())});
      }
    }
  }
  return table.Rows();
}

// To standard error: what is missing is no part of the table.
void SayWhatIsMissing(const v1::GetStatsResponse& response) {
  for (const v1::EngineStats& engine : response.engines()) {
    if (!engine.message().empty())
      Fail(kOk, fmt::format("{} has no counters: {}", engine.engine(), engine.message()));
  }
}

ExitCode Stats(Client& client, const StatsArguments& arguments) {
  v1::GetStatsResponse response;
  if (const ExitCode code = Source(client, arguments).Get(arguments.histograms, response); code != kOk)
    return code;
  SayWhatIsMissing(response);
  client.Show(response,
              [&] { return arguments.histograms ? HistogramsTable(response) : CountersTable(response); });
  return kOk;
}

TopOrder OrderOf(const std::string& name) {
  if (name == "bytes") return TopOrder::kBytes;
  if (name == "latency") return TopOrder::kLatency;
  if (name == "inflight") return TopOrder::kInFlight;
  return name == "oldest" ? TopOrder::kOldest : TopOrder::kIops;
}

// Of the terminal; 0: it is none.
size_t TerminalLines() {
  winsize size{};
  if (isatty(STDOUT_FILENO) == 0 || ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0) return 0;
  return size.ws_row;
}

// Each line over the one that was there, and nothing below the last.
std::string OnScreen(const std::string& text) {
  std::string screen = "\x1b[H";
  for (const char c : text) screen += c == '\n' ? std::string("\x1b[K\n") : std::string(1, c);
  return screen + "\x1b[J";
}

void ShowTop(const Client& client, const TopArguments& arguments, const std::vector<TopRow>& rows,
             bool first) {
  if (client.format() == Format::kJson) return Print(ToJson(TopMessage(rows, arguments.all), false));
  if (client.format() == Format::kYaml) return Print("---\n" + ToYaml(TopMessage(rows, arguments.all)));
  const size_t lines = TerminalLines();
  if (lines == 0 || arguments.once) {
    const size_t all = std::numeric_limits<size_t>::max();
    return Print((first ? "" : "\n") + TopText(rows, arguments.all, all));
  }
  // The last line stays free, for the cursor.
  Print((first ? "\x1b[2J" : "") + OnScreen(TopText(rows, arguments.all, lines - 1)));
}

ExitCode Top(Client& client, const TopArguments& arguments) {
  if (!arguments.once) EndWithReader();
  Source source(client, arguments.stats);
  v1::GetStatsResponse before;
  if (const ExitCode code = source.Get(true, before); code != kOk) return code;
  SayWhatIsMissing(before);
  const int count = arguments.once ? 1 : arguments.count;
  for (int i = 0; count == 0 || i < count; ++i) {
    poll(nullptr, 0, arguments.interval_s * 1000);
    v1::GetStatsResponse now;
    if (const ExitCode code = source.Get(true, now); code != kOk) return code;
    ShowTop(client, arguments, TopRows(before, now, OrderOf(arguments.sort)), i == 0);
    before = std::move(now);
  }
  return kOk;
}

tm LocalTime(const google::protobuf::Timestamp& time) {
  tm local{};
  const time_t seconds = time.seconds();
  localtime_r(&seconds, &local);
  return local;
}

std::string StuckTable(const v1::ListSlowRequestsResponse& response) {
  constexpr std::string_view kPrefix = "STUCK_REASON_";
  Table table({{"DISK"}, {"CONTROLLER"}, {"SINCE"}, {"WAITING"}, {"STUCK BY"}, {"NEXT STEP"}, {"MESSAGE"}});
  for (const v1::StuckAttachment& stuck : response.stuck()) {
    std::string reason = v1::StuckReason_Name(stuck.reason());
    if (reason.starts_with(kPrefix)) reason.erase(0, kPrefix.size());
    table.Add({std::string(IdOf(stuck.disk())), std::string(IdOf(stuck.controller())),
               stuck.has_since() ? fmt::format("{:%Y-%m-%dT%H:%M:%S}", LocalTime(stuck.since())) : "",
               std::to_string(stuck.waiting()), reason, stuck.next_step(), stuck.message()});
  }
  return table.Rows();
}

std::string SlowTable(const v1::ListSlowRequestsResponse& response) {
  Table table({{"TIME"}, {"DISK"}, {"CONTROLLER"}, {"REQUEST"}, {"AGE"}, {"STATE"}, {"STAGES"}});
  for (const v1::SlowRequest& request : response.requests()) {
    std::string stages;
    for (const v1::StageDuration& stage : request.stages()) {
      stages += fmt::format("{}{} {}", stages.empty() ? "" : ", ", stage.stage(),
                            stats::TimeInWords(stage.duration_ns()));
    }
    table.Add({fmt::format("{:%Y-%m-%dT%H:%M:%S}.{:03}", LocalTime(request.time()),
                           request.time().nanos() / 1'000'000),
               std::string(IdOf(request.disk())), std::string(IdOf(request.controller())),
               stats::RequestInWords(request.operation(), request.length_bytes(), request.offset_bytes()),
               stats::TimeInWords(request.age_ns()),
               !request.ended() ? "in flight" : (request.failed() ? "failed" : "ended"), stages});
  }
  return table.Rows();
}

ExitCode Slow(Client& client, const SlowArguments& arguments) {
  v1::ListSlowRequestsRequest request;
  const bool full = arguments.name.empty() || arguments.name.find('/') != std::string::npos;
  request.set_name(full ? arguments.name : "disks/" + arguments.name);
  request.set_limit(arguments.limit);
  v1::ListSlowRequestsResponse response;
  grpc::Status status = client.TryCall(&Stub::ListSlowRequests, request, response);
  if (!full && status.error_code() == grpc::StatusCode::NOT_FOUND) {
    request.set_name("controllers/" + arguments.name);
    status = client.TryCall(&Stub::ListSlowRequests, request, response);
  }
  if (const ExitCode code = client.Say(status); code != kOk) return code;
  client.Show(response, [&] {
    return response.stuck().empty() ? SlowTable(response) : StuckTable(response) + "\n" + SlowTable(response);
  });
  if (response.stuck_left_out() > 0) {
    Fail(kOk,
         fmt::format("{} more are stuck: name a disk, a controller or an engine", response.stuck_left_out()));
  }
  return kOk;
}

void AddSource(CLI::App& command, StatsArguments& arguments) {
  command.add_option(kNameArgument, arguments.name,
                     "Only of a disk or controller: its id, or disks/ID, controllers/ID");
  command
      .add_option("--engine", arguments.engine_pid,
                  "Read the memory of the cleat-engine with this process id: works without cleatd")
      ->check(CLI::PositiveNumber)
      ->type_name("PID");
}

}  // namespace

void AddStatsCommands(CLI::App& app, Globals& globals) {
  const auto stats_arguments = std::make_shared<StatsArguments>();
  CLI::App* stats = AddCommand(app, "stats", "Show what was counted of each disk since its attach",
                               "cleatctl stats root\n"
                               "cleatctl stats root --histograms    how long each stage takes\n"
                               "cleatctl stats --engine $(pgrep cleat-engine)");
  AddSource(*stats, *stats_arguments);
  stats->add_flag("--histograms", stats_arguments->histograms, "Percentiles of each operation and stage");
  OnRun(*stats, globals, stats_arguments, Stats);

  const auto top_arguments = std::make_shared<TopArguments>();
  CLI::App* top =
      AddCommand(app, "top", "Show which disks are busy, which are slow, and in which stage, live",
                 "cleatctl top --sort latency\n"
                 "cleatctl top --once --all    every disk, measured over one second\n"
                 "cleatctl top --engine $(pgrep cleat-engine)");
  AddSource(*top, top_arguments->stats);
  top->add_option("--sort", top_arguments->sort,
                  "What comes first: most iops, bytes, latency, inflight, or the oldest")
      ->check(CLI::IsMember({"iops", "bytes", "latency", "inflight", "oldest"}))
      ->capture_default_str();
  AddTime(*top, "--interval", top_arguments->interval_s, "How often it looks: 1 (second), 10, 1m")
      ->capture_default_str();
  top->add_option("-n,--count", top_arguments->count, "Ends after so many; otherwise when it is interrupted")
      ->check(CLI::PositiveNumber)
      ->type_name("COUNT");
  top->add_flag("--once", top_arguments->once, "One look, all lines, no screen");
  top->add_flag("--all", top_arguments->all, "Also disks that do nothing");
  OnRun(*top, globals, top_arguments, Top);

  const auto slow_arguments = std::make_shared<SlowArguments>();
  CLI::App* slow = AddCommand(
      app, "slow", "Show what is stuck at its storage, why and what to do, and the last slow requests",
      "cleatctl slow\n"
      "cleatctl slow root --limit 100    with the time that each stage took");
  slow->add_option(kNameArgument, slow_arguments->name,
                   "Only of a disk, controller or engine: an id of the first two, or disks/ID, "
                   "controllers/ID, engines/NAME");
  slow->add_option("--limit", slow_arguments->limit, "How many slow requests at most")
      ->check(CLI::Range(1, kSlowMax))
      ->capture_default_str();
  OnRun(*slow, globals, slow_arguments, Slow);
}

}  // namespace cleat::ctl
