// The client library against a daemon that answers anything: replies, an attachment and tables of
// any bytes. Whatever it is told, it touches nothing outside its mappings.
//
// The transport is replaced, not the library: the calls of seqpacket.hpp, connection.hpp and
// watch.hpp that the library makes are defined here and answered from the input at once, on the
// caller's thread.

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include <hotkv/client.hpp>

#include "client/library/attachment.hpp"
#include "client/library/current_attachment.hpp"
#include "client/library/watch.hpp"
#include "client/library/wire.hpp"
#include "tests/fuzz/fuzz_input.hpp"
#include "tests/fuzz/healthy_shard.hpp"

namespace hotkv::fuzz {
namespace {

using client::Frame;
using client::Reply;
using protocol::FrameHeader;
using protocol::OperationResult;
using protocol::Type;

// What the daemon says, by the bytes of one input.
class Daemon {
 public:
  explicit Daemon(FuzzInput& input) : input_(input) {}

  // One request came; the frames that answer it, oldest first. None: silence.
  std::optional<Frame> answer(std::span<const std::byte> request) {
    FrameHeader header;
    std::memcpy(&header, request.data(), sizeof header);
    const std::uint8_t how = input_.byte();
    if (how >= 0xf8) return std::nullopt;
    if (how >= 0xf0) {
      const auto bytes = input_.bytes(input_.byte());
      return Frame(bytes.begin(), bytes.end());
    }
    Frame frame = how >= 0xe8 ? failure(header) : results(header, request);
    if (how >= 0xd0) break_frame(frame);
    return frame;
  }

  protocol::AttachReply attach_reply;  // what the handshake says
  bool breaks_handshake = false;

 private:
  static Frame framed(FrameHeader header, std::span<const std::byte> body, std::string_view text) {
    header.length_bytes = static_cast<std::uint32_t>(sizeof header + body.size() + text.size());
    header.text_bytes = static_cast<std::uint32_t>(text.size());
    Frame frame(header.length_bytes);
    std::memcpy(frame.data(), &header, sizeof header);
    std::ranges::copy(body, frame.begin() + sizeof header);
    std::ranges::copy(std::as_bytes(std::span(text)),
                      frame.begin() + static_cast<std::ptrdiff_t>(sizeof header + body.size()));
    return frame;
  }
  [[nodiscard]] FrameHeader reply_header(const FrameHeader& request) const {
    FrameHeader header = request;
    header.boot_token = request.type <= 2 ? 0 : attach_reply.boot_token;
    return header;
  }

  Frame failure(const FrameHeader& request) {
    FrameHeader header = reply_header(request);
    header.status = input_.number();
    if (input_.below(8) == 0) header.request_id = 0;
    return framed(header, {}, "why not");
  }

  Frame results(const FrameHeader& request, std::span<const std::byte> frame) {
    const FrameHeader header = reply_header(request);
    if (request.type == 1) {
      const protocol::HelloReply hello{1, kLayoutVersion};
      return framed(header, std::as_bytes(std::span(&hello, 1)), "");
    }
    if (request.type == 2) {
      return framed(header, std::as_bytes(std::span(&attach_reply, 1)), "");
    }
    const std::size_t operation_bytes = (frame.size() - sizeof header) / request.count;
    std::vector<OperationResult> all;
    for (std::size_t i = 0; i < request.count; ++i) {
      protocol::ContextName name;
      std::memcpy(&name, frame.data() + sizeof header + i * operation_bytes, sizeof name);
      all.push_back(result(name));
    }
    return framed(header, std::as_bytes(std::span(all)), "because of it");
  }

