// Names that clients choose: ids and recipes of every kind.

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "shared/mapping.hpp"
#include "shared/session_hash.hpp"
#include "tests/hostile/conversation.hpp"
#include "tests/support/under_fire.hpp"

namespace hotkv::testing {
namespace {

using namespace protocol;

const std::vector<std::string> kOddNames{std::string("zero\0byte", 9),
                                         "line\nfeed\r",
                                         "\x1b[2J\x1b[31mred",
                                         "\xff\xfe\x80",
                                         "\xc3\x28 \xe2\x82",
                                         "q\"uote\\'`$(x){}#%s%n",
                                         "tab\tbell\a\x7f",
                                         std::string(128, '\x01')};

// "" if every byte is printable ASCII or ends a line; else the first one that is not.
std::string unprintable(const std::string& text) {
  const auto odd = std::ranges::find_if(text, [](char c) {
    const auto byte = static_cast<unsigned char>(c);
    return byte != '\n' && (byte < 0x20 || byte > 0x7e);
  });
  if (odd == text.end()) return {};
  return "byte " + std::to_string(static_cast<unsigned char>(*odd)) + " at " +
         std::to_string(odd - text.begin()) + " of " + escape_bytes(text);
}

class SessionIds : public UnderFire {
 protected:
  [[nodiscard]] std::uint64_t refused(const std::string& code) const {
    return status_number(daemon_, "/server/frames_refused/" + code);
  }
  ProgramResult ctl(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), "--admin-socket=" + daemon_.admin_path());
    return run_program("hotkvctl", arguments);
  }
};

// FR-082: an id is 1 to 128 bytes, on the wire and in the tool; the library cannot be given
// another.
TEST_F(SessionIds, OfNoByteOrTooManyAreRefusedInEveryOperation) {
  RawClient client = attached_client(daemon_.control_path());
  std::uint64_t sent = 0;
  for (const std::uint32_t bytes : {0U, 129U, 0x8000'0000U, 0xffff'ffffU}) {
    for (const Type type : kConversation) {
      if (type == Type::hello || type == Type::attach) continue;
      Bytes frame = right_frame(type, small_recipe(), std::string(128, 'x'), 1);
      std::memcpy(frame.data() + sizeof(FrameHeader) + offsetof(ContextName, id_bytes), &bytes,
                  sizeof bytes);
      const RawReply reply = client.ask(frame);
      ++sent;
      EXPECT_TRUE(reply.is_error(ErrorCode::protocol_error)) << bytes;
      EXPECT_EQ(reply.text,
                "operation 0: id_bytes: expected 1 to 128, got " + std::to_string(bytes));
    }
  }
  EXPECT_EQ(refused("protocol-error"), sent);
  EXPECT_TRUE(is_done(client.open(std::string(128, 'x'), 1)));
  for (const std::string& bad : {std::string(), std::string(129, 'x')}) {
    const auto id = SessionId::from(bad);
    ASSERT_FALSE(id.has_value());
    EXPECT_NE(id.error().message().find("1 to 128 bytes, has " + std::to_string(bad.size())),
              std::string::npos);
    const ProgramResult told = ctl({"why", bad});
    EXPECT_EQ(told.exit_code, 2) << told.err;
    EXPECT_NE(told.err.find("1 to 128"), std::string::npos) << told.err;
    EXPECT_EQ(told.out, "");
  }
}

