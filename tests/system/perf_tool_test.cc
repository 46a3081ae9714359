// SPDX-License-Identifier: Apache-2.0
// cleat-perf as people and scripts run it, against a real cleatd and cleat-engine: its exit status, what it prints, and
// the JSON that it writes.
#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "base/unique_fd.h"
#include "expect_ok.h"
#include "host.h"
#include "perf/vhost_user/deadline.h"
#include "tests/support/paths.h"

namespace cleat::system_test::perf_tool_test {
namespace {

using Json = nlohmann::json;
constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr const char* kController = "guest";
constexpr int kLookMs = 20;  // no event tells that a counter has changed

struct Outcome {
  int status = -1;  // exit status
  std::string out;
  std::string err;
};

uint64_t CountWritten(Host& host, const std::string& id) {
  v1::GetStatsRequest request;
  request.set_name("disks/" + id);
  v1::GetStatsResponse stats;
  grpc::ClientContext context;
  EXPECT_OK(host.api().stub().GetStats(&context, request, &stats));
  uint64_t count = 0;
  for (const v1::DiskStats& disk : stats.disks()) {
    for (const v1::OperationStats& operation : disk.operations()) {
      if (operation.operation() == "write") count += operation.count();
    }
  }
  return count;
}

// Until a write to the disk was counted beside so many: a controller is READY before the load on it has begun.
bool WaitWritten(Host& host, const std::string& id, uint64_t before = 0) {
  const perf::Deadline deadline(kWaitTimeoutNs);
  for (; !deadline.passed(); poll(nullptr, 0, kLookMs)) {
    if (CountWritten(host, id) > before) return true;
  }
  return false;
}

struct PerfTool : testing::Test {
  void SetUp() override { ASSERT_TRUE(host.ok()); }

  // Runs it to its end; a hanging one is ended, with a status of its own. Who wants to end it gets its process in a file.
  Outcome Run(const std::string& arguments, const std::string& pid_path = "/dev/null") const {
    const std::string err_path = host.Path(fmt::format("perf-{}.err", ++runs));
    const std::string line = fmt::format("exec timeout 200 sh -c 'echo $$ >{}; exec {} \"$@\"' sh {} 2>{}",
                                         pid_path, test::Program("cleat-perf"), arguments, err_path);
    Outcome outcome;
    FILE* pipe = popen(line.c_str(), "r");  // NOLINT(cert-env33-c): our own arguments
    if (pipe == nullptr) return outcome;
    char buffer[4096];
    for (size_t count = 0; (count = fread(buffer, 1, sizeof buffer, pipe)) > 0;)
      outcome.out.append(buffer, count);
    const int status = pclose(pipe);
    if (WIFEXITED(status)) outcome.status = WEXITSTATUS(status);
    outcome.err = ReadTextFile(err_path);
    return outcome;
  }
  Outcome RunOn(const std::string& id, const std::string& arguments,
                const std::string& pid_path = "/dev/null") const {
    return Run(fmt::format("run --listen {} {}", host.SocketPath(id), arguments), pid_path);
  }
  static Json ResultOf(const Outcome& outcome) {
    const Json json = Json::parse(outcome.out, nullptr, false);
    EXPECT_TRUE(json.is_object()) << outcome.out << outcome.err;
    return json.is_object() ? json.value("result", Json::object()) : Json::object();
  }

