#include "tests/support/fake_shard.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <stdexcept>

#include "shared/session_hash.hpp"

namespace hotkv::fake {
namespace {

using protocol::OperationResult;
using protocol::Outcome;
using protocol::Type;

// Each shard's memory has another token, as a daemon that starts anew gives it.
std::uint64_t next_boot_token() {
  static std::atomic<std::uint64_t> last{0x1234'5678'9abc'def0};
  return ++last;
}

void require(bool condition, const char* what) {
  if (!condition) throw std::runtime_error(std::string("fake shard: ") + what);
}

SessionId session_of(const protocol::ContextName& name) {
  return SessionId::from({reinterpret_cast<const char*>(name.id), name.id_bytes}).value();
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

template <class Operation>
Operation read_operation(const std::byte* bytes) {
  Operation operation;
  std::memcpy(&operation, bytes, sizeof operation);
  return operation;
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

FakeShard::File FakeShard::make_file(const char* name, std::uint64_t size_bytes) {
  File file;
  file.size_bytes = size_bytes;
  file.fd.reset(::memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  require(file.fd.get() >= 0, "memfd_create");
  require(::ftruncate(file.fd.get(), static_cast<off_t>(size_bytes)) == 0, "ftruncate");
  require(::fcntl(file.fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0,
          "seals");
  void* bytes = ::mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.fd.get(), 0);
  require(bytes != MAP_FAILED, "mmap");
  file.bytes = static_cast<std::byte*>(bytes);
  return file;
}

FakeShard::FakeShard(const FakeShardOptions& options) : recipe_(options.recipe) {
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
  head.boot_token = next_boot_token();
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
  seal_header(head);
  head.magic.store(kTablesMagic, std::memory_order_release);
}

FakeShard::~FakeShard() {
  for (const File* file : {&tables_, &arena_, &pages_}) ::munmap(file->bytes, file->size_bytes);
}

// ---- operations ---------------------------------------------------------------------------------

OperationResult FakeShard::operate_in_lock(PageIndex page, Type type, const std::byte* operation,
                                           std::string& text) {
  const auto name = read_operation<protocol::ContextName>(operation);
  const SessionId session = session_of(name);
  const Epoch epoch{name.epoch};
  if (type == Type::open) return open(page, session, epoch, text);
  const auto found = contexts_.find(session);
  if (found == contexts_.end() || found->second.epoch != epoch) return absence(session);
  if (type == Type::explain) {
    return explain(found->second, read_operation<protocol::ExplainOperation>(operation));
  }
  if (type == Type::release) {
    return release(session, read_operation<protocol::ReleaseOperation>(operation), text);
  }
  return change(found->second, page, type, operation, text);
}

OperationResult FakeShard::open(PageIndex page, const SessionId& session, Epoch epoch,
                                std::string& text) {
  auto found = contexts_.find(session);
  if (found != contexts_.end() && epoch < found->second.epoch) {
    return error_result(ErrorCode::stale_epoch, "a higher epoch has been seen", text);
  }
  if (found != contexts_.end() && found->second.epoch < epoch) {
    retire_in_lock(session, MissReason::superseded_epoch);
    found = contexts_.end();
  }
  HeldContext& context = found == contexts_.end() ? make_context(session, epoch) : found->second;
  if (context.holder != 0 && context.holder != page.value() + 1) {
    return error_result(ErrorCode::session_busy, "held by another page", text);
  }
  set_holder(context, page.value() + 1);
  return position_of(context);
}

OperationResult FakeShard::absence(const SessionId& session) const {
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

OperationResult FakeShard::explain(const HeldContext& context,
                                   const protocol::ExplainOperation& operation) const {
  const std::uint32_t length = length_word(context.slot).tokens.value();
  const bool matches = operation.match == static_cast<std::uint32_t>(LengthMatch::any) ||
                       (operation.match == static_cast<std::uint32_t>(LengthMatch::exact)
                            ? length == operation.expected_tokens
                            : length >= operation.expected_tokens);
  if (matches) return position_of(context);
  OperationResult miss{};
  miss.outcome = static_cast<std::uint32_t>(Outcome::miss);
  miss.code = static_cast<std::uint32_t>(MissReason::seq_len_mismatch);
  miss.known = protocol::kKnownLength;
  miss.length_tokens = length;
  return miss;
}

OperationResult FakeShard::release(const SessionId& session,
                                   const protocol::ReleaseOperation& operation, std::string& text) {
  const SlotIndex place = contexts_.at(session).slot;
  const Generation now = load_head(slot(place).head).generation;
  if (operation.generation != 0 &&
      (operation.generation != now.value() || operation.slot != place.value())) {
    return error_result(ErrorCode::lease_lost, "it is a newer generation", text);
  }
  retire_in_lock(session, MissReason::released);
  return OperationResult{};
}

OperationResult FakeShard::change(HeldContext& context, PageIndex page, Type type,
                                  const std::byte* operation, std::string& text) {
  // The generation stands behind the name in all three.
  const auto close = read_operation<protocol::CloseOperation>(operation);
  const TokenCount length = length_word(context.slot).tokens;
  if (context.holder != page.value() + 1 ||
      close.generation != load_head(slot(context.slot).head).generation.value()) {
    return error_result(ErrorCode::lease_lost, "another holder or generation", text);
  }
  if (type == Type::append) {
    grow(context, TokenCount{read_operation<protocol::AppendOperation>(operation).up_to_tokens});
    return position_of(context);
  }
  if (type == Type::truncate) {
    const auto truncate = read_operation<protocol::TruncateOperation>(operation);
    if (truncate.from_tokens != length.value()) {
      return error_result(ErrorCode::length_mismatch,
                          "published are " + std::to_string(length.value()), text);
    }
    next_generation(context, TokenCount{truncate.to_tokens});
    return position_of(context);
  }
  set_holder(context, 0);
  next_generation(context, length);
  return OperationResult{};
}

OperationResult FakeShard::position_of(const HeldContext& context) const {
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

FakeShard::HeldContext& FakeShard::make_context(const SessionId& session, Epoch epoch) {
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

void FakeShard::grow(HeldContext& context, TokenCount up_to) {
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

void FakeShard::set_holder(HeldContext& context, std::uint32_t holder) {
  context.holder = holder;
  slot(context.slot).holder.store(holder, std::memory_order_release);
}

void FakeShard::next_generation(HeldContext& context, TokenCount new_length) {
  SlotRecord& record = slot(context.slot);
  const Generation next{load_head(record.head).generation.value() + 1};
  exchange_length(length(context.slot), {next, new_length});
  context.chunks.resize(geometry_.chunks_for(new_length));
  store_head(record.head,
             {next, context.chunks.empty() ? Tip::empty() : Tip::at(context.chunks.back())});
}

void FakeShard::retire_in_lock(const SessionId& session, MissReason reason) {
  HeldContext context = contexts_.at(session);
  contexts_.erase(session);
  set_holder(context, 0);
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

void FakeShard::put(const SessionId& session, Epoch epoch, TokenCount tokens) {
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
  exchange_length(length(context.slot), {load_head(slot(context.slot).head).generation, tokens});
}

void FakeShard::end_generation(const SessionId& session) {
  const std::lock_guard lock(mutex_);
  end_generation_in_lock(session);
}

void FakeShard::end_generation_in_lock(const SessionId& session) {
  HeldContext& context = contexts_.at(session);
  next_generation(context, length_word(context.slot).tokens);
}

void FakeShard::retire(const SessionId& session, MissReason reason) {
  const std::lock_guard lock(mutex_);
  retire_in_lock(session, reason);
}

std::byte FakeShard::pattern(std::uint32_t token, std::uint32_t layer, bool is_key) {
  return static_cast<std::byte>(token * 7 + layer * 31 + (is_key ? 1 : 101));
}

// ---- memory -------------------------------------------------------------------------------------

namespace {

template <class Record>
Record& record_at(std::byte* bytes, ByteOffset offset, std::uint64_t position = 0) {
  return reinterpret_cast<Record*>(bytes + offset.value())[position];
}

}  // namespace

TablesHeader& FakeShard::header() const {
  return record_at<TablesHeader>(tables_.bytes, ByteOffset{0});
}
SlotRecord& FakeShard::slot(SlotIndex slot) const {
  return record_at<SlotRecord>(tables_.bytes, layout_.slots, slot.value());
}
IndexEntry& FakeShard::index(std::uint64_t position) const {
  return record_at<IndexEntry>(tables_.bytes, layout_.index,
                               position & (capacities_.index_count - 1));
}
AtomicWord& FakeShard::chunk_word(ChunkIndex chunk) const {
  return record_at<AtomicWord>(tables_.bytes, layout_.chunk_words, chunk.value());
}
AtomicWord& FakeShard::length(SlotIndex slot) const {
  return record_at<LengthLine>(arena_.bytes, ByteOffset{0}, slot.value()).word;
}
std::byte* FakeShard::chunk(ChunkIndex chunk) const {
  return arena_.bytes + layout_.chunks.value() + geometry_.chunk_offset(chunk).value();
}
TouchWord& FakeShard::touch_word(SlotIndex slot) const {
  return record_at<TouchWord>(pages_.bytes, ByteOffset{0}, slot.value());
}
ClientPage& FakeShard::page(PageIndex page) const {
  return record_at<ClientPage>(pages_.bytes, layout_.client_page(page));
}
LengthWord FakeShard::length_word(SlotIndex slot) const {
  return LengthWord::from_bits(length(slot).load(std::memory_order_acquire));
}

std::size_t FakeShard::pins_held(PageIndex page_index) const {
  const ClientPage& found = page(page_index);
  return static_cast<std::size_t>(std::ranges::count_if(
      found.pins, [](const AtomicWord& word) { return load_untrusted_pin(word).has_value(); }));
}

bool FakeShard::is_held(const SessionId& session) const {
  const std::lock_guard lock(mutex_);
  return contexts_.at(session).holder != 0;
}

SlotIndex FakeShard::slot_of(const SessionId& session) const {
  const std::lock_guard lock(mutex_);
  return slot_in_lock(session);
}

SlotIndex FakeShard::slot_in_lock(const SessionId& session) const {
  return contexts_.at(session).slot;
}

ChunkIndex FakeShard::tip_of(const SessionId& session) const {
  const std::lock_guard lock(mutex_);
  return contexts_.at(session).chunks.back();
}

}  // namespace hotkv::fake
