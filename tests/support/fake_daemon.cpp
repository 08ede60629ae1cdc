#include "tests/support/fake_daemon.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <stdexcept>

#include "shared/seqpacket.hpp"
#include "shared/session_hash.hpp"

namespace hotkv::fake {
namespace {

using protocol::OperationResult;
using protocol::Outcome;
using protocol::Type;

// Far beyond what a loaded machine needs; reached only by a test that fails.
constexpr auto kLong = std::chrono::seconds(60);
constexpr std::uint64_t kBootToken = 0x1234'5678'9abc'def0;

void require(bool condition, const char* what) {
  if (!condition) throw std::runtime_error(std::string("fake daemon: ") + what);
}

SessionId session_of(const protocol::ContextName& name) {
  return SessionId::from({reinterpret_cast<const char*>(name.id), name.id_bytes}).value();
}

std::size_t operation_bytes(Type type) {
  switch (type) {
    case Type::hello: return sizeof(protocol::HelloRequest);
    case Type::attach: return sizeof(protocol::AttachRequest);
    case Type::open: return sizeof(protocol::OpenOperation);
    case Type::append: return sizeof(protocol::AppendOperation);
    case Type::truncate: return sizeof(protocol::TruncateOperation);
    case Type::close: return sizeof(protocol::CloseOperation);
    case Type::release: return sizeof(protocol::ReleaseOperation);
    case Type::explain: return sizeof(protocol::ExplainOperation);
  }
  return 0;
}

OperationResult error_result(ErrorCode code, std::string cause, std::string& text) {
  OperationResult result{};
  result.outcome = static_cast<std::uint32_t>(Outcome::error);
  result.code = static_cast<std::uint32_t>(code);
  result.text_offset = static_cast<std::uint32_t>(text.size());
  result.text_bytes = static_cast<std::uint32_t>(cause.size());
  text += cause;
  return result;
}

Bytes reply_frame(const protocol::FrameHeader& request, std::uint64_t boot_token,
                  const Bytes& results, const std::string& text) {
  protocol::FrameHeader header = request;
  header.boot_token = boot_token;
  header.status = 0;
  header.text_bytes = static_cast<std::uint32_t>(text.size());
  header.length_bytes =
      static_cast<std::uint32_t>(sizeof header + results.size() + text.size());
  Bytes frame = join_bytes(header);
  frame.insert(frame.end(), results.begin(), results.end());
  const auto text_bytes = std::as_bytes(std::span(text));
  frame.insert(frame.end(), text_bytes.begin(), text_bytes.end());
  return frame;
}

}  // namespace

Recipe small_recipe(std::string model_id, DType dtype) {
  RecipeFields fields;
  fields.architecture = "llama";
  fields.model_id = std::move(model_id);
  fields.dtype = dtype;
  fields.kv_heads = 2;
  fields.key_dim = 4;
  fields.value_dim = 2;
  fields.layers = {3, 4};
  return Recipe::make(std::move(fields)).value();
}

FakeDaemon::File FakeDaemon::make_file(const char* name, std::uint64_t size_bytes) {
  File file;
  file.size_bytes = size_bytes;
  file.fd.reset(::memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  require(file.fd.get() >= 0, "memfd_create");
  require(::ftruncate(file.fd.get(), static_cast<off_t>(size_bytes)) == 0, "ftruncate");
  require(::fcntl(file.fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0,
          "seals");
  void* bytes =
      ::mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.fd.get(), 0);
  require(bytes != MAP_FAILED, "mmap");
  file.bytes = static_cast<std::byte*>(bytes);
  return file;
}

FakeDaemon::FakeDaemon(const FakeDaemonOptions& options) : recipe_(options.recipe) {
  GeometryOptions geometry_options;
  geometry_options.chunk_tokens = options.chunk_tokens;
  geometry_options.arena_bytes = options.arena_bytes;
  geometry_ = Geometry::make(recipe_, geometry_options).value();
  capacities_ = capacities_for(options.contexts, 16, options.clients, geometry_);
  layout_ = FileLayout::of(capacities_, geometry_);
  tables_ = make_file("tables", layout_.tables_bytes);
  arena_ = make_file("arena", layout_.arena_bytes);
  pages_ = make_file("pages", layout_.pages_bytes);

  TablesHeader& head = header();
  head.layout_version = kLayoutVersion;
  head.header_bytes = sizeof(TablesHeader);
  head.layout_fingerprint = kLayoutFingerprint;
  head.boot_token = kBootToken;
  head.state.store(static_cast<std::uint32_t>(ShardState::open));
  head.owner_uid = ::geteuid();
  head.hash_key[0] = 17;
  head.hash_key[1] = 4711;
  head.recipe = encode_recipe(recipe_);
  head.capacities = capacities_;
  head.geometry = encode_geometry(geometry_);
  head.tables_bytes = layout_.tables_bytes;
  head.arena_bytes = layout_.arena_bytes;
  head.pages_bytes = layout_.pages_bytes;
  head.magic.store(kTablesMagic, std::memory_order_release);

  std::string pattern = (std::getenv("TMPDIR") != nullptr ? std::getenv("TMPDIR") : "/tmp");
  pattern += "/hotkv-fake-XXXXXX";
  require(::mkdtemp(pattern.data()) != nullptr, "mkdtemp");
  folder_ = pattern;
  socket_path_ = folder_ + "/control.sock";
  listener_.reset(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  require(listener_.get() >= 0, "socket");
  const sockaddr_un address = socket_address(socket_path_).value();
  require(::bind(listener_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0,
          "bind");
  require(::listen(listener_.get(), 64) == 0, "listen");
  wake_.reset(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  thread_ = std::thread([this] { serve(); });
}

FakeDaemon::~FakeDaemon() {
  stopping_ = true;
  wake();
  thread_.join();
  for (const File* file : {&tables_, &arena_, &pages_}) ::munmap(file->bytes, file->size_bytes);
  ::unlink(socket_path_.c_str());
  ::rmdir(folder_.c_str());
}

ClientOptions FakeDaemon::client_options(Access access, std::chrono::milliseconds deadline) const {
  ClientOptions options;
  options.socket_path = socket_path_;
  options.access = access;
  options.deadline = deadline;
  return options;
}

Client FakeDaemon::attach(Access access, std::chrono::milliseconds deadline) const {
  auto client = Client::attach(client_options(access, deadline), recipe_);
  if (!client) ADD_FAILURE() << client.error().message();
  return std::move(client.value());
}

// ---- scripts ------------------------------------------------------------------------------------

void FakeDaemon::script(Type type, Script script) {
  const std::lock_guard lock(mutex_);
  scripts_[type] = std::move(script);
}

void FakeDaemon::distort_attach(std::function<void(AttachAnswer&)> distort) {
  const std::lock_guard lock(mutex_);
  distort_attach_ = std::move(distort);
}

void FakeDaemon::set_reading(bool reading) {
  const std::lock_guard lock(mutex_);
  reading_ = reading;
  wake();
}

void FakeDaemon::send(const Bytes& frame) {
  const std::lock_guard lock(mutex_);
  for (const auto& peer : peers_) {
    const auto sent = send_frame(peer->socket.get(), frame);
    if (!sent || *sent != FrameOutcome::ok) ADD_FAILURE() << "the fake daemon could not send";
  }
}

void FakeDaemon::hang_up() {
  std::unique_lock lock(mutex_);
  hang_up_wanted_ = true;
  wake();
  changed_.wait(lock, [&] { return !hang_up_wanted_; });
}

void FakeDaemon::die() {
  std::unique_lock lock(mutex_);
  die_wanted_ = true;
  hang_up_wanted_ = true;
  wake();
  changed_.wait(lock, [&] { return !hang_up_wanted_; });
}

std::size_t FakeDaemon::received(Type type) const {
  const std::lock_guard lock(mutex_);
  const auto found = received_.find(type);
  return found == received_.end() ? 0 : found->second;
}

void FakeDaemon::wait_for(Type type, std::size_t count) const {
  std::unique_lock lock(mutex_);
  const bool came = changed_.wait_for(lock, kLong, [&] {
    const auto found = received_.find(type);
    return found != received_.end() && found->second >= count;
  });
  EXPECT_TRUE(came) << "frames of type " << static_cast<int>(type) << " did not come";
}

void FakeDaemon::wait_for_connections(std::size_t count) const {
  std::unique_lock lock(mutex_);
  EXPECT_TRUE(changed_.wait_for(lock, kLong, [&] { return peers_.size() == count; }));
}

// ---- serving ------------------------------------------------------------------------------------

void FakeDaemon::wake() const {
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(wake_.get(), &one, sizeof one);
}

void FakeDaemon::serve() {
  for (;;) {
    std::vector<pollfd> fds{{wake_.get(), POLLIN, 0}, {listener_.get(), POLLIN, 0}};
    {
      const std::lock_guard lock(mutex_);
      for (const auto& peer : peers_) {
        fds.push_back({peer->socket.get(), static_cast<short>(reading_ ? POLLIN : 0), 0});
      }
    }
    ::poll(fds.data(), fds.size(), -1);
    if (stopping_) return;
    std::uint64_t wakes = 0;
    [[maybe_unused]] const ssize_t drained = ::read(wake_.get(), &wakes, sizeof wakes);

    const std::lock_guard lock(mutex_);
    if (hang_up_wanted_) {
      peers_.clear();
      if (die_wanted_) listener_.reset();
      hang_up_wanted_ = false;
      changed_.notify_all();
      continue;
    }
    std::erase_if(peers_, [&](const auto& peer) {
      const auto entry = std::ranges::find(fds, peer->socket.get(), &pollfd::fd);
      return entry != fds.end() && entry->revents != 0 && !serve_peer(*peer);
    });
    if (listener_ && (fds[1].revents & POLLIN) != 0) {
      UniqueFd socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (socket) peers_.push_back(std::make_unique<Peer>(std::move(socket), PageIndex{0}));
    }
    changed_.notify_all();
  }
}

bool FakeDaemon::serve_peer(Peer& peer) {
  Bytes buffer(protocol::kFrameBytesMax);
  const auto frame = receive_frame(peer.socket.get(), buffer);
  if (!frame || frame->outcome == FrameOutcome::closed) return false;
  if (frame->outcome == FrameOutcome::would_block) return true;
  Received received;
  require(frame->size_bytes >= sizeof received.header, "a frame without a header came");
  std::memcpy(&received.header, buffer.data(), sizeof received.header);
  received.operations.assign(buffer.begin() + sizeof received.header,
                             buffer.begin() + static_cast<std::ptrdiff_t>(frame->size_bytes));
  const auto type = static_cast<Type>(received.header.type);
  EXPECT_EQ(received.header.length_bytes, frame->size_bytes);
  EXPECT_EQ(received.operations.size(), received.header.count * operation_bytes(type));
  answering_page_ = peer.page;
  answer(peer, received);
  ++received_[type];
  return true;
}

void FakeDaemon::answer(Peer& peer, const Received& received) {
  const auto type = static_cast<Type>(received.header.type);
  const auto script = scripts_.find(type);
  if (script == scripts_.end() || !script->second) {
    if (type == Type::attach) return answer_attach(peer, received);
    static_cast<void>(send_frame(peer.socket.get(), honest_answer(received)));
    return;
  }
  for (const Bytes& frame : script->second(received)) {
    static_cast<void>(send_frame(peer.socket.get(), frame));
  }
}

void FakeDaemon::answer_attach(Peer& peer, const Received& received) {
  peer.page = PageIndex{pages_used_++};
  const auto request = received.operation<protocol::AttachRequest>(0);
  const bool writes = request.access == static_cast<std::uint32_t>(Access::write);
  AttachAnswer attach;
  attach.reply.boot_token = kBootToken;
  attach.reply.cookie = 99;
  attach.reply.page = peer.page.value();
  attach.reply.reserved = 0;
  attach.reply.tables_bytes = layout_.tables_bytes;
  attach.reply.arena_bytes = layout_.arena_bytes;
  attach.reply.pages_bytes = layout_.pages_bytes;
  const auto reopen = [](const File& file, int flags) {
    const std::string path = "/proc/self/fd/" + std::to_string(file.fd.get());
    return UniqueFd(::open(path.c_str(), flags | O_CLOEXEC));
  };
  attach.owned.push_back(reopen(tables_, O_RDONLY));
  attach.owned.push_back(reopen(arena_, writes ? O_RDWR : O_RDONLY));
  attach.owned.push_back(reopen(pages_, O_RDWR));
  for (const UniqueFd& fd : attach.owned) attach.fds.push_back(fd.get());
  if (distort_attach_) distort_attach_(attach);
  Bytes frame = reply_frame(received.header, attach.reply.boot_token, join_bytes(attach.reply), {});
  if (attach.status != 0) {
    protocol::FrameHeader header = received.header;
    header.status = attach.status;
    header.count = 0;
    header.length_bytes = sizeof header;
    frame = join_bytes(header);
    attach.fds.clear();
  }
  static_cast<void>(send_frame(peer.socket.get(), frame, attach.fds));
}

Bytes FakeDaemon::honest_answer(const Received& received) {
  const auto type = static_cast<Type>(received.header.type);
  if (type == Type::hello) {
    return reply_frame(received.header, 0,
                       join_bytes(protocol::HelloReply{protocol::kVersionMax, kLayoutVersion}), {});
  }
  std::string text;
  Bytes results;
  for (std::size_t i = 0; i < received.header.count; ++i) {
    const auto result = operate(answering_page_, type,
                                received.operations.data() + i * operation_bytes(type), text);
    const Bytes bytes = join_bytes(result);
    results.insert(results.end(), bytes.begin(), bytes.end());
  }
  return reply_frame(received.header, kBootToken, results, text);
}

// ---- operations ---------------------------------------------------------------------------------

OperationResult FakeDaemon::operate(PageIndex page, Type type, const std::byte* operation,
                                    std::string& text) {
  protocol::ContextName name;
  std::memcpy(&name, operation, sizeof name);
  const SessionId session = session_of(name);
  const Epoch epoch{name.epoch};
  const auto read = [&](auto& value) { std::memcpy(&value, operation, sizeof value); };
  auto found = contexts_.find(session);

  if (type == Type::open) {
    if (found != contexts_.end() && epoch < found->second.epoch) {
      return error_result(ErrorCode::stale_epoch, "a higher epoch has been seen", text);
    }
    if (found != contexts_.end() && found->second.epoch < epoch) {
      retire_locked(session, MissReason::superseded_epoch);
      found = contexts_.end();
    }
    HeldContext& context =
        found == contexts_.end() ? make_context(session, epoch) : found->second;
    if (context.holder != 0 && context.holder != page.value() + 1) {
      return error_result(ErrorCode::session_busy, "held by another page", text);
    }
    context.holder = page.value() + 1;
    return position_of(context);
  }

  if (found == contexts_.end() || found->second.epoch != epoch) {
    OperationResult miss{};
    miss.outcome = static_cast<std::uint32_t>(Outcome::miss);
    miss.code = static_cast<std::uint32_t>(MissReason::unknown_session);
    if (const auto ended = ended_.find(session); ended != ended_.end()) {
      miss.code = static_cast<std::uint32_t>(ended->second.first);
      miss.known = protocol::kKnownLength | protocol::kKnownAge;
      miss.length_tokens = ended->second.second.value();
      miss.age_ms = 5;
    }
    return miss;
  }
  HeldContext& context = found->second;
  const Generation generation =
      load_head(slot(context.slot).head).generation;
  const TokenCount length = length_word(context.slot).tokens;

  if (type == Type::explain) {
    protocol::ExplainOperation explain;
    read(explain);
    const bool matches =
        explain.match == static_cast<std::uint32_t>(LengthMatch::any) ||
        (explain.match == static_cast<std::uint32_t>(LengthMatch::exact)
             ? length.value() == explain.expected_tokens
             : length.value() >= explain.expected_tokens);
    if (matches) return position_of(context);
    OperationResult miss{};
    miss.outcome = static_cast<std::uint32_t>(Outcome::miss);
    miss.code = static_cast<std::uint32_t>(MissReason::seq_len_mismatch);
    miss.known = protocol::kKnownLength;
    miss.length_tokens = length.value();
    return miss;
  }
  if (type == Type::release) {
    protocol::ReleaseOperation release;
    read(release);
    if (release.generation != 0 && release.generation != generation.value()) {
      return error_result(ErrorCode::lease_lost, "it is a newer generation", text);
    }
    retire_locked(session, MissReason::released);
    return OperationResult{};
  }

  std::uint32_t asked_generation = 0;
  std::memcpy(&asked_generation, operation + sizeof name, sizeof asked_generation);
  if (context.holder != page.value() + 1 || asked_generation != generation.value()) {
    return error_result(ErrorCode::lease_lost, "another holder or generation", text);
  }
  if (type == Type::append) {
    protocol::AppendOperation append;
    read(append);
    grow(context, TokenCount{append.up_to_tokens});
    return position_of(context);
  }
  if (type == Type::truncate) {
    protocol::TruncateOperation truncate;
    read(truncate);
    if (truncate.from_tokens != length.value()) {
      return error_result(ErrorCode::length_mismatch,
                          "published are " + std::to_string(length.value()), text);
    }
    next_generation(context, TokenCount{truncate.to_tokens});
    return position_of(context);
  }
  context.holder = 0;  // CLOSE
  next_generation(context, length);
  return OperationResult{};
}

OperationResult FakeDaemon::position_of(const HeldContext& context) const {
  const HeadWord head = load_head(slot(context.slot).head);
  OperationResult result{};
  result.slot = context.slot.value();
  result.generation = head.generation.value();
  result.tip = head.tip.bits();
  result.length_tokens = length_word(context.slot).tokens.value();
  result.writable_tokens =
      static_cast<std::uint32_t>(context.chunks.size()) * geometry_.chunk_tokens;
  return result;
}

FakeDaemon::HeldContext& FakeDaemon::make_context(const SessionId& session, Epoch epoch) {
  require(slots_used_ < capacities_.slot_count, "slots");
  HeldContext context{epoch, SlotIndex{slots_used_++}, 0, {}};
  SlotRecord& record = slot(context.slot);
  for (std::size_t i = 0; i < SessionId::kWords; ++i) {
    record.id[i].store(session.words()[i], std::memory_order_release);
  }
  record.id_bytes.store(session.size_bytes(), std::memory_order_release);
  record.epoch.store(epoch.value(), std::memory_order_release);
  const Generation generation{load_head(record.head).generation.value() + 1};
  exchange_length(length(context.slot), {generation, TokenCount{0}});
  store_head(record.head, {generation, Tip::empty()});
  const std::uint64_t hash = session_hash(session, header().hash_key);
  for (std::uint64_t probe = 0;; ++probe) {
    if (index(hash + probe).load() != 0) continue;
    index(hash + probe).store(index_entry(hash, context.slot), std::memory_order_release);
    break;
  }
  ended_.erase(session);
  return contexts_[session] = std::move(context);
}

void FakeDaemon::grow(HeldContext& context, TokenCount up_to) {
  SlotRecord& record = slot(context.slot);
  const Generation generation = load_head(record.head).generation;
  while (context.chunks.size() < geometry_.chunks_for(up_to)) {
    require(chunks_used_ < geometry_.chunk_count, "chunks");
    const ChunkIndex chunk{chunks_used_++};
    ChunkWord word;
    if (!context.chunks.empty()) word.previous = context.chunks.back();
    word.ordinal = static_cast<std::uint32_t>(context.chunks.size());
    chunk_word(chunk).store(word.bits(), std::memory_order_release);
    context.chunks.push_back(chunk);
    store_head(record.head, {generation, Tip::at(chunk)});
  }
}

void FakeDaemon::next_generation(HeldContext& context, TokenCount new_length) {
  SlotRecord& record = slot(context.slot);
  const Generation next{load_head(record.head).generation.value() + 1};
  exchange_length(length(context.slot), {next, new_length});
  context.chunks.resize(geometry_.chunks_for(new_length));
  store_head(record.head,
             {next, context.chunks.empty() ? Tip::empty() : Tip::at(context.chunks.back())});
}

void FakeDaemon::retire_locked(const SessionId& session, MissReason reason) {
  const HeldContext context = contexts_.at(session);
  contexts_.erase(session);
  SlotRecord& record = slot(context.slot);
  ended_[session] = {reason, length_word(context.slot).tokens};
  const Generation next{load_head(record.head).generation.value() + 1};
  exchange_length(length(context.slot), {next, TokenCount{0}});
  store_head(record.head, {next, Tip::free()});
  for (std::uint64_t i = 0; i < capacities_.index_count; ++i) {
    const std::uint64_t entry = index(i).load();
    // A tag that no session of the tests has keeps the entries behind it reachable.
    if (entry != 0 && index_slot(entry) == context.slot) index(i).store(context.slot.value() + 1);
  }
}

// ---- acts ---------------------------------------------------------------------------------------

void FakeDaemon::put(const SessionId& session, Epoch epoch, TokenCount tokens) {
  const std::lock_guard lock(mutex_);
  HeldContext& context = make_context(session, epoch);
  grow(context, tokens);
  const std::uint32_t chunk_tokens = geometry_.chunk_tokens;
  for (std::uint32_t token = 0; token < tokens.value(); ++token) {
    std::byte* base = chunk(context.chunks[token / chunk_tokens]);
    for (std::uint32_t layer = 0; layer < geometry_.layer_count; ++layer) {
      const std::uint32_t number = layer + recipe_.fields().layers.first;
      std::memset(base + geometry_.keys_offset(layer).value() +
                      token % chunk_tokens * geometry_.key_row_bytes,
                  static_cast<int>(pattern(token, number, true)), geometry_.key_row_bytes);
      std::memset(base + geometry_.values_offset(layer).value() +
                      token % chunk_tokens * geometry_.value_row_bytes,
                  static_cast<int>(pattern(token, number, false)), geometry_.value_row_bytes);
    }
  }
  exchange_length(length(context.slot),
                  {load_head(slot(context.slot).head).generation, tokens});
}

void FakeDaemon::end_generation(const SessionId& session) {
  const std::lock_guard lock(mutex_);
  end_generation_in_script(session);
}

void FakeDaemon::end_generation_in_script(const SessionId& session) {
  HeldContext& context = contexts_.at(session);
  next_generation(context, length_word(context.slot).tokens);
}

void FakeDaemon::retire(const SessionId& session, MissReason reason) {
  const std::lock_guard lock(mutex_);
  retire_locked(session, reason);
}

std::byte FakeDaemon::pattern(std::uint32_t token, std::uint32_t layer, bool is_key) {
  return static_cast<std::byte>(token * 7 + layer * 31 + (is_key ? 1 : 101));
}

// ---- memory -------------------------------------------------------------------------------------

namespace {

template <class Record>
Record& record_at(std::byte* bytes, ByteOffset offset, std::uint64_t position = 0) {
  return reinterpret_cast<Record*>(bytes + offset.value())[position];
}

}  // namespace

TablesHeader& FakeDaemon::header() const {
  return record_at<TablesHeader>(tables_.bytes, ByteOffset{0});
}
SlotRecord& FakeDaemon::slot(SlotIndex slot) const {
  return record_at<SlotRecord>(tables_.bytes, layout_.slots, slot.value());
}
IndexEntry& FakeDaemon::index(std::uint64_t position) const {
  return record_at<IndexEntry>(tables_.bytes, layout_.index,
                               position & (capacities_.index_count - 1));
}
AtomicWord& FakeDaemon::chunk_word(ChunkIndex chunk) const {
  return record_at<AtomicWord>(tables_.bytes, layout_.chunk_words, chunk.value());
}
AtomicWord& FakeDaemon::length(SlotIndex slot) const {
  return record_at<LengthLine>(arena_.bytes, ByteOffset{0}, slot.value()).word;
}
std::byte* FakeDaemon::chunk(ChunkIndex chunk) const {
  return arena_.bytes + layout_.chunks.value() + geometry_.chunk_offset(chunk).value();
}
TouchWord& FakeDaemon::touch_word(SlotIndex slot) const {
  return record_at<TouchWord>(pages_.bytes, ByteOffset{0}, slot.value());
}
ClientPage& FakeDaemon::page(PageIndex page) const {
  return record_at<ClientPage>(pages_.bytes, layout_.client_page(page));
}
LengthWord FakeDaemon::length_word(SlotIndex slot) const {
  return LengthWord::from_bits(length(slot).load(std::memory_order_acquire));
}

std::size_t FakeDaemon::pins_held(PageIndex page_index) const {
  const ClientPage& found = page(page_index);
  return static_cast<std::size_t>(std::ranges::count_if(
      found.pins, [](const AtomicWord& word) { return load_untrusted_pin(word).has_value(); }));
}

SlotIndex FakeDaemon::slot_of(const SessionId& session) const {
  const std::lock_guard lock(mutex_);
  return slot_in_script(session);
}

SlotIndex FakeDaemon::slot_in_script(const SessionId& session) const {
  return contexts_.at(session).slot;
}

ChunkIndex FakeDaemon::tip_of(const SessionId& session) const {
  const std::lock_guard lock(mutex_);
  return contexts_.at(session).chunks.back();
}

}  // namespace hotkv::fake
