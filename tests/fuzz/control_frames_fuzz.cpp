// Frames into live conversations: the dispatcher, the attacher and the core, with memory that comes
// late or not at all, clients that hang up or die, and an honest reader who must not notice.

#include <spdlog/logger.h>

#include <cstring>
#include <list>
#include <memory>

#include "daemon/server/dispatcher.hpp"
#include "tests/fuzz/fuzz_input.hpp"
#include "tests/fuzz/tiny_shards.hpp"

namespace hotkv::fuzz {
namespace {

using protocol::FrameHeader;
using protocol::Type;
using server::FrameBytes;

constexpr std::size_t kClients = 3;
constexpr std::uint32_t kHostileUid = 1;
constexpr std::uint32_t kHonestUid = 2;

struct Client {
  explicit Client(std::uint32_t uid) {
    conversation.peer = {uid, 1};
    conversation.hang_up = [this] { hung_up = true; };
    conversation.send = [this](server::OutgoingFrame frame) { check_reply(frame.bytes); };
  }
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  // Whatever was asked, the answer is a frame that says what it holds.
  void check_reply(const FrameBytes& bytes) {
    ++replies;
    FrameHeader header;
    require(bytes.size() >= sizeof header && bytes.size() <= protocol::kFrameBytesMax,
            "a reply of no possible size");
    std::memcpy(&header, bytes.data(), sizeof header);
    require(
        header.length_bytes == bytes.size() && header.text_bytes <= bytes.size() - sizeof header,
        "a reply whose header says another size");
    if (header.status != 0 || header.type == 1 || header.type == 2) return;
    std::size_t at = sizeof header;
    for (std::uint32_t i = 0; i < header.count; ++i, at += sizeof(protocol::OperationResult)) {
      require(at + sizeof(protocol::OperationResult) <= bytes.size(), "results behind the end");
      protocol::OperationResult result;
      std::memcpy(&result, bytes.data() + at, sizeof result);
      require(result.outcome <= 2 && (result.outcome == 0 || result.code != 0),
              "a result without an outcome");
      require(result.length_tokens <= result.writable_tokens || result.outcome != 0,
              "a position that is longer than it is writable");
      require(std::uint64_t{result.text_offset} + result.text_bytes <= header.text_bytes,
              "a text behind the end");
    }
    require(at + header.text_bytes == bytes.size(), "bytes that are neither result nor text");
  }

  server::Conversation conversation;
  std::size_t replies = 0;
  bool hung_up = false;
};

class Fuzz {
 public:
  explicit Fuzz(FuzzInput input) : input_(input) {
    is_honest_apart_ = input_.below(2) == 0;
    honest_.emplace(tiny_, tiny_.add_shard(is_honest_apart_ ? kHonestUid : kHostileUid));
    // Most inputs begin with clients that have attached: what lies behind needs them.
    const std::uint32_t attached = input_.below(4);
    for (std::size_t i = 0; i < kClients; ++i) {
      clients_.push_back(std::make_unique<Client>(kHostileUid));
      if (i < attached) {
        say_hello(*clients_[i]);
        say_attach(*clients_[i], tiny_recipe(), 2, 0, 0);
      }
    }
  }

  void run() {
    for (int steps = 0; steps < 64 && !input_.is_done(); ++steps) {
      step();
      reconnect_hung_up();
      if (steps % 4 == 3) tiny_.verify();
      honest_->check_bytes();
      if (is_honest_apart_) honest_->check_context();
    }
    finish();
  }

 private:
  Client& any_client() { return *clients_[input_.below(kClients)]; }

  void step() {
    switch (input_.below(14)) {
      case 0: return send_raw_frame();
      case 1: return send_raw_body();
      case 2: {
        Client& client = any_client();
        return input_.below(4) == 0 ? say_hello(client) : attach_somehow(client);
      }
      case 3: return send_operations<protocol::OpenOperation>(Type::open);
      case 4: return send_operations<protocol::AppendOperation>(Type::append);
      case 5: return send_operations<protocol::TruncateOperation>(Type::truncate);
      case 6: return send_operations<protocol::CloseOperation>(Type::close);
      case 7: return send_operations<protocol::ReleaseOperation>(Type::release);
      case 8: return send_operations<protocol::ExplainOperation>(Type::explain);
      case 9: return carry_out_an_order();
      case 10: return write_tokens();
      case 11: return pass_time();
      case 12: return end_a_client();
      default: tiny_.files.refuses_orders = input_.below(4) == 0;
    }
  }

  // ---- frames

  void send(Client& client, FrameBytes frame) {
    const std::uint8_t patch = input_.byte();
    if (patch >= 0xe0 && !frame.empty()) {  // some frames are broken in one place
      frame[input_.raw<std::uint16_t>() % frame.size()] ^= static_cast<std::byte>(input_.byte());
    }
    if (patch >= 0xf8) frame.resize(input_.byte());
    // Cut, with a header that says so: the count no longer is that of the operations.
    if (patch >= 0xfc && frame.size() >= sizeof(FrameHeader)) {
      const auto length = static_cast<std::uint32_t>(frame.size());
      std::memcpy(frame.data(), &length, sizeof length);
    }
    const std::size_t before = client.replies;
    const std::uint32_t waiting = client.conversation.waiting_frames;
    dispatcher_.handle(client.conversation, frame);
    require(client.replies > before || client.conversation.waiting_frames > waiting,
            "a frame was neither answered nor left waiting");
  }

