// SPDX-License-Identifier: Apache-2.0
#include "modules/rbd/rados_client.h"

#include <dirent.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <string_view>
#include <system_error>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/listed_open.h"
#include "base/log.h"
#include "base/scheduling.h"
#include "keys/secret_arena.h"
#include "keys/traces.h"
#include "modules/rbd/ceph_error.h"
#include "modules/rbd/key_file.h"

namespace cleat::modules {

namespace {

// The cluster's name in Ceph's own words, under which keyrings are looked for: Ceph derives it from the name of the conf file, which it is
// given under another one here.
std::string NameInCeph(const ClusterOptions& cluster) {
  const std::filesystem::path file(cluster.conf_file);
  return file.extension() == ".conf" ? file.stem().string() : "ceph";
}

// librados writes a key that it can't decode to standard error, whatever its log is set to: it gets none such. The layout is
// in keys/ceph_key.h.
bool LooksUsable(const keys::Secret& key) {
  constexpr size_t kHeaderBytes = 12;
  constexpr size_t kAesBytes = 16;
  const auto bytes = key.bytes();
  return bytes.size() >= kHeaderBytes + kAesBytes && bytes[0] == 1 && bytes[1] == 0 &&
         bytes.size() == kHeaderBytes + (bytes[10] | size_t{bytes[11]} << 8);
}

}  // namespace

void ControlLink::Post(std::function<void()> call) {
  const MutexLock lock(mutex_);
  if (control_ == nullptr) return;
  control_->PostCall([self = shared_from_this(), held = std::move(call)] {
    if (self->control_ != nullptr) held();  // only this thread cuts
  });
}

void ControlLink::Cut() {
  const MutexLock lock(mutex_);
  control_ = nullptr;
}

// Held by the client, and by the thread until it ends.
struct RadosClient::Core {
  Core(std::shared_ptr<const ClusterOptions> c, std::shared_ptr<ControlLink> l, uint32_t n)
      : cluster(std::move(c)), link(std::move(l)), number(n) {}

  void Main();
  Job NextJob();  // waits for one; nullptr: there will be none any more
  void AwaitAnswers();
  void EndAsking();
  Result<ClusterHealth> AskHealth();  // on a thread of its own
  void TakePlace() const;
  Result<RadosConnection> Connect();
  std::string SettingText(const std::string& name, const std::string& value) const;
  Status Configure(rados_t handle);
  Status ConfigureAndConnect(rados_t handle);
  Status CheckConfiguration(rados_t handle) const;

  const std::shared_ptr<const ClusterOptions> cluster;
  const std::shared_ptr<ControlLink> link;
  const uint32_t number;
  const std::vector<uint32_t> maker_cpus = CpusBeside({});  // of the thread that makes it
  const MonotonicClock clock;
  KeyFile key_file;  // the client's as long as that is

