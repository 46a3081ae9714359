// SPDX-License-Identifier: Apache-2.0
#include "nvmf/socket/kernel_tls.h"

#include <linux/tls.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "base/check.h"
#include "keys/traces.h"

#ifndef SOL_TLS
#define SOL_TLS 282
#endif
#ifndef TCP_ULP
#define TCP_ULP 31
#endif

namespace cleat::nvmf::kernel_tls {
namespace {

using nvme::tls::ContentType;
using nvme::tls::RecordKeys;

// The kernel has the nonce's base in two parts, whose names are those of TLS 1.2, and the sequence number as it is on the wire.
template <typename Info>
int Give(int socket_fd, int option, uint16_t cipher, const RecordKeys& keys) {
  const auto key = keys.key.bytes();
  const auto base = keys.nonce_base.bytes();
  Info info{};
  CLEAT_CHECK(key.size() == sizeof(info.key) && base.size() == sizeof(info.salt) + sizeof(info.iv));
  info.info.version = TLS_1_3_VERSION;
  info.info.cipher_type = cipher;
  std::copy(key.begin(), key.end(), info.key);
  std::copy_n(base.begin(), sizeof(info.salt), info.salt);
  std::copy(base.begin() + sizeof(info.salt), base.end(), info.iv);
  for (size_t i = 0; i < sizeof(info.rec_seq); ++i)
    info.rec_seq[i] = static_cast<uint8_t>(keys.sequence >> (8 * (sizeof(info.rec_seq) - 1 - i)));
  const int error_number = setsockopt(socket_fd, SOL_TLS, option, &info, sizeof(info)) == 0 ? 0 : errno;
  explicit_bzero(&info, sizeof(info));
  keys::WipeTraces();
  return error_number;
}

// Room for the one control message that there is, a record's type.
union TypeMessage {
  cmsghdr header;
  std::array<char, CMSG_SPACE(sizeof(uint8_t))> bytes;
};

// A record's content with its type; both outlive the message.
msghdr MessageOf(iovec& content, TypeMessage& type) {
  msghdr message{};
  message.msg_iov = &content;
  message.msg_iovlen = 1;
  message.msg_control = &type;
  message.msg_controllen = sizeof(type);
  return message;
}

}  // namespace

int Attach(int socket_fd) {
  constexpr char kName[] = "tls";
  return setsockopt(socket_fd, IPPROTO_TCP, TCP_ULP, kName, sizeof(kName) - 1) == 0 ? 0 : errno;
}

int GiveKeys(int socket_fd, Direction direction, const RecordKeys& keys) {
  const int option = direction == Direction::kSeal ? TLS_TX : TLS_RX;
  if (keys.hash == nvme::tls::Hash::kSha256)
    return Give<tls12_crypto_info_aes_gcm_128>(socket_fd, option, TLS_CIPHER_AES_GCM_128, keys);
  return Give<tls12_crypto_info_aes_gcm_256>(socket_fd, option, TLS_CIPHER_AES_GCM_256, keys);
}

std::optional<Record> TakeDataless(int socket_fd, std::span<uint8_t> to) {
  iovec piece{to.data(), to.size()};
  TypeMessage type{};
  msghdr message = MessageOf(piece, type);
  ssize_t got = 0;
  do {
    got = recvmsg(socket_fd, &message, MSG_DONTWAIT);
  } while (got < 0 && errno == EINTR);
  const cmsghdr* const said = got < 0 ? nullptr : CMSG_FIRSTHDR(&message);
  if (said == nullptr || said->cmsg_level != SOL_TLS || said->cmsg_type != TLS_GET_RECORD_TYPE)
    return std::nullopt;
  return Record{static_cast<ContentType>(*CMSG_DATA(said)), static_cast<size_t>(got)};
}

void SendAlert(int socket_fd, uint8_t level, uint8_t alert) {
  std::array<uint8_t, 2> content = {level, alert};
  iovec piece{content.data(), content.size()};
  TypeMessage type{};
  type.header.cmsg_level = SOL_TLS;
  type.header.cmsg_type = TLS_SET_RECORD_TYPE;
  type.header.cmsg_len = CMSG_LEN(sizeof(uint8_t));
  *CMSG_DATA(&type.header) = static_cast<uint8_t>(ContentType::kAlert);
  msghdr message = MessageOf(piece, type);
  // A record that could not be opened stands as the socket's error, which would be the answer to the alert.
  int error_number = 0;
  socklen_t bytes = sizeof(error_number);
  (void)getsockopt(socket_fd, SOL_SOCKET, SO_ERROR, &error_number, &bytes);
  (void)sendmsg(socket_fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
}

}  // namespace cleat::nvmf::kernel_tls
