// SPDX-License-Identifier: Apache-2.0
// Pages as a target fills them in, for tests that then change a field.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "nvme/fabrics/identify.h"

namespace cleat::nvme::fabrics {

inline constexpr std::string_view kTestSubsystem = "nqn.2024-01.com.example:a";

struct Page {
  std::array<uint8_t, kIdentifyBytes> bytes{};

  IdentifyData data() const { return IdentifyData(bytes); }
  template <typename Number>
  void Put(size_t offset, Number number) {
    std::memcpy(bytes.data() + offset, &number, sizeof(number));
  }
  void PutText(size_t offset, std::string_view text) {
    std::memcpy(bytes.data() + offset, text.data(), text.size());
  }
};

// A controller with ANA in four groups.
inline Page ControllerPage() {
  Page page;
  page.Put<uint8_t>(76, 0x0a);                 // CMIC
  page.Put<uint8_t>(77, 5);                    // MDTS: 128 KiB
  page.Put<uint16_t>(78, 7);                   // CNTLID
  page.Put<uint32_t>(80, 0x00010400);          // VER
  page.Put<uint32_t>(92, 1U << 8 | 1U << 11);  // OAES
  page.Put<uint8_t>(111, 1);                   // CNTRLTYPE
  page.Put<uint8_t>(259, 3);                   // AERL: four
  page.Put<uint8_t>(261, 4);                   // LPA: offsets
  page.Put<uint16_t>(320, 10);                 // KAS: a second
  page.Put<uint8_t>(342, 10);                  // ANATT
  page.Put<uint32_t>(344, 4);                  // ANAGRPMAX
  page.Put<uint32_t>(348, 4);                  // NANAGRPID
  page.Put<uint16_t>(386, 250);                // CQT
  page.Put<uint8_t>(512, 0x66);
  page.Put<uint8_t>(513, 0x44);
  page.Put<uint16_t>(514, 128);           // MAXCMD
  page.Put<uint32_t>(516, 32);            // NN
  page.Put<uint32_t>(536, 1U << 20 | 1);  // SGLS
  page.PutText(768, kTestSubsystem);
  page.Put<uint32_t>(1792, (8192 + 64) / 16);
  page.Put<uint32_t>(1796, 1);
  page.Put<uint8_t>(1803, 1);
  return page;
}

inline constexpr Uuid kTestUuid = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};

inline Page DescriptorsPage(const Uuid& uuid = kTestUuid) {
  Page page;
  page.Put<uint8_t>(0, 3);
  page.Put<uint8_t>(1, 16);
  std::memcpy(page.bytes.data() + 4, uuid.data(), uuid.size());
  return page;
}

// 512-byte blocks, in ANA group 2.
inline Page NamespacePage(uint64_t blocks = 1 << 21) {
  Page page;
  page.Put<uint64_t>(0, blocks);
  page.Put<uint8_t>(30, 1);
  page.Put<uint32_t>(92, 2);
  page.Put<uint32_t>(128, 9U << 16);
  return page;
}

}  // namespace cleat::nvme::fabrics