  Host host;
  mutable int runs = 0;
};

TEST_F(PerfTool, ClosedLoopOnBlk) {
  ASSERT_TRUE(host.AttachNew("d", MemoryDisk(64 * kMiB), 2));
  for (const std::string how :
       {"--queues 2 --depth 16", "--wait call --depth 4 --segments 4", "--packed --pattern zipf",
        "--no-indirect --pattern sequential --block-size 64k"}) {
    const Outcome outcome =
        RunOn("d", how + " --mix read=60,write=30,flush=2,discard=4,zeroes=4 --requests 5000 --json -");
    ASSERT_EQ(outcome.status, 0) << how << outcome.err;
    const Json result = ResultOf(outcome);
    EXPECT_EQ(result["requests"], 5000) << how;
    EXPECT_EQ(result["errors"], 0) << how << result["first_error"];
    EXPECT_EQ(result["operations"].size(), 5U);
    EXPECT_GT(result["latency_ns"]["p99.9999"], 0);
    EXPECT_LE(result["latency_ns"]["p50"], result["latency_ns"]["max"]);
  }
}

TEST_F(PerfTool, OpenLoopOnBlkSendsWhatIsDue) {
  ASSERT_TRUE(host.AttachNew("d", NullDisk(64 * kMiB)));
  for (const std::string how : {"--wait poll", "--wait call"}) {
    const Outcome outcome = RunOn("d", how + " --rate 2000 --time 0.5 --warmup 0.1 --depth 32 --json -");
    ASSERT_EQ(outcome.status, 0) << outcome.err;
    const Json result = ResultOf(outcome);
    // What falls on the very ends of the window may or may not be in it.
    EXPECT_NEAR(result["requests"].get<double>() + result["unsent"].get<double>(), 1000, 2) << how;
  }
}

TEST_F(PerfTool, ScsiFindsTheDisksAndUsesThemAll) {
  ASSERT_OK(host.api().CreateController(kController, ScsiController(host.SocketPath(kController), 2)));
  for (const char* id : {"a", "b", "c"}) {
    ASSERT_OK(host.api().CreateDisk(id, MemoryDisk(8 * kMiB)));
    ASSERT_OK(host.api().Attach(kController, id));
  }
  ASSERT_TRUE(host.api().WaitUntil([](const Model& model) {
    for (const char* id : {"a", "b", "c"}) {
      if (model.AttachmentStateOf(kController, id) != v1::ATTACHMENT_STATE_READY) return false;
    }
    return true;
  }));
  const std::string mix = "--type scsi --mix read=40,write=40,flush=5,zeroes=15 --requests 6000 --json -";
  for (const std::string how :
       {"--queues 2 --depth 8 --verify", "--rate 10000 --depth 8", "--wait call --packed"}) {
    const Outcome outcome = RunOn(kController, fmt::format("{} {}", how, mix));
    ASSERT_EQ(outcome.status, 0) << how << outcome.err << outcome.out;
    const Json result = ResultOf(outcome);
    EXPECT_EQ(result["disks"], 3);
    EXPECT_EQ(result["requests"], 6000);
    EXPECT_EQ(result["faults"], 0) << result["first_fault"];
  }
  const Outcome one = RunOn(
      kController, "--targets 1 --mix discard=50,read=50 " + mix.substr(0, 11) + " --requests 500 --json -");
  ASSERT_EQ(one.status, 0) << one.err << one.out;
  EXPECT_EQ(ResultOf(one)["disks"], 1);
  const Outcome nobody = RunOn(kController, "--type scsi --targets 6 --requests 10");
  EXPECT_EQ(nobody.status, 1);
  EXPECT_NE(nobody.err.find("target 6"), std::string::npos) << nobody.err;
}

TEST_F(PerfTool, ManyDevicesByAPattern) {
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(host.AttachNew(fmt::format("d{}", i), NullDisk(64 * kMiB)));
  const std::string sockets = fmt::format("run --listen '{}' --devices 0-3", host.Path("d{}.sock"));
  Outcome outcome = Run(sockets + " --requests 1000 --json -");
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_EQ(ResultOf(outcome)["devices"], 4);
  EXPECT_EQ(ResultOf(outcome)["requests"], 1000);
  outcome = Run(sockets + " --active 1 --requests 100 --json -");
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_EQ(ResultOf(outcome)["devices"], 1);
}

TEST_F(PerfTool, VerificationFindsWhatSomebodyElseWrote) {
  const std::string path = host.Path("disk.img");
  ASSERT_TRUE(host.AttachNew("d", FileDisk(kMiB, path)));
  const std::string load = "--mix read=20,write=80 --verify --depth 4 --requests 2000 --json -";
  Outcome outcome = RunOn("d", load);
  ASSERT_EQ(outcome.status, 0) << outcome.err << outcome.out;
  EXPECT_EQ(ResultOf(outcome)["faults"], 0);
  EXPECT_GE(ResultOf(outcome)["verified_blocks"], 200);

  std::atomic<bool> over{false};
  std::thread vandal([&] {
    const UniqueFd file(open(path.c_str(), O_WRONLY | O_CLOEXEC));
    const std::vector<uint8_t> garbage(512, 0x5a);
    while (!over) {
      for (const off_t at : {4096 * 3, 4096 * 100 + 512}) {
        if (pwrite(file.get(), garbage.data(), garbage.size(), at) != 512) return;
      }
    }
  });
  outcome = RunOn("d", load);
  over = true;
  vandal.join();
  EXPECT_EQ(outcome.status, 2) << outcome.err << outcome.out;
  const Json result = ResultOf(outcome);
  EXPECT_GE(result["faults"], 1);
  EXPECT_NE(result["first_fault"].get<std::string>().find("corrupt"), std::string::npos)
      << result["first_fault"];
}

TEST_F(PerfTool, VerificationFindsThatNothingIsStored) {
  ASSERT_TRUE(host.AttachNew("d", NullDisk(kMiB)));
  const Outcome outcome = RunOn("d", "--read-percent 0 --verify --requests 100");
  EXPECT_EQ(outcome.status, 2) << outcome.err;
  EXPECT_NE(outcome.out.find("lost"), std::string::npos) << outcome.out;
}

TEST_F(PerfTool, ProgressGoesToStandardErrorAndTheResultToFiles) {
  ASSERT_TRUE(host.AttachNew("d", NullDisk(64 * kMiB)));
  const std::string json = host.Path("a.json");
  const std::string histogram = host.Path("a.txt");
  Outcome outcome;
  // It is said once a second, by a thread that may get no processor in that second.
  for (const char* seconds : {"1.2", "5", "25"}) {
    outcome =
        RunOn("d", fmt::format("--time {} --progress --json {} --histogram {}", seconds, json, histogram));
    ASSERT_EQ(outcome.status, 0) << outcome.err;
    if (outcome.err.find("iops") != std::string::npos) break;
  }
  EXPECT_NE(outcome.err.find("iops"), std::string::npos) << outcome.err;
  EXPECT_NE(outcome.out.find("latency"), std::string::npos) << outcome.out;
  const Json file = Json::parse(ReadTextFile(json), nullptr, false);
  EXPECT_EQ(file["version"], 1);
  EXPECT_EQ(file["options"]["block_bytes"], 4096);
  EXPECT_EQ(ReadTextFile(histogram).rfind("# latency_ns count cumulative\n", 0), 0U);
  EXPECT_NE(ReadTextFile(histogram).find(" 1.000000000\n"), std::string::npos);

  // Standard error is no terminal here, so nothing is said without being asked for.
  outcome = RunOn("d", "--requests 100");
  EXPECT_EQ(outcome.status, 0);
  EXPECT_EQ(outcome.err, "");

  outcome = Run(fmt::format("compare {} {}", json, json));
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("latency_ns.p99.9"), std::string::npos) << outcome.out;
  EXPECT_NE(outcome.out.find("1.000"), std::string::npos) << outcome.out;
}

TEST_F(PerfTool, AnEngineThatDiesIsAnError) {
  ASSERT_TRUE(host.AttachNew("d", NullDisk(64 * kMiB)));
  Outcome outcome;
  std::thread run([&] { outcome = RunOn("d", "--time 60 --depth 4"); });
  Model last;
  const bool connected = host.api().WaitUntil(
      [](const Model& model) { return model.ControllerStateOf("d") == v1::CONTROLLER_STATE_READY; }, &last);
  EXPECT_TRUE(connected) << last.ToString();
  host.KillEngine();
  run.join();
  EXPECT_EQ(outcome.status, 1) << outcome.out;
  EXPECT_NE(outcome.err.find("closed the connection"), std::string::npos) << outcome.err;
}

TEST_F(PerfTool, WithReconnectionALoadOutlivesTheEngine) {
  for (const std::string how : {"--depth 8", "--packed --wait call --rate 5000 --depth 8"}) {
    const std::string id = how == "--depth 8" ? "d1" : "d2";
    ASSERT_TRUE(host.AttachNew(id, MemoryDisk(8 * kMiB)));
    Outcome outcome;
    // Ended by a signal, when there was work with the second engine.
    const std::string pid_path = host.Path(id + ".pid");
    std::thread run([&] {
      outcome = RunOn(id, how + " --reconnect --mix read=50,write=50 --verify --time 90 --json -", pid_path);
    });
    Model last;
    EXPECT_TRUE(host.api().WaitUntil(
        [&](const Model& model) { return model.ControllerStateOf(id) == v1::CONTROLLER_STATE_READY; }, &last))
        << last.ToString();
    EXPECT_TRUE(WaitWritten(host, id));
    host.RestartEngine();
    // Once may be the first engine's, which cleatd adds.
    for (int i = 0; i < 2; ++i) EXPECT_TRUE(WaitWritten(host, id, CountWritten(host, id)));
    EXPECT_EQ(kill(std::stoi(ReadTextFile(pid_path)), SIGINT), 0);
    run.join();
    EXPECT_EQ(outcome.status, 0) << how << outcome.err << outcome.out;
    const Json result = ResultOf(outcome);
    EXPECT_GE(result["reconnects"], 1) << how;
    EXPECT_EQ(result["faults"], 0) << how << result["first_fault"];
    EXPECT_EQ(result["errors"], 0) << how << result["first_error"];
  }
}

TEST_F(PerfTool, RingLoopGivesItsNames) {
  const Outcome outcome = Run("ring-loop --depths 1,8 --time 0.05 --json -");
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const Json result = ResultOf(outcome);
  for (const char* name : {"split_qd1", "split_qd8", "packed_qd1", "packed_qd8"}) {
    ASSERT_TRUE(result.contains(name)) << name;
    EXPECT_GT(result[name]["ns_per_request"], 0);
    EXPECT_EQ(result[name]["errors"], 0);
  }
}

TEST_F(PerfTool, CopyLoopGivesItsNames) {
  const Outcome outcome = Run("copy-loop --disk 1M --depth 4 --time 0.05 --json -");
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  for (const char* name : {"ns_per_copy", "copied_blocks"}) EXPECT_GT(ResultOf(outcome)[name], 0) << name;
}

TEST_F(PerfTool, WrongCommandLinesSayWhatIsWrong) {
  struct Wrong {
    std::string arguments;
    std::string says;
  };
  const std::string socket = "--listen " + host.Path("x.sock");
  for (const Wrong& wrong : {
           Wrong{"", "subcommand"},
           Wrong{"run", "no socket"},
           Wrong{"run --listen /tmp/a{}.sock", "--devices"},
           Wrong{"run --devices 0-3 " + socket, "{}"},
           Wrong{"run --block-size 4x " + socket, "no size"},
           Wrong{"run --block-size 1000 " + socket, "multiple"},
           Wrong{"run --mix read=50 " + socket, "50 percent"},
           Wrong{"run --pattern backwards " + socket, "backwards"},
           Wrong{"run --targets 0 " + socket, "--type scsi"},
           Wrong{"run --cores 1-0 " + socket, "list"},
           Wrong{"run --cores 1000 " + socket, "--cores"},
           Wrong{"run --rate -5 " + socket, "rate"},
           Wrong{"run --depth 0 " + socket, "depth"},
           Wrong{"run --timeout 0.2 --requests 1 " + socket, "0 of 1 back ends"},
           Wrong{"run --timeout 0.2 --requests 1 --connect " + host.Path("nobody.sock"), "nobody.sock"},
           Wrong{"compare /nonexistent /nonexistent", "/nonexistent"},
           Wrong{"ring-loop --cores 1", "two"},
           Wrong{"copy-loop --disk 2k", "whole pages"},
       }) {
    const Outcome outcome = Run(wrong.arguments);
    EXPECT_EQ(outcome.status, 1) << wrong.arguments;
    EXPECT_NE(outcome.err.find(wrong.says), std::string::npos) << wrong.arguments << ": " << outcome.err;
  }
  for (const std::string command : {"", "run", "ring-loop", "copy-loop", "compare"}) {
    const Outcome help = Run(command + " --help");
    EXPECT_EQ(help.status, 0);
    EXPECT_NE(help.out.find("Exit status"), std::string::npos) << command;
  }
}

}  // namespace
}  // namespace cleat::system_test::perf_tool_test