  mutable Mutex mutex;
  CondVar wake;
  std::deque<Job> jobs CLEAT_GUARDED_BY(mutex);
  bool stopping CLEAT_GUARDED_BY(mutex) = false;
  uint32_t asking CLEAT_GUARDED_BY(mutex) = 0;  // threads that use the connection beside the client's own
  std::optional<Result<RadosConnection>>
      connection;  // set once, under the mutex; the thread alone reads it without
  std::atomic<uint64_t> busy_since_ns{0};
};

RadosClient::RadosClient(std::shared_ptr<const ClusterOptions> cluster, std::shared_ptr<ControlLink> link,
                         uint32_t number)
    : cluster_(std::move(cluster)),
      link_(std::move(link)),
      number_(number),
      core_(std::make_shared<Core>(cluster_, link_, number)) {
  link_->threads.fetch_add(1);
  std::thread([core = core_]() mutable {
    core->Main();
    const std::shared_ptr<ControlLink> way = core->link;
    core.reset();
    way->threads.fetch_sub(1);
  }).detach();
}

RadosClient::~RadosClient() {
  const MutexLock lock(core_->mutex);
  core_->stopping = true;
  core_->wake.NotifyOne();
}

void RadosClient::Submit(Job job) {
  const MutexLock lock(core_->mutex);
  core_->jobs.push_back(std::move(job));
  core_->wake.NotifyOne();
}

void RadosClient::Post(std::function<void(const RadosConnection&)> work) {
  Submit([held = std::move(work)](const Result<RadosConnection>& connected) {
    if (connected) held(connected.value());
  });
}

bool RadosClient::AskHealth(std::function<void(const Result<ClusterHealth>&)> answered) {
  {
    const MutexLock lock(core_->mutex);
    CLEAT_CHECK(core_->connection && *core_->connection);
    ++core_->asking;
  }
  link_->threads.fetch_add(1);
  try {
    std::thread([core = core_, answered = std::move(answered)]() mutable {
      pthread_setname_np(pthread_self(), ("mon-" + std::to_string(core->number)).substr(0, 15).c_str());
      core->TakePlace();
      auto answer = core->AskHealth();
      const std::shared_ptr<ControlLink> way = core->link;
      core->EndAsking();
      core.reset();
      way->Post([answered = std::move(answered), answer = std::move(answer)] { answered(answer); });
      way->threads.fetch_sub(1);
    }).detach();
  } catch (const std::system_error&) {  // the limit of threads, of this host or of the service
    core_->EndAsking();
    link_->threads.fetch_sub(1);
    return false;
  }
  return true;
}

std::set<std::string> RadosClient::pools() const {
  const MutexLock lock(core_->mutex);
  return core_->connection && *core_->connection ? core_->connection->value().pools->Copy()
                                                 : std::set<std::string>();
}

std::string RadosClient::id() const {
  const MutexLock lock(core_->mutex);
  return core_->connection && *core_->connection ? core_->connection->value().id : std::string();
}

bool RadosClient::failed() const {
  const MutexLock lock(core_->mutex);
  return core_->connection && !*core_->connection;
}

uint64_t RadosClient::busy_ns() const {
  const uint64_t since_ns = core_->busy_since_ns.load(std::memory_order_relaxed);
  const uint64_t now_ns = core_->clock.NowNs();
  return since_ns == 0 || now_ns < since_ns ? 0 : now_ns - since_ns;
}

void RadosClient::Core::Main() {
  pthread_setname_np(pthread_self(), ("rbd-" + std::to_string(number)).substr(0, 15).c_str());
  TakePlace();
  while (Job job = NextJob()) {
    busy_since_ns.store(clock.NowNs(), std::memory_order_relaxed);
    if (!connection) {
      auto connected = Connect();
      const MutexLock lock(mutex);
      connection.emplace(std::move(connected));
    }
    job(*connection);  // set for good, by this thread
    job = nullptr;
    busy_since_ns.store(0, std::memory_order_relaxed);
  }
  AwaitAnswers();
  if (connection && *connection) rados_shutdown(connection->value().cluster);
}

void RadosClient::Core::AwaitAnswers() {
  const MutexLock lock(mutex);
  while (asking > 0) wake.Wait(mutex);
}

void RadosClient::Core::EndAsking() {
  const MutexLock lock(mutex);
  --asking;
  wake.NotifyOne();
}

Result<ClusterHealth> RadosClient::Core::AskHealth() {
  const char* command = kHealthCommand;
  char* output = nullptr;
  size_t output_bytes = 0;
  const int asked = rados_mon_command(connection->value().cluster, &command, 1, "", 0, &output, &output_bytes,
                                      nullptr, nullptr);
  if (asked < 0) return CephError(asked, cluster->name + ": its health can't be asked for");
  const ClusterHealth health = ParseHealth({output, output_bytes});
  rados_buffer_free(output);
  return health;
}

RadosClient::Job RadosClient::Core::NextJob() {
  const MutexLock lock(mutex);
  while (!stopping && jobs.empty()) wake.Wait(mutex);
  if (jobs.empty()) return nullptr;
  Job job = std::move(jobs.front());
  jobs.pop_front();
  return job;
}

void RadosClient::Core::TakePlace() const {
  if (const Status placed = StayOn(cluster->cpus.empty() ? maker_cpus : cluster->cpus); !placed.ok()) {
    spdlog::warn(
        "{}: client's threads run on any CPU: {}; guests' latency may suffer, see to this service's CPU "
        "affinity",
        cluster->name, placed.error().message);
  }
}

std::string RadosClient::Core::SettingText(const std::string& name, const std::string& value) const {
  return cluster->name + ": the setting " + name + " = '" + value + "'";
}

Status RadosClient::Core::Configure(rados_t handle) {
  if (!cluster->conf_file.empty()) {
    const std::string what = cluster->name + ": its conf file " + cluster->conf_file;
    UniqueFd file;
    if (cluster->conf_opener.open) {
      CLEAT_ASSIGN(file, cluster->conf_opener.open(cluster->conf_file, what));
    }
    const std::string path = file ? PathOf(file) : cluster->conf_file;
    const int read = rados_conf_read_file(handle, path.c_str());
    if (read < 0) return CephError(read, what + " can't be read");
  }
  for (const auto& [name, value] : ClusterSettings(*cluster)) {
    const int set = rados_conf_set(handle, name.c_str(), value.c_str());
    if (set < 0) return CephError(set, SettingText(name, value) + " is refused");
  }
  if (cluster->key.get() == nullptr) return Ok{};
  if (!LooksUsable(*cluster->key.get())) {
    return Error(ErrorCode::kInvalidArgument,
                 cluster->name + ": the key of client." + cluster->user + " is not one for AES-128");
  }
  Status filled = key_file.Fill(*cluster->key.get());
  if (!filled) return Error(filled.error().code, cluster->name + ": " + filled.error().message);
  rados_conf_set(handle, "key", "");  // the conf file's would come before ours
  const int set = rados_conf_set(handle, "keyfile", key_file.path().c_str());
  if (set < 0) return CephError(set, SettingText("keyfile", key_file.path()) + " is refused");
  return Ok{};
}

// librados reads the key - our file's, or that of the conf file's keyring - within these calls, on this thread, and keeps it,
// as bytes and as the round keys of its cipher, for when it has to prove itself again. Its other threads use that, and copy
// none of it.
Status RadosClient::Core::ConfigureAndConnect(rados_t handle) {
  Status done;
  {
    const keys::SecretAllocations secretly;
    done = Configure(handle);
    const int connected = done ? rados_connect(handle) : 0;
    if (connected < 0)
      done = CephError(connected, cluster->name + ": client." + cluster->user + " can't connect");
  }
  key_file.Empty();
  keys::WipeTraces();
  return done;
}

Status RadosClient::Core::CheckConfiguration(rados_t handle) const {
  for (const auto& [name, wanted] : DemandedOfClient()) {
    std::array<char, 64> value{};
    const int got = rados_conf_get(handle, name.c_str(), value.data(), value.size());
    if (got < 0 || wanted != value.data()) {
      return Error(
          ErrorCode::kFailedPrecondition,
          SettingText(name, value.data()) + " is not safe: take it out of the cluster's configuration");
    }
  }
  return Ok{};
}

Result<RadosConnection> RadosClient::Core::Connect() {
  RadosConnection made;
  made.pools = std::make_shared<UsedPools>();
  const std::string user = "client." + cluster->user;
  const int created = rados_create2(&made.cluster, NameInCeph(*cluster).c_str(), user.c_str(), 0);
  if (created < 0) return CephError(created, cluster->name + ": librados can't be set up");
  Status ready = ConfigureAndConnect(made.cluster);
  if (ready) ready = CheckConfiguration(made.cluster);
  if (!ready) {
    rados_shutdown(made.cluster);
    return ready.error();
  }
  made.id = "client." + std::to_string(rados_get_instance_id(made.cluster));
  char* address = nullptr;
  if (rados_getaddrs(made.cluster, &address) == 0) made.address = address;
  rados_buffer_free(address);
  spdlog::info("{}: connected as client.{}: {}, {}", cluster->name, cluster->user, made.id, made.address);
  return made;
}

uint32_t CountCephThreads() {
  // Threads that Ceph gives no name have their maker's: "rbd-N".
  static constexpr std::array<std::string_view, 12> kNames = {
      "rbd-",        "log",      "msgr-worker-", "service",        "io_context_pool", "ceph_timer",
      "ms_dispatch", "ms_local", "safe_timer",   "taskfin_librbd", "tp_librbd",       "fn_"};
  DIR* folder = opendir("/proc/self/task");
  if (folder == nullptr) return 0;
  uint32_t count = 0;
  while (const dirent* entry = readdir(folder)) {
    std::ifstream file(std::string("/proc/self/task/") + entry->d_name + "/comm");
    std::string name;
    std::getline(file, name);
    for (const std::string_view prefix : kNames) {
      if (!name.starts_with(prefix)) continue;
      ++count;
      break;
    }
  }
  closedir(folder);
  return count;
}

}  // namespace cleat::modules
