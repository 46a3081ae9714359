// SPDX-License-Identifier: Apache-2.0
#include "vhost/library.h"

#include <dirent.h>
#include <pthread.h>
#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_log.h>
#include <rte_vhost.h>
#include <sched.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "base/log.h"

namespace cleat::vhost {
namespace {

constexpr char kDirectoryPrefix[] = "vhost-";
constexpr int kBacklog = 8;

// The library insists on callbacks; nothing here is driven by them (see relay.h). A device that never takes off for the
// library is never "running" there either: what may change under running rings is the session's to say.
int NewDevice(int /*device*/) {
  return -1;
}
void DestroyDevice(int /*device*/) {}
const rte_vhost_device_ops* Callbacks() {
  static const rte_vhost_device_ops kOps = [] {
    rte_vhost_device_ops ops{};
    ops.new_device = NewDevice;
    ops.destroy_device = DestroyDevice;
    return ops;
  }();
  return &kOps;
}

// One EAL core on all CPUs that this thread may use: nothing gets pinned, the library's threads neither.
std::string CoreMap(const cpu_set_t& cpus) {
  std::string map;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &cpus)) map += (map.empty() ? "0@(" : ",") + std::to_string(cpu);
  }
  return map + ")";
}

Status StartEal(const std::string& name) {
  static std::atomic<bool> started{false};
  if (started.exchange(true)) {
    return Error(ErrorCode::kFailedPrecondition, "DPDK can be started only once in a process");
  }
  cpu_set_t cpus;
  if (pthread_getaffinity_np(pthread_self(), sizeof cpus, &cpus) != 0) {
    return Error(ErrorCode::kInternal, "reading this thread's CPU affinity");
  }
  const std::string prefix = name + "-" + std::to_string(getpid());
  const std::string cores = CoreMap(cpus);
  // Memory without hugepages is touched only when it is used, so much of it costs nothing.
  std::vector<std::string> arguments = {
      "cleat", "--no-huge", "-m",       "512", "--no-shconf",    "--file-prefix",
      prefix,  "--no-pci",  "--lcores", cores, "--no-telemetry", "--log-level=*:error"};
  std::vector<char*> argv;
  argv.reserve(arguments.size());
  for (std::string& argument : arguments) argv.push_back(argument.data());
  // DPDK's own stream also writes to syslog(3), with that one's lock held: while the process ends, libc waits for this lock
  // with another one held that syslog may want.
  rte_openlog_stream(stderr);
  const int result = rte_eal_init(static_cast<int>(argv.size()), argv.data());
  pthread_setaffinity_np(pthread_self(), sizeof cpus, &cpus);
  if (result < 0) {
    return Error(ErrorCode::kInternal, std::string("starting DPDK: ") + rte_strerror(rte_errno) +
                                           "; its own messages are on standard error");
  }
  return Ok{};
}

sockaddr_un AddressOf(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  CLEAT_CHECK(path.size() < sizeof address.sun_path);
  std::memcpy(address.sun_path, path.data(), path.size());
  return address;
}

void RemoveDirectory(const std::string& path) {
  if (DIR* directory = opendir(path.c_str())) {
    while (const dirent* entry = readdir(directory)) unlinkat(dirfd(directory), entry->d_name, 0);
    closedir(directory);
  }
  rmdir(path.c_str());
}

// What processes left that were killed: directories named after a process that is no more.
void RemoveStale(const std::string& runtime_directory) {
  DIR* directory = opendir(runtime_directory.c_str());
  if (directory == nullptr) return;
  std::vector<std::string> stale;
  constexpr size_t kPrefixBytes = sizeof kDirectoryPrefix - 1;
  while (const dirent* entry = readdir(directory)) {
    const std::string name = entry->d_name;
    if (name.compare(0, kPrefixBytes, kDirectoryPrefix) != 0) continue;
    char* end = nullptr;
    const long pid = std::strtol(name.c_str() + kPrefixBytes, &end, 10);
    if (*end != '\0' || pid <= 0) continue;
    if (kill(static_cast<pid_t>(pid), 0) != 0 && errno == ESRCH)
      stale.push_back(std::string(runtime_directory).append("/").append(name));
  }
  closedir(directory);
  for (const std::string& path : stale) RemoveDirectory(path);
}

