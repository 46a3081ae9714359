// SPDX-License-Identifier: Apache-2.0
#include "rdma/rdmacm/connection.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <utility>

#include "base/check.h"

namespace cleat::rdma {
namespace {

// Of a packet that is not acknowledged: 4.096 us * 2^17, six times (rdma/connection.h).
constexpr uint8_t kAckTimeout = 17;
constexpr uint8_t kRetries = 6;
constexpr uint8_t kRetriesWithoutEnd = 7;  // of a receiver that is not ready, this value means that
// InfiniBand Architecture Specification 1.4, volume 1, 12.6.7.2: reasons of a rejection.
constexpr int kNobodyListens = 8;
constexpr int kByItsOwner = 28;

void SetAckTimeout(const Library& library, rdma_cm_id& id) {
  uint8_t timeout = kAckTimeout;
  // Adapters without it (iWARP's are over TCP) keep what they have.
  library.set_option(&id, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &timeout, sizeof(timeout));
}

rdma_conn_param ParametersOf(std::span<const uint8_t> private_data, uint32_t reads_sent,
                             uint32_t reads_served) {
  rdma_conn_param parameters{};
  parameters.private_data = private_data.data();
  parameters.private_data_len = static_cast<uint8_t>(private_data.size());
  parameters.initiator_depth = static_cast<uint8_t>(std::min<uint32_t>(reads_sent, RDMA_MAX_INIT_DEPTH - 1));
  parameters.responder_resources =
      static_cast<uint8_t>(std::min<uint32_t>(reads_served, RDMA_MAX_RESP_RES - 1));
  parameters.flow_control = 1;
  parameters.retry_count = kRetries;
  parameters.rnr_retry_count = kRetriesWithoutEnd;
  return parameters;
}

const char* ReasonOf(int status) {
  switch (status) {
    case kNobodyListens:
    case -ECONNREFUSED:
      return "nobody listens there";
    case kByItsOwner:
    case -ECONNRESET:
      return "the peer has refused";
    default:
      return "the peer's connection manager has refused";
  }
}

}  // namespace

// ---- Accepted

Result<std::unique_ptr<Connection>> AdapterConnection::Make(const Library& library, CmId& id,
                                                            const OfferedReads& offered,
                                                            const QueuePairParts& parts,
                                                            ConnectionOwner& owner) {
  SetAckTimeout(library, *id);
  CLEAT_ASSIGN(auto queue_pair, AdapterQueuePair::Make(library, *id, parts));
  queue_pair->SetReadCredits(std::min(queue_pair->limits().read_credits, offered.sent));
  std::unique_ptr<AdapterConnection> connection(new AdapterConnection(library, owner));
  connection->id_ = std::move(id);
  connection->id_->context = static_cast<CmEventHandler*>(connection.get());
  connection->queue_pair_ = std::move(queue_pair);
  connection->reads_served_ = std::min(offered.served, parts.device->limits().reads_served);
  connection->state_ = State::kMade;
  return std::unique_ptr<Connection>(std::move(connection));
}

Status AdapterConnection::Accept(std::span<const uint8_t> private_data) {
  CLEAT_CHECK(state_ == State::kMade && private_data.size() <= kAcceptDataBytesMax);
  rdma_conn_param parameters = ParametersOf(private_data, queue_pair_->limits().read_credits, reads_served_);
  if (library_.accept(id_.get(), &parameters) != 0)
    return ErrnoError(errno, fmt::format("RDMA: the connection of {} cannot be accepted", peer().Text()));
  queue_pair_->SetReceiverNotReadyTimer();
  state_ = State::kAccepted;
  return {};
}

// ---- Connecting: address, route, queue pair, request

Result<std::unique_ptr<Connection>> AdapterConnection::Connect(const Library& library,
                                                               rdma_event_channel& channel,
                                                               Deadlines& deadlines,
                                                               const ConnectOptions& options,
                                                               ConnectionOwner& owner) {
  CLEAT_CHECK(options.private_data.size() <= kConnectDataBytesMax && options.timeout_ms > 0);
  std::unique_ptr<AdapterConnection> connection(new AdapterConnection(library, owner));
  CLEAT_ASSIGN(connection->id_, MakeCmId(library, channel, static_cast<CmEventHandler*>(connection.get())));
  connection->to_ = options.to;
  connection->parts_ = options.parts;
  connection->private_data_.assign(options.private_data.begin(), options.private_data.end());
  connection->reads_served_ = options.reads_served;
  connection->step_timeout_ms_ = static_cast<int>(std::min<uint32_t>(options.timeout_ms, INT_MAX));
  CLEAT_TRY(connection->BeginToConnect(options));
  connection->deadlines_ = &deadlines;
  deadlines.Add(*connection, options.timeout_ms);
  return std::unique_ptr<Connection>(std::move(connection));
}

Status AdapterConnection::BeginToConnect(const ConnectOptions& options) {
  uint8_t traffic_class = options.traffic_class;
  if (traffic_class != 0 && library_.set_option(id_.get(), RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &traffic_class,
                                                sizeof(traffic_class)) != 0)
    return ErrnoError(errno, fmt::format("RDMA: traffic class {} for {}", traffic_class, to_.Text()));
  SetAckTimeout(library_, *id_);
  CLEAT_ASSIGN(sockaddr_storage to, ToKernel(to_));
  sockaddr_storage from{};
  if (!options.from.empty()) {
    CLEAT_ASSIGN(from, ToKernel({options.from, 0}));
  }
  if (library_.resolve_addr(id_.get(), options.from.empty() ? nullptr : reinterpret_cast<sockaddr*>(&from),
                            reinterpret_cast<sockaddr*>(&to), step_timeout_ms_) != 0)
    return ErrnoError(errno, fmt::format("RDMA: there is no way from {} to {} by an adapter",
                                         options.from.empty() ? "here" : options.from, to_.Text()));
  return {};
}

void AdapterConnection::AddressResolved() {
  if (library_.resolve_route(id_.get(), step_timeout_ms_) != 0)
    End(EndKind::kUnreachable, Failure(ErrorCode::kUnavailable, "no route"));
}

void AdapterConnection::RouteResolved() {
  Result<std::unique_ptr<AdapterQueuePair>> made = AdapterQueuePair::Make(library_, *id_, parts_);
  if (!made.ok()) return End(EndKind::kFailed, made.error());
  queue_pair_ = std::move(made).value();
  rdma_conn_param parameters = ParametersOf(private_data_, queue_pair_->limits().read_credits,
                                            std::min(reads_served_, parts_.device->limits().reads_served));
  if (library_.connect(id_.get(), &parameters) != 0)
    End(EndKind::kFailed, ErrnoError(errno, fmt::format("RDMA: the connect request to {}", to_.Text())));
}

void AdapterConnection::Expired() {
  End(EndKind::kUnreachable, Failure(ErrorCode::kDeadlineExceeded, "no answer in time"));
}

// ---- Both

void AdapterConnection::Handle(const CmEvent& event) {
  if (state_ == State::kEnded) return;
  switch (event.type) {
    case RDMA_CM_EVENT_ADDR_RESOLVED:
      return AddressResolved();
    case RDMA_CM_EVENT_ROUTE_RESOLVED:
      return RouteResolved();
    case RDMA_CM_EVENT_ESTABLISHED:
      return BecomeEstablished(event);
    case RDMA_CM_EVENT_ADDR_CHANGE:
      return owner_.AddressMoved(*this);
    case RDMA_CM_EVENT_TIMEWAIT_EXIT:
      return;  // packets of it that were under way are gone: nothing here waits for that
    default:
      return EndBy(event);
  }
}

void AdapterConnection::BecomeEstablished(const CmEvent& event) {
  const bool connected = state_ == State::kConnecting;
  state_ = State::kEstablished;
  if (deadlines_ != nullptr) deadlines_->Remove(*this);
  if (connected) {
    queue_pair_->SetReadCredits(
        std::min<uint32_t>(queue_pair_->limits().read_credits, event.initiator_depth));
    queue_pair_->SetReceiverNotReadyTimer();
  }
  owner_.Established(*this, event.private_data());
}

void AdapterConnection::EndBy(const CmEvent& event) {
  switch (event.type) {
    case RDMA_CM_EVENT_ADDR_ERROR:
      return End(EndKind::kUnreachable, Failure(ErrorCode::kUnavailable, "the address does not answer"));
    case RDMA_CM_EVENT_ROUTE_ERROR:
      return End(EndKind::kUnreachable, Failure(ErrorCode::kUnavailable, "no route"));
    case RDMA_CM_EVENT_UNREACHABLE:
      return End(EndKind::kUnreachable,
                 Failure(ErrorCode::kUnavailable, "the peer's connection manager does not answer"));
    case RDMA_CM_EVENT_REJECTED:
      return End(EndKind::kRejected, Failure(ErrorCode::kUnavailable, ReasonOf(event.status)),
                 event.private_data());
    case RDMA_CM_EVENT_DISCONNECTED:
      // The peer waits for this end's word, unless it was this end that began.
      library_.disconnect(id_.get());
      return End(EndKind::kDisconnected, Failure(ErrorCode::kUnavailable, "disconnected"));
    case RDMA_CM_EVENT_DEVICE_REMOVAL:
      return End(EndKind::kDeviceRemoved, Failure(ErrorCode::kUnavailable, "its adapter was removed"));
    default:
      return End(EndKind::kFailed, ErrnoError(event.status < 0 ? -event.status : EPROTO,
                                              fmt::format("RDMA: the connection of {} with {}",
                                                          local().Text(), peer().Text())));
  }
}

void AdapterConnection::End(EndKind kind, Error error, std::span<const uint8_t> private_data) {
  state_ = State::kEnded;
  if (deadlines_ != nullptr) deadlines_->Remove(*this);
  if (queue_pair_ != nullptr) queue_pair_->Break();
  owner_.Ended(*this, {kind, std::move(error), private_data});
}

void AdapterConnection::Disconnect() {
  if (state_ != State::kEstablished) return;
  state_ = State::kDisconnecting;
  queue_pair_->Break();
  library_.disconnect(id_.get());
}

AdapterConnection::~AdapterConnection() {
  if (deadlines_ != nullptr) deadlines_->Remove(*this);
  queue_pair_.reset();
}

Endpoint AdapterConnection::local() const {
  return FromKernel(id_->route.addr.src_storage);
}

Endpoint AdapterConnection::peer() const {
  return to_.address.empty() ? FromKernel(id_->route.addr.dst_storage) : to_;
}

Error AdapterConnection::Failure(ErrorCode code, const char* what) const {
  return {code, fmt::format("RDMA: the connection of {} with {}: {}", local().Text(), peer().Text(), what)};
}

}  // namespace cleat::rdma
