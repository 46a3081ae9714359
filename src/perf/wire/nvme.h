// SPDX-License-Identifier: Apache-2.0
// NVMe commands and what controllers say of themselves: NVM Express Base Specification 2.0 (sections given as "base"), NVM Command Set
// Specification 1.0 ("nvm"). What an initiator over fabrics needs, no more.
// Written from the specification, on purpose apart from what the engine uses: each side of the tests has its own reading of it, and a
// wrong one shows.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

namespace cleat::perf::wire {

static_assert(std::endian::native == std::endian::little, "structures are read in place");

// ---- Commands and completions (base 3.3.3.1, 3.3.3.2).

struct NvmeCommand {
  uint8_t opcode;
  uint8_t flags;
  uint16_t cid;
  uint32_t nsid;  // fabrics commands: FCTYPE in the lowest byte
  uint32_t cdw2;
  uint32_t cdw3;
  uint64_t metadata;
  uint64_t sgl_address;  // one SGL descriptor (base 4.1.2): a data block
  uint32_t sgl_bytes;
  uint8_t sgl_reserved[3];
  uint8_t sgl_type;
  uint32_t cdw10;
  uint32_t cdw11;
  uint32_t cdw12;
  uint32_t cdw13;
  uint32_t cdw14;
  uint32_t cdw15;
};
static_assert(sizeof(NvmeCommand) == 64);
static_assert(offsetof(NvmeCommand, sgl_type) == 39 && offsetof(NvmeCommand, cdw10) == 40);

inline constexpr uint8_t kNvmeFlagSgl = 0x40;         // PSDT 01b: the data pointer is an SGL
inline constexpr uint8_t kNvmeSglInCapsule = 0x01;    // data block, its address an offset into the capsule
inline constexpr uint8_t kNvmeSglByTransport = 0x5a;  // transport data block

struct NvmeCompletion {
  uint64_t result;
  uint16_t sq_head;
  uint16_t sq_id;
  uint16_t cid;
  uint16_t status;  // bit 0 is the phase tag, which fabrics do not use
};
static_assert(sizeof(NvmeCompletion) == 16);

enum NvmeAdminOpcode : uint8_t {  // base 5
  kNvmeIdentify = 0x06,
  kNvmeSetFeatures = 0x09,
  kNvmeKeepAlive = 0x18,
  kNvmeFabrics = 0x7f,
};
inline constexpr uint8_t kNvmeFeatureQueues = 0x07;  // base 5.27.1.5

enum NvmeIoOpcode : uint8_t {  // nvm 3.2
  kNvmeFlush = 0x00,
  kNvmeWrite = 0x01,
  kNvmeRead = 0x02,
  kNvmeWriteZeroes = 0x08,
  kNvmeDatasetManagement = 0x09,
};
inline constexpr uint32_t kNvmeBlocksMax = 1U << 16;  // of a command: NLB has 16 bits, and 0 is one block

struct NvmeRange {  // nvm 3.2.3
  uint32_t attributes;
  uint32_t blocks;
  uint64_t first_block;
};
static_assert(sizeof(NvmeRange) == 16);
inline constexpr uint32_t kNvmeDeallocate = 1U << 2;  // of CDW11

// Status without its phase tag (base 3.3.3.2.1): code in bits 0-7, its type in 8-10.
inline constexpr uint16_t kNvmeStatusMask = 0x7ff;
inline constexpr uint16_t kNvmeDataTransferError = 0x004;

// ---- Fabrics (base 6).

inline constexpr uint32_t kFabricsPropertySet = 0x00;
inline constexpr uint32_t kFabricsConnect = 0x01;
inline constexpr uint32_t kFabricsPropertyGet = 0x04;
inline constexpr uint32_t kPropertyEightBytes = 1;

inline constexpr size_t kNqnBytesMax = 223;
struct ConnectData {  // base 6.3
  uint8_t host_id[16];
  uint16_t controller_id;
  uint8_t reserved[238];
  char subsystem_nqn[256];
  char host_nqn[256];
  uint8_t reserved2[256];
};
static_assert(sizeof(ConnectData) == 1024 && offsetof(ConnectData, subsystem_nqn) == 256);
inline constexpr uint16_t kAnyController = 0xffff;

inline constexpr uint16_t kConnectBusy = 0x181;
inline constexpr uint16_t kConnectInvalid = 0x182;
inline constexpr uint16_t kConnectInvalidHost = 0x184;
inline constexpr uint64_t kConnectAuthentication = 3U << 16;  // of the result: AUTHREQ, either kind

// ---- Properties (base 3.1.3).

inline constexpr uint32_t kPropertyCap = 0x00;
inline constexpr uint32_t kPropertyConfiguration = 0x14;
inline constexpr uint32_t kPropertyStatus = 0x1c;
inline constexpr uint64_t kCapTimeoutUnitMs = 500;                      // of CAP.TO, bits 24-31
inline constexpr uint64_t kConfigurationOn = 1U | 6U << 16 | 4U << 20;  // enabled; entries of 64 and 16 bytes
inline constexpr uint64_t kConfigurationShutdown = 1U << 14;            // normal
inline constexpr uint64_t kStatusReady = 1U << 0;
inline constexpr uint64_t kStatusFatal = 1U << 1;

// ---- Identify (base 5.17, nvm 4.1.5).

inline constexpr size_t kIdentifyBytes = 4096;
inline constexpr uint32_t kIdentifyNamespace = 0x00;
inline constexpr uint32_t kIdentifyController = 0x01;
inline constexpr uint32_t kIdentifyActive = 0x02;
inline constexpr uint32_t kIdentifyDescriptors = 0x03;

struct IdentifyController {
  uint8_t ignored[77];
  uint8_t mdts;
  uint16_t controller_id;
  uint8_t ignored2[440];
  uint16_t oncs;
  uint8_t ignored3[1270];
  uint32_t capsule_units;  // IOCCSZ, 16 bytes each
  uint8_t ignored4[2300];
};
static_assert(sizeof(IdentifyController) == kIdentifyBytes);
static_assert(offsetof(IdentifyController, oncs) == 520 &&
              offsetof(IdentifyController, capsule_units) == 1792);
inline constexpr uint32_t kCapsuleUnitBytes = 16;
inline constexpr uint16_t kOncsDatasetManagement = 1U << 2;
inline constexpr uint16_t kOncsWriteZeroes = 1U << 3;
inline constexpr uint32_t kMdtsUnitBytes =
    4096;  // of a controller whose CAP.MPSMIN is 0, times two for each step of that

struct LbaFormat {
  uint16_t metadata_bytes;
  uint8_t block_shift;
  uint8_t performance;
};
struct IdentifyNamespace {
  uint64_t blocks;
  uint8_t ignored[18];
  uint8_t format;  // FLBAS: bits 0-3, and two more in 5 and 6
  uint8_t ignored2[72];
  uint8_t attributes;  // NSATTR
  uint8_t ignored3[28];
  LbaFormat formats[64];
  uint8_t ignored4[3712];
};
static_assert(sizeof(IdentifyNamespace) == kIdentifyBytes);
static_assert(offsetof(IdentifyNamespace, format) == 26 && offsetof(IdentifyNamespace, formats) == 128);
static_assert(offsetof(IdentifyNamespace, attributes) == 99);
inline constexpr uint8_t kNamespaceWriteProtected = 1;
inline constexpr uint8_t kBlockShiftMin = 9;
inline constexpr uint8_t kBlockShiftMax = 16;  // beyond any that there is

inline constexpr uint8_t kDescriptorUuid =
    3;  // base 5.17.2.3: type, length, two reserved bytes, the identifier
inline constexpr size_t kDescriptorHeaderBytes = 4;
inline constexpr size_t kUuidBytes = 16;

}  // namespace cleat::perf::wire