  void send_raw_frame() {
    Client& client = any_client();
    const auto bytes = input_.bytes(input_.byte());
    send(client, FrameBytes(bytes.begin(), bytes.end()));
  }

  // A right header, and a body of any bytes.
  void send_raw_body() {
    static constexpr std::size_t kSizes[] = {8, 232, 176, 152, 160, 152, 152, 184};
    Client& client = any_client();
    const std::uint32_t type = input_.below(8);
    const std::uint32_t count = 1 + input_.below(2);
    FrameBytes body(kSizes[type] * count);
    std::ranges::copy(input_.bytes(std::min<std::size_t>(body.size(), input_.byte())),
                      body.begin());
    send(client, framed(static_cast<Type>(type + 1), count, body));
  }

  FrameBytes framed(Type type, std::size_t count, std::span<const std::byte> body) {
    FrameHeader header{};
    header.length_bytes = static_cast<std::uint32_t>(sizeof header + body.size());
    header.type = static_cast<std::uint16_t>(type);
    header.count = static_cast<std::uint16_t>(count);
    header.request_id = ++request_id_;
    FrameBytes frame(header.length_bytes);
    std::memcpy(frame.data(), &header, sizeof header);
    std::ranges::copy(body, frame.begin() + sizeof header);
    return frame;
  }

  void say_hello(Client& client) {
    const protocol::HelloRequest hello{1, 1};
    dispatcher_.handle(client.conversation,
                       framed(Type::hello, 1, std::as_bytes(std::span(&hello, 1))));
  }

  void say_attach(Client& client, const Recipe& recipe, std::uint32_t access, std::uint32_t page,
                  std::uint64_t cookie) {
    protocol::AttachRequest request{};
    request.recipe = encode_recipe(recipe);
    request.access = access;
    request.page = page;
    request.cookie = cookie;
    send(client, framed(Type::attach, 1, std::as_bytes(std::span(&request, 1))));
  }

  void attach_somehow(Client& client) {
    RecipeFields fields = tiny_recipe().fields();
    switch (input_.below(6)) {
      case 0: fields.model_id = "other"; break;
      case 1: fields.layers = {1, 1 + input_.below(3)}; break;
      case 2: fields.key_dim = 1 + input_.byte(); break;
      case 3: fields.dtype = DType::f32; break;
      default: break;
    }
    const auto recipe = Recipe::make(std::move(fields));
    const bool comes_back = input_.below(8) == 0;
    say_attach(client, recipe ? *recipe : tiny_recipe(), input_.below(8) == 0 ? 1 : 2,
               comes_back ? input_.number() : 0, comes_back ? input_.byte() : 0);
  }

  template <class Operation>
  void send_operations(Type type) {
    Client& client = any_client();
    const std::uint32_t count = 1 + input_.below(3);
    std::vector<Operation> operations(count);
    for (Operation& operation : operations) {
      const SessionId& id = session(input_.byte());
      operation.context.epoch = input_.below(8) == 0 ? input_.wide_number() : 1 + input_.below(2);
      operation.context.id_bytes = id.size_bytes();
      std::ranges::copy(id.words(), operation.context.id);
      fill(operation, standing(client, id));
    }
    send(client, framed(type, count, std::as_bytes(std::span(operations))));
  }

  std::optional<TinyCore::Standing> standing(const Client& client, const SessionId& id) {
    if (!client.conversation.client) return std::nullopt;
    return tiny_.find(client.conversation.client->shard, id);
  }
  // Mostly what is right, since little follows what is refused at once.
  std::uint32_t generation(const std::optional<TinyCore::Standing>& now) {
    const std::uint8_t how = input_.byte();
    if (how >= 0xf0) return input_.number();
    return (now ? now->head.generation.value() : 0) - (how >= 0xd0 ? 1u : 0u);
  }
  void fill_fingerprint(std::byte (&fingerprint)[32]) {
    std::ranges::copy(tiny_recipe().fingerprint(), fingerprint);
    if (input_.byte() >= 0xf0) fingerprint[0] ^= std::byte{1};
  }

  using Now = std::optional<TinyCore::Standing>;
  void fill(protocol::OpenOperation& operation, const Now&) {
    fill_fingerprint(operation.fingerprint);
  }
  void fill(protocol::AppendOperation& operation, const Now& now) {
    operation.generation = generation(now);
    operation.up_to_tokens = input_.number();
  }
  void fill(protocol::TruncateOperation& operation, const Now& now) {
    operation.generation = generation(now);
    operation.from_tokens =
        input_.below(8) != 0 && now ? now->length.tokens.value() : input_.number();
    operation.to_tokens = input_.number();
  }
  void fill(protocol::CloseOperation& operation, const Now& now) {
    operation.generation = generation(now);
  }
  void fill(protocol::ReleaseOperation& operation, const Now& now) {
    operation.generation = input_.below(2) == 0 ? 0 : generation(now);
    operation.slot = input_.below(8) == 0 || !now ? input_.number() : now->slot.value();
  }
  void fill(protocol::ExplainOperation& operation, const Now&) {
    fill_fingerprint(operation.fingerprint);
    operation.expected_tokens = input_.number();
    operation.match = 1 + input_.below(3);
  }