  // Where the context stands in memory, or nearly, or anything.
  OperationResult result(const protocol::ContextName& name) {
    OperationResult told = standing(name);
    const std::uint8_t how = input_.byte();
    if (how < 0x80) return told;
    if (how < 0xa0) {
      told.outcome = 1;
      told.code = 1 + input_.below(12);
      told.known = input_.byte();
    } else if (how < 0xc0) {
      told.outcome = 2;
      told.code = input_.number();
      told.text_offset = input_.number();
      told.text_bytes = input_.number();
    } else {
      std::uint32_t words[sizeof told / 4];
      std::memcpy(words, &told, sizeof told);
      for (std::uint32_t wrong = 1 + how % 3; wrong != 0; --wrong) {
        words[input_.below(sizeof told / 4)] = input_.number();
      }
      std::memcpy(static_cast<void*>(&told), words, sizeof told);
    }
    return told;
  }
  static OperationResult standing(const protocol::ContextName& name) {
    OperationResult told{};
    for (std::uint32_t i = 0; i < shard().capacities().slot_count; ++i) {
      const SlotRecord& slot = shard().slot(SlotIndex{i});
      if (slot.id[0].load() != name.id[0]) continue;
      const HeadWord head = load_head(slot.head);
      told.slot = i;
      told.generation = head.generation.value();
      told.tip = head.tip.bits();
      if (head.tip.is_chunk() && head.tip.chunk().value() < shard().capacities().chunk_count) {
        const auto word = ChunkWord::from_bits(shard().chunk_word(head.tip.chunk()).load());
        told.writable_tokens = (word.ordinal + 1) * shard().geometry().chunk_tokens;
      }
      told.length_tokens =
          LengthWord::from_bits(shard().length(SlotIndex{i}).load()).tokens.value();
      return told;
    }
    told.tip = Tip::empty().bits();
    return told;
  }

  void break_frame(Frame& frame) {
    if (input_.below(4) == 0) {
      frame.resize(input_.byte());
    } else {
      frame[input_.raw<std::uint16_t>() % frame.size()] ^= static_cast<std::byte>(input_.byte());
    }
  }

  FuzzInput& input_;
};

// Of the input that runs; the transport below belongs to no object.
struct Wire {
  Daemon* daemon = nullptr;
  std::optional<Frame> answer;
  std::array<std::uint32_t, 3> descriptors{0, 1, 2};
  std::size_t descriptor_count = 3;
  bool hangs_up = false;
};
Wire wire;

}  // namespace
}  // namespace hotkv::fuzz

// ---- the transport ------------------------------------------------------------------------------

namespace hotkv {

using fuzz::wire;

std::expected<UniqueFd, Error> connect_seqpacket(std::string_view, Deadline) {
  return UniqueFd();
}
std::expected<FrameOutcome, Error> send_frame(int, std::span<const std::byte> frame,
                                              std::span<const int>) {
  wire.answer = wire.daemon->answer(frame);
  return FrameOutcome::ok;
}
std::expected<ReceivedFrame, Error> receive_frame(int, std::span<std::byte> buffer,
                                                  ReceivedDescriptors& received) {
  if (!wire.answer) return ReceivedFrame{FrameOutcome::closed, 0};
  const std::size_t size = std::min(buffer.size(), wire.answer->size());
  std::copy_n(wire.answer->begin(), size, buffer.begin());
  received = {};
  for (std::size_t i = 0; i < wire.descriptor_count; ++i) {
    received.fds[i] = fuzz::shard().duplicate(wire.descriptors[i % 3]);
  }
  received.count = wire.descriptor_count;
  return ReceivedFrame{FrameOutcome::ok, size};
}
std::expected<void, Error> wait_readable(int, Deadline) {
  return {};
}
std::expected<void, Error> wait_writable(int, Deadline) {
  return {};
}

namespace client {

struct Connection::Waiter {
  std::expected<Reply, Error> outcome;
  LateHandler on_late;
};

// What connection.cpp does, without threads: a reply is there when the request is sent, or never.
Connection::Pending::~Pending() = default;
Connection::Connection(ParentOnlyFd socket, std::uint64_t boot_token,
                       std::shared_ptr<Wakeup> wakeup)
    : boot_token_(boot_token), wakeup_(std::move(wakeup)), socket_(std::move(socket)) {}
Connection::~Connection() = default;
void Connection::end(std::string) {
  connected_.store(false);
}
void Connection::resume(ParentOnlyFd socket) {
  socket_ = std::move(socket);
  connected_.store(true);
}
void Connection::lose() {
  lost_.store(true);
}

// And what watch.cpp does, without its thread: nobody comes back.
Watch::Watch(Connection& connection, std::shared_ptr<Wakeup> wakeup, ComeBack come_back)
    : wakeup_(std::move(wakeup)),
      come_back_(std::move(come_back)),
      connection_(&connection),
      random_state_(0) {}
Watch::~Watch() = default;
std::expected<std::unique_ptr<Watch>, Error> Watch::start(Connection& connection,
                                                          std::shared_ptr<Wakeup> wakeup,
                                                          ComeBack come_back) {
  return std::unique_ptr<Watch>(new Watch(connection, std::move(wakeup), std::move(come_back)));
}

Connection::Pending Connection::submit(Request request, LateHandler on_late) {
  const Error silence{ErrorCode::deadline_exceeded, "ask", "daemon", "no answer in time"};
  auto waiter = std::make_shared<Waiter>(std::unexpected(silence), std::move(on_late));
  const std::uint64_t id = ++last_id_;
  Pending pending(*this, id, waiter);
  const protocol::Type type = request.type();
  const std::uint16_t count = request.count();
  if (!is_connected()) {
    waiter->outcome = std::unexpected(ended_error());
    return pending;
  }
  const auto answer = wire.daemon->answer(std::move(request).seal(id));
  if (!answer) return pending;
  auto reply = Reply::parse(*answer);
  if (!reply || (reply->header().request_id == 0 && reply->is_failure()) ||
      reply->header().boot_token != boot_token_) {
    if (reply && reply->is_failure()) (void)reply->failure();
    connected_.store(false);
    waiter->outcome = std::unexpected(ended_error());
    return pending;
  }
  const auto checked = reply->check(type, count, sizeof(protocol::OperationResult));
  if (!checked) {
    waiter->outcome = std::unexpected(checked.error());
  } else if (reply->header().request_id == id) {
    waiter->outcome = std::move(*reply);
  } else if (waiter->on_late) {  // it comes when nobody waits any more
    waiter->on_late(*reply);
  }
  return pending;
}

std::expected<Reply, Error> Connection::await(Pending pending, Deadline) {
  return std::move(pending.waiter_->outcome);
}
void Connection::post(Request request) {
  (void)std::move(request).seal(++last_id_);
}
Error Connection::ended_error() const {
  return Error{ErrorCode::daemon_unavailable, "ask", "daemon", "it hung up"};
}

}  // namespace client
}  // namespace hotkv