// FR-134: whatever clients call their sessions and models, what people and programs read is plain.
TEST_F(SessionIds, OfAnyBytesComeOutEscapedEverywhere) {
  std::vector<std::string> shown;
  for (const std::string& name : kOddNames) {
    std::string model = name;
    std::erase(model, '\0');
    const Recipe recipe = worker_recipe({0, 1}, model);
    KvWorker holder(daemon_.control_path(), recipe);
    KvWorker other(daemon_.control_path(), recipe);
    const SessionId session = SessionId::from(name).value();
    ASSERT_TRUE(holder.open(name, 2));
    shown.push_back(why(other.open(name, 2)));
    shown.push_back(why(other.open(name, 1)));
    shown.push_back(why(holder.append(name, 10'000'000)));
    shown.push_back(why(holder.context(name).truncate(TokenCount{7})));
    shown.push_back(other.client().resolve(session, Epoch{2}, TokenCount{9}).error().message());
    for (const std::string& page : {std::string("/status"), std::string("/contexts")}) {
      shown.push_back(admin_page(daemon_, page).dump());
    }
    for (const char* command : {"status", "contexts"}) {
      shown.push_back(ctl({command}).out);
      shown.push_back(ctl({command, "--json"}).out);
    }
    if (name.find('\0') == std::string::npos) {
      shown.push_back(ctl({"why", name}).out);
      shown.push_back(ctl({"why", "--json", name}).out);
      EXPECT_NE(shown.back().find(nlohmann::json(session.escaped()).dump()), std::string::npos);
    }
    // Refused as a frame, so that it is logged too: another recipe of that model.
    RawClient wrong(daemon_.control_path());
    (void)wrong.hello();
    shown.push_back(wrong.attach(small_recipe(model), Access::write).text);
    RecipeRecord record = encode_recipe(small_recipe());
    std::memset(record.architecture, 0, sizeof record.architecture);
    std::ranges::copy(model.substr(0, 64), record.architecture);
    AttachRequest attach{};
    attach.recipe = record;
    attach.access = static_cast<std::uint32_t>(Access::write);
    shown.push_back(wrong.ask(make_frame<AttachRequest>(Type::attach, 1, {attach})).text);
    ASSERT_TRUE(holder.client().release(session, Epoch{2}));
    shown.push_back(why(holder.client().release(session, Epoch{2})));
  }
  shown.push_back(exchange_text(daemon_.admin_path(), "GET /no%00such\xff HTTP/1.0\r\n\r\n")
                      .substr(std::strlen("HTTP/")));
  for (std::string text : shown) {
    EXPECT_FALSE(text.empty());
    std::erase(text, '\r');  // of HTTP
    EXPECT_EQ(unprintable(text), "");
  }
  // A line of another kind comes last, so that all of theirs have arrived.
  (void)RawClient(daemon_.control_path()).ask({});
  ASSERT_TRUE(eventually([&] { return log_lines("event=protocol-error") > 0; }));
  EXPECT_GT(log_lines("event=incompatible-recipe"), 0U);
  EXPECT_GT(log_lines("event=uncertified-architecture"), 0U);
  EXPECT_EQ(unprintable(daemon_.err()), "");
  EXPECT_EQ(refused("incompatible-recipe"), kOddNames.size());
  EXPECT_EQ(refused("uncertified-architecture"), kOddNames.size());
}

// ---- recipes ------------------------------------------------------------------------------------

struct BadRecipe {
  std::string name;  // part of the refusal's text
  ErrorCode code;
  void (*change)(RecipeRecord&);
};

template <std::size_t Size>
void set_name(char (&field)[Size], const std::string& name) {
  std::memset(field, 0, Size);
  std::memcpy(field, name.data(), std::min(name.size(), Size));
}

