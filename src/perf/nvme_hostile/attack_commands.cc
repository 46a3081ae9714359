// SPDX-License-Identifier: Apache-2.0
// Abuses of commands, of their SGLs, and of the data that a target asks for with R2T (NVMe/TCP 1.0, 3.3.2, 3.6.2.8 to 3.6.2.10).
#include <fmt/format.h>

#include <algorithm>

#include "perf/nvme_hostile/attack.h"

namespace cleat::perf::nvme_abuses {
namespace {

using wire::PduType;
using What = RawHeard::What;

constexpr uint32_t kWriteBytesMax = 64U << 10;
constexpr uint32_t kDataBytesMax = 2U << 20;  // of a PDU that is too long
constexpr uint8_t kDirt = 0xee;               // what abuses write
constexpr uint32_t kReadsUnreadMax = 512;
constexpr uint32_t kEventRequests = 300;  // more than a controller takes (AERL is a byte)
constexpr uint8_t kNvmeAsyncEvent = 0x0c;

// The first quarter of the victim's blocks is what is written rightly and read back; the rest is for abuses.
uint64_t CleanBlocks(const NvmeVictim& victim) {
  return victim.blocks / 4;
}

uint32_t WriteBlocks(const NvmeVictim& victim) {
  const uint64_t most = std::min<uint64_t>(
      CleanBlocks(victim), std::min(kWriteBytesMax, victim.transfer_bytes_max) / victim.block_bytes);
  return static_cast<uint32_t>(std::max<uint64_t>(most, 1));
}

std::vector<uint8_t> Dirt(uint64_t size_bytes) {
  return std::vector<uint8_t>(size_bytes, kDirt);
}

// A command whose data is asked for, or comes, apart from the capsule.
wire::NvmeCommand Command(NvmeAttack& attack, uint8_t opcode, uint64_t block, uint32_t blocks) {
  wire::NvmeCommand command{};
  command.opcode = opcode;
  command.flags = wire::kNvmeFlagSgl;
  command.cid = static_cast<uint16_t>(attack.random.Below(UINT16_MAX));
  command.nsid = attack.victim.nsid;
  command.sgl_bytes = blocks * attack.victim.block_bytes;
  command.sgl_type = wire::kNvmeSglByTransport;
  command.cdw10 = static_cast<uint32_t>(block);
  command.cdw11 = static_cast<uint32_t>(block >> 32);
  command.cdw12 = blocks - 1;
  return command;
}

uint64_t DirtyBlock(NvmeAttack& attack, uint32_t blocks) {
  const NvmeVictim& victim = attack.victim;
  const uint64_t clean = CleanBlocks(victim);
  return victim.first_block + clean + attack.random.Below(victim.blocks - clean - blocks + 1);
}

wire::NvmeCommand Write(NvmeAttack& attack, uint32_t blocks) {
  return Command(attack, wire::kNvmeWrite, DirtyBlock(attack, blocks), blocks);
}

wire::NvmeCommand Read(NvmeAttack& attack, uint32_t blocks) {
  return Command(attack, wire::kNvmeRead, DirtyBlock(attack, blocks), blocks);
}

wire::NvmeCommand WriteInCapsule(NvmeAttack& attack, uint32_t blocks) {
  wire::NvmeCommand command = Write(attack, blocks);
  command.sgl_type = wire::kNvmeSglInCapsule;
  return command;
}

void SendCommand(NvmeAttack& attack, const wire::NvmeCommand& command, std::span<const uint8_t> data = {}) {
  attack.line.Send(attack.Capsule(command, data));
}

struct DataPdu {
  wire::PduTransfer transfer{};
  std::vector<uint8_t> data;
  bool is_last = true;

