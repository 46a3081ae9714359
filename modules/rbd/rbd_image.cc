// SPDX-License-Identifier: Apache-2.0
#include "modules/rbd/rbd_image.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/log.h"
#include "modules/rbd/ceph_error.h"
#include "modules/rbd/rbd.h"
#include "modules/rbd/rbd_cluster.h"

namespace cleat::modules {
namespace {

constexpr char kLockName[] = "rbd_lock";  // librbd's exclusive lock, on the header object
constexpr size_t kIdBytesMax = 256;
constexpr size_t kMetadataBytesMax = 4096;
constexpr uint32_t kImageOptionsMax = 256;

// "v1:10.0.0.7:0/312" -> "10.0.0.7:0/312": lists of watchers have it so, lists of lockers the other way
std::string_view WithoutProtocol(std::string_view address) {
  return address.starts_with("v1:") || address.starts_with("v2:") ? address.substr(3) : address;
}

// "10.0.0.7:0/312" -> "10.0.0.7", "[fd00::1]:0/7" -> "[fd00::1]"
std::string_view HostOf(std::string_view address) {
  const std::string_view text = WithoutProtocol(address.substr(0, address.rfind('/')));
  return text.substr(0, text.rfind(':'));
}

// Ceph's encoding of a string or buffer: its length, little-endian, and its bytes.
void AppendString(std::string& out, const std::string& text) {
  static_assert(std::endian::native == std::endian::little);
  const auto length = static_cast<uint32_t>(text.size());
  out.append(std::bit_cast<std::array<char, sizeof length>>(length).data(), sizeof length);
  out += text;
}

std::string ImageName(const RbdOptions& options) {
  return options.pool + "/" + (options.name_space.empty() ? "" : options.name_space + "/") + options.image +
         (options.snapshot.empty() ? "" : "@" + options.snapshot);
}

}  // namespace

int PutImageMetadata(rados_ioctx_t io, const std::string& header, const std::string& key,
                     const std::string& value) {
  std::string input;  // a map of one entry
  constexpr uint32_t kEntries = 1;
  input.append(std::bit_cast<std::array<char, sizeof kEntries>>(kEntries).data(), sizeof kEntries);
  AppendString(input, key);
  AppendString(input, value);
  const int done =
      rados_exec(io, header.c_str(), "rbd", "metadata_set", input.data(), input.size(), nullptr, 0);
  return std::min(done, 0);
}

int RemoveImageMetadata(rados_ioctx_t io, const std::string& header, const std::string& key) {
  std::string input;
  AppendString(input, key);
  const int done =
      rados_exec(io, header.c_str(), "rbd", "metadata_remove", input.data(), input.size(), nullptr, 0);
  return std::min(done, 0);
}

Error RbdImage::Failed(int result, const std::string& what) const {
  if (result == -ESHUTDOWN) shut_out_.store(true, std::memory_order_relaxed);
  return CephError(result, what);
}

Result<std::shared_ptr<RbdImage>> RbdImage::Open(const RadosConnection& at, const RbdOptions& options,
                                                 bool* shut_out) {
  const std::shared_ptr<RbdImage> image(new RbdImage);
  Status opened = image->OpenImage(at, options);
  if (opened) opened = image->Examine(options);
  if (!opened) {
    *shut_out = image->shut_out();
    const Status closed = image->Close();
    if (!closed)
      spdlog::warn("{}; the image was closed all the same after its opening had failed",
                   closed.error().message);
    return opened.error();
  }
  return image;
}

RbdImage::~RbdImage() {
  if (image_ != nullptr)
    spdlog::warn("{}: image left open: {}; it is closed when this engine's process ends", who_, where_);
}

Status RbdImage::OpenImage(const RadosConnection& at, const RbdOptions& options) {
  who_ = options.shape.name;
  where_ = "image " + ImageName(options) + " of " + options.cluster->name;
  at_ = at;
  read_only_ = options.access == block::AccessMode::kReadOnly;
  int result = rados_ioctx_create(at.cluster, options.pool.c_str(), &io_);
  if (result < 0) {
    io_ = nullptr;
    return Failed(result,
                  who_ + ": pool " + options.pool + " of " + options.cluster->name + " can't be used");
  }
  pools_.push_back(at_.pools->Add(options.pool));
  rados_ioctx_set_namespace(io_, options.name_space.c_str());
  const char* snapshot = options.snapshot.empty() ? nullptr : options.snapshot.c_str();
  // What librbd opens read-only never hears of changes, and keeps its size. So readers of the present image open it as a
  // writer does, and without the lock can't write; those whose capabilities don't allow that must do without.
  result = snapshot != nullptr ? rbd_open_read_only(io_, options.image.c_str(), &image_, snapshot)
                               : rbd_open(io_, options.image.c_str(), &image_, nullptr);
  if (read_only_ && (result == -EPERM || result == -EROFS)) {
    result = rbd_open_read_only(io_, options.image.c_str(), &image_, nullptr);
  }
  if (result < 0) {
    image_ = nullptr;
    return Failed(result, who_ + ": " + where_ + " can't be opened");
  }
  AddDataPool();
  return Ok{};
}

// `rbd create --data-pool`: the image's data lie in another pool than its header. What can't be found out is only not told of.
void RbdImage::AddDataPool() {
  std::array<char, kIdBytesMax> name{};
  const int64_t pool = rbd_get_data_pool_id(image_);
  if (pool >= 0 && rados_pool_reverse_lookup(at_.cluster, pool, name.data(), name.size()) > 0)
    pools_.push_back(at_.pools->Add(name.data()));
}

Status RbdImage::Examine(const RbdOptions& options) {
  uint64_t features = 0;
  int result = rbd_get_features(image_, &features);
  if (result < 0) return Failed(result, who_ + ": the features of " + where_ + " can't be read");
  if (!read_only_ && (features & RBD_FEATURE_EXCLUSIVE_LOCK) == 0) {
    return Error(ErrorCode::kFailedPrecondition,
                 who_ + ": " + where_ +
                     " has no exclusive lock, without which nothing keeps a second writer out: "
                     "'rbd feature enable' it, with the image unused");
  }
  std::array<char, kIdBytesMax> id{};
  result = rbd_get_id(image_, id.data(), id.size());
  if (result < 0) return Failed(result, who_ + ": " + where_ + " has no id (it must be of format 2)");
  header_ = std::string("rbd_header.") + id.data();
  rbd_image_info_t info{};
  result = rbd_stat(image_, &info, sizeof info);
  if (result < 0) return Failed(result, who_ + ": the size of " + where_ + " can't be read");
  const uint64_t wanted_bytes = options.shape.size_bytes;
  const uint64_t known_bytes = options.image_bytes_min != 0 ? options.image_bytes_min : wanted_bytes;
  CLEAT_TRY(CheckSize(info.size, known_bytes, wanted_bytes));
  object_bytes_ = static_cast<uint32_t>(std::min<uint64_t>(info.obj_size, uint64_t{1} << 31));
  return CheckSettings();
}

Error RbdImage::UnsafeSetting(const std::string& name, const std::string& value,
                              const std::string& safe) const {
  return {ErrorCode::kFailedPrecondition,
          who_ + ": " + where_ + " has the setting " + name + " = " + value + " where only " + safe +
              " is safe: take it out ('rbd config image rm', or of its pool)"};
}

// An image's or a pool's own settings go before the client's.
Status RbdImage::CheckSettings() {
  std::vector<rbd_config_option_t> options(kImageOptionsMax);
  int count = kImageOptionsMax;
  const int result = rbd_config_image_list(image_, options.data(), &count);
  if (result < 0) return Failed(result, who_ + ": the settings of " + where_ + " can't be read");
  Status status;
  bool any_discard = false;
  for (int i = 0; i < count; ++i) {
    const std::string name = options[static_cast<size_t>(i)].name;
    const std::string value = options[static_cast<size_t>(i)].value;
    if (name == "rbd_discard_granularity_bytes") {
      discard_granularity_bytes_ = static_cast<uint32_t>(std::strtoull(value.c_str(), nullptr, 10));
    }
    if (name == "rbd_skip_partial_discard" && value == "false") any_discard = true;
    const auto demanded = DemandedOfImage().find(name);
    if (demanded == DemandedOfImage().end() || value == demanded->second) continue;
    status = UnsafeSetting(name, value, demanded->second);
  }
  if (any_discard) discard_granularity_bytes_ = 0;
  rbd_config_image_list_cleanup(options.data(), count);
  return status;
}

Result<uint64_t> RbdImage::SizeBytes() const {
  uint64_t bytes = 0;
  const int result = rbd_get_size(image_, &bytes);
  if (result < 0) return Failed(result, who_ + ": the size of " + where_ + " can't be read");
  return bytes;
}

// What is missing between the two sizes a writer can add.
Status RbdImage::CheckSize(uint64_t present_bytes, uint64_t known_bytes, uint64_t wanted_bytes) const {
  if (present_bytes < std::min(known_bytes, wanted_bytes)) {
    return Error(ErrorCode::kFailedPrecondition, who_ + ": " + where_ + " has " +
                                                     std::to_string(present_bytes) + " bytes, the disk has " +
                                                     std::to_string(known_bytes));
  }
  if (present_bytes < wanted_bytes && read_only_) {
    return Error(ErrorCode::kFailedPrecondition,
                 who_ + ": " + where_ + " has " + std::to_string(present_bytes) +
                     " bytes, the disk is to have " + std::to_string(wanted_bytes) +
                     ": it can only be read here, let its writer make it larger");
  }
  return Ok{};
}

Status RbdImage::SetSize(uint64_t size_bytes) {
  const int result = rbd_resize2(
      image_, size_bytes, /*allow_shrink=*/false, [](uint64_t, uint64_t, void*) { return 0; }, nullptr);
  if (result >= 0) return Ok{};
  return Failed(result, who_ + ": " + where_ + " can't grow to " + std::to_string(size_bytes) + " bytes");
}

// librbd takes the lock by itself for a resize, and keeps it, with no record beside it: nobody could prove later that this
// owner is dead. So the lock is ours before, or nobody's concern afterwards.
Result<std::optional<LockOwner>> RbdImage::Grow(const OwnerRecord& self, uint64_t known_bytes,
                                                uint64_t size_bytes) {
  CLEAT_ASSIGN(const auto present, SizeBytes());
  CLEAT_TRY(CheckSize(present, known_bytes, size_bytes));
  if (present >= size_bytes) return std::optional<LockOwner>();
  CLEAT_ASSIGN(const auto ours, IsOurs());
  if (!ours) {
    auto taken = TryLock(self);
    if (!taken || *taken) return taken;
  }
  const Status grown = SetSize(size_bytes);
  const Status unlocked = ours ? Status(Ok{}) : Unlock();
  CLEAT_TRY(grown);
  CLEAT_TRY(unlocked);
  return std::optional<LockOwner>();
}

Result<bool> RbdImage::IsOurs() const {
  int ours = 0;
  const int result = rbd_is_exclusive_lock_owner(image_, &ours);
  if (result < 0)
    return Failed(result, who_ + ": whether the lock of " + where_ + " is ours can't be found out");
  return ours != 0;
}

Result<std::optional<LockOwner>> RbdImage::TryLock(const OwnerRecord& self) {
  const std::string unlockable = who_ + ": the lock of " + where_ + " can't be taken";
  CLEAT_ASSIGN(const auto ours, IsOurs());
  if (ours) return std::optional<LockOwner>();
  // Looked for first: to ask for the lock may break the one of an owner whose watch has ended, and here it is proof
  // that decides.
  auto owner = FindOwner(self);
  if (!owner || *owner) return owner;
  // Another process may have shut the last owner out, and got no further. With the latest map our requests carry that to
  // wherever they go, as they do when we are the ones (BreakLock).
  int result = rados_wait_for_latest_osdmap(at_.cluster);
  if (result < 0) return Failed(result, unlockable);
  CLEAT_TRY(PutRecord(at_.id, EncodeOwnerRecord(self)));
  result = rbd_lock_acquire(image_, RBD_LOCK_MODE_EXCLUSIVE);
  if (result >= 0) return std::optional<LockOwner>();
  RemoveRecord(at_.id);
  if (result != -EROFS && result != -EBUSY) return Failed(result, unlockable);
  owner = FindOwner(self);  // who was faster
  if (owner && !*owner)
    return Error(ErrorCode::kUnavailable, unlockable + " yet: somebody has just let go of it");
  return owner;
}

Status RbdImage::Unlock() {
  int ours = 0;
  int result = rbd_is_exclusive_lock_owner(image_, &ours);
  if (result >= 0 && ours != 0) result = rbd_lock_release(image_);
  RemoveRecord(at_.id);
  if (result < 0) return Failed(result, who_ + ": the lock of " + where_ + " can't be released");
  return Ok{};
}

Status RbdImage::BreakLock(const LockOwner& owner) {
  const std::string what =
      who_ + ": the lock that the dead " + owner.client + " has on " + where_ + " can't be broken";
  // This client's requests carry the map from now on, and storage that gets one of them knows that the owner is out.
  int result = rados_wait_for_latest_osdmap(at_.cluster);
  if (result < 0) return Failed(result, what);
  result = rados_break_lock(io_, header_.c_str(), kLockName, owner.client.c_str(), owner.cookie.c_str());
  if (result < 0 && result != -ENOENT) return Failed(result, what);
  RemoveRecord(owner.client);
  return Ok{};
}

Result<std::optional<LockOwner>> RbdImage::FindOwner(const OwnerRecord& self) const {
  int exclusive = 0;
  std::array<char, 256> tag{};
  std::array<char, 4096> clients{};
  std::array<char, 4096> cookies{};
  std::array<char, 4096> addresses{};
  size_t tag_bytes = tag.size();
  size_t clients_bytes = clients.size();
  size_t cookies_bytes = cookies.size();
  size_t addresses_bytes = addresses.size();
  const ssize_t count =
      rados_list_lockers(io_, header_.c_str(), kLockName, &exclusive, tag.data(), &tag_bytes, clients.data(),
                         &clients_bytes, cookies.data(), &cookies_bytes, addresses.data(), &addresses_bytes);
  if (count < 0 && count != -ENOENT) {
    return Failed(static_cast<int>(count), who_ + ": who has the lock of " + where_ + " can't be found out");
  }
  if (count <= 0) return std::optional<LockOwner>();
  LockOwner owner;
  owner.client = clients.data();
  owner.cookie = cookies.data();
  owner.address = addresses.data();
  std::array<char, kMetadataBytesMax> text{};
  size_t text_bytes = text.size() - 1;
  const int got = rbd_metadata_get(image_, OwnerRecordKey(owner.client).c_str(), text.data(), &text_bytes);
  if (got >= 0) owner.record = ParseOwnerRecord(text.data());
  if (owner.record) {
    const bool same_address = HostOf(owner.address) == HostOf(at_.address);
    owner.state = JudgeOwner(*owner.record, self, same_address);
  }
  return std::optional<LockOwner>(std::move(owner));
}

Status RbdImage::PutRecord(const std::string& client, const std::string& text) {
  const int result = PutImageMetadata(io_, header_, OwnerRecordKey(client), text);
  if (result < 0) return Failed(result, who_ + ": " + where_ + " does not take the record of its owner");
  record_put_ = true;
  return Ok{};
}

// A record that stays behind says who the owner was once, and decides nothing.
void RbdImage::RemoveRecord(const std::string& client) {
  if (client == at_.id && !std::exchange(record_put_, false)) return;
  RemoveImageMetadata(io_, header_, OwnerRecordKey(client));
}

Status RbdImage::Watch(std::function<void()> changed) {
  CLEAT_CHECK(!watching_);
  changed_ = std::move(changed);
  const auto tell = [](void* self) { static_cast<RbdImage*>(self)->changed_(); };
  const int result = rbd_update_watch(image_, &watch_, tell, this);
  if (result < 0) return Failed(result, who_ + ": changes of " + where_ + " can't be watched");
  watching_ = true;
  return Ok{};
}

Status RbdImage::Close() {
  if (image_ == nullptr) return Finish(0);
  LetGo();
  return Finish(rbd_close(std::exchange(image_, nullptr)));
}

void RbdImage::CloseAside(std::shared_ptr<RbdImage> image, Closed closed) {
  struct Closing {
    std::shared_ptr<RbdImage> image;
    Closed closed;
    void End(int result) const { closed(image->Finish(result)); }
  };
  auto closing = std::make_unique<Closing>(std::move(image), std::move(closed));
  RbdImage& self = *closing->image;
  self.LetGo();
  const auto done = [](rbd_completion_t completion, void* of) {
    const std::unique_ptr<Closing> ended(static_cast<Closing*>(of));
    const auto result = static_cast<int>(rbd_aio_get_return_value(completion));
    rbd_aio_release(completion);
    ended->End(result);
  };
  rbd_completion_t completion = nullptr;
  int result = rbd_aio_create_completion(closing.get(), done, &completion);
  if (result >= 0) {
    result = rbd_aio_close(std::exchange(self.image_, nullptr), completion);
    if (result >= 0) return static_cast<void>(closing.release());  // `done` has it
    rbd_aio_release(completion);
  }
  closing->End(result);
}

void RbdImage::LetGo() {
  if (watching_) rbd_update_unwatch(image_, watch_);  // waits for a call that is under way
  watching_ = false;
  changed_ = nullptr;
  if (record_put_) rbd_lock_release(image_);  // else closing does, and the record would go too early
  RemoveRecord(at_.id);
}

Status RbdImage::Finish(int result) {
  if (io_ != nullptr) rados_ioctx_destroy(io_);
  io_ = nullptr;
  pools_.clear();
  if (result < 0) return Failed(result, who_ + ": " + where_ + " did not close well");
  return Ok{};
}

}  // namespace cleat::modules