namespace hotkv::fuzz {
namespace {

// Lets this file see where a client's chunks are mapped (an explicit instantiation may name what is
// private), so that rows outside of them are seen even where something else is mapped there.
template <auto Member>
struct Seen {
  friend std::shared_ptr<Attachment> attachment_of(const Client& client) {
    return (client.*Member)->get();
  }
};
template struct Seen<&Client::current_>;
std::shared_ptr<Attachment> attachment_of(const Client& client);

class Fuzz {
 public:
  explicit Fuzz(FuzzInput input) : input_(input) {
    shard().restore();
    wire = {};
    wire.daemon = &daemon_;
    daemon_.attach_reply = shard().honest_attach();
  }

  void run() {
    if (input_.byte() >= 0xd0) distort_attachment();
    auto attached = Client::attach({"/nowhere", access_, std::chrono::milliseconds(1)}, recipe());
    if (!attached) return;
    client_.emplace(std::move(*attached));
    for (int steps = 0; steps < 48 && !input_.is_done(); ++steps) step();
  }

 private:
  static const Recipe& recipe() {
    static const Recipe one = fake::small_recipe();
    return one;
  }

  void distort_attachment() {
    for (std::uint32_t changes = 1 + input_.below(3); changes != 0; --changes) {
      auto* reply = reinterpret_cast<std::byte*>(&daemon_.attach_reply);
      switch (input_.below(5)) {
        case 0: scribble(reply, sizeof daemon_.attach_reply); break;
        case 1: scribble(shard().tables().data(), sizeof(TablesHeader)); break;
        case 2: wire.descriptors[input_.below(3)] = input_.below(5); break;
        case 3: wire.descriptor_count = input_.below(5); break;
        default: access_ = Access::read;
      }
    }
  }
  void scribble(std::byte* where, std::size_t bytes) {
    const std::size_t at = input_.raw<std::uint16_t>() % (bytes / 4) * 4;
    std::uint32_t word = 0;
    std::memcpy(&word, where + at, sizeof word);
    const std::uint8_t how = input_.byte();
    word = how < 0x80 ? input_.number() : how < 0xc0 ? word + how % 16 - 8 : word ^ 1u << how % 32;
    std::memcpy(where + at, &word, sizeof word);
  }

