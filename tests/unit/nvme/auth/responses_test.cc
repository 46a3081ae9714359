// SPDX-License-Identifier: Apache-2.0
#include "nvme/auth/responses.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/unit/nvme/auth/controller.h"

namespace cleat::nvme::auth {
namespace {

// Made with Python's hashlib and hmac by the specification's formulas: transaction 1234h, sequence number A1B2C3D4h, challenge 100, 101,
// ..., and with `exchanged` a shared secret of 256 bytes that begins with eight zeros.
struct Vector {
  uint8_t hash;  // and the secret of kTestSecrets
  bool exchanged;
  const char* host;
  const char* controller;
};
constexpr Vector kVectors[] = {
    {1, false, "fe20353111dc1054fa278de2ca1d799a8f5ea9930ce4a0822f6c2236bffe83b0",
     "1eeb56ac58cda03be7689c3f16c369cf9cf2162a965d27e7ac7045107a9878cb"},
    {1, true, "6a8115c30fc59226db3ab99c322d65ff6ff6feed23993a0edc41cf4f67387cf1",
     "3563ea59f473da3d8a677c10af1d2ef0328f89b6ad14c5a10a76c0b623fe472a"},
    {2, false,
     "f4050322a298ff6452aac597bf97422ee3a1f5cb1e8ed5d843282ff9dc47ca112bb019d415eb81b06c2c8445643a891a",
     "27619dcb2f2022806f6eca94c6f01a948a3be6eead9f864fe56ac95f0f99c2cbbdeb33fbb7d437b5b0db68b23dffc586"},
    {2, true,
     "5f7b6332f992307d6cf41ae3c8ca0bf6ffcd9929690f9ca26be19919f1ece53725ac6dd467d525cb9a86b87c3dfc1819",
     "40c9bf874d1329f46c8e65e9b18cd48030ca6df4e81484cc61f59a62ec7bc086807a4e4c7803dcf9eb019cfa69b39651"},
    {3, false,
     "e40e16f9984080ad1730a45c2d8026ee489851fb53c8dff457460515e56b1a7ae8c7b758f5d3f7fc390509de1ee2866803c6f8b"
     "526916062e6b275c1aa0441ac",
     "bc19583d040666b0a10ac03cc8b58be6c3a362a3cc8ed54e947a8449d0e925f264d2cc76c35c68dc4a3063cf398d6694d670e8f"
     "776c13a03fcc8cc36fff70e87"},
    {3, true,
     "e82e3f644d4217d669d6675bf4e9af81b10a658a387e46561ed89f359e2ebb63d8b8d3e6aebaf941fc5b7367762828e218efd02"
     "5cdcac01db6b8683baf4e2795",
     "e883e325fcc432c78e0257f68e545df66097a41f118914bccc9f5cd61af709176e1a1374b4da8e5fd1ae75a75b26363d7e949e5"
     "a45d99042156d79f5d69db2f0"},
};

std::string Hex(const keys::Secret& secret) {
  std::string text;
  for (const uint8_t byte : secret.bytes()) text += fmt::format("{:02x}", byte);
  return text;
}

keys::Secret SharedSecret() {
  keys::Secret shared = keys::Secret::Zeroes(256);
  const auto bytes = shared.mutable_bytes();
  for (size_t i = 8; i < bytes.size(); ++i) bytes[i] = static_cast<uint8_t>(7 * (i - 8) + 1);
  return shared;
}

TEST(ChapResponses, AreThoseOfTheSpecificationsFormulas) {
  const keys::Secret shared = SharedSecret();
  for (const Vector& vector : kVectors) {
    const auto secret = ChapSecret::Parse(kTestSecrets[vector.hash].text, "it");
    Bytes challenge(kTestSecrets[vector.hash].size_bytes);
    for (size_t i = 0; i < challenge.size(); ++i) challenge[i] = static_cast<uint8_t>(100 + i);
    const Terms terms{.hash = *HashOf(vector.hash),
                      .transaction = 0x1234,
                      .host_nqn = kTestHostNqn,
                      .subsystem_nqn = kTestSubsystemNqn,
                      .shared = vector.exchanged ? &shared : nullptr};
    const Nonce nonce{.sequence = 0xa1b2c3d4, .value = challenge};
    EXPECT_EQ(Hex(HostResponse(terms, *secret, nonce).value()), vector.host);
    EXPECT_EQ(Hex(ControllerResponse(terms, *secret, nonce).value()), vector.controller);
  }
}

}  // namespace
}  // namespace cleat::nvme::auth
