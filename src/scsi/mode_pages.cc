// SPDX-License-Identifier: Apache-2.0
#include "scsi/mode_pages.h"

#include <algorithm>
#include <bit>
#include <optional>

#include "scsi/bytes.h"

namespace cleat::scsi {
namespace {

constexpr uint8_t kCachingPage = 0x08;
constexpr uint8_t kControlPage = 0x0a;
constexpr uint8_t kAllPages = 0x3f;
constexpr uint8_t kAllSubpages = 0xff;
constexpr uint8_t kWce = 0x04;
constexpr uint8_t kDSense = 0x04;
constexpr size_t kCachingBytes = 20;
constexpr size_t kControlBytes = 12;

enum class PageControl : uint8_t { kCurrent, kChangeable, kDefault, kSaved };

// Writes a page; 0 when there is none of that number.
size_t WritePage(uint8_t page, PageControl control, const ModeView& view, uint8_t* at) {
  const bool changeable = control == PageControl::kChangeable;
  const ModeParameters values = control == PageControl::kDefault ? ModeParameters{} : view.current;
  if (page == kCachingPage) {
    at[0] = kCachingPage;
    at[1] = kCachingBytes - 2;
    if (view.write_cache && !changeable) at[2] = kWce;
    return kCachingBytes;
  }
  if (page == kControlPage) {
    at[0] = kControlPage;
    at[1] = kControlBytes - 2;
    if (changeable) {
      at[2] = kDSense;
      return kControlBytes;
    }
    at[2] = static_cast<uint8_t>(0x02 |
                                 (values.descriptor_sense ? kDSense : 0));  // GLTSD: there is no log to save
    at[3] = 0x10;                                                           // commands may be reordered
    StoreBig(at + 8, 0xffff, 2);                                            // busy timeout: unlimited
    return kControlBytes;
  }
  return 0;
}

size_t WriteBlockDescriptor(const ModeView& view, bool long_lba, uint8_t* at) {
  if (long_lba) {  // SBC-4 6.5.2.3
    StoreBig(at, view.blocks, 8);
    StoreBig(at + 12, view.block_bytes, 4);
    return 16;
  }
  StoreBig(at, Saturate(view.blocks, 4), 4);
  StoreBig(at + 5, view.block_bytes, 3);
  return 8;
}

// The header's fields, by the length of the CDB.
struct Header {
  size_t bytes, specific_at, long_lba_at, descriptors_at, descriptors_bytes;
};
constexpr Header kHeader6{4, 2, 0, 3, 1};
constexpr Header kHeader10{8, 3, 4, 6, 2};

// Block descriptors may say what is true already, or leave the number of blocks open (SBC-4 6.5.2). The first byte
// that says something else.
std::optional<size_t> BadBlockDescriptor(std::span<const uint8_t> descriptor, const ModeView& view) {
  const bool long_lba = descriptor.size() == 16;
  const uint64_t count = LoadBigExact(descriptor.data(), long_lba ? 8 : 4);
  const uint64_t open = long_lba ? ~uint64_t{0} : UINT32_MAX;
  if (count != 0 && count != open && count != Saturate(view.blocks, long_lba ? 8 : 4)) return 0;
  const size_t length_at = long_lba ? 12 : 5;
  if (LoadBigExact(descriptor.data() + length_at, long_lba ? 4 : 3) != view.block_bytes) return length_at;
  return std::nullopt;
}

}  // namespace

ModeReply WriteModeSense(const Cdb& cdb, const ModeView& view, std::span<uint8_t, kModeBytesMax> out) {
  std::ranges::fill(out, uint8_t{0});
  const bool ten = cdb[0] == kModeSense10;
  const auto control = static_cast<PageControl>(cdb[2] >> 6);
  const uint8_t page = cdb[2] & 0x3f;
  const uint8_t subpage = cdb[3];
  if (control == PageControl::kSaved) return {.saved_values = true};
  if (subpage != 0 && subpage != kAllSubpages) return {.bad = {3, 7}};

  const Header& header = ten ? kHeader10 : kHeader6;
  uint8_t* at = out.data();
  at[header.specific_at] = static_cast<uint8_t>((view.read_only ? 0x80 : 0) | 0x10);  // WP, DPOFUA
  size_t end = header.bytes;
  if ((cdb[1] & 0x08) == 0) {                           // DBD
    const bool long_lba = ten && (cdb[1] & 0x10) != 0;  // LLBAA
    if (long_lba) at[header.long_lba_at] = 0x01;
    const size_t bytes = WriteBlockDescriptor(view, long_lba, at + end);
    StoreBig(at + header.descriptors_at, bytes, static_cast<uint32_t>(header.descriptors_bytes));
    end += bytes;
  }
  const size_t pages_at = end;
  if (page == kCachingPage || page == kAllPages) end += WritePage(kCachingPage, control, view, at + end);
  if (page == kControlPage || page == kAllPages) end += WritePage(kControlPage, control, view, at + end);
  if (end == pages_at) return {.bad = {2, 5}};
  if (ten) {
    StoreBig(at, end - 2, 2);
  } else {
    at[0] = static_cast<uint8_t>(end - 1);
  }
  return {.bytes = end};
}

ModeSelection ReadModeSelect(bool ten, std::span<const uint8_t> list, const ModeView& view) {
  const auto refuse = [](size_t byte, int bit = -1) {
    return ModeSelection{ModeSelection::Outcome::kBadParameter, {static_cast<int>(byte), bit}, {}};
  };
  const ModeSelection too_short{ModeSelection::Outcome::kListLength, {}, {}};
  ModeSelection selection;
  selection.parameters = view.current;
  if (list.empty()) return selection;

  const Header& header = ten ? kHeader10 : kHeader6;
  if (list.size() < header.bytes) return too_short;
  const bool long_lba = ten && (list[header.long_lba_at] & 0x01) != 0;
  const size_t descriptors =
      LoadBigExact(&list[header.descriptors_at], static_cast<uint32_t>(header.descriptors_bytes));
  if (descriptors != 0 && descriptors != (long_lba ? 16U : 8U)) return refuse(header.descriptors_at);
  size_t at = header.bytes + descriptors;
  if (at > list.size()) return too_short;
  if (descriptors != 0) {
    const auto bad = BadBlockDescriptor(list.subspan(header.bytes, descriptors), view);
    if (bad) return refuse(header.bytes + *bad);
  }

  while (at < list.size()) {
    uint8_t current[kCachingBytes] = {};
    uint8_t changeable[kCachingBytes] = {};
    const uint8_t page = list[at] & 0x3f;              // PS is reserved here
    if ((list[at] & 0x40) != 0) return refuse(at, 6);  // SPF: no subpages
    const size_t bytes = WritePage(page, PageControl::kCurrent, view, current);
    WritePage(page, PageControl::kChangeable, view, changeable);
    if (bytes == 0) return refuse(at, 5);
    if (list.size() - at < 2) return too_short;
    if (list[at + 1] != bytes - 2) return refuse(at + 1);
    if (list.size() - at < bytes) return too_short;
    for (size_t i = 2; i < bytes; ++i) {
      const auto wrong = static_cast<uint8_t>((list[at + i] ^ current[i]) & ~changeable[i]);
      if (wrong != 0) return refuse(at + i, std::bit_width(wrong) - 1);
    }
    if (page == kControlPage) selection.parameters.descriptor_sense = (list[at + 2] & kDSense) != 0;
    at += bytes;
  }
  return selection;
}

}  // namespace cleat::scsi
