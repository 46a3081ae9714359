// SPDX-License-Identifier: Apache-2.0
#include "host.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <utility>

#include "base/check.h"
#include "ctl/engine_counters.h"
#include "perf/vhost_user/deadline.h"

namespace cleat::system_test {
namespace {

constexpr int kProcPollMs = 10;
constexpr size_t kLogTailBytes = 6000;

std::string MakeDirectory(bool for_nobody) {
  std::string path = std::filesystem::temp_directory_path() / "cleat-XXXXXX";
  CLEAT_CHECK(mkdtemp(path.data()) != nullptr);
  if (for_nobody) CLEAT_CHECK(chown(path.c_str(), kNobody, kNobody) == 0);
  return path;
}

std::string Tail(const std::string& text) {
  return text.size() <= kLogTailBytes ? text : "..." + text.substr(text.size() - kLogTailBytes);
}

bool WaitLine(std::string_view text, uint64_t timeout_ns, const std::function<std::string()>& log) {
  const perf::Deadline deadline(timeout_ns);
  while (log().find(text) == std::string::npos) {
    if (deadline.passed()) return false;
    poll(nullptr, 0, kProcPollMs);  // no event says that another process has written a line
  }
  return true;
}

}  // namespace

Host::Host(const HostOptions& options)
    : options_(options),
      as_nobody_(options.as_nobody && geteuid() == 0),
      directory_(MakeDirectory(as_nobody_)),
      cleatd_product_(options.cleatd) {
  api_ = std::make_unique<Api>(address());
  StartCleatd();
  if (options_.with_engine) StartEngine();
  ok_ = options_.with_engine ? WaitEngine() : api_->List().ok();
  EXPECT_TRUE(ok_) << "cleatd and cleat-engine did not come up";
}

Host::~Host() {
  api_.reset();  // cleatd waits a little for clients to hang up
  // The engine first: it is to drain and to have nothing left.
  std::vector<std::string> names{"cleatd", "cleat-engine"};
  for (auto& [id, process] : more_engines_) {
    End(&process, id);
    names.push_back(id);
  }
  End(&engine_, "cleat-engine");
  End(&cleatd_, "cleatd");
  for (const std::string& name : names) CheckLog(name);
  if (testing::Test::HasFailure()) {
    for (const std::string& name : names) {
      fmt::print(stderr, "---- end of {}.log\n{}----\n", name,
                 Tail(ReadTextFile(Path(fmt::format("{}.log", name)))));
    }
  }
  if (std::getenv("CLEAT_TEST_KEEP") !=
      nullptr) {  // NOLINT(concurrency-mt-unsafe): nobody writes the environment
    fmt::print(stderr, "kept: {}\n", directory_);
  } else {
    std::error_code ignored;
    std::filesystem::remove_all(directory_, ignored);
  }
}

void Host::End(std::unique_ptr<Process>* process, const std::string& name) {
  if (*process == nullptr || (*process)->wait_status() >= 0) return;  // never there, or killed by the test
  if (!(*process)->Running()) {
    ADD_FAILURE() << name << " ended by itself, wait status " << (*process)->wait_status();
    return;
  }
  const Result<int> ended = (*process)->Terminate(kWaitTimeoutNs);
  if (!ended) {
    ADD_FAILURE() << name << ": " << ended.error().message;
  } else if (!WIFEXITED(*ended) || WEXITSTATUS(*ended) != 0) {
    ADD_FAILURE() << name << " did not end well, wait status " << *ended;
  }
  process->reset();
}

void Host::CheckLog(const std::string& name) const {
  const std::string log = ReadTextFile(Path(name + ".log"));
  for (const char* bad :
       {"ERROR: AddressSanitizer", "ERROR: LeakSanitizer", "runtime error:", "check failed"}) {
    const size_t at = log.find(bad);
    if (at != std::string::npos) ADD_FAILURE() << name << " reported:\n" << log.substr(at, kLogTailBytes);
  }
}

std::unique_ptr<Process> Host::Spawn(const std::string& program, const std::vector<std::string>& arguments,
                                     const std::string& log, const std::string& preload,
                                     uint64_t open_files) {
  Process::Options options;
  options.program = program;
  options.arguments = arguments;
  options.log_path = Path(log + ".log");
  options.directory = directory_;
  options.as_nobody = as_nobody_;
  options.preload = preload;
  options.open_files = open_files;
  auto process = Process::Start(options);
  if (!process) {
    ADD_FAILURE() << program << ": " << process.error().message;
    std::abort();
  }
  return std::move(*process);
}

void Host::StartCleatd() {
  // Most tests put files where they like.
  const std::string& folder = options_.listed_folder;
  std::ofstream(Path("paths.conf")) << "devices /\nsockets /\nkeys /\nfiles "
                                    << (folder.empty() ? "/" : Path(folder)) << "\n";
  std::vector<std::string> arguments{"--state-dir", Path("state"),     "--listen",
                                     address(),     "--engine-socket", Path("engine.sock"),
                                     "--log-level", options_.log_level};
  if (cleatd_product_.has_path_lists) arguments.insert(arguments.end(), {"--paths", Path("paths.conf")});
  arguments.insert(arguments.end(), options_.cleatd_arguments.begin(), options_.cleatd_arguments.end());
  cleatd_ = Spawn(cleatd_product_.Program("cleatd"), arguments, "cleatd", options_.cleatd_preload);
}

const Product& Host::EngineProduct(const std::string& id) const {
  const auto found = engine_products_.find(id);
  return found == engine_products_.end() ? options_.engine : found->second;
}

std::unique_ptr<Process> Host::SpawnEngine(const std::string& id, const std::string& log,
                                           const std::vector<std::string>& more,
                                           const std::string& control_socket) {
  std::vector<std::string> arguments{
      "--name",        id,
      "--control",     control_socket.empty() ? Path("engine.sock") : control_socket,
      "--runtime-dir", Path("run"),
      "--reactors",    std::to_string(options_.reactors),
      "--log-level",   options_.log_level};
  const Product& product = EngineProduct(id);
  if (product.has_path_lists && std::find(more.begin(), more.end(), "--paths") == more.end())
    arguments.insert(arguments.end(), {"--paths", Path("paths.conf")});
  // cleatd has made it by then. Who has the folder has the key.
  if (options_.with_keys) arguments.insert(arguments.end(), {"--kek-file", Path("state/kek")});
  if (options_.with_keys && product.has_path_lists)
    arguments.insert(arguments.end(), {"--state-dir", Path("state")});
  arguments.insert(arguments.end(), options_.engine_arguments.begin(), options_.engine_arguments.end());
  arguments.insert(arguments.end(), more.begin(), more.end());
  return Spawn(product.Program("cleat-engine"), arguments, log, options_.engine_preload,
               options_.engine_open_files);
}

void Host::StartEngine() {
  engine_ = SpawnEngine(kEngineId, "cleat-engine");
}

Process& Host::engine(const std::string& id) {
  return id == kEngineId ? *engine_ : *more_engines_.at(id);
}

void Host::StartEngine(const std::string& id) {
  if (id == kEngineId) return StartEngine();
  more_engines_.at(id) = SpawnEngine(id, id);
}

void Host::AddEngine(const std::string& id, const std::vector<std::string>& arguments,
                     const std::string& control_socket) {
  more_engines_[id] = SpawnEngine(id, id, arguments, control_socket);
  EXPECT_TRUE(WaitEngine(id)) << id << " did not find cleatd";
}

void Host::RestartCleatd() {
  KillCleatd();
  StartCleatd();
  EXPECT_TRUE(WaitEngine()) << "the engine did not find the new cleatd";
}

void Host::RestartEngine() {
  KillEngine();
  StartEngine();
  EXPECT_TRUE(WaitEngine()) << "the new engine did not find cleatd";
}

void Host::TerminateEngine() {
  End(&engine_, "cleat-engine");
}

void Host::TerminateCleatd() {
  End(&cleatd_, "cleatd");
}

bool Host::IsOfProcess(const v1::EngineStatus& status, const std::string& id) {
  // The process shows it in its counters' memory, which is there before it looks for cleatd.
  const auto counters = ctl::OpenCountersOf(engine(id).pid());
  return counters && (*counters)->incarnation() == status.incarnation();
}

bool Host::WaitEngine(const std::string& id) {
  Model last;
  const bool connected = api_->WaitUntil(
      [&](const Model& model) {
        const auto found = model.engines.find("engines/" + id);
        return found != model.engines.end() && found->second.status().connected() &&
               IsOfProcess(found->second.status(), id);
      },
      &last);
  if (!connected) fmt::print(stderr, "no engine connected; there is:\n{}", last.ToString());
  return connected;
}

bool Host::WaitStats(Process& process, const LikesStats& done, ProcessStats* last) {
  const perf::Deadline deadline(kWaitTimeoutNs);
  for (;;) {
    *last = process.Stats();
    if (done(*last)) return true;
    if (deadline.passed()) return false;
    poll(nullptr, 0, kProcPollMs);  // no event says that another process has closed something
  }
}

bool Host::WaitEngineLog(std::string_view text, uint64_t timeout_ns) {
  return WaitLine(text, timeout_ns, [this] { return engine_log(); });
}

bool Host::WaitCleatdLog(std::string_view text, uint64_t timeout_ns) {
  return WaitLine(text, timeout_ns, [this] { return cleatd_log(); });
}

std::string Host::MakeFile(const std::string& name, uint64_t size_bytes, unsigned mode) {
  std::string path = Path(name);
  const UniqueFd fd(open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, mode));
  EXPECT_TRUE(fd.valid()) << path;
  EXPECT_EQ(ftruncate(fd.get(), static_cast<off_t>(size_bytes)), 0) << path;
  GiveAway(path);
  return path;
}