Result<std::string> MakeDirectory(const std::string& runtime_directory) {
  if (runtime_directory.size() > VhostLibrary::kRuntimeDirectoryBytesMax) {
    return Error(ErrorCode::kInvalidArgument, "runtime directory " + runtime_directory +
                                                  ": the path has more than " +
                                                  std::to_string(VhostLibrary::kRuntimeDirectoryBytesMax) +
                                                  " bytes: choose a shorter one");
  }
  RemoveStale(runtime_directory);
  const std::string path = runtime_directory + "/" + kDirectoryPrefix + std::to_string(getpid());
  RemoveDirectory(path);  // of a process that had our number
  if (mkdir(path.c_str(), 0700) != 0) {
    return ErrnoError(errno, "making the vhost library's private directory " + path);
  }
  return path;
}

Error LibraryError(const std::string& what) {
  return {ErrorCode::kInternal, "the vhost library failed: " + what};
}

Status Register(const std::string& path, uint64_t flags, const Offer& offer) {
  if (rte_vhost_driver_register(path.c_str(), flags) != 0) return LibraryError("registering " + path);
  if (rte_vhost_driver_set_features(path.c_str(), offer.features) != 0 ||
      rte_vhost_driver_set_protocol_features(path.c_str(), offer.protocol_features) != 0 ||
      rte_vhost_driver_callback_register(path.c_str(), Callbacks()) != 0 ||
      rte_vhost_driver_start(path.c_str()) != 0) {
    // A failed start leaves a descriptor behind that must not be used again.
    rte_vhost_driver_unregister(path.c_str());
    return LibraryError("starting " + path);
  }
  return Ok{};
}

}  // namespace

Result<std::unique_ptr<VhostLibrary>> VhostLibrary::Start(const std::string& name,
                                                          const std::string& runtime_directory) {
  CLEAT_ASSIGN(auto directory, MakeDirectory(runtime_directory));
  std::unique_ptr<VhostLibrary> library(new VhostLibrary(std::move(directory)));
  Status started = StartEal(name);
  if (started) started = library->OpenWakeUp();
  CLEAT_TRY(started);
  return library;
}

// Nothing is unregistered: the process is about to end, and that would wait for the library's thread. Which would call it an
// error if the wake-up connection were closed.
VhostLibrary::~VhostLibrary() {
  [[maybe_unused]] const int left_open = wake_up_.Release();
  RemoveDirectory(directory_);
}

// The library's thread waits up to a second in poll(2) before it notices that a listener was added. A message
// on a connection that it has already ends the wait.
Status VhostLibrary::OpenWakeUp() {
  const std::string path = directory_ + "/wake-up";
  const UniqueFd listener(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const sockaddr_un address = AddressOf(path);
  if (!listener || bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 ||
      listen(listener.get(), kBacklog) != 0) {
    return ErrnoError(errno, "listening on " + path);
  }
  CLEAT_TRY(
      Register(path, RTE_VHOST_USER_CLIENT | RTE_VHOST_USER_NO_RECONNECT, {kFeatureProtocolFeatures, 0}));
  wake_up_ = UniqueFd(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!wake_up_) return ErrnoError(errno, "accepting on " + path);
  return Ok{};
}

void VhostLibrary::WakeUp() {
  uint8_t answers[256];
  while (read(wake_up_.get(), answers, sizeof answers) > 0) {  // of earlier wake-ups
  }
  MessageHeader header;
  header.request = static_cast<uint32_t>(Request::kGetFeatures);
  header.flags = kVersion;
  [[maybe_unused]] const ssize_t sent = send(wake_up_.get(), &header, sizeof header, MSG_NOSIGNAL);
}

Result<const VhostLibrary::Listener*> VhostLibrary::ListenerFor(const Offer& offer) {
  for (const auto& listener : listeners_) {
    if (listener->offer == offer) return listener.get();
  }
  if (listeners_.size() >= kOffersMax) {
    return Error(ErrorCode::kResourceExhausted,
                 "this engine serves devices with " + std::to_string(kOffersMax) +
                     " different sets of features, and there is no room for one more: use another engine");
  }
  auto listener = std::make_unique<Listener>();
  listener->offer = offer;
  listener->path = directory_ + "/" + std::to_string(listeners_.size());
  CLEAT_TRY(Register(listener->path, 0, offer));
  WakeUp();
  listeners_.push_back(std::move(listener));
  return listeners_.back().get();
}

Result<UniqueFd> VhostLibrary::Connect(const Offer& offer) {
  CLEAT_ASSIGN(auto listener, ListenerFor(offer));
  UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd) return ErrnoError(errno, "making a socket for the vhost library");
  const sockaddr_un address = AddressOf(listener->path);
  if (connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    if (errno == EAGAIN)
      return Error(ErrorCode::kUnavailable, "the vhost library has many connections to accept");
    return ErrnoError(errno, "connecting to the vhost library on " + listener->path);
  }
  return fd;
}

}  // namespace cleat::vhost