  RawPdu Made(const NvmeAttack& attack) const {
    RawPdu pdu = attack.line.Make(transfer, PduType::kPduDataToTarget, data);
    if (is_last) pdu.head.flags |= wire::kPduLast;
    return pdu;
  }
};

// Sends a write, waits as others wait until the target asks for its data, and has `then` send what comes: it is given the first PDU as that
// should be, and what the target has asked for.
template <typename Then>
void WhenAsked(NvmeAttack& attack, Then then) {
  const wire::NvmeCommand command = Write(attack, WriteBlocks(attack.victim));
  SendCommand(attack, command);
  const RawHeard ready = attack.line.Hear(attack.victim.target.timeout_ns);
  if (ready.what != What::kReady) {
    attack.problem = "the target did not ask for the data of a write";
    return;
  }
  if (ready.length_bytes == 0 || ready.length_bytes > command.sgl_bytes) {
    attack.wrong =
        fmt::format("{} bytes were asked for of a write of {}", ready.length_bytes, command.sgl_bytes);
    attack.heard = ready;
    return;
  }
  DataPdu right;
  right.transfer.cid = ready.cid;
  right.transfer.tag = ready.tag;
  right.transfer.offset_bytes = ready.offset_bytes;
  right.transfer.length_bytes = std::min(ready.length_bytes, attack.line.data_to_target_max());
  right.is_last = right.transfer.length_bytes == ready.length_bytes;
  right.data = Dirt(right.transfer.length_bytes);
  then(right, ready);
}

}  // namespace

// ---- Data that is asked for.

void DataUnasked(NvmeAttack& attack) {
  DataPdu pdu;
  pdu.transfer.cid = static_cast<uint16_t>(attack.random.Next());
  pdu.transfer.tag = static_cast<uint16_t>(attack.random.Next());
  pdu.transfer.length_bytes = attack.victim.block_bytes;
  pdu.data = Dirt(pdu.transfer.length_bytes);
  attack.line.Send(pdu.Made(attack));
}

void DataBeyond(NvmeAttack& attack) {
  WhenAsked(attack, [&](DataPdu& pdu, const RawHeard& ready) {
    pdu.transfer.length_bytes = ready.length_bytes + attack.victim.block_bytes;
    pdu.data = Dirt(pdu.transfer.length_bytes);
    attack.line.Send(pdu.Made(attack));
  });
}

void DataTooLong(NvmeAttack& attack) {
  WhenAsked(attack, [&](DataPdu& pdu, const RawHeard& ready) {
    const uint32_t beyond = attack.line.data_to_target_max() + wire::kPduAlignmentUnitBytes;
    pdu.transfer.length_bytes = std::min(std::max(ready.length_bytes, beyond), kDataBytesMax);
    pdu.data = Dirt(pdu.transfer.length_bytes);
    attack.line.Send(pdu.Made(attack));
  });
}

void DataOffset(NvmeAttack& attack) {
  WhenAsked(attack, [&](DataPdu& pdu, const RawHeard& /*ready*/) {
    pdu.transfer.offset_bytes += attack.random.Chance(1, 2) ? attack.victim.block_bytes
                                                            : static_cast<uint32_t>(attack.random.Next() | 1);
    attack.line.Send(pdu.Made(attack));
  });
}

void DataTag(NvmeAttack& attack) {
  WhenAsked(attack, [&](DataPdu& pdu, const RawHeard& /*ready*/) {
    pdu.transfer.tag ^= static_cast<uint16_t>(attack.random.Next() | 1);
    attack.line.Send(pdu.Made(attack));
  });
}

void DataCid(NvmeAttack& attack) {
  WhenAsked(attack, [&](DataPdu& pdu, const RawHeard& /*ready*/) {
    pdu.transfer.cid ^= static_cast<uint16_t>(attack.random.Next() | 1);
    attack.line.Send(pdu.Made(attack));
  });
}

void DataLengthLies(NvmeAttack& attack) {
  WhenAsked(attack, [&](DataPdu& pdu, const RawHeard& /*ready*/) {
    const uint32_t right = pdu.transfer.length_bytes;
    while (pdu.transfer.length_bytes == right)
      pdu.transfer.length_bytes = static_cast<uint32_t>(attack.random.Below(uint64_t{2} * right));
    attack.line.Send(pdu.Made(attack));
  });
}

void DataDigestWrong(NvmeAttack& attack) {
  WhenAsked(attack, [&](DataPdu& right, const RawHeard& /*ready*/) {
    RawPdu pdu = right.Made(attack);
    pdu.wrong_data_digest = true;
    attack.line.Send(pdu);
  });
}

void DataTwice(NvmeAttack& attack) {
  WhenAsked(attack, [&](DataPdu& right, const RawHeard& ready) {
    attack.line.Send(right.Made(attack));
    // With the whole of the write the first one has its success.
    const uint32_t whole_bytes = WriteBlocks(attack.victim) * attack.victim.block_bytes;
    if (right.is_last && ready.length_bytes == whole_bytes &&
        attack.line.Hear(attack.victim.target.timeout_ns).what != What::kResponse) {
      attack.problem = "a write was not answered";
      return;
    }
    attack.line.Send(right.Made(attack));
  });
}

void DataWithoutEnd(NvmeAttack& attack) {
  WhenAsked(attack, [&](DataPdu& right, const RawHeard& /*ready*/) {
    right.is_last = !right.is_last;
    attack.line.Send(right.Made(attack));
  });
}

void DataNeverComes(NvmeAttack& attack) {
  WhenAsked(attack, [&](const DataPdu& /*right*/, const RawHeard& /*ready*/) {
    attack.leaves = attack.random.Chance(1, 2);  // else the target waits
  });
}

void DataHalf(NvmeAttack& attack) {
  WhenAsked(attack, [&](const DataPdu& right, const RawHeard& /*ready*/) {
    const std::vector<uint8_t> bytes = right.Made(attack).Bytes();
    attack.line.Send(std::span(bytes).first(attack.random.Between(1, bytes.size() - 1)));
    attack.leaves = true;
  });
}

// ---- SGLs.

void SglType(NvmeAttack& attack) {
  wire::NvmeCommand command = attack.random.Chance(1, 2) ? Write(attack, 1) : Read(attack, 1);
  while (command.sgl_type == wire::kNvmeSglByTransport || command.sgl_type == wire::kNvmeSglInCapsule)
    command.sgl_type = static_cast<uint8_t>(attack.random.Next());
  SendCommand(attack, command);
}

void SglTooShort(NvmeAttack& attack) {
  wire::NvmeCommand command = WriteInCapsule(attack, 4);
  command.sgl_bytes = 2 * attack.victim.block_bytes;
  SendCommand(attack, command, Dirt(command.sgl_bytes));
}

void SglTooLong(NvmeAttack& attack) {
  wire::NvmeCommand command = WriteInCapsule(attack, 2);
  command.cdw12 = 0;  // one block
  SendCommand(attack, command, Dirt(command.sgl_bytes));
}

void SglBeyondCapsule(NvmeAttack& attack) {
  wire::NvmeCommand command = WriteInCapsule(attack, 1);
  command.sgl_address = attack.random.Chance(1, 2) ? attack.victim.block_bytes : attack.random.Next() | 1;
  SendCommand(attack, command, Dirt(command.sgl_bytes));
}

void SglHuge(NvmeAttack& attack) {
  wire::NvmeCommand command = Write(attack, 1);
  command.sgl_bytes = UINT32_MAX - static_cast<uint32_t>(attack.random.Below(4096));
  SendCommand(attack, command);
}

void ReadTooShort(NvmeAttack& attack) {
  wire::NvmeCommand command = Read(attack, 4);
  command.sgl_bytes = static_cast<uint32_t>(attack.random.Between(1, command.sgl_bytes - 1));
  SendCommand(attack, command);
}

void CapsuleTooLarge(NvmeAttack& attack) {
  const uint32_t blocks = attack.victim.capsule_data_bytes / attack.victim.block_bytes + 1;
  const bool has_room = blocks <= attack.victim.blocks - CleanBlocks(attack.victim);
  wire::NvmeCommand command = WriteInCapsule(attack, has_room ? blocks : 1);
  command.sgl_bytes = blocks * attack.victim.block_bytes;
  SendCommand(attack, command, Dirt(command.sgl_bytes));
}

void CapsuleWithoutData(NvmeAttack& attack) {
  SendCommand(attack, WriteInCapsule(attack, 1));
}

void CapsuleDigestWrong(NvmeAttack& attack) {
  const wire::NvmeCommand command = WriteInCapsule(attack, 1);
  RawPdu pdu = attack.Capsule(command, Dirt(command.sgl_bytes));
  pdu.wrong_data_digest = true;
  attack.line.Send(pdu);
}

// ---- Commands.

void AcrossTheEnd(NvmeAttack& attack) {
  SendCommand(attack, Command(attack, wire::kNvmeRead, attack.victim.disk_blocks - 1, 2));
}

void BeyondTheEnd(NvmeAttack& attack) {
  constexpr std::array<uint8_t, 3> kOpcodes = {wire::kNvmeRead, wire::kNvmeWrite, wire::kNvmeWriteZeroes};
  const uint64_t last = attack.victim.disk_blocks - 1;
  // The end of the disk is somebody else's: what begins there begins beyond it.
  const std::array<uint64_t, 4> firsts = {last + 1, UINT64_MAX, UINT64_MAX / attack.victim.block_bytes + 1,
                                          attack.random.Between(last + 1, UINT64_MAX)};
  const wire::NvmeCommand command = Command(attack, kOpcodes[attack.random.Below(kOpcodes.size())],
                                            firsts[attack.random.Below(firsts.size())], 1);
  SendCommand(attack, command);
}

void UnknownOpcode(NvmeAttack& attack) {
  constexpr std::array<uint8_t, 5> kReserved = {0x03, 0x06, 0x0a, 0x0b, 0x14};
  SendCommand(attack,
              Command(attack, kReserved[attack.random.Below(kReserved.size())], DirtyBlock(attack, 1), 1));
}

void UnknownNamespace(NvmeAttack& attack) {
  wire::NvmeCommand command = Read(attack, 1);
  command.nsid =
      attack.random.Chance(1, 2) ? 0 : UINT32_MAX - static_cast<uint32_t>(attack.random.Between(1, 1000));
  SendCommand(attack, command);
}

void ReservedFlags(NvmeAttack& attack) {
  wire::NvmeCommand command = Read(attack, 1);
  while (command.flags == wire::kNvmeFlagSgl) command.flags = static_cast<uint8_t>(attack.random.Next());
  SendCommand(attack, command);
}

void DuplicateCid(NvmeAttack& attack) {
  const wire::NvmeCommand first = Write(attack, WriteBlocks(attack.victim));
  wire::NvmeCommand second = attack.random.Chance(1, 2) ? Read(attack, 1) : Write(attack, 1);
  second.cid = first.cid;
  SendCommand(attack, first);
  SendCommand(attack, second);
}

void RangesMissing(NvmeAttack& attack) {
  wire::NvmeCommand command = Command(attack, wire::kNvmeDatasetManagement, 0, 1);
  const wire::NvmeRange range{.attributes = 0, .blocks = 1, .first_block = DirtyBlock(attack, 1)};
  command.sgl_type = wire::kNvmeSglInCapsule;
  command.sgl_bytes = sizeof range;
  command.cdw10 = UINT8_MAX;  // 256 ranges are announced
  command.cdw11 = wire::kNvmeDeallocate;
  command.cdw12 = 0;
  SendCommand(attack, command, {reinterpret_cast<const uint8_t*>(&range), sizeof range});
}

// More commands than the queue has entries, and their answers unread.
void AnswersUnread(NvmeAttack& attack) {
  const auto reads = static_cast<uint32_t>(attack.random.Between(1, kReadsUnreadMax));
  for (uint32_t i = 0; i < reads; ++i) {
    wire::NvmeCommand command = Read(attack, WriteBlocks(attack.victim));
    command.cid = static_cast<uint16_t>(i);
    if (!attack.line.Send(attack.Capsule(command))) break;
  }
  attack.leaves = true;
}

void LeftUnderWay(NvmeAttack& attack) {
  constexpr uint64_t kCommandsMax = 24;
  const uint64_t commands = attack.random.Between(1, kCommandsMax);
  for (uint64_t i = 0; i < commands; ++i) {
    wire::NvmeCommand command = attack.random.Chance(1, 2) ? Read(attack, WriteBlocks(attack.victim))
                                                           : Write(attack, WriteBlocks(attack.victim));
    command.cid = static_cast<uint16_t>(i);
    SendCommand(attack, command);
  }
  attack.leaves = true;
}

// ---- The admin queue.

void UnknownAdminOpcode(NvmeAttack& attack) {
  constexpr std::array<uint8_t, 5> kReserved = {0x03, 0x07, 0x0b, 0x0e, 0x0f};
  wire::NvmeCommand command = Command(attack, kReserved[attack.random.Below(kReserved.size())], 0, 1);
  command.nsid = 0;
  SendCommand(attack, command);
}

void UnknownProperty(NvmeAttack& attack) {
  wire::NvmeCommand command{};
  command.opcode = wire::kNvmeFabrics;
  command.flags = wire::kNvmeFlagSgl;
  command.nsid = wire::kFabricsPropertyGet;
  command.cdw11 = static_cast<uint32_t>(attack.random.Between(0x2000, UINT32_MAX));
  SendCommand(attack, command);
}

void IdentifyWithoutRoom(NvmeAttack& attack) {
  wire::NvmeCommand command{};
  command.opcode = wire::kNvmeIdentify;
  command.flags = wire::kNvmeFlagSgl;
  command.cdw10 = wire::kIdentifyController;
  command.sgl_type =
      attack.random.Chance(1, 2) ? wire::kNvmeSglByTransport : static_cast<uint8_t>(attack.random.Next());
  command.sgl_bytes = static_cast<uint32_t>(attack.random.Below(wire::kIdentifyBytes));
  SendCommand(attack, command);
}

void EventsWithoutEnd(NvmeAttack& attack) {
  wire::NvmeCommand command{};
  command.opcode = kNvmeAsyncEvent;
  command.flags = wire::kNvmeFlagSgl;
  command.sgl_type = wire::kNvmeSglByTransport;
  for (uint32_t i = 0; i < kEventRequests; ++i) {
    command.cid = static_cast<uint16_t>(i);
    if (!attack.line.Send(attack.Capsule(command))) break;
  }
}

// ---- Odd and allowed: a write in pieces, then its blocks read back.

namespace {

// The data that the target asks for, each PDU in pieces; true when the write has succeeded.
bool ServeData(NvmeAttack& attack, std::span<const uint8_t> data) {
  constexpr uint32_t kPdusMax = 4096;
  for (uint32_t pdus = 0; pdus < kPdusMax; ++pdus) {
    const RawHeard heard = attack.line.Hear();
    if (heard.what != What::kReady) {
      attack.heard = heard;
      return heard.what == What::kResponse && heard.status == 0;
    }
    if (heard.length_bytes == 0 || heard.length_bytes > data.size() ||
        heard.offset_bytes > data.size() - heard.length_bytes) {
      attack.wrong = "R2T asks for none of its command's data, or for more";
      attack.heard = heard;
      return false;
    }
    for (uint32_t at = 0; at < heard.length_bytes;) {
      const uint32_t piece = std::min(heard.length_bytes - at, attack.line.data_to_target_max());
      DataPdu pdu;
      pdu.transfer.cid = heard.cid;
      pdu.transfer.tag = heard.tag;
      pdu.transfer.offset_bytes = heard.offset_bytes + at;
      pdu.transfer.length_bytes = piece;
      const auto from = data.subspan(pdu.transfer.offset_bytes, piece);
      pdu.data.assign(from.begin(), from.end());
      at += piece;
      pdu.is_last = at == heard.length_bytes;
      attack.line.SendSplit(pdu.Made(attack), attack.random);
    }
  }
  return false;
}

// What the target has in those blocks; nothing where the read failed.
std::vector<uint8_t> ReadBack(NvmeAttack& attack, uint64_t block, uint32_t blocks) {
  const wire::NvmeCommand command = Command(attack, wire::kNvmeRead, block, blocks);
  attack.line.SendSplit(attack.Capsule(command), attack.random);
  std::vector<uint8_t> data;
  for (;;) {
    const RawHeard heard = attack.line.Hear();
    attack.heard = heard;
    if (heard.what == What::kResponse && heard.status == 0) return data;
    if (heard.what != What::kData || heard.data.empty() || heard.offset_bytes != data.size() ||
        data.size() + heard.data.size() > command.sgl_bytes)
      return {};
    data.insert(data.end(), heard.data.begin(), heard.data.end());
    if ((heard.flags & wire::kPduSuccess) != 0) return data;
  }
}

}  // namespace

void WriteSplit(NvmeAttack& attack) {
  const uint64_t clean = CleanBlocks(attack.victim);
  const bool in_capsule =
      attack.victim.capsule_data_bytes >= attack.victim.block_bytes && attack.random.Chance(1, 2);
  const auto blocks =
      static_cast<uint32_t>(in_capsule ? 1 : attack.random.Between(1, WriteBlocks(attack.victim)));
  const uint64_t block = attack.victim.first_block + attack.random.Below(clean - blocks + 1);
  wire::NvmeCommand command = Command(attack, wire::kNvmeWrite, block, blocks);
  if (in_capsule) command.sgl_type = wire::kNvmeSglInCapsule;
  std::vector<uint8_t> data(command.sgl_bytes);
  for (uint8_t& byte : data) byte = static_cast<uint8_t>(attack.random.Next());
  attack.line.SendSplit(in_capsule ? attack.Capsule(command, data) : attack.Capsule(command), attack.random);
  if (!ServeData(attack, data)) return;
  const std::vector<uint8_t> back = ReadBack(attack, block, blocks);
  attack.was_served = back == data;
  if (back.size() == data.size() && back != data)
    attack.wrong = "a read returns other data than was written in pieces";
}

}  // namespace cleat::perf::nvme_abuses