void Host::GiveAway(const std::string& path) const {
  if (!as_nobody_) return;
  EXPECT_EQ(chown(path.c_str(), kNobody, kNobody), 0) << path;
}

size_t Host::CountInEngineLog(std::string_view text) const {
  const std::string log = engine_log();
  size_t count = 0;
  for (size_t at = log.find(text); at != std::string::npos; at = log.find(text, at + text.size())) ++count;
  return count;
}

bool Host::AttachNew(const std::string& id, const v1::DiskSpec& disk, uint32_t queues, v1::SocketMode mode,
                     bool read_only) {
  const auto made = api_->CreateDisk(id, disk);
  EXPECT_TRUE(made.ok()) << made.message();
  const auto controller = api_->CreateController(id, BlkController(SocketPath(id), queues, mode));
  EXPECT_TRUE(controller.ok()) << controller.message();
  const auto attached = api_->Attach(id, id, read_only);
  EXPECT_TRUE(attached.ok()) << attached.message();
  if (!made.ok() || !controller.ok() || !attached.ok()) return false;
  Model last;
  const bool ready = api_->WaitUntil(
      [&](const Model& model) { return model.AttachmentStateOf(id, id) == v1::ATTACHMENT_STATE_READY; },
      &last);
  EXPECT_TRUE(ready) << id << " did not become READY; there is:\n" << last.ToString();
  return ready;
}