  // ---- everything else that happens

  void carry_out_an_order() {
    if (!tiny_.files.has_orders()) return;
    const std::uint32_t how = input_.below(8);
    auto done = tiny_.files.carry_out(how != 1, how > 1);
    dispatcher_.memory_order_done(done.id, std::move(done.result), done.punched);
  }

  // A holder fills the last chunk of its chain, behind what is published, and publishes.
  void write_tokens() {
    Client& client = any_client();
    const SessionId& id = session(input_.byte());
    const auto now = standing(client, id);
    const std::uint32_t tokens = input_.below(24);
    if (!now || !now->head.tip.is_chunk() || now->length.generation != now->head.generation) return;
    const core::ShardTables tables = tiny_.files.at(client.conversation.client->shard).tables();
    const Geometry& g = tables.geometry();
    const ChunkIndex tip = now->head.tip.chunk();
    const std::uint32_t first =
        ChunkWord::from_bits(tables.chunk_word(tip).load()).ordinal * g.chunk_tokens;
    const std::uint32_t end = std::min(tokens, first + g.chunk_tokens);
    if (tables.slot(now->slot).holder.load() != client.conversation.client->page.value() + 1) {
      return;  // another's
    }
    // What an honest library would not do is the other target's; this one keeps to its room.
    const auto position =
        tiny_.core.explain(*client.conversation.client, id, Epoch{now->epoch},
                           tiny_.core.recipe_of(client.conversation.client->shard).fingerprint(),
                           TokenCount{0}, LengthMatch::any);
    if (!position || end > position->writable.value() || end <= position->length.value()) return;
    for (std::uint32_t token = std::max(first, position->length.value()); token < end; ++token) {
      std::memset(tables.chunk(tip).data() + (token - first) * g.key_row_bytes, 0xee,
                  g.key_row_bytes);
    }
    (void)publish(tables.length_word(now->slot), now->head.generation, now->length.tokens,
                  TokenCount{end});
  }

  void pass_time() {
    tiny_.now_ms += input_.byte() * 16;
    dispatcher_.tick();
  }

  void end_a_client() {
    const std::size_t index = input_.below(kClients);
    server::Conversation& conversation = clients_[index]->conversation;
    const std::uint32_t how = input_.below(3);
    if (how != 0 && conversation.client) tiny_.files.alive.erase(*conversation.client);
    if (how == 2) return;  // its mapping is gone, its socket is not
    dispatcher_.disconnected(conversation);
    clients_[index] = std::make_unique<Client>(kHostileUid);
  }

  void reconnect_hung_up() {
    for (auto& client : clients_) {
      if (!client->hung_up) continue;
      dispatcher_.disconnected(client->conversation);
      client = std::make_unique<Client>(kHostileUid);
    }
  }

  void finish() {
    // The daemon lives: it greets a stranger, and the honest client works on.
    Client stranger(kHonestUid);
    say_hello(stranger);
    require(stranger.conversation.greeted && stranger.replies == 1, "a stranger is not greeted");
    dispatcher_.disconnected(stranger.conversation);
    tiny_.files.refuses_orders = false;
    while (tiny_.files.has_orders()) {
      auto done = tiny_.files.carry_out(true, true);
      dispatcher_.memory_order_done(done.id, std::move(done.result), done.punched);
    }
    for (auto& client : clients_) {
      require(client->conversation.waiting_frames == 0, "a frame waits for memory that has come");
      dispatcher_.disconnected(client->conversation);
    }
    require(counters_.waiting_frames == 0, "the count of waiting frames is wrong");
    if (is_honest_apart_) honest_->check_that_it_can_work();
    tiny_.check();
    tiny_.check_that_all_comes_back();
  }

  FuzzInput input_;
  TinyCore tiny_;
  server::ServerCounters counters_;
  spdlog::logger logger_{"none"};  // writes nowhere
  server::EventLog log_{logger_, [] { return std::chrono::milliseconds(1000); }};
  std::vector<std::string> certified_{"llama"};
  server::Attacher attacher_{tiny_.core, tiny_.files, certified_};
  server::Dispatcher dispatcher_{tiny_.core, tiny_.files, attacher_, counters_, log_, [] {}};
  bool is_honest_apart_ = true;
  std::optional<HonestReader> honest_;
  std::vector<std::unique_ptr<Client>> clients_;
  std::uint64_t request_id_ = 0;
};

}  // namespace
}  // namespace hotkv::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  hotkv::fuzz::Fuzz(hotkv::fuzz::FuzzInput({data, size})).run();
  return 0;
}
