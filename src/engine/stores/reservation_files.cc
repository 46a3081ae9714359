// SPDX-License-Identifier: Apache-2.0
#include "engine/stores/reservation_files.h"

#include <cleat/engine/v1/engine.pb-c.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <string_view>
#include <utility>

#include "base/paths.h"
#include "base/unique_fd.h"
#include "engine/protocol/codec_structs.h"
#include "nvme/tcp/crc32c.h"

namespace cleat::engine {
namespace {

using nvme::fabrics::Uuid;
using nvme::target::Registrant;
using nvme::target::Reservation;
using nvme::target::ReservationType;

using PbReservation = Cleat__Engine__V1__StoredReservation;
using PbRegistrant = Cleat__Engine__V1__StoredRegistrant;

constexpr std::string_view kMagic = "CLEATRSV";
constexpr size_t kVersionAt = 8;
constexpr size_t kCrcAt = 12;
constexpr size_t kHeaderBytes = 16;
constexpr ReservationType kTypeMax = ReservationType::kExclusiveAccessAll;
constexpr size_t kBootIdBytesMax = 64;
constexpr char kBootIdPath[] = "/proc/sys/kernel/random/boot_id";
constexpr std::string_view kTemporarySuffix = ".new";

// ---- The content

Error Lost(const std::string& cause) {
  return {ErrorCode::kDataLoss, cause};
}

void PutUint32(uint32_t value, uint8_t* out) {
  for (size_t i = 0; i < sizeof(value); ++i) out[i] = static_cast<uint8_t>(value >> (8 * i));
}

uint32_t Uint32At(const uint8_t* in) {
  uint32_t value = 0;
  for (size_t i = 0; i < sizeof(value); ++i) value |= uint32_t{in[i]} << (8 * i);
  return value;
}

// What is wrong; empty: a namespace can have it.
std::string WhyImpossible(const Reservation& reservation) {
  if (reservation.registrants.size() > nvme::target::kRegistrantsMax)
    return "has " + std::to_string(reservation.registrants.size()) + " registrants";
  const auto& registrants = reservation.registrants;
  if (!std::ranges::is_sorted(registrants, std::ranges::less_equal(), &Registrant::host_id))
    return "has registrants that are out of order, or one of them twice";
  if (std::ranges::find(registrants, uint64_t{0}, &Registrant::key) != registrants.end())
    return "has a registrant with key 0";
  if (reservation.type > kTypeMax) return "has an unknown type";
  if (reservation.holder && !reservation.held()) return "has a holder of nothing";
  if (reservation.holder && reservation.Find(*reservation.holder) == nullptr)
    return "has a holder that is no registrant";
  if (!reservation.held()) return {};
  if (reservation.registrants.empty()) return "is held and has no registrants";
  if (!reservation.holder && !reservation.is_for_all()) return "is held by nobody";
  return {};
}

template <typename Bytes>
ProtobufCBinaryData StoredBytesOf(const Bytes& bytes) {
  return {.len = bytes.size(), .data = const_cast<uint8_t*>(bytes.data())};
}

Result<Uuid> HostIdOf(const ProtobufCBinaryData& in) {
  Uuid host_id{};
  if (in.len != host_id.size()) return Lost("has a host identifier of " + std::to_string(in.len) + " bytes");
  std::copy_n(in.data, in.len, host_id.begin());
  return host_id;
}

Result<Reservation> ReservationOf(const PbReservation& in) {
  Reservation reservation;
  reservation.generation = in.generation;
  if (in.type > static_cast<uint32_t>(kTypeMax))
    return Lost("has type " + std::to_string(in.type) + ", which is unknown");
  reservation.type = static_cast<ReservationType>(in.type);
  reservation.persists = in.persists != 0;
  for (const PbRegistrant* const told : std::span(in.registrants, in.n_registrants)) {
    CLEAT_ASSIGN(const Uuid host_id, HostIdOf(told->host_id));
    reservation.registrants.push_back({.host_id = host_id, .key = told->key});
  }
  if (in.has_holder != 0) {
    CLEAT_ASSIGN(reservation.holder, HostIdOf(in.holder));
  }
  if (const std::string why = WhyImpossible(reservation); !why.empty()) return Lost(why);
  return reservation;
}

// ---- The files

// Errors of `path`, after the system call has failed.
Error FileError(int error_number, const std::string& path, const std::string& what) {
  const bool no_space = error_number == ENOSPC || error_number == EDQUOT;
  Error error = ErrnoError(error_number, "reservation file '" + path + "' " + what);
  error.message += no_space ? "; make room on its file system" : "; see to its folder and file system";
  return error;
}

Error Unusable(const std::string& path, const std::string& cause) {
  return {ErrorCode::kDataLoss,
          "reservation file '" + path + "' " + cause +
              ": the namespace is not served; see that no host relies on a reservation of it, then remove "
              "the file, which forgets "
              "the reservation (rm '" +
              path + "')"};
}

Status WriteFile(int fd, std::span<const uint8_t> bytes, const std::string& path) {
  while (!bytes.empty()) {
    const ssize_t written = write(fd, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return FileError(written < 0 ? errno : ENOSPC, path, "can't be written");
    bytes = bytes.subspan(static_cast<size_t>(written));
  }
  return Ok{};
}

// At most so many bytes and one more, which says that there are too many.
Result<std::vector<uint8_t>> ReadAll(int fd, size_t bytes_max, const std::string& path) {
  std::vector<uint8_t> bytes(bytes_max + 1);
  size_t size = 0;
  while (size < bytes.size()) {
    const ssize_t got = read(fd, bytes.data() + size, bytes.size() - size);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return FileError(errno, path, "can't be read");
    if (got == 0) break;
    size += static_cast<size_t>(got);
  }
  bytes.resize(size);
  return bytes;
}

Result<Reservation> LoadFrom(const std::string& path, const std::string& boot_id) {
  // O_NONBLOCK: it may be a pipe, to which nobody writes.
  const UniqueFd file(open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  if (!file && errno == ENOENT) return Reservation{};
  if (!file && errno == ELOOP) return Unusable(path, "is a symbolic link");
  if (!file) return FileError(errno, path, "can't be opened");
  struct stat info {};
  if (fstat(file.get(), &info) != 0) return FileError(errno, path, "can't be looked at");
  if (!S_ISREG(info.st_mode)) return Unusable(path, "is no regular file");
  CLEAT_ASSIGN(const auto bytes, ReadAll(file.get(), ReservationFiles::kFileBytesMax, path));
  auto unpacked = UnpackReservation(bytes, boot_id);
  if (!unpacked) return Unusable(path, unpacked.error().message);
  return unpacked;
}

// Durably.
Result<UniqueFd> OpenFolder(const std::string& folder) {
  const auto open_it = [&folder] {
    return UniqueFd(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  };
  UniqueFd opened = open_it();
  if (opened || errno != ENOENT) {
    if (!opened) return FileError(errno, folder, "can't be made: its folder can't be opened");
    return opened;
  }
  CLEAT_TRY(MakeDirectory(folder));
  opened = open_it();
  if (!opened) return FileError(errno, folder, "can't be made: its folder can't be opened");
  const std::string parent = std::filesystem::path(folder).parent_path();
  const UniqueFd above(open(parent.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!above || fsync(above.get()) != 0)
    return FileError(errno, folder, "can't be made: its folder can't be made durable");
  return opened;
}

Status WriteTemporary(const UniqueFd& folder, const std::string& temporary, std::span<const uint8_t> bytes,
                      const std::string& path) {
  const UniqueFd file(openat(folder.get(), temporary.c_str(),
                             O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, S_IRUSR | S_IWUSR));
  if (!file) return FileError(errno, path, "can't be replaced: no file can be made beside it");
  CLEAT_TRY(WriteFile(file.get(), bytes, path));
  if (fsync(file.get()) != 0) return FileError(errno, path, "can't be made durable");
  return Ok{};
}

Status StoreIn(const std::string& folder, const std::string& name, std::span<const uint8_t> bytes) {
  const std::string path = folder + "/" + name;
  CLEAT_ASSIGN(const UniqueFd opened, OpenFolder(folder));
  const std::string temporary = name + std::string(kTemporarySuffix);
  // Of an engine that was killed: who serves a namespace is the only one that stores it.
  unlinkat(opened.get(), temporary.c_str(), 0);
  Status status = WriteTemporary(opened, temporary, bytes, path);
  if (status.ok() && renameat(opened.get(), temporary.c_str(), opened.get(), name.c_str()) != 0)
    status = FileError(errno, path, "can't be replaced");
  if (!status.ok()) {
    unlinkat(opened.get(), temporary.c_str(), 0);
    return status;
  }
  if (fsync(opened.get()) != 0) return FileError(errno, path, "can't be made durable");
  return Ok{};
}

}  // namespace

Result<std::vector<uint8_t>> PackReservation(const Reservation& reservation, const std::string& boot_id) {
  if (const std::string why = WhyImpossible(reservation); !why.empty())
    return Error(ErrorCode::kInternal, "a reservation " + why);
  std::vector<PbRegistrant> registrants(reservation.registrants.size());
  std::vector<PbRegistrant*> pointers;
  for (size_t i = 0; i < registrants.size(); ++i) {
    cleat__engine__v1__stored_registrant__init(&registrants[i]);
    CLEAT_PB_SET(registrants[i], host_id, StoredBytesOf(reservation.registrants[i].host_id));
    CLEAT_PB_SET(registrants[i], key, reservation.registrants[i].key);
    pointers.push_back(&registrants[i]);
  }
  PbReservation message = CLEAT__ENGINE__V1__STORED_RESERVATION__INIT;
  message.boot_id = PbText(boot_id);
  CLEAT_PB_SET(message, generation, reservation.generation);
  CLEAT_PB_SET(message, type, static_cast<uint32_t>(reservation.type));
  CLEAT_PB_SET(message, persists, reservation.persists ? 1 : 0);
  message.n_registrants = pointers.size();
  message.registrants = pointers.data();
  if (reservation.holder) CLEAT_PB_SET(message, holder, StoredBytesOf(*reservation.holder));
  std::vector<uint8_t> bytes(kHeaderBytes + cleat__engine__v1__stored_reservation__get_packed_size(&message));
  const std::span<uint8_t> payload = std::span(bytes).subspan(kHeaderBytes);
  (void)cleat__engine__v1__stored_reservation__pack(&message, payload.data());
  std::ranges::copy(kMagic, bytes.begin());
  PutUint32(ReservationFiles::kVersion, bytes.data() + kVersionAt);
  PutUint32(nvme::tcp::Crc32cOf(payload.data(), payload.size()), bytes.data() + kCrcAt);
  return bytes;
}

Result<Reservation> UnpackReservation(std::span<const uint8_t> bytes, const std::string& boot_id) {
  if (bytes.size() > ReservationFiles::kFileBytesMax)
    return Lost("has more than " + std::to_string(ReservationFiles::kFileBytesMax) + " bytes");
  if (bytes.size() < kHeaderBytes || !std::equal(kMagic.begin(), kMagic.end(), bytes.begin()))
    return Lost("does not begin as one");
  const uint32_t version = Uint32At(bytes.data() + kVersionAt);
  if (version != ReservationFiles::kVersion)
    return Lost("is of version " + std::to_string(version) + ", and this engine reads version " +
                std::to_string(ReservationFiles::kVersion));
  const std::span<const uint8_t> payload = bytes.subspan(kHeaderBytes);
  if (Uint32At(bytes.data() + kCrcAt) != nvme::tcp::Crc32cOf(payload.data(), payload.size()))
    return Lost("is damaged: its checksum is wrong");
  const auto free = [](PbReservation* message) {
    cleat__engine__v1__stored_reservation__free_unpacked(message, nullptr);
  };
  const std::unique_ptr<PbReservation, decltype(free)> message(
      cleat__engine__v1__stored_reservation__unpack(nullptr, payload.size(), payload.data()), free);
  if (message == nullptr) return Lost("can't be read");
  CLEAT_ASSIGN(Reservation reservation, ReservationOf(*message));
  const std::string stored_in = OptionalText(message->boot_id);
  const bool power_was_lost = !boot_id.empty() && !stored_in.empty() && boot_id != stored_in;
  return power_was_lost && !reservation.persists ? Reservation{} : reservation;
}

Task<Result<Reservation>> ReservationFiles::Load(Uuid namespace_uuid) {
  const std::string path = PathOf(nvme::fabrics::TextOfUuid(namespace_uuid));
  const std::function<Result<Reservation>()> load = [&] { return LoadFrom(path, boot_id_); };
  co_return co_await loading_.Run<Result<Reservation>>(load);
}

Task<Status> ReservationFiles::Store(Uuid namespace_uuid, Reservation reservation) {
  const std::string name = nvme::fabrics::TextOfUuid(namespace_uuid);
  auto bytes = PackReservation(reservation, boot_id_);
  if (!bytes) co_return Error(bytes.error().code, PathOf(name) + " not written: " + bytes.error().message);
  const std::function<Status()> store = [&] { return StoreIn(folder_, name, *bytes); };
  co_return co_await storing_.Run<Status>(store);
}

Result<std::string> ReservationFiles::BootId() {
  const std::string path = kBootIdPath;
  const UniqueFd file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file) return ErrnoError(errno, path + " can't be opened");
  std::array<char, kBootIdBytesMax> text{};
  const ssize_t got = read(file.get(), text.data(), text.size());
  if (got < 0) return ErrnoError(errno, path + " can't be read");
  const std::string_view read_text(text.data(), static_cast<size_t>(got));
  const std::string id(read_text.substr(0, read_text.find('\n')));
  if (!nvme::fabrics::ParseUuid(id)) return Error(ErrorCode::kInternal, path + " has no boot id");
  return id;
}

}  // namespace cleat::engine
