// SPDX-License-Identifier: Apache-2.0
#include "control/callers/unix_listener.h"

#include <fmt/format.h>
#include <grp.h>
#include <grpcpp/server_posix.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <utility>

#include "base/log.h"
#include "control/model/model.h"

namespace cleat::control {
namespace {

constexpr int kBacklog = 128;
constexpr int kTickMs = 1000;
constexpr size_t kGroupsMax = 65536;
constexpr std::string_view kPeerPrefix = "fd:";

sockaddr_un AddressOf(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof(address.sun_path) - 1);
  return address;
}

bool SomebodyListens(const std::string& path) {
  const sockaddr_un address = AddressOf(path);
  const UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  return fd.valid() && connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
}

bool IsSocket(const std::string& path) {
  struct stat info {};
  return lstat(path.c_str(), &info) == 0 && S_ISSOCK(info.st_mode);
}

Status SetGroup(const std::string& path, const std::string& group) {
  if (group.empty()) return Ok{};
  const struct group* entry =
      getgrnam(group.c_str());  // NOLINT(concurrency-mt-unsafe): before the first thread
  if (entry == nullptr) {
    return Error(ErrorCode::kInvalidArgument, fmt::format("API socket: there is no group '{}'", group));
  }
  if (chown(path.c_str(), static_cast<uid_t>(-1), entry->gr_gid) == 0) return Ok{};
  return ErrnoError(errno, fmt::format("API socket '{}' can't be given to group '{}'", path, group));
}

// The caller at the other end, as of the moment it connected.
Result<Caller> IdentityOf(int fd) {
  ucred credentials{};
  socklen_t size = sizeof(credentials);
  if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &credentials, &size) != 0)
    return ErrnoError(errno, "SO_PEERCRED");
  Caller caller;
  caller.kind = Caller::Kind::kLocal;
  caller.uid = credentials.uid;
  caller.pid = credentials.pid;
  caller.gids.insert(credentials.gid);
  std::vector<gid_t> groups(64);
  for (;;) {
    size = static_cast<socklen_t>(groups.size() * sizeof(gid_t));
    if (getsockopt(fd, SOL_SOCKET, SO_PEERGROUPS, groups.data(), &size) == 0) {
      groups.resize(size / sizeof(gid_t));
      caller.gids.insert(groups.begin(), groups.end());
      return caller;
    }
    if (errno != ERANGE || groups.size() >= kGroupsMax) return ErrnoError(errno, "SO_PEERGROUPS");
    groups.resize(std::max<size_t>(size / sizeof(gid_t), groups.size() * 2));
  }
}

}  // namespace

Result<std::unique_ptr<UnixListener>> UnixListener::Open(const std::string& path, mode_t mode,
                                                         const std::string& group) {
  const std::string what = fmt::format("API socket '{}'", path);
  if (path.empty() || path.size() > kSocketPathBytesMax) {
    return Error(ErrorCode::kInvalidArgument,
                 fmt::format("{}: the path must have 1 to {} bytes", what, kSocketPathBytesMax));
  }
  if (SomebodyListens(path)) {
    return Error(ErrorCode::kAlreadyExists,
                 what + ": somebody listens there already: stop it, or choose another path with --listen");
  }
  if (IsSocket(path)) unlink(path.c_str());
  UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const sockaddr_un address = AddressOf(path);
  // A connection takes listen(), which comes after the mode is right.
  if (!fd.valid() || bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0 ||
      chmod(path.c_str(), mode) != 0) {
    return ErrnoError(errno, what + " can't be made: is its folder there, and writable?");
  }
  CLEAT_TRY(SetGroup(path, group));
  if (listen(fd.get(), kBacklog) != 0) return ErrnoError(errno, what + " can't listen");
  UniqueFd wake(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake.valid()) return ErrnoError(errno, what + ": no event descriptor");
  return std::unique_ptr<UnixListener>(new UnixListener(path, std::move(fd), std::move(wake)));
}

