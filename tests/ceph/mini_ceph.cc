// SPDX-License-Identifier: Apache-2.0
#include "tests/ceph/mini_ceph.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>
#include <utility>

#include "base/check.h"
#include "tests/ceph/cluster_key.h"
#include "tests/support/paths.h"

namespace cleat::test {
namespace {

// The administrator asks for little, and a cluster that does not answer it is the end of the test.
void Demand(bool good, const std::string& what) {
  if (good) return;
  std::fprintf(stderr, "the test's cluster: %s\n", what.c_str());
  std::abort();
}

// Longer than any test.
constexpr uint32_t kBlocklistSeconds = 3600;

// Whether every thread of it is stopped by a signal.
bool StandsStill(pid_t pid) {
  std::error_code error;
  const std::filesystem::path tasks = "/proc/" + std::to_string(pid) + "/task";
  return std::all_of(std::filesystem::directory_iterator(tasks, error), std::filesystem::directory_iterator(),
                     [](const auto& task) {
                       std::ifstream file(task.path() / "stat");
                       std::string line;
                       std::getline(file, line);
                       const size_t name_end = line.rfind(')');  // the state comes two characters later
                       return name_end != std::string::npos && line.size() > name_end + 2 &&
                              line[name_end + 2] == 'T';
                     });
}

}  // namespace

MiniCeph::MiniCeph(const std::string& store) : folder_("/tmp/cleat-ceph-XXXXXX"), store_(store) {
  Demand(mkdtemp(folder_.data()) != nullptr, "no folder in /tmp");
  Script("up");
  Demand(rados_create(&admin_, "admin") == 0, "librados");
  Demand(rados_conf_read_file(admin_, conf().c_str()) == 0, "ceph.conf");
  for (const auto& [name, value] : modules::DemandedOfImage())
    rados_conf_set(admin_, name.c_str(), value.c_str());
  rados_conf_set(admin_, "client_mount_timeout", "120");
  rados_conf_set(admin_, "err_to_stderr", "false");
  Demand(rados_connect(admin_) == 0, "connecting");
  Demand(rados_ioctx_create(admin_, "rbd", &io_) == 0, "the pool");
}

MiniCeph::~MiniCeph() {
  rados_ioctx_destroy(io_);
  rados_shutdown(admin_);
  Script("down");
}

MiniCeph& MiniCeph::Shared() {
  static MiniCeph ceph;
  return ceph;
}

std::string MiniCeph::Script(const std::string& arguments) const {
  const std::string command = "STORE=" + store_ + " OWNER_PID=" + std::to_string(getpid()) + " timeout 300 " +
                              test::SourceFile("tests/ceph/mini_ceph.sh") + " " + arguments + " " + folder_;
  FILE* pipe = popen(command.c_str(), "r");
  std::string output;
  std::array<char, 256> line{};
  while (pipe != nullptr && std::fgets(line.data(), line.size(), pipe) != nullptr) output += line.data();
  Demand(pipe != nullptr && pclose(pipe) == 0, command + ": " + output);
  return output;
}

std::string MiniCeph::Monitors() const {
  std::ifstream file(conf());
  for (std::string line; std::getline(file, line);) {
    constexpr std::string_view kPrefix = "mon host = ";
    if (line.starts_with(kPrefix)) return line.substr(kPrefix.size());
  }
  return {};
}

std::string MiniCeph::Key(const std::string& user) const {
  std::ifstream file(folder_ + "/client." + user + ".keyring");
  std::string word;
  while (file >> word && word != "key") {
  }
  file >> word >> word;
  return word;
}

std::shared_ptr<modules::ClusterOptions> MiniCeph::Cluster(const std::string& name) const {
  auto cluster = std::make_shared<modules::ClusterOptions>();
  cluster->name = name;
  cluster->monitors = Monitors();
  cluster->user = "cleat";
  cluster->key = ClusterKeyOf(Key("cleat"));
  return cluster;
}

pid_t MiniCeph::Pid(const std::string& daemon) const {
  std::ifstream file(folder_ + "/" + daemon + ".pid");
  pid_t pid = 0;
  file >> pid;
  Demand(pid > 0, daemon + " has no pid");
  return pid;
}

void MiniCeph::Signal(const std::string& daemon, int signal) const {
  Demand(kill(Pid(daemon), signal) == 0, daemon + " does not run");
}

void MiniCeph::Restart() const {
  Script("up");
}

void MiniCeph::CreateImage(const std::string& name, uint64_t bytes, const std::string& name_space) {
  rados_ioctx_set_namespace(io_, name_space.c_str());
  int order = 0;
  const uint64_t features = RBD_FEATURE_LAYERING | RBD_FEATURE_EXCLUSIVE_LOCK;
  const int made = rbd_create2(io_, name.c_str(), bytes, features, &order);
  rados_ioctx_set_namespace(io_, "");
  Demand(made == 0, "image " + name + " " + std::to_string(made));
}

void MiniCeph::CreateImageWithout(const std::string& name, uint64_t bytes, uint64_t features_left_out) {
  int order = 0;
  const uint64_t features = (RBD_FEATURE_LAYERING | RBD_FEATURE_EXCLUSIVE_LOCK) & ~features_left_out;
  Demand(rbd_create2(io_, name.c_str(), bytes, features, &order) == 0, "image " + name);
}

void MiniCeph::RemoveImage(const std::string& name) {
  Demand(rbd_remove(io_, name.c_str()) == 0, "removing " + name);
}

void MiniCeph::CreateNamespace(const std::string& name) {
  Demand(rbd_namespace_create(io_, name.c_str()) == 0, "namespace " + name);
}

rbd_image_t MiniCeph::Open(const std::string& image) {
  rbd_image_t opened = nullptr;
  Demand(rbd_open(io_, image.c_str(), &opened, nullptr) == 0, "opening " + image);
  return opened;
}

void MiniCeph::Snapshot(const std::string& image, const std::string& snapshot) {
  rbd_image_t opened = Open(image);
  Demand(rbd_snap_create(opened, snapshot.c_str()) == 0, "snapshot of " + image);
  rbd_close(opened);
}

int MiniCeph::Resize(const std::string& image, uint64_t bytes) {
  rbd_image_t opened = Open(image);
  const int resized = rbd_resize(opened, bytes);
  rbd_close(opened);
  return resized;
}

void MiniCeph::SetMetadata(const std::string& image, const std::string& key, const std::string& value) {
  rbd_image_t opened = Open(image);
  Demand(rbd_metadata_set(opened, key.c_str(), value.c_str()) == 0, "metadata of " + image);
  rbd_close(opened);
}

std::vector<std::string> MiniCeph::MetadataKeys(const std::string& image) {
  rbd_image_t opened = Open(image);
  std::array<char, 4096> keys{};
  std::array<char, 16384> values{};
  size_t keys_bytes = keys.size();
  size_t values_bytes = values.size();
  Demand(rbd_metadata_list(opened, "", 0, keys.data(), &keys_bytes, values.data(), &values_bytes) == 0,
         "metadata of " + image);
  rbd_close(opened);
  std::vector<std::string> all;
  for (size_t at = 0; at < keys_bytes; at += all.back().size() + 1) all.emplace_back(keys.data() + at);
  return all;
}

std::vector<uint8_t> MiniCeph::ReadAll(const std::string& image) {
  rbd_image_t opened = nullptr;
  Demand(rbd_open_read_only(io_, image.c_str(), &opened, nullptr) == 0, "opening " + image);
  uint64_t bytes = 0;
  rbd_get_size(opened, &bytes);
  std::vector<uint8_t> content(bytes);
  const ssize_t read = rbd_read(opened, 0, bytes, reinterpret_cast<char*>(content.data()));
  Demand(read == static_cast<ssize_t>(bytes), "reading " + image);
  rbd_close(opened);
  return content;
}

std::string MiniCeph::MonCommand(const std::string& json) {
  const char* command = json.c_str();
  char* output = nullptr;
  size_t output_bytes = 0;
  char* text = nullptr;
  size_t text_bytes = 0;
  const int done = rados_mon_command(admin_, &command, 1, "", 0, &output, &output_bytes, &text, &text_bytes);
  std::string result(output, output_bytes);
  rados_buffer_free(output);
  rados_buffer_free(text);
  Demand(done == 0, json);
  return result;
}

void MiniCeph::SetOfOsd(const std::string& name, const std::string& value) {
  OsdCommand(R"({"prefix": "config set", "var": ")" + name + R"(", "val": [")" + value + R"("]})");
}

void MiniCeph::SetFull(bool full) {
  OsdCommand(std::string(R"({"prefix": "injectfull", "type": ")") + (full ? "full" : "none") + R"("})");
  while ((MonCommand(R"({"prefix": "health", "format": "plain"})").find("pool(s) full") !=
          std::string::npos) != full)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));  // nobody tells of it
}

