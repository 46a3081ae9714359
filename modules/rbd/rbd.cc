// SPDX-License-Identifier: Apache-2.0
#include "modules/rbd/rbd.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "base/log.h"
#include "block/pipeline.h"
#include "modules/rbd/rbd_channel.h"
#include "modules/rbd/rbd_image.h"
#include "reactor/sync.h"

namespace cleat::modules {
namespace {

using block::AccessMode;

constexpr uint64_t kLockRetryMinNs = kNsPerMs;
constexpr uint64_t kLockRetryMaxNs = 50 * kNsPerMs;
// Dead owners that one Acquire takes the lock from: after each somebody else may be faster, and die as well.
constexpr int kTakeOversMax = 8;

// What the threads that tell of changes have of a device: it may be gone when they do.
struct RbdListener {
  RbdEvents events;                  // control; nothing in it any more after Close
  std::atomic<bool> looking{false};  // the size is being looked at, or about to be
  uint64_t size_bytes = 0;           // as last seen; control
};

// The end of an image, of which librbd tells on a thread of its own. Control.
struct Closing {
  explicit Closing(Reactor& control) : done(control) {}
  Event done;
  Status status;
};

class RbdDevice final : public block::Device {
 public:
  RbdDevice(RbdOptions options, const block::Geometry& geometry, std::shared_ptr<RbdImage> image,
            std::shared_ptr<RbdListener> listener, std::shared_ptr<RadosClient> client, ClientPool& clients)
      : Device(options.shape.name, geometry),
        options_(std::move(options)),
        image_(std::move(image)),
        listener_(std::move(listener)),
        client_(std::move(client)),
        clients_(clients),
        known_bytes_(options_.image_bytes_min != 0 ? options_.image_bytes_min : options_.shape.size_bytes),
        lock_wait_ns_(options_.lock_wait_ns) {}

  ~RbdDevice() override {
    if (image_ == nullptr) return;
    listener_->events = {};
    client_->Post(
        [image = std::move(image_)](const RadosConnection&) { static_cast<void>(image->Close().ok()); });
    clients_.Return(client_);
  }

  uint32_t frames() const override { return 1; }

  Result<std::unique_ptr<block::Channel>> OpenChannel(Reactor& reactor) override {
    auto shut_out = [this] { ShutOutSeen(); };
    return std::unique_ptr<block::Channel>(std::make_unique<RbdChannel>(
        RbdHandle{image_->handle(), image_->read_only(), image_}, reactor, std::move(shut_out)));
  }

  Task<Status> Acquire(AccessMode mode) override;
  void SetAcquireTimeout(std::optional<uint64_t> wait_ns) override {
    lock_wait_ns_ = wait_ns.value_or(options_.lock_wait_ns);
  }
  Task<Status> Release() override;
  Task<Status> Resize(uint64_t size_bytes) override;
  Task<Status> Close() override;

 private:
  // Takes the lock for what it does: nullopt when it was done, else who has the lock.
  using LockedWork = RadosClient::Work<std::optional<LockOwner>>;
  Task<Result<std::optional<LockOwner>>> DoLocked(LockedWork work, uint64_t owner_wait_ns);
  Task<Status> TakeOver(LockOwner owner);
  Task<Status> Grow(uint64_t size_bytes);
  Task<Status> GrowOrUnlock();
  Task<void> SeeSize();
  Error OwnedBy(const LockOwner& owner) const;
  Error LeftTo(const LockOwner& owner) const;
  Status Fenced(Status status);
  void ShutOutSeen();