const std::vector<BadRecipe> kBadRecipes{
    {"kv_heads: must be 1 to 4096, is 0", ErrorCode::invalid_argument,
     [](RecipeRecord& r) { r.kv_heads = 0; }},
    {"kv_heads", ErrorCode::invalid_argument, [](RecipeRecord& r) { r.kv_heads = 0xffff'ffff; }},
    {"key_dim", ErrorCode::invalid_argument, [](RecipeRecord& r) { r.key_dim = 0; }},
    {"key_dim", ErrorCode::invalid_argument, [](RecipeRecord& r) { r.key_dim = 0x8000'0000; }},
    {"value_dim", ErrorCode::invalid_argument, [](RecipeRecord& r) { r.value_dim = 65537; }},
    {"layers", ErrorCode::invalid_argument,
     [](RecipeRecord& r) { std::swap(r.first_layer, r.last_layer); }},
    {"layers.last", ErrorCode::invalid_argument, [](RecipeRecord& r) { r.last_layer = 4096; }},
    {"layers.last", ErrorCode::invalid_argument,
     [](RecipeRecord& r) { r.first_layer = r.last_layer = 0xffff'ffff; }},
    {"dtype: number 0", ErrorCode::invalid_argument, [](RecipeRecord& r) { r.dtype = 0; }},
    {"dtype: number 9", ErrorCode::invalid_argument, [](RecipeRecord& r) { r.dtype = 9; }},
    {"dtype: number 4294967295", ErrorCode::invalid_argument,
     [](RecipeRecord& r) { r.dtype = 0xffff'ffff; }},
    {"dtype: q8_0", ErrorCode::invalid_argument,
     [](RecipeRecord& r) {
       r.dtype = static_cast<std::uint32_t>(DType::q8_0);
       r.key_dim = 31;
     }},
    {"architecture", ErrorCode::invalid_argument,
     [](RecipeRecord& r) { set_name(r.architecture, ""); }},
    {"model_id", ErrorCode::invalid_argument, [](RecipeRecord& r) { set_name(r.model_id, ""); }},
    {"mamba: certified are: llama", ErrorCode::uncertified_architecture,
     [](RecipeRecord& r) { set_name(r.architecture, "mamba"); }},
    {std::string(64, 'a') + ": certified", ErrorCode::uncertified_architecture,  // no terminator
     [](RecipeRecord& r) { set_name(r.architecture, std::string(64, 'a')); }},
    {"zeros behind", ErrorCode::protocol_error, [](RecipeRecord& r) { r.architecture[63] = 'a'; }},
    {"zeros behind", ErrorCode::protocol_error, [](RecipeRecord& r) { r.model_id[127] = 'a'; }},
    {"zeros behind", ErrorCode::protocol_error,
     [](RecipeRecord& r) { set_name(r.model_id, std::string("a\0b", 3)); }},
};

class Recipes : public SessionIds {};

TEST_F(Recipes, ThatNoModelHasAreRefusedByFieldAndTheConnectionGoesOn) {
  RawClient client(daemon_.control_path());
  ASSERT_EQ(client.hello().header.status, 0U);
  const auto shards = admin_page(daemon_, "/status").at("shards").size();
  std::uint64_t invalid = 0;
  for (const auto& [name, code, change] : kBadRecipes) {
    AttachRequest attach{};
    attach.recipe = encode_recipe(small_recipe());
    attach.access = static_cast<std::uint32_t>(Access::write);
    change(attach.recipe);
    const RawReply reply = client.ask(make_frame<AttachRequest>(Type::attach, 1, {attach}));
    EXPECT_TRUE(reply.is_error(code)) << name << ": " << reply.header.status << reply.text;
    EXPECT_NE(reply.text.find(name), std::string::npos) << name << ": " << reply.text;
    EXPECT_EQ(reply.descriptors.count, 0U);
    if (code == ErrorCode::invalid_argument) ++invalid;
  }
  EXPECT_EQ(refused("invalid-argument"), invalid);
  EXPECT_EQ(admin_page(daemon_, "/status").at("shards").size(), shards);
  EXPECT_EQ(client.attach(small_recipe(), Access::write).header.status, 0U);
}

// A model id may fill its field; nothing of what lies behind it is taken for a part of the name.
TEST_F(Recipes, AModelIdThatFillsItsFieldEndsWithIt) {
  const std::string longest(Recipe::kModelIdBytesMax, 'x');
  RawClient client = attached_client(daemon_.control_path(), Access::write, small_recipe(longest));
  EXPECT_TRUE(is_done(client.open("session", 1)));
  EXPECT_EQ(shard_status(daemon_, longest).at("contexts"), 1);
}

// ---- ids that collide ---------------------------------------------------------------------------

class Collisions : public SessionIds {
 protected:
  // Ids whose home is one place of the index of the shard that is attached to.
  static std::vector<std::string> colliding_ids(const RawReply& attached, std::size_t count) {
    const auto tables = Mapping::map(attached.descriptors.fds[0].get(),
                                     {.offset_bytes = 0,
                                      .size_bytes = attached.body_as<AttachReply>().tables_bytes,
                                      .access = MapAccess::read_only},
                                     "tables");
    if (!tables) return {};
    const auto& header = *reinterpret_cast<const TablesHeader*>(tables->bytes().data());
    const std::uint64_t mask = header.capacities.index_count - 1;
    std::vector<std::string> ids;
    for (std::uint64_t number = 0; ids.size() < count; ++number) {
      std::string candidate = "c" + std::to_string(number);
      const SessionId id = SessionId::from(candidate).value();
      if ((session_hash(id, header.hash_key) & mask) == 5) ids.push_back(std::move(candidate));
    }
    return ids;
  }
};

TEST_F(Collisions, AFloodOfIdsThatCollideIsRefusedAndTheOthersOfTheShardAreServed) {
  constexpr std::size_t kTooMany = 50;
  KvWorker neighbour(daemon_.control_path());
  ASSERT_TRUE(neighbour.open("before", 1));
  ASSERT_TRUE(neighbour.append("before", 20));

  RawClient flooder(daemon_.control_path());
  (void)flooder.hello();
  const RawReply attached = flooder.attach(worker_recipe(), Access::write);
  flooder.stay_alive(attached);
  const auto ids = colliding_ids(attached, kIndexProbesMax + kTooMany);
  ASSERT_EQ(ids.size(), kIndexProbesMax + kTooMany);
  std::size_t opened = 0;
  for (const std::string& id : ids) {
    const RawReply reply = flooder.ask(right_frame(Type::open, worker_recipe(), id, 0));
    ASSERT_EQ(reply.results().size(), 1U);
    if (is_done(reply.results().front())) {
      ++opened;
    } else {
      EXPECT_TRUE(is_error(reply.results().front(), ErrorCode::too_many_sessions));
      EXPECT_NE(reply.text.find("collides"), std::string::npos) << reply.text;
    }
  }
  EXPECT_LE(opened, kIndexProbesMax);
  EXPECT_GE(opened, kIndexProbesMax - 10);  // others of the shard may have places among them
  EXPECT_EQ(refusals(daemon_, "too-many-sessions"), ids.size() - opened);

  ASSERT_TRUE(neighbour.open("after", 1));
  ASSERT_TRUE(neighbour.append("after", 20));
  for (const char* session : {"before", "after"}) {
    const auto view =
        neighbour.client().resolve(SessionId::from(session).value(), Epoch{1}, TokenCount{20});
    ASSERT_TRUE(view.has_value()) << view.error().message();
    EXPECT_EQ(wrong_bytes(worker_recipe(), session, 1, *view), 0U);
  }
}

}  // namespace
}  // namespace hotkv::testing