void MiniCeph::OsdCommand(const std::string& json) {
  const char* command = json.c_str();
  char* output = nullptr;
  size_t output_bytes = 0;
  char* text = nullptr;
  size_t text_bytes = 0;
  const int done =
      rados_osd_command(admin_, 0, &command, 1, "", 0, &output, &output_bytes, &text, &text_bytes);
  rados_buffer_free(output);
  rados_buffer_free(text);
  Demand(done == 0, json);
}

uint32_t MiniCeph::BlocklistedCount() {
  const auto dump = nlohmann::json::parse(MonCommand(R"({"prefix": "osd dump", "format": "json"})"));
  return static_cast<uint32_t>(dump["blocklist"].size());
}

void MiniCeph::BlocklistOwnerOf(const std::string& image) {
  rbd_image_t opened = Open(image);
  rbd_lock_mode_t mode{};
  std::array<char*, 1> owners{};
  size_t count = owners.size();
  Demand(rbd_lock_get_owners(opened, &mode, owners.data(), &count) == 0, "owner of " + image);
  Demand(rados_blocklist_add(admin_, owners[0], kBlocklistSeconds) == 0,
         "blocklisting the owner of " + image);
  rbd_lock_get_owners_cleanup(owners.data(), count);
  rbd_close(opened);
}

std::string MiniCeph::HeaderOf(const std::string& image) {
  rbd_image_t opened = Open(image);
  std::array<char, 256> id{};
  rbd_get_id(opened, id.data(), id.size());
  rbd_close(opened);
  return std::string("rbd_header.") + id.data();
}

void StopProcess(pid_t pid) {
  Demand(kill(pid, SIGSTOP) == 0, "process " + std::to_string(pid) + " does not run");
  // A thread stops when it is next scheduled, which on a busy machine is not at once.
  constexpr int kPatienceMs = 120'000;
  int waited_ms = 0;
  while (!StandsStill(pid)) {
    Demand(++waited_ms < kPatienceMs, "process " + std::to_string(pid) + " does not stop");
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

Stopped::Stopped(const MiniCeph& ceph, std::string daemon) : ceph_(ceph), daemon_(std::move(daemon)) {
  StopProcess(ceph_.Pid(daemon_));
}

Stopped::~Stopped() {
  ceph_.Signal(daemon_, SIGCONT);
}

}  // namespace cleat::test
