// SPDX-License-Identifier: Apache-2.0
// Uses keys as the engine does, then holds still, for key_search_test to look through its memory:
//   key_holder on|off|late KEK_FILE KEK_ID WRAPPED_KEY_IN_HEX
// "off": without the arena for secrets; "late": uses OpenSSL before, so that it can't be had (exit status 3).
// Unwraps the data key and makes a cipher's contexts with it. Says "holding" on standard output; ends when its standard
// input does.
#include <openssl/evp.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <memory>
#include <string>

#include "keys/keyring.h"
#include "keys/secret_arena.h"
#include "tests/unit/keys/hex.h"

int main(int argc, char** argv) {
  using namespace cleat;
  if (argc != 5) return 2;
  const std::string how = argv[1];
  if (how == "late") EVP_CIPHER_CTX_free(EVP_CIPHER_CTX_new());
  const auto mode = how == "off" ? keys::SecretArenaMode::kOff : keys::SecretArenaMode::kOn;
  if (!keys::InstallSecretArena(mode)) return 3;
  keys::Keyring keyring;
  if (!keyring.SetFiles({argv[2]})) return 4;
  const auto key = keyring.Unwrap(argv[3], test::FromHex(argv[4]), "disks/a");
  if (!key) return 5;
  EVP_CIPHER* cipher = EVP_CIPHER_fetch(nullptr, "AES-256-XTS", nullptr);
  std::array<EVP_CIPHER_CTX*, 2> contexts{};
  for (int encrypt = 0; encrypt < 2; ++encrypt) {
    contexts[encrypt] = EVP_CIPHER_CTX_new();
    const std::array<uint8_t, 16> iv{};
    if (EVP_CipherInit_ex(contexts[encrypt], cipher, nullptr, key->bytes().data(), iv.data(), encrypt) != 1)
      return 6;
  }
  std::puts("holding");
  std::fflush(stdout);
  char byte = 0;
  while (read(STDIN_FILENO, &byte, 1) > 0) {
  }
  for (EVP_CIPHER_CTX* context : contexts) EVP_CIPHER_CTX_free(context);
  EVP_CIPHER_free(cipher);
  return 0;
}