  void step() {
    const SessionId& id = session(input_.byte());
    const Epoch epoch{input_.below(8) == 0 ? input_.byte() : 1u};
    switch (input_.below(12)) {
      case 0: return open(id, epoch);
      case 1:
      case 2: {
        auto view = client_->resolve(id, epoch, TokenCount{input_.number()},
                                     static_cast<LengthMatch>(1 + input_.below(3)));
        if (view) read(*view);
        return;
      }
      case 3: return scribble_tables();
      case 4: {
        auto& line = shard().length(SlotIndex{input_.below(4)});
        const auto now = LengthWord::from_bits(line.load());
        line.store(LengthWord{Generation{now.generation.value() + input_.below(2)},
                              TokenCount{input_.number()}}
                       .bits());
        return;
      }
      case 5: (void)client_->release(id, epoch); return;
      default: use_a_context();
    }
  }

  // Words that lookups and walks read: index, slots, chunk words.
  void scribble_tables() {
    const FileLayout& layout = shard().layout();
    std::byte* tables = shard().tables().data();
    switch (input_.below(3)) {
      case 0: return scribble(tables + layout.slots.value(), 4 * sizeof(SlotRecord));
      case 1: return scribble(tables + layout.index.value(), 64 * sizeof(IndexEntry));
      default: return scribble(tables + layout.chunk_words.value(), 8 * sizeof(AtomicWord));
    }
  }

  void open(const SessionId& id, Epoch epoch) {
    if (contexts_.size() >= 4) contexts_.erase(contexts_.begin());
    auto opened = client_->open(id, epoch);
    if (opened) contexts_.push_back(std::move(*opened));
  }

  void use_a_context() {
    if (contexts_.empty()) return open(session(0), Epoch{1});
    const std::size_t index = input_.byte() % contexts_.size();
    Context& context = contexts_[index];
    const TokenCount tokens{input_.number()};
    switch (input_.below(7)) {
      case 0:
      case 1: {
        auto writer = context.append(tokens);
        if (writer) write(*writer);
        return;
      }
      case 2: (void)context.reserve(tokens); return;
      case 3: (void)context.truncate(tokens); return;
      case 4: (void)context.close(); return;
      case 5: (void)context.release(); return;
      default:
        (void)context.length();
        (void)context.granted();
        contexts_.erase(contexts_.begin() + static_cast<std::ptrdiff_t>(index));
    }
  }

  // Rows lie in the chunks, and can be read.
  void check_rows(std::span<const std::byte> rows) {
    if (rows.empty()) return;
    const Attachment& attachment = *attachment_of(*client_);
    const Geometry& g = attachment.geometry();
    const std::byte* chunks = attachment.chunk(ChunkIndex{0});
    require(rows.data() >= chunks &&
                rows.data() + rows.size() <= chunks + g.extent_count * g.extent_bytes,
            "rows outside of the arena");
    sum_ = sum_ + std::to_integer<std::uint8_t>(rows.front()) +
           std::to_integer<std::uint8_t>(rows.back());
  }
  void read(const View& view) {
    for (std::uint32_t layer = 3; layer <= 5; ++layer) {
      for (std::size_t piece = 0; piece <= view.piece_count(); ++piece) {
        check_rows(view.keys(layer, piece));
        check_rows(view.values(layer, piece));
        (void)view.piece_tokens(piece);
      }
    }
    std::array<std::byte, 512> out;
    (void)view.gather_keys(3, out);
  }
  void write(Writer& writer) {
    for (std::size_t piece = 0; piece <= writer.piece_count(); ++piece) {
      check_rows(writer.keys(3, piece));
      check_rows(writer.values(4, piece));
    }
    std::array<std::byte, 64> rows{};
    (void)writer.write_keys(3, TokenCount{input_.number()}, rows);
    (void)writer.publish(TokenCount{input_.number()});
  }

  FuzzInput input_;
  Daemon daemon_{input_};
  Access access_ = Access::write;
  std::optional<Client> client_;
  std::vector<Context> contexts_;
  volatile std::uint32_t sum_ = 0;
};

}  // namespace
}  // namespace hotkv::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  hotkv::fuzz::Fuzz(hotkv::fuzz::FuzzInput({data, size})).run();
  return 0;
}
