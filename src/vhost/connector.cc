// SPDX-License-Identifier: Apache-2.0
#include "vhost/connector.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/inotify.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/listed_open.h"
#include "base/log.h"
#include "base/process_state.h"

namespace cleat::vhost {
namespace {

constexpr int kBacklog = 8;
constexpr mode_t kSocketMode = 0660;
constexpr uint64_t kAcceptRetryNs = 100 * kNsPerMs;

std::string DirectoryOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

std::string NameOf(const std::string& path) {
  return path.substr(path.rfind('/') + 1);
}

Error PathError(ErrorCode code, const std::string& path, const std::string& what) {
  return {code, "socket " + path + ": " + what};
}

sockaddr_un AddressOf(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.data(), path.size());
  return address;
}

Result<UniqueFd> MakeSocket(const std::string& path) {
  UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd) return ErrnoError(errno, "socket " + path + ": making a socket");
  return fd;
}

int ConnectTo(const UniqueFd& fd, const std::string& path) {
  const sockaddr_un address = AddressOf(path);
  return connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 ? 0 : errno;
}

Status CheckDirectory(const std::string& path) {
  const std::string directory = DirectoryOf(path);
  struct stat info {};
  if (stat(directory.c_str(), &info) != 0) {
    if (errno == ENOENT) {
      return PathError(ErrorCode::kNotFound, path, "directory " + directory + " does not exist: create it");
    }
    if (errno == EACCES) {
      return PathError(ErrorCode::kPermissionDenied, path,
                       "no permission to look into " + directory + ": give this process' user access to it");
    }
    return ErrnoError(errno, "socket " + path + ": directory " + directory);
  }
  if (!S_ISDIR(info.st_mode)) {
    return PathError(ErrorCode::kInvalidArgument, path, directory + " is not a directory: correct the path");
  }
  return Ok{};
}

Status CheckPath(const std::string& path) {
  if (path.empty() || NameOf(path).empty()) {
    return PathError(ErrorCode::kInvalidArgument, path, "the path names no file: correct it");
  }
  if (path.size() > kSocketPathBytesMax) {
    return PathError(ErrorCode::kInvalidArgument, path,
                     "the path has " + std::to_string(path.size()) + " bytes and a socket's at most " +
                         std::to_string(kSocketPathBytesMax) + ": choose a shorter one");
  }
  if (path.find('\0') != std::string::npos) {
    return PathError(ErrorCode::kInvalidArgument, path, "the path contains a zero byte: correct it");
  }
  return CheckDirectory(path);
}

// Of what lies at the path: nothing, a socket, or an error.
Result<bool> SocketThere(const std::string& path) {
  struct stat info {};
  if (stat(path.c_str(), &info) == 0) {
    if (S_ISSOCK(info.st_mode)) return true;
    return PathError(ErrorCode::kAlreadyExists, path,
                     "the path is taken by something that is not a socket: remove it or choose another path");
  }
  if (errno == ENOENT) return false;
  if (errno == EACCES) {
    return PathError(
        ErrorCode::kPermissionDenied, path,
        "no permission to look into " + DirectoryOf(path) + ": give this process' user access to it");
  }
  return ErrnoError(errno, "socket " + path);
}

Error NoPermissionToConnect(const std::string& path) {
  return PathError(ErrorCode::kPermissionDenied, path,
                   "no permission to connect: give this process' user (uid " + std::to_string(geteuid()) +
                       ") write access to the socket, by its group for example");
}

// Whether the peer is gone, or can say nothing any more.
bool HasHungUp(int socket) {
  pollfd state{.fd = socket, .events = POLLRDHUP, .revents = 0};
  if (poll(&state, 1, 0) <= 0) return false;
  if ((state.revents & (POLLHUP | POLLERR)) != 0) return true;
  int unread_bytes = 0;
  return ioctl(socket, FIONREAD, &unread_bytes) == 0 && unread_bytes == 0;
}

}  // namespace

// ---- AnySocketPaths

Result<UniqueFd> AnySocketPaths::FindSocket(const std::string& path) {
  UniqueFd found(open(path.c_str(), O_PATH | O_CLOEXEC));
  if (!found) return ErrnoError(errno, "socket " + path);
  return found;
}