bool Host::Remove(const std::string& id) {
  const auto gone = [&](const std::string& what, const std::function<bool(const Model&)>& check) {
    Model last;
    const bool done = api_->WaitUntil(check, &last);
    EXPECT_TRUE(done) << what << " " << id << " does not go away; there is:\n" << last.ToString();
    return done;
  };
  const grpc::Status detached = api_->Detach(id, id);
  EXPECT_TRUE(detached.ok()) << detached.error_message();
  if (!gone("attachment", [&](const Model& model) {
        return model.AttachmentStateOf(id, id) == v1::ATTACHMENT_STATE_UNSPECIFIED;
      })) {
    return false;
  }
  for (const grpc::Status& status : {api_->DeleteController(id), api_->DeleteDisk(id)}) {
    EXPECT_TRUE(status.ok()) << status.error_message();
  }
  return gone("controller or disk", [&](const Model& model) {
    return !model.controllers.contains("controllers/" + id) && !model.disks.contains("disks/" + id);
  });
}

bool Host::WaitController(const std::string& id, v1::ControllerState state, std::string* message) {
  Model last;
  const bool reached =
      api_->WaitUntil([&](const Model& model) { return model.ControllerStateOf(id) == state; }, &last);
  EXPECT_TRUE(reached) << id << " did not become " << v1::ControllerState_Name(state) << "; there is:\n"
                       << last.ToString();
  if (message != nullptr) *message = last.ControllerMessage(id);
  return reached;
}

}  // namespace cleat::system_test
