#include <hotkv/cache_miss.hpp>

#include <gtest/gtest.h>

#include <cstring>
#include <set>
#include <string>

namespace hotkv {
namespace {

constexpr std::uint32_t kReasonCount = 9;
constexpr std::uint64_t kLargest = ~std::uint64_t{0};
constexpr std::size_t kRecordBytes = 184;

SessionId id_of(std::string_view bytes) {
  return *SessionId::from(bytes);
}

// A miss with those of its five optional fields that `fields` has a bit for.
CacheMiss miss_with(MissReason reason, unsigned fields) {
  CacheMiss miss{.session = id_of("session-1"),
                 .epoch = Epoch{3},
                 .expected_length = {},
                 .reason = reason,
                 .known_epoch = {},
                 .known_length = {},
                 .age_ms = {},
                 .cause = {}};
  if ((fields & 1) != 0) miss.expected_length = TokenCount{128};
  if ((fields & 2) != 0) miss.known_epoch = Epoch{kLargest};
  if ((fields & 4) != 0) miss.known_length = TokenCount{0};
  if ((fields & 8) != 0) miss.age_ms = 4000;
  if ((fields & 16) != 0) miss.cause = ErrorCode::deadline_exceeded;
  return miss;
}

CacheMiss full_miss() {
  return miss_with(MissReason::evicted_lru, 31);
}

template <class T>
void store_at(std::vector<std::byte>& bytes, std::size_t offset, T value) {
  std::memcpy(bytes.data() + offset, &value, sizeof(value));
}

std::string refused_json(std::string_view text) {
  const auto miss = CacheMiss::from_json(text);
  if (miss) return "nothing";
  EXPECT_EQ(miss.error().code, ErrorCode::invalid_argument);
  return miss.error().object;
}

TEST(MissReason, EachHasItsOwnNameAndComesBackFromIt) {
  std::set<std::string_view> names;
  for (std::uint32_t number = 1; number <= kReasonCount; ++number) {
    const auto reason = miss_reason_from_number(number);
    ASSERT_TRUE(reason.has_value()) << number;
    EXPECT_EQ(static_cast<std::uint32_t>(*reason), number);
    EXPECT_TRUE(names.insert(to_string(*reason)).second) << number;
    EXPECT_EQ(miss_reason_from_name(to_string(*reason)), reason);
  }
}

TEST(MissReason, OtherNumbersAndNamesAreNone) {
  for (const std::uint32_t number : {0u, kReasonCount + 1, 255u, 0xffff'ffffu}) {
    EXPECT_EQ(miss_reason_from_number(number), std::nullopt) << number;
    EXPECT_EQ(to_string(static_cast<MissReason>(number)), "unknown-reason") << number;
  }
  for (const std::string_view name : {"", "unknown-reason", "evicted_ttl", "Released"}) {
    EXPECT_EQ(miss_reason_from_name(name), std::nullopt) << name;
  }
}

TEST(CacheMiss, MessageSaysWhyAndWhatIsKnown) {
  CacheMiss miss = miss_with(MissReason::evicted_ttl, 8);
  miss.session = id_of("a");
  miss.known_length = TokenCount{120};
  EXPECT_EQ(miss.message(), "session a epoch 3: evicted-ttl, last length 120, 4000 ms ago");
}

TEST(CacheMiss, MessageOfALengthMismatchShowsBothLengths) {
  CacheMiss miss = miss_with(MissReason::seq_len_mismatch, 1);
  miss.known_length = TokenCount{64};
  miss.known_epoch = miss.epoch;
  EXPECT_EQ(miss.message(),
            "session session-1 epoch 3: seq-len-mismatch, expected length 128, length 64");
}

TEST(CacheMiss, MessageNamesTheHigherEpochAndTheCause) {
  CacheMiss miss = miss_with(MissReason::superseded_epoch, 0);
  miss.known_epoch = Epoch{9};
  EXPECT_EQ(miss.message(), "session session-1 epoch 3: superseded-epoch, highest epoch 9");
  miss = miss_with(MissReason::daemon_unavailable, 16);
  EXPECT_EQ(miss.message(),
            "session session-1 epoch 3: daemon-unavailable, cause deadline-exceeded");
}

TEST(CacheMiss, MessageEscapesTheSession) {
  CacheMiss miss = miss_with(MissReason::released, 0);
  miss.session = id_of("a\nb");
  EXPECT_EQ(miss.message(), R"(session a\x0ab epoch 3: released)");
}

TEST(CacheMiss, ComesBackFromBytesAndJsonWithEveryReasonAndEveryCombinationOfFields) {
  for (std::uint32_t number = 1; number <= kReasonCount; ++number) {
    for (unsigned fields = 0; fields < 32; ++fields) {
      const CacheMiss miss = miss_with(static_cast<MissReason>(number), fields);
      const auto from_bytes = CacheMiss::from_bytes(miss.to_bytes());
      ASSERT_TRUE(from_bytes.has_value()) << from_bytes.error().message();
      EXPECT_EQ(*from_bytes, miss);
      const auto from_json = CacheMiss::from_json(miss.to_json());
      ASSERT_TRUE(from_json.has_value()) << from_json.error().message() << miss.to_json();
      EXPECT_EQ(*from_json, miss) << miss.to_json();
    }
  }
}

TEST(CacheMiss, ComesBackWithAnyBytesInItsSession) {
  std::string every_byte;
  for (int byte = 0; byte < 256; ++byte) every_byte += static_cast<char>(byte);
  for (const std::string& bytes :
       {std::string("\""), std::string("\\"), std::string("a\0", 2), std::string("\0", 1),
        std::string("\xff\xfe"), std::string("\xc3\xa4"), std::string(R"(","epoch":9,"x":")"),
        every_byte.substr(0, 128), every_byte.substr(128), std::string(128, '\0')}) {
    CacheMiss miss = full_miss();
    miss.session = id_of(bytes);
    EXPECT_EQ(CacheMiss::from_bytes(miss.to_bytes()).value(), miss);
    EXPECT_EQ(CacheMiss::from_json(miss.to_json()).value(), miss) << miss.to_json();
  }
}

TEST(CacheMiss, NumbersOfAllSizesSurviveExactly) {
  for (const std::uint64_t number :
       {std::uint64_t{0}, std::uint64_t{1} << 53, (std::uint64_t{1} << 53) + 1,
        std::uint64_t{1} << 63, kLargest - 1, kLargest}) {
    CacheMiss miss = full_miss();
    miss.epoch = Epoch{number};
    miss.known_epoch = Epoch{number};
    miss.age_ms = number;
    miss.expected_length = TokenCount{static_cast<std::uint32_t>(number)};
    EXPECT_EQ(CacheMiss::from_bytes(miss.to_bytes()).value(), miss);
    EXPECT_EQ(CacheMiss::from_json(miss.to_json()).value(), miss) << miss.to_json();
  }
}

TEST(CacheMissBytes, EqualMissesHaveEqualBytes) {
  EXPECT_EQ(full_miss().to_bytes(), full_miss().to_bytes());
  EXPECT_EQ(full_miss().to_bytes().size(), kRecordBytes);
}

TEST(CacheMissBytes, EveryOtherLengthIsRefused) {
  std::vector<std::byte> bytes = full_miss().to_bytes();
  bytes.resize(2 * kRecordBytes);
  for (std::size_t size = 0; size <= bytes.size(); ++size) {
    if (size == kRecordBytes) continue;
    const auto refused = CacheMiss::from_bytes(std::span(bytes).first(size));
    ASSERT_FALSE(refused.has_value()) << size;
    EXPECT_EQ(refused.error().code, ErrorCode::invalid_argument);
    EXPECT_EQ(refused.error().object, "size");
  }
}

TEST(CacheMissBytes, EachWrongFieldIsNamed) {
  const struct {
    const char* field;
    std::size_t offset;
    std::uint32_t value;
  } changes[] = {{"version", 0, 0},      {"version", 0, 2},  {"flags", 4, 32},
                 {"flags", 4, 1u << 31}, {"reason", 8, 0},   {"reason", 8, kReasonCount + 1},
                 {"cause", 12, 0},       {"cause", 12, 32},  {"session", 48, 0},
                 {"session", 48, 129},   {"session", 48, 1}, {"reserved", 52, 1}};
  for (const auto& change : changes) {
    std::vector<std::byte> bytes = full_miss().to_bytes();
    store_at(bytes, change.offset, change.value);
    const auto refused = CacheMiss::from_bytes(bytes);
    ASSERT_FALSE(refused.has_value()) << change.field;
    EXPECT_EQ(refused.error().object, change.field);
  }
}

TEST(CacheMissBytes, AFieldThatIsAbsentMustBeZero) {
  const struct {
    const char* field;
    std::size_t offset;
  } fields[] = {{"cause", 12},
                {"known_epoch", 24},
                {"age_ms", 32},
                {"expected_length", 40},
                {"known_length", 44}};
  for (const auto& field : fields) {
    std::vector<std::byte> bytes = miss_with(MissReason::released, 0).to_bytes();
    store_at(bytes, field.offset, std::uint32_t{1});
    const auto refused = CacheMiss::from_bytes(bytes);
    ASSERT_FALSE(refused.has_value()) << field.field;
    EXPECT_EQ(refused.error().object, field.field);
  }
}

TEST(CacheMissBytes, WhateverOneByteBecomesTheResultIsRefusedOrHasThoseBytes) {
  const std::vector<std::byte> good = full_miss().to_bytes();
  for (std::size_t at = 0; at < good.size(); ++at) {
    for (int value = 0; value < 256; ++value) {
      std::vector<std::byte> bytes = good;
      bytes[at] = static_cast<std::byte>(value);
      const auto miss = CacheMiss::from_bytes(bytes);
      if (miss) {
        ASSERT_EQ(miss->to_bytes(), bytes) << at << " " << value;
      }
    }
  }
}

TEST(CacheMissJson, ReadsWell) {
  EXPECT_EQ(full_miss().to_json(),
            R"({"session":"session-1","epoch":3,"expected_length":128,"reason":"evicted-lru",)"
            R"("known_epoch":18446744073709551615,"known_length":0,"age_ms":4000,)"
            R"("cause":"deadline-exceeded"})");
  EXPECT_EQ(miss_with(MissReason::unknown_session, 0).to_json(),
            R"({"session":"session-1","epoch":3,"reason":"unknown-session"})");
}

TEST(CacheMissJson, KeysMayComeInAnyOrderWithSpace) {
  const auto miss =
      CacheMiss::from_json(" {\n\"reason\": \"released\", \"epoch\": 3, \"session\": \"a\" } ");
  ASSERT_TRUE(miss.has_value()) << miss.error().message();
  EXPECT_EQ(miss->reason, MissReason::released);
}

TEST(CacheMissJson, TextsThatAreNoObjectAreRefused) {
  for (const std::string_view text :
       {"", "{", "[]", "null", "7", "\"a\"", "{}x", "{\"a\":}", "\xff", "{\"session\":\"\xff\"}"}) {
    EXPECT_EQ(refused_json(text), "text") << text;
  }
  EXPECT_EQ(refused_json(std::string(100'000, '[')), "text");
}

TEST(CacheMissJson, ATextCutOffAnywhereIsRefused) {
  const std::string text = full_miss().to_json();
  for (std::size_t size = 0; size < text.size(); ++size) {
    EXPECT_EQ(refused_json(std::string_view(text).substr(0, size)), "text") << size;
  }
}

TEST(CacheMissJson, EachMissingKeyIsNamed) {
  EXPECT_EQ(refused_json(R"({})"), "session");
  EXPECT_EQ(refused_json(R"({"epoch":3,"reason":"released"})"), "session");
  EXPECT_EQ(refused_json(R"({"session":"a","reason":"released"})"), "epoch");
  EXPECT_EQ(refused_json(R"({"session":"a","epoch":3})"), "reason");
}

TEST(CacheMissJson, EachWrongValueIsNamed) {
  const struct {
    const char* key;
    std::string_view value;
  } wrong[] = {{"expected_length", "4294967296"},
               {"expected_length", "null"},
               {"known_epoch", "18446744073709551616"},
               {"known_epoch", "\"3\""},
               {"known_length", "-1"},
               {"known_length", "1.0"},
               {"age_ms", "1e3"},
               {"age_ms", "true"},
               {"cause", "20"},
               {"cause", "\"no-such-code\""}};
  for (const auto& [key, value] : wrong) {
    const std::string text = R"({"session":"a","epoch":3,"reason":"released",")" +
                             std::string(key) + "\":" + std::string(value) + "}";
    EXPECT_EQ(refused_json(text), key) << text;
  }
  EXPECT_EQ(refused_json(R"({"session":"a","epoch":-3,"reason":"released"})"), "epoch");
  EXPECT_EQ(refused_json(R"({"session":"a","epoch":3,"reason":"gone"})"), "reason");
  EXPECT_EQ(refused_json(R"({"session":7,"epoch":3,"reason":"released"})"), "session");
}

TEST(CacheMissJson, ASessionIsReadStrictly) {
  for (const std::string& escaped :
       {std::string(), std::string(129, 'a'), std::string(R"(\\x4)"), std::string(R"(\\x61)"),
        std::string(R"(\n)"), std::string(R"(\u0000)"), std::string("\xc3\xa4")}) {
    EXPECT_EQ(refused_json(R"({"session":")" + escaped + R"(","epoch":3,"reason":"released"})"),
              "session")
        << escaped;
  }
}

TEST(CacheMissJson, UnknownAndRepeatedKeysAreRefusedByName) {
  EXPECT_EQ(refused_json(R"({"session":"a","epoch":3,"reason":"released","lenght":1})"), "lenght");
  EXPECT_EQ(refused_json(R"({"session":"a","epoch":3,"epoch":4,"reason":"released"})"), "epoch");
}

TEST(Refusal, IsAMissOrAnError) {
  const Refusal miss = full_miss();
  EXPECT_TRUE(miss.is_miss());
  EXPECT_TRUE(miss.is(MissReason::evicted_lru));
  EXPECT_FALSE(miss.is(MissReason::evicted_ttl));
  EXPECT_FALSE(miss.is(ErrorCode::lease_lost));
  EXPECT_EQ(miss.message(), full_miss().message());

  const Refusal error = Error{ErrorCode::lease_lost, "append", "\"a\"", {}};
  EXPECT_FALSE(error.is_miss());
  EXPECT_TRUE(error.is(ErrorCode::lease_lost));
  EXPECT_FALSE(error.is(MissReason::evicted_lru));
  EXPECT_EQ(error.message(), "append \"a\": lease-lost");
}

}  // namespace
}  // namespace hotkv