Result<UniqueFd> AnySocketPaths::FindFolder(const std::string& path) {
  UniqueFd found(open(DirectoryOf(path).c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!found) return ErrnoError(errno, "socket " + path + ": its folder can't be opened");
  return found;
}

// ---- SocketPathWatcher

SocketPathWatcher::SocketPathWatcher(Reactor& control) : inotify_(inotify_init1(IN_NONBLOCK | IN_CLOEXEC)) {
  if (inotify_ && !watch_.Start(control, inotify_.get(), EPOLLIN)) inotify_.Reset();
  if (!inotify_)
    spdlog::warn(
        "sockets: no inotify: new ones are noticed up to a second late; raise fs.inotify.max_user_instances");
}

SocketPathWatcher::~SocketPathWatcher() {
  CLEAT_CHECK(directories_.empty());
  watch_.Stop();
}

SocketPathWatcher::Subscription::~Subscription() {
  if (watcher != nullptr) watcher->Unsubscribe(*this);
}

bool SocketPathWatcher::Subscribe(Subscription& subscription, const std::string& path) {
  CLEAT_CHECK(subscription.watcher == nullptr);
  if (!inotify_) return false;
  const int watch = inotify_add_watch(inotify_.get(), DirectoryOf(path).c_str(), IN_CREATE | IN_MOVED_TO);
  if (watch < 0) return false;
  auto& directory = directories_[watch];
  if (directory == nullptr) directory = std::make_unique<Directory>();
  subscription.name = NameOf(path);
  subscription.watch = watch;
  subscription.watcher = this;
  directory->subscriptions.PushBack(subscription);
  return true;
}

void SocketPathWatcher::Unsubscribe(Subscription& subscription) {
  subscription.hook.Unlink();
  subscription.watcher = nullptr;
  const auto directory = directories_.find(subscription.watch);
  if (directory == directories_.end() || !directory->second->subscriptions.empty()) return;
  inotify_rm_watch(inotify_.get(), subscription.watch);
  directories_.erase(directory);
}

void SocketPathWatcher::Watch::OnEvent(FdWatch& watch, uint32_t /*epoll_events*/) {
  static_cast<Watch&>(watch).watcher.Read();
}

void SocketPathWatcher::Read() {
  alignas(inotify_event) uint8_t buffer[4096];
  for (;;) {
    const ssize_t count = read(inotify_.get(), buffer, sizeof buffer);
    if (count <= 0) return;
    for (ssize_t at = 0; at < count;) {
      inotify_event event{};
      std::memcpy(&event, buffer + at, sizeof event);
      const std::string name(reinterpret_cast<const char*>(buffer + at + sizeof event),
                             strnlen(reinterpret_cast<const char*>(buffer + at + sizeof event), event.len));
      at += static_cast<ssize_t>(sizeof event + event.len);
      const bool overflow = (event.mask & IN_Q_OVERFLOW) != 0;  // events were lost: any may have been ours
      for (auto& [watch, directory] : directories_) {
        if (watch != event.wd && !overflow) continue;
        auto& subscriptions = directory->subscriptions;
        for (Subscription* s = subscriptions.front(); s != nullptr; s = subscriptions.Next(*s)) {
          if (overflow || s->name == name) s->appeared();
        }
      }
    }
  }
}

// ---- ClientConnector

ClientConnector::ClientConnector(Reactor& control, std::string path, SocketPathWatcher* watcher,
                                 SocketPaths& paths)
    : control_(control),
      path_(std::move(path)),
      watcher_(watcher),
      paths_(paths),
      retry_(control),
      subscription_([this] {
        BeEager();
        retry_.Set();
      }) {}

ClientConnector::~ClientConnector() {
  Stop();
}

void ClientConnector::RetryTimer::Fire(Timer& timer) {
  static_cast<RetryTimer&>(timer).retry.Set();
}

Status ClientConnector::Start() {
  CLEAT_TRY(CheckPath(path_));
  CLEAT_ASSIGN(auto there, SocketThere(path_));
  if (there && faccessat(AT_FDCWD, path_.c_str(), W_OK, AT_EACCESS) != 0 && errno == EACCES) {
    return NoPermissionToConnect(path_);
  }
  watched_ = watcher_ != nullptr && watcher_->Subscribe(subscription_, path_);
  return Ok{};
}

void ClientConnector::Stop() {
  timer_.Cancel();
  if (watched_) watcher_->Unsubscribe(subscription_);
  watched_ = false;
}

void ClientConnector::PeerLost(const Conduct& conduct) {
  lost_ = true;
  waits_until_ns_ = control_.now_ns() + backoff_.Ended(conduct);
}

void ClientConnector::BeEager() {
  eager_until_ns_ = control_.now_ns() + kEagerNs;
  delay_ns_ = kEagerDelayNs;
}

Result<UniqueFd> ClientConnector::TryConnect() {
  // What was found is connected to, whatever its name leads to a moment later.
  auto found = paths_.FindSocket(path_);
  if (!found && found.error().code == ErrorCode::kNotFound) {
    return PathError(ErrorCode::kUnavailable, path_,
                     "nothing is there yet: waiting for the peer to listen on it");
  }
  if (!found) return found;
  auto fd = MakeSocket(path_);
  CLEAT_TRY(fd);
  switch (const int error_number = ConnectTo(*fd, PathOf(*found))) {
    case 0:
      listening_process_ = IdentityOf(*fd).process;
      return fd;
    case ECONNREFUSED: {
      CLEAT_TRY(SocketThere(path_));
      return PathError(ErrorCode::kUnavailable, path_,
                       "nobody listens on it: waiting for the peer (a VM that is not running?)");
    }
    case EAGAIN:
      return PathError(ErrorCode::kUnavailable, path_,
                       "its listener's queue is full: waiting. " + WhyQueueIsFull());
    case EACCES:
      return NoPermissionToConnect(path_);
    default:
      return ErrnoError(error_number, "socket " + path_ + ": connecting");
  }
}

// The last connection showed which process listens there.
std::string ClientConnector::WhyQueueIsFull() const {
  const auto why = listening_process_ == 0 ? std::nullopt : WhyProcessStandsStill(listening_process_);
  if (why) return "Its listener does not go on: " + *why;
  const auto hidden = listening_process_ == 0 ? std::nullopt : WhyProcessIsHidden(listening_process_);
  return "Its listener takes nobody: a VM that is stopped or hangs, or another back end is connected to it" +
         (hidden ? "; " + *hidden : "");
}

Task<Result<UniqueFd>> ClientConnector::Next(CancelToken& cancel) {
  // The peer would have us back at once, and do the same again.
  if (control_.now_ns() < waits_until_ns_)
    co_await control_.SleepFor(waits_until_ns_ - control_.now_ns(), &cancel);
  if (std::exchange(lost_, false)) BeEager();
  while (!cancel.cancelled()) {
    retry_.Reset();
    auto fd = TryConnect();
    if (fd) {
      last_error_.clear();
      co_return std::move(fd).value();
    }
    last_error_ = fd.error().message;
    const uint64_t delay_ns = delay_ns_;
    if (control_.now_ns() >= eager_until_ns_) delay_ns_ = std::min(2 * delay_ns_, kDelayMaxNs);
    control_.AddTimer(timer_, control_.now_ns() + delay_ns);
    co_await retry_.Wait(&cancel);
    timer_.Cancel();
  }
  co_return Error(ErrorCode::kCancelled, "stopped");
}

std::string ClientConnector::waiting_for() const {
  return last_error_.empty() ? "socket " + path_ + ": connecting" : last_error_;
}

// ---- ServerConnector

ServerConnector::ServerConnector(Reactor& control, std::string path, SocketPaths& paths, PeerFiles* files)
    : control_(control), path_(std::move(path)), paths_(paths), files_(files), somebody_(control) {}

ServerConnector::~ServerConnector() {
  Stop();
}

// The path by which the socket is made in the very folder that was found. For a name that leaves no room for that: by the whole path,
// which may lead elsewhere by now.
std::string ServerConnector::PathInFolder() const {
  std::string path = PathOf(folder_) + "/" + NameOf(path_);
  return path.size() <= kSocketPathBytesMax ? path : path_;
}

Status ServerConnector::TakeOver() {
  CLEAT_ASSIGN(auto there, SocketThere(path_));
  if (!there) return Ok{};
  CLEAT_ASSIGN(auto probe, MakeSocket(path_));
  switch (const int error_number = ConnectTo(probe, PathInFolder())) {
    case ENOENT:
      return Ok{};
    case ECONNREFUSED:
      spdlog::info("socket {}: taken over: nobody answers on it", path_);
      if (unlinkat(folder_.get(), NameOf(path_).c_str(), 0) == 0 || errno == ENOENT) return Ok{};
      return ErrnoError(errno, "socket " + path_ + ": removing what a former process left");
    case 0:
    case EAGAIN: {
      const std::string who = error_number == 0 ? NameOfPeer(IdentityOf(probe)) : "a process";
      Drop(std::move(probe));  // that one may have sent something already
      return PathError(ErrorCode::kAlreadyExists, path_,
                       who + " listens on it already: end that, or choose another path");
    }
    case EACCES:
      return NoPermissionToConnect(path_);
    default:
      return ErrnoError(error_number, "socket " + path_ + ": asking who listens on it");
  }
}

Status ServerConnector::Start() {
  CLEAT_CHECK(!listener_);
  Status checked = CheckPath(path_);
  CLEAT_TRY(checked);
  CLEAT_ASSIGN(folder_, paths_.FindFolder(path_));
  checked = TakeOver();
  if (!checked) return checked;
  CLEAT_ASSIGN(auto fd, MakeSocket(path_));
  const std::string name = NameOf(path_);
  const sockaddr_un address = AddressOf(PathInFolder());
  if (bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    if (errno == EACCES || errno == EROFS) {
      return PathError(ErrorCode::kPermissionDenied, path_,
                       "no permission to create a socket in " + DirectoryOf(path_) +
                           ": give this process' user write access to the directory");
    }
    return ErrnoError(errno, "socket " + path_ + ": creating it");
  }
  struct stat info {};
  // The mode before listen: nobody connects earlier.
  const UniqueFd made(openat(folder_.get(), name.c_str(), O_PATH | O_NOFOLLOW | O_CLOEXEC));
  if (!made || fstat(made.get(), &info) != 0 || !S_ISSOCK(info.st_mode) ||
      chmod(PathOf(made).c_str(), kSocketMode) != 0 || listen(fd.get(), kBacklog) != 0) {
    const int error_number = errno;
    unlinkat(folder_.get(), name.c_str(), 0);
    return ErrnoError(error_number, "socket " + path_ + ": listening");
  }
  file_device_ = info.st_dev;
  file_inode_ = info.st_ino;
  listener_ = std::move(fd);
  Status watching = watch_.Start(control_, listener_.get(), EPOLLIN);
  if (!watching) Stop();
  return watching;
}

void ServerConnector::Stop() {
  if (!listener_) return;
  watch_.Stop();
  stays_timer_.Cancel();
  refuse_timer_.Cancel();
  // No peer connects any more. Those in the queue may have sent something.
  shutdown(listener_.get(), SHUT_RDWR);
  for (Waiting& waiting : std::exchange(waiting_, {})) Drop(std::move(waiting.socket));
  for (;;) {
    UniqueFd queued(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!queued) break;
    Drop(std::move(queued));
  }
  listener_.Reset();
  struct stat info {};
  const std::string name = NameOf(path_);
  if (fstatat(folder_.get(), name.c_str(), &info, AT_SYMLINK_NOFOLLOW) == 0 && info.st_dev == file_device_ &&
      info.st_ino == file_inode_) {
    unlinkat(folder_.get(), name.c_str(), 0);
  }
}

void ServerConnector::Watch::OnEvent(FdWatch& watch, uint32_t /*epoll_events*/) {
  ServerConnector& connector = static_cast<Watch&>(watch).connector;
  if (connector.peer_stays_) connector.RefuseOthers();
  connector.somebody_.Set();
}

void ServerConnector::PeerServed() {
  if (peer_ < 0) return;
  stays_timer_.Cancel();
  peer_stays_ = true;
  RefuseOthers();
}

// Others may be in the queue since there was no room to refuse them.
void ServerConnector::FilesClosed() {
  if (peer_stays_) RefuseOthers();
}

void ServerConnector::PeerLost(const Conduct& conduct) {
  const uint64_t now_ns = control_.now_ns();
  stays_timer_.Cancel();
  refuse_timer_.Cancel();
  peer_ = -1;
  peer_stays_ = false;
  nobody_until_ns_ = now_ns + std::min(strangers_.Ended(conduct), Backoff::kDelayMinNs);
  const uint64_t delay_ns = backoffs_.Ended(peer_identity_, conduct, now_ns);
  if (delay_ns == Backoff::kDelayMinNs) {
    spdlog::warn("socket {}: {} made to wait: its connections come to nothing; others are let in meanwhile",
                 path_, NameOfPeer(peer_identity_));
  }
}

// Unless the present one has gone meanwhile, and is about to be noticed: then they are next. The listener says once that there are
// some, however many: what is left for another turn is looked for then.
void ServerConnector::RefuseOthers() {
  refuse_timer_.Cancel();
  if (HasHungUp(peer_)) return;
  for (Waiting& other : std::exchange(waiting_, {})) Refuse(std::move(other.socket), other.peer);
  for (size_t accepted = 0; has_room(); ++accepted) {
    if (accepted == kAcceptsAtOnce) return control_.AddTimer(refuse_timer_, control_.now_ns() + kNsPerUs);
    UniqueFd other(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!other) return;
    const PeerIdentity peer = IdentityOf(other);
    Refuse(std::move(other), peer);
  }
}

void ServerConnector::Drop(UniqueFd socket) {
  if (files_ != nullptr) files_->CloseSocket(std::move(socket));
}

void ServerConnector::Refuse(UniqueFd socket, const PeerIdentity& peer) {
  Drop(std::move(socket));
  ++refused_;
  const uint64_t now_ns = control_.now_ns();
  const bool told = now_ns < std::exchange(refusals_until_ns_, now_ns + kRefusalsApartNs);
  if (told) return;
  spdlog::warn("socket {}: second peer refused: {} while one is connected", path_, NameOfPeer(peer));
}

// True: nobody is in the listener's queue any more. An error: out of descriptors or memory, and the peer stays in the queue.
Result<bool> ServerConnector::AcceptSome() {
  for (size_t calls = 0; calls < kAcceptsAtOnce; ++calls) {
    if (waiting_.size() == 2 * kWaitingMax || !has_room()) return false;
    UniqueFd socket(accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (socket) {
      const PeerIdentity peer = IdentityOf(socket);
      waiting_.push_back({std::move(socket), peer});
      DropWaiting();
    } else if (errno == EAGAIN) {
      return true;
    } else if (errno != ECONNABORTED && errno != EINTR) {
      return ErrnoError(errno, "accepting");
    }
  }
  return false;
}

// Drops connections that have gone. Of those that came to nothing before, a process has one place, and all together leave half of them.
void ServerConnector::DropWaiting() {
  const uint64_t now_ns = control_.now_ns();
  std::vector<PeerIdentity> made_to_wait;
  for (Waiting& waiting : std::exchange(waiting_, {})) {
    if (HasHungUp(waiting.socket.get())) {
      Drop(std::move(waiting.socket));
      continue;
    }
    if (backoffs_.WaitsUntilNs(waiting.peer) > now_ns) {
      const bool has_place = std::ranges::find(made_to_wait, waiting.peer) != made_to_wait.end();
      if (has_place || made_to_wait.size() == kWaitingMax) {
        ++refused_;
        Drop(std::move(waiting.socket));
        continue;
      }
      made_to_wait.push_back(waiting.peer);
    }
    waiting_.push_back(std::move(waiting));
  }
}

// The first one that need not wait.
UniqueFd ServerConnector::TakeReady() {
  const uint64_t now_ns = control_.now_ns();
  DropWaiting();
  if (now_ns < nobody_until_ns_) return {};
  const auto ready = std::ranges::find_if(
      waiting_, [&](const Waiting& waiting) { return backoffs_.WaitsUntilNs(waiting.peer) <= now_ns; });
  if (ready == waiting_.end()) return {};
  UniqueFd socket = std::move(ready->socket);
  peer_identity_ = ready->peer;
  waiting_.erase(ready);
  return socket;
}

// When the first of those that wait may be let in; kNoDeadline: nobody waits.
uint64_t ServerConnector::NextReadyNs() const {
  uint64_t next_ns = kNoDeadline;
  for (const Waiting& waiting : waiting_) next_ns = std::min(next_ns, backoffs_.WaitsUntilNs(waiting.peer));
  return next_ns == kNoDeadline ? next_ns : std::max(next_ns, nobody_until_ns_);
}

Task<Result<UniqueFd>> ServerConnector::Next(CancelToken& cancel) {
  CLEAT_CHECK(peer_ < 0);
  while (!cancel.cancelled()) {
    somebody_.Reset();
    const Result<bool> all_accepted = AcceptSome();
    UniqueFd peer = TakeReady();
    if (peer) {
      peer_ = peer.get();
      control_.AddTimer(stays_timer_, control_.now_ns() + kStaysNs);
      co_return peer;
    }
    if (!all_accepted) {
      spdlog::warn("socket {}: peer not accepted: {}; tried again", path_, all_accepted.error().message);
      co_await control_.SleepFor(kAcceptRetryNs, &cancel);
      continue;
    }
    // The listener says nothing again of those that are left in its queue.
    if (!has_room()) co_return PathError(ErrorCode::kResourceExhausted, path_, "no room for a peer's files");
    if (!*all_accepted && waiting_.size() < 2 * kWaitingMax) {
      co_await control_.Yield();
      continue;
    }
    const Deadline ready(control_, somebody_, NextReadyNs());
    co_await somebody_.Wait(&cancel);
  }
  co_return Error(ErrorCode::kCancelled, "stopped");
}

std::string ServerConnector::waiting_for() const {
  if (!waiting_.empty()) {
    return "socket " + path_ + ": " + NameOfPeer(waiting_.front().peer) +
           " waits, whose connections come to nothing; anybody else is let in";
  }
  return "socket " + path_ + ": listening, nobody is connected";
}

}  // namespace cleat::vhost