UnixListener::~UnixListener() {
  Stop();
  unlink(path_.c_str());
}

void UnixListener::Start(grpc::Server& server, const Grants& grants, std::function<bool()> tick) {
  server_ = &server;
  grants_ = &grants;
  tick_ = std::move(tick);
  thread_ = std::thread([this] { Run(); });
}

void UnixListener::Stop() {
  {
    const MutexLock lock(mutex_);
    stop_ = true;
  }
  Wake();
  if (thread_.joinable()) thread_.join();
}

void UnixListener::Wake() {
  const uint64_t one = 1;
  (void)!write(wake_.get(), &one, sizeof(one));
}

void UnixListener::Run() {
  bool settled = tick_();
  for (;;) {
    {
      const MutexLock lock(mutex_);
      if (stop_) return;
    }
    std::vector<pollfd> polled = {{.fd = wake_.get(), .events = POLLIN, .revents = 0},
                                  {.fd = socket_.get(), .events = POLLIN, .revents = 0}};
    for (const Connection& connection : connections_) {
      polled.push_back({.fd = connection.watch.get(), .events = POLLRDHUP, .revents = 0});
    }
    poll(polled.data(), polled.size(), settled ? -1 : kTickMs);
    if (polled[0].revents != 0) {
      uint64_t count = 0;
      (void)!read(wake_.get(), &count, sizeof(count));
    }
    // From behind, so that the indexes of the rest stay.
    for (size_t i = connections_.size(); i-- > 0;) {
      if (polled[i + 2].revents == 0) continue;
      connections_.erase(connections_.begin() + static_cast<ptrdiff_t>(i));
    }
    if (polled[0].revents != 0 || !settled) settled = tick_();
    if (polled[1].revents != 0) Accept();
  }
}

bool UnixListener::HasRoom(const Connection& connection) const {
  const auto of_user = [&](const Connection& other) { return other.uid == connection.uid; };
  const auto without_role = [](const Connection& other) { return !other.has_role; };
  if (connections_.size() >= kConnectionsMax) return false;
  if (!connection.has_role) {
    return std::count_if(connections_.begin(), connections_.end(), without_role) <
           static_cast<ptrdiff_t>(kConnectionsWithoutRoleMax);
  }
  return connection.uid == 0 || std::count_if(connections_.begin(), connections_.end(), of_user) <
                                    static_cast<ptrdiff_t>(kConnectionsOfUserMax);
}

void UnixListener::Accept() {
  UniqueFd fd(accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!fd.valid()) return;
  auto caller = IdentityOf(fd.get());
  if (!caller.ok()) {
    spdlog::warn("API socket: connection refused: {}", caller.error().message);
    return;
  }
  Connection connection{
      .watch = fd.Duplicate(), .uid = caller->uid, .has_role = grants_->RoleOf(*caller) != Role::kNone};
  if (!connection.watch.valid() || !HasRoom(connection)) {
    spdlog::warn(
        "API socket: connection refused: {} are open already (of {} this one); end callers that keep theirs "
        "open",
        connections_.size(), caller->ToString());
    return;
  }
  connections_.push_back(std::move(connection));
  {
    const MutexLock lock(mutex_);
    callers_[fd.get()] = std::move(*caller);
  }
  grpc::AddInsecureChannelFromFd(server_, fd.Release());
}

Caller UnixListener::CallerOf(const std::string& peer) const {
  int fd = -1;
  const std::string_view number = std::string_view(peer).substr(std::min(kPeerPrefix.size(), peer.size()));
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), fd);
  if (!peer.starts_with(kPeerPrefix) || error != std::errc() || end != number.data() + number.size())
    return {};
  const MutexLock lock(mutex_);
  const auto it = callers_.find(fd);
  return it == callers_.end() ? Caller() : it->second;
}

}  // namespace cleat::control
