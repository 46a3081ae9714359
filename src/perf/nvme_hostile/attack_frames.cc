// SPDX-License-Identifier: Apache-2.0
// Abuses of what every connection begins with: ICReq, the headers of PDUs, Connect (NVMe/TCP 1.0, 3.3, 3.6.2; NVMe base 2.0, 6.3).
#include <algorithm>
#include <string>
#include <string_view>

#include "perf/nvme_hostile/attack.h"

namespace cleat::perf::nvme_abuses {
namespace {

using wire::PduType;
using What = RawHeard::What;

constexpr size_t kGarbageBytesMax = 4096;
constexpr uint16_t kConnectEntries = 31;
constexpr uint32_t kKeepAliveLongMs = 120'000;
constexpr uint16_t kForeignControllersMax = 64;

RawPdu IcReq() {
  return RawPdu::Make(wire::PduInitialize{}, PduType::kPduIcReq);
}

// Where a field of ICReq lies behind the common header.
constexpr size_t kVersionAt = 0, kAlignmentAt = 2, kDigestsAt = 3;

wire::ConnectData ConnectDataOf(NvmeAttack& attack) {
  wire::ConnectData data{};
  NvmeUuid host{};
  for (uint8_t& byte : host) byte = static_cast<uint8_t>(attack.random.Next());
  if (const auto given = ParseUuid(attack.victim.target.host_id)) host = *given;
  std::string nqn = attack.victim.target.host_nqn;
  if (nqn.empty()) nqn = "nqn.2014-08.org.nvmexpress:uuid:" + UuidText(host);
  std::copy(host.begin(), host.end(), data.host_id);
  data.controller_id = wire::kAnyController;
  attack.victim.target.subsystem_nqn.copy(data.subsystem_nqn, wire::kNqnBytesMax);
  nqn.copy(data.host_nqn, wire::kNqnBytesMax);
  return data;
}

wire::NvmeCommand ConnectCommand(NvmeAttack& attack, uint16_t queue) {
  wire::NvmeCommand command{};
  command.opcode = wire::kNvmeFabrics;
  command.flags = wire::kNvmeFlagSgl;
  command.cid = static_cast<uint16_t>(attack.random.Next());
  command.nsid = wire::kFabricsConnect;
  command.sgl_bytes = sizeof(wire::ConnectData);
  command.sgl_type = wire::kNvmeSglInCapsule;
  command.cdw10 = uint32_t{queue} << 16;
  command.cdw11 = kConnectEntries;
  command.cdw12 = queue == 0 ? kKeepAliveLongMs : 0;
  return command;
}

RawPdu Connect(const NvmeAttack& attack, const wire::NvmeCommand& command, const wire::ConnectData& data) {
  return attack.Capsule(command, {reinterpret_cast<const uint8_t*>(&data), sizeof data});
}

RawPdu Connect(NvmeAttack& attack) {
  return Connect(attack, ConnectCommand(attack, 0), ConnectDataOf(attack));
}

// The beginning of a PDU and no more.
void SendHalf(NvmeAttack& attack, const RawPdu& pdu) {
  const std::vector<uint8_t> bytes = pdu.Bytes();
  attack.line.Send(std::span(bytes).first(attack.random.Between(1, bytes.size() - 1)));
  attack.leaves = attack.random.Chance(1, 2);  // else the target waits for the rest
}

// Connect's PDU with another byte than is right in this place of its header.
void SendOtherByte(NvmeAttack& attack, uint8_t wire::PduHeader::*place) {
  RawPdu pdu = Connect(attack);
  const uint8_t right = pdu.head.*place;
  while (pdu.head.*place == right) pdu.head.*place = static_cast<uint8_t>(attack.random.Next());
  attack.line.Send(pdu);
}

void SendWrongDigest(NvmeAttack& attack, bool RawPdu::*which) {
  RawPdu pdu = Connect(attack);
  pdu.*which = true;
  attack.line.Send(pdu);
}

void SendConnectWithEntries(NvmeAttack& attack, uint16_t entries) {
  wire::NvmeCommand command = ConnectCommand(attack, 0);
  command.cdw11 = entries;
  attack.line.Send(Connect(attack, command, ConnectDataOf(attack)));
}

}  // namespace

// ---- Before ICReq.

void Silence(NvmeAttack& /*attack*/) {}

void Garbage(NvmeAttack& attack) {
  std::vector<uint8_t> bytes(attack.random.Between(1, kGarbageBytesMax));
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(attack.random.Next());
  attack.line.Send(bytes);
}

void IcReqSplit(NvmeAttack& attack) {
  attack.line.SendSplit(IcReq(), attack.random);
  attack.heard = attack.line.Hear();
  attack.was_served = attack.heard->what == What::kInitialized;
}

void IcReqTwiceAtOnce(NvmeAttack& attack) {
  std::vector<uint8_t> bytes = IcReq().Bytes();
  bytes.insert(bytes.end(), bytes.begin(), bytes.end());
  attack.line.Send(bytes);
  // The first one may be answered.
  if (const RawHeard heard = attack.line.Hear(); heard.what != What::kInitialized) attack.heard = heard;
}

void NoIcReq(NvmeAttack& attack) {
  attack.line.Send(Connect(attack));
}

void IcReqVersion(NvmeAttack& attack) {
  RawPdu pdu = IcReq();
  pdu.rest[kVersionAt] = static_cast<uint8_t>(attack.random.Between(1, UINT8_MAX));
  attack.line.Send(pdu);
}

void IcReqLength(NvmeAttack& attack) {
  constexpr uint32_t kBytesMax = 512;
  RawPdu pdu = IcReq();
  const uint8_t right = pdu.head.header_bytes;
  const bool in_pdu = attack.random.Chance(1, 2);
  while (pdu.head.header_bytes == right && pdu.head.pdu_bytes == right) {
    if (!in_pdu || attack.random.Chance(1, 2))
      pdu.head.header_bytes = static_cast<uint8_t>(attack.random.Next());
    if (in_pdu) pdu.head.pdu_bytes = static_cast<uint32_t>(attack.random.Below(kBytesMax));
  }
  attack.line.Send(pdu);
}

void IcReqAlignment(NvmeAttack& attack) {
  RawPdu pdu = IcReq();
  pdu.rest[kAlignmentAt] = static_cast<uint8_t>(attack.random.Between(wire::kPduAlignmentMax + 1, UINT8_MAX));
  attack.line.Send(pdu);
}

void IcReqDigests(NvmeAttack& attack) {
  RawPdu pdu = IcReq();
  pdu.rest[kDigestsAt] = static_cast<uint8_t>(attack.random.Next() | 0x80);
  attack.line.Send(pdu);
}

void IcReqHalf(NvmeAttack& attack) {
  SendHalf(attack, IcReq());
}

// ---- Headers, after ICReq.

void IcReqAgain(NvmeAttack& attack) {
  attack.line.Send(IcReq());
}

void UnknownType(NvmeAttack& attack) {
  constexpr std::array<uint8_t, 5> kUnknown = {0x08, 0x0c, 0x3f, 0x80, 0xff};
  RawPdu pdu = Connect(attack);
  pdu.head.type = kUnknown[attack.random.Below(kUnknown.size())];
  attack.line.Send(pdu);
}

void TargetsType(NvmeAttack& attack) {
  constexpr std::array<PduType, 5> kTypes = {PduType::kPduIcResp, PduType::kPduTargetTermination,
                                             PduType::kPduResponse, PduType::kPduDataToHost,
                                             PduType::kPduReadyToTransfer};
  attack.line.Send(attack.line.Make(wire::PduTransfer{}, kTypes[attack.random.Below(kTypes.size())]));
}

void HeaderLength(NvmeAttack& attack) {
  SendOtherByte(attack, &wire::PduHeader::header_bytes);
}

void PduLengthShort(NvmeAttack& attack) {
  RawPdu pdu = Connect(attack);
  pdu.head.pdu_bytes = static_cast<uint32_t>(attack.random.Below(pdu.head.header_bytes));
  attack.line.Send(pdu);
}

void PduLengthHuge(NvmeAttack& attack) {
  RawPdu pdu = Connect(attack);
  pdu.head.pdu_bytes = UINT32_MAX - static_cast<uint32_t>(attack.random.Below(uint64_t{1} << 30));
  attack.line.Send(pdu);
}

void PduDataOffset(NvmeAttack& attack) {
  SendOtherByte(attack, &wire::PduHeader::data_at);
}

// The flags say that a digest is there which was not agreed on and is not there, or none where one is.
void DigestFlags(NvmeAttack& attack) {
  RawPdu pdu = Connect(attack);
  const NvmeTcpDigests digests = attack.line.digests();
  if (!digests.header) pdu.head.flags |= wire::kPduHeaderDigest;
  if (!digests.data) pdu.head.flags |= wire::kPduDataDigest;
  if (digests.header && digests.data) pdu.head.flags = 0;
  attack.line.Send(pdu);
}

void HeaderDigestWrong(NvmeAttack& attack) {
  SendWrongDigest(attack, &RawPdu::wrong_header_digest);
}

void ConnectDigestWrong(NvmeAttack& attack) {
  SendWrongDigest(attack, &RawPdu::wrong_data_digest);
}

void Termination(NvmeAttack& attack) {
  wire::PduTermination termination{};
  termination.reason = static_cast<uint16_t>(attack.random.Next());
  RawPdu pdu = RawPdu::Make(termination, PduType::kPduHostTermination);
  if (attack.random.Chance(1, 2)) {  // more than such a PDU may have
    pdu.rest.resize(pdu.rest.size() + wire::kTerminationBytesMax);
    pdu.head.pdu_bytes += wire::kTerminationBytesMax;
  }
  attack.line.Send(pdu);
}

// ---- Connect.

void CommandBeforeConnect(NvmeAttack& attack) {
  wire::NvmeCommand command{};
  command.cid = static_cast<uint16_t>(attack.random.Next());
  command.flags = wire::kNvmeFlagSgl;
  command.sgl_type = wire::kNvmeSglByTransport;
  command.sgl_bytes = wire::kIdentifyBytes;
  command.cdw10 = wire::kIdentifyController;
  constexpr std::array<uint8_t, 3> kOpcodes = {wire::kNvmeIdentify, wire::kNvmeKeepAlive, wire::kNvmeFabrics};
  command.opcode = kOpcodes[attack.random.Below(kOpcodes.size())];
  if (command.opcode == wire::kNvmeFabrics) command.nsid = wire::kFabricsPropertyGet;
  if (command.opcode != wire::kNvmeIdentify) command.sgl_bytes = 0;
  attack.line.Send(attack.Capsule(command));
}

void DataBeforeConnect(NvmeAttack& attack) {
  wire::PduTransfer pdu{};
  pdu.length_bytes = attack.victim.block_bytes;
  const std::vector<uint8_t> data(pdu.length_bytes);
  attack.line.Send(attack.line.Make(pdu, PduType::kPduDataToTarget, data));
}

void ConnectSplit(NvmeAttack& attack) {
  attack.line.SendSplit(Connect(attack), attack.random);
  attack.heard = attack.line.HearTheEnd();
  attack.was_served = attack.heard->what == What::kResponse && attack.heard->status == 0;
}

void ConnectHalf(NvmeAttack& attack) {
  SendHalf(attack, Connect(attack));
}

void ConnectShort(NvmeAttack& attack) {
  wire::NvmeCommand command = ConnectCommand(attack, 0);
  command.sgl_bytes = static_cast<uint32_t>(attack.random.Between(1, sizeof(wire::ConnectData) - 1));
  const wire::ConnectData data = ConnectDataOf(attack);
  attack.line.Send(attack.Capsule(command, {reinterpret_cast<const uint8_t*>(&data), command.sgl_bytes}));
}

void ConnectEndlessName(NvmeAttack& attack) {
  wire::ConnectData data = ConnectDataOf(attack);
  std::fill(std::begin(data.subsystem_nqn), std::end(data.subsystem_nqn), 'n');
  std::fill(std::begin(data.host_nqn), std::end(data.host_nqn), 'n');
  attack.line.Send(Connect(attack, ConnectCommand(attack, 0), data));
}

void ConnectFormat(NvmeAttack& attack) {
  wire::NvmeCommand command = ConnectCommand(attack, 0);
  command.cdw10 |= static_cast<uint32_t>(attack.random.Between(1, UINT16_MAX));
  attack.line.Send(Connect(attack, command, ConnectDataOf(attack)));
}

void ConnectNoEntries(NvmeAttack& attack) {
  SendConnectWithEntries(attack, 0);
}

void ConnectManyEntries(NvmeAttack& attack) {
  SendConnectWithEntries(attack, UINT16_MAX);
}

// An I/O queue for a controller of somebody else, or of nobody.
void ConnectForeign(NvmeAttack& attack) {
  wire::ConnectData data = ConnectDataOf(attack);
  std::string_view("nqn.2014-08.org.example:stranger").copy(data.host_nqn, wire::kNqnBytesMax);
  for (uint8_t& byte : data.host_id) byte = static_cast<uint8_t>(attack.random.Next());
  data.controller_id = static_cast<uint16_t>(attack.random.Between(0, kForeignControllersMax));
  const auto queue =
      static_cast<uint16_t>(attack.random.Chance(1, 2) ? 1 : attack.random.Between(1, UINT16_MAX));
  attack.line.Send(Connect(attack, ConnectCommand(attack, queue), data));
}

void ConnectTwice(NvmeAttack& attack) {
  attack.line.Send(Connect(attack));
}

}  // namespace cleat::perf::nvme_abuses