  const RbdOptions options_;
  std::shared_ptr<RbdImage> image_;
  const std::shared_ptr<RbdListener> listener_;
  const std::shared_ptr<RadosClient> client_;
  ClientPool& clients_;
  uint64_t known_bytes_;  // that the image has had: less, and somebody has made it smaller; control
  uint64_t lock_wait_ns_;
};

Task<Status> RbdDevice::Acquire(AccessMode mode) {
  if (mode == AccessMode::kReadOnly) co_return Ok{};
  if (options_.access == AccessMode::kReadOnly) {
    co_return Error(ErrorCode::kInvalidArgument, name() + ": " + image_->where() + " was opened read-only");
  }
  if (!clients_.self()) co_return clients_.self().error();
  const LockedWork take = [image = image_, self = clients_.self().value()](const RadosConnection&) {
    return image->TryLock(self);
  };
  CLEAT_CO_ASSIGN(const auto owner, co_await DoLocked(take, lock_wait_ns_));
  if (owner) co_return OwnedBy(*owner);
  co_return co_await GrowOrUnlock();
}

// A dead owner's lock is taken over; one that lives is waited for, for so long, and is the result then.
Task<Result<std::optional<LockOwner>>> RbdDevice::DoLocked(LockedWork work, uint64_t owner_wait_ns) {
  Reactor& reactor = *Reactor::Current();
  const uint64_t since_ns = reactor.now_ns();
  int take_overs = 0;
  for (uint64_t wait_ns = kLockRetryMinNs;; wait_ns = std::min(2 * wait_ns, kLockRetryMaxNs)) {
    auto done = co_await client_->Run(work);
    if (done && !*done) co_return done;
    const uint64_t waited_ns = reactor.now_ns() - since_ns;
    if (!done) {
      const bool patient = waited_ns < lock_wait_ns_ && !client_->blocklisted();
      if (done.error().code == ErrorCode::kUnavailable && patient) {
        co_await reactor.SleepFor(wait_ns);
        continue;
      }
      co_return Fenced(done.error()).error();
    }
    const LockOwner& owner = **done;
    const bool gone = owner.state == OwnerState::kDead || clients_.WasOurs(owner.client);
    if (gone && ++take_overs <= kTakeOversMax) {
      const Status broken = co_await TakeOver(owner);
      if (!broken) co_return Fenced(broken).error();
    } else if (gone || waited_ns >= owner_wait_ns) {
      co_return done;
    } else {
      co_await reactor.SleepFor(wait_ns);
    }
  }
}

// The disk may have become larger when nobody had the lock.
Task<Status> RbdDevice::GrowOrUnlock() {
  const Status grown = co_await Grow(geometry().size_bytes);
  if (grown) {
    co_await SeeSize();
    co_return Ok{};
  }
  const Status released = co_await Release();
  if (!released)
    spdlog::warn("{}; the image stays locked until this engine's client ends", released.error().message);
  co_return grown;
}

Task<Status> RbdDevice::Grow(uint64_t size_bytes) {
  if (!clients_.self()) co_return clients_.self().error();
  const OwnerRecord& self = clients_.self().value();
  const LockedWork grow = [image = image_, self, known_bytes = known_bytes_, size_bytes](
                              const RadosConnection&) { return image->Grow(self, known_bytes, size_bytes); };
  CLEAT_CO_ASSIGN(const auto owner, co_await DoLocked(grow, 0));
  if (owner) co_return LeftTo(*owner);
  known_bytes_ = std::max(known_bytes_, size_bytes);
  co_return Ok{};
}

// What the last owner let it grow to is to be known before the first request, and its notice may still be on its way.
Task<void> RbdDevice::SeeSize() {
  const RadosClient::Work<uint64_t> look = [image = image_](const RadosConnection&) {
    return image->SizeBytes();
  };
  const auto bytes = co_await client_->Run(look);
  if (!bytes || std::exchange(listener_->size_bytes, *bytes) == *bytes) co_return;
  if (const auto tell = listener_->events.resized) tell(*bytes);
}

// The owner can't have it back: it is dead, or a client of ours that was shut out already.
Task<Status> RbdDevice::TakeOver(LockOwner owner) {
  CLEAT_CO_TRY(co_await clients_.ShutOut(client_, owner.address));
  const RadosClient::Work<void> release = [image = image_, owner](const RadosConnection&) {
    return image->BreakLock(owner);
  };
  const Status broken = co_await client_->Run(release);
  if (broken) {
    spdlog::info("{}: lock of {} taken over from {}, {}", name(), image_->where(), owner.client,
                 owner.record ? DescribeOwner(*owner.record, clients_.self().value()) : owner.address);
  }
  co_return broken;
}

// librbd would ask the owner to make it larger, take the lock first if it can, break it if the owner does not watch the image at the moment,
// and wait for an answer without end.
Error RbdDevice::LeftTo(const LockOwner& owner) const {
  return {ErrorCode::kUnavailable, name() + ": " + image_->where() + " is made larger by who has its lock, " +
                                       owner.client + " at " + owner.address +
                                       ": resize it there; it is seen here then"};
}

Error RbdDevice::OwnedBy(const LockOwner& owner) const {
  std::string who = owner.client + " at " + owner.address;
  std::string what_to_do = ": end that use, then try again";
  if (owner.client == client_->id()) {
    who = "another disk of this engine";
  } else if (owner.record) {
    who = DescribeOwner(*owner.record, clients_.self().value()) + ", " + who;
  } else {
    who += ", which is no engine of Cleat";
  }
  if (owner.state == OwnerState::kElsewhere) {
    what_to_do += "; if its machine is dead for certain: 'ceph osd blocklist add " + owner.address +
                  "', then 'rbd lock rm'";
  }
  return {ErrorCode::kFailedPrecondition,
          name() + ": " + image_->where() + " is locked by " + who + what_to_do};
}

Task<Status> RbdDevice::Release() {
  const RadosClient::Work<void> unlock = [image = image_](const RadosConnection&) { return image->Unlock(); };
  const Status released = co_await client_->Run(unlock);
  co_return Fenced(released);
}

Task<Status> RbdDevice::Resize(uint64_t size_bytes) {
  const Status grown = co_await Grow(size_bytes);
  if (grown) SetSize(size_bytes);
  co_return grown;
}

Task<Status> RbdDevice::Close() {
  if (image_ == nullptr) co_return Ok{};
  listener_->events = {};
  const auto closing = std::make_shared<Closing>(*Reactor::Current());
  const RadosClient::Work<void> begin = [image = std::move(image_), link = client_->link(),
                                         closing](const RadosConnection&) {
    RbdImage::CloseAside(image, [link, closing](const Status& closed) {
      link->Post([closing, closed] {
        closing->status = closed;
        closing->done.Set();
      });
    });
    return Status(Ok{});
  };
  const Status begun = co_await client_->Run(begin);
  if (begun) co_await closing->done.Wait();
  clients_.Return(client_);
  co_return begun ? closing->status : begun;
}

// Passes on what came of a call on the client's thread, having looked whether it failed because the client was shut out.
Status RbdDevice::Fenced(Status status) {
  if (!status && image_->shut_out()) ShutOutSeen();
  return status;
}

// On any reactor, for each request and call that fails so.
void RbdDevice::ShutOutSeen() {
  if (!image_->SetFenced()) return;
  client_->link()->Post([client = client_, listener = listener_, clients = &clients_, disk = name(),
                         where = image_->where()] {
    clients->Blocklisted(*client);
    const auto tell = std::move(listener->events.fenced);
    if (!tell) return;
    const Error why(ErrorCode::kFailedPrecondition, disk + ": this engine's client " + client->id() +
                                                        " was blocklisted by " + client->cluster().name +
                                                        ", so nothing is read from or written to " + where +
                                                        " any more: detach the disk and attach it again");
    tell(why);
  });
}

block::Geometry GeometryOf(const RbdOptions& options, const RbdImage& image) {
  block::Geometry geometry = options.shape.ToGeometry();
  const bool writes = options.access == AccessMode::kReadWrite;
  geometry.optimal_io_bytes = image.object_bytes();
  geometry.discard = writes;
  geometry.discard_granularity_bytes =
      std::max(image.discard_granularity_bytes(), geometry.logical_block_bytes);
  geometry.discard_max_bytes = kRbdZeroBytesMax;
  geometry.write_zeroes = writes;
  geometry.write_zeroes_max_bytes = kRbdZeroBytesMax;
  // Nothing is cached, and a flush costs next to nothing; a guest that sends none would rely on that setting for ever.
  geometry.write_cache = true;
  return geometry;
}

Status CheckOptions(const RbdOptions& options) {
  const auto refuse = [&options](const std::string& why) {
    return Error(ErrorCode::kInvalidArgument, options.shape.name + ": " + why);
  };
  if (options.cluster == nullptr) return refuse("no cluster is given");
  if (options.pool.empty() || options.image.empty())
    return refuse("the pool's or the image's name is missing");
  if (!options.snapshot.empty() && options.access == AccessMode::kReadWrite) {
    return refuse("the snapshot " + options.snapshot + " can only be read: open it read-only");
  }
  CLEAT_TRY(CheckCluster(*options.cluster));
  return block::CheckGeometry(options.shape.ToGeometry(), options.shape.name);
}

// Some thread of librbd's says that the image has changed: its client's thread looks at the size, and tells control.
void LookAtSize(const std::weak_ptr<RadosClient>& client, const std::weak_ptr<RbdImage>& image,
                const std::shared_ptr<RbdListener>& listener) {
  const auto held_client = client.lock();
  if (held_client == nullptr || listener->looking.exchange(true)) return;
  held_client->Post([image, listener, link = held_client->link()](const RadosConnection&) {
    listener->looking.store(false);  // what changes from here on is another change
    const auto held_image = image.lock();
    if (held_image == nullptr || held_image->handle() == nullptr) return;
    const auto bytes = held_image->SizeBytes();
    if (!bytes) return;
    link->Post([listener, size_bytes = *bytes] {
      if (std::exchange(listener->size_bytes, size_bytes) == size_bytes) return;
      if (const auto tell = listener->events.resized) tell(size_bytes);
    });
  });
}

struct Opened {
  std::shared_ptr<RbdImage> image;
  uint64_t size_bytes = 0;
};

// On `client`'s thread.
Result<Opened> OpenAndWatch(const RadosConnection& at, const RbdOptions& options,
                            const std::weak_ptr<RadosClient>& client,
                            const std::shared_ptr<RbdListener>& listener, bool* shut_out) {
  CLEAT_ASSIGN(const std::shared_ptr<RbdImage> image, RbdImage::Open(at, options, shut_out));
  const std::weak_ptr<RbdImage> weak_image = image;
  Status done = image->Watch([client, weak_image, listener] { LookAtSize(client, weak_image, listener); });
  // After the watch has begun, so that no change is missed.
  const auto bytes = image->SizeBytes();
  if (done && !bytes) done = bytes.error();
  if (done) return Opened{image, *bytes};
  *shut_out = image->shut_out();
  const Status closed = image->Close();
  if (!closed)
    spdlog::warn("{}; the image was closed all the same after its opening had failed",
                 closed.error().message);
  return done.error();
}

}  // namespace

Task<Result<std::unique_ptr<block::Device>>> OpenRbd(RbdOptions options, ClientPool& clients) {
  CLEAT_CO_TRY(CheckOptions(options));
  // A client may have been blocklisted with nobody noticing: then once more, with a new one.
  for (const bool last : {false, true}) {
    const std::shared_ptr<RadosClient> client = clients.Take(options.cluster);
    const auto listener = std::make_shared<RbdListener>();
    const auto shut_out = std::make_shared<bool>(false);
    const std::weak_ptr<RadosClient> weak_client = client;
    const RadosClient::Work<Opened> open = [options, listener, weak_client,
                                            shut_out](const RadosConnection& at) {
      return OpenAndWatch(at, options, weak_client, listener, shut_out.get());
    };
    auto opened = co_await client->Run(open);
    if (!opened) {
      if (*shut_out) clients.Blocklisted(*client);
      clients.Return(client);
      if (*shut_out && !last) continue;
      co_return opened.error();
    }
    listener->size_bytes = opened->size_bytes;
    listener->events = options.events;
    const block::Geometry geometry = GeometryOf(options, *opened->image);
    co_return std::unique_ptr<block::Device>(
        std::make_unique<RbdDevice>(std::move(options), geometry, opened->image, listener, client, clients));
  }
  co_return Error(ErrorCode::kInternal, options.shape.name + ": not opened");
}

}  // namespace cleat::modules
