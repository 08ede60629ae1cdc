#pragma once
// The control protocol: what clients and daemon say over the SOCK_SEQPACKET socket.
//
// A request is one frame: FrameHeader, then `count` operations of one type. The reply has the same
// type and request id: FrameHeader, then (status ok) one result per operation, then text that
// results point into. A frame-level failure carries no results, only its text. ATTACH's reply
// brings three descriptors, in the order tables, arena, pages. Replies can overtake one another: an
// APPEND that waits for memory answers late.
//
//   client                      daemon
//   HELLO  version range   ->   HELLO  version chosen
//   ATTACH recipe, access  ->   ATTACH page, cookie, boot token, 3 descriptors
//   OPEN / APPEND / TRUNCATE / CLOSE / RELEASE / EXPLAIN, up to 256 operations each

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include <hotkv/types.hpp>

#include "shared/layout.hpp"

namespace hotkv::protocol {

// Bump when a struct below changes its meaning. Cost of a bump: daemon and library must overlap in
// their ranges, so keep the old structs until no installed library speaks them.
inline constexpr std::uint32_t kVersionMin = 1;
inline constexpr std::uint32_t kVersionMax = 1;

// Fits 256 operations of the largest kind; small enough that a queue of them is small.
inline constexpr std::size_t kFrameBytesMax = 65536;
inline constexpr std::uint32_t kOperationsMax = 256;
inline constexpr std::size_t kAttachDescriptors = 3;

enum class Type : std::uint16_t {
  hello = 1,
  attach = 2,
  open = 3,      // take the lease of a context, making it if need be
  append = 4,    // make tokens up to an absolute length writable
  truncate = 5,  // roll back to a length
  close = 6,     // give the lease back; the context stays
  release = 7,   // end the context
  explain = 8,   // why does a resolve miss? the daemon counts it
};

struct FrameHeader {
  std::uint32_t length_bytes;  // of the whole frame, header included
  std::uint16_t type;          // Type
  std::uint16_t count;         // operations or results; 1 for HELLO and ATTACH
  std::uint64_t request_id;    // chosen by the client, repeated in the reply
  std::uint64_t boot_token;    // replies after ATTACH: the shard's; else 0
  std::uint32_t status;        // replies: 0 = results follow, else ErrorCode of the whole frame
  std::uint32_t text_bytes;    // text at the end of the frame
};
static_assert(sizeof(FrameHeader) == 32 && std::has_unique_object_representations_v<FrameHeader>);

struct HelloRequest {
  std::uint32_t version_min;
  std::uint32_t version_max;
};
struct HelloReply {
  std::uint32_t version;
  std::uint32_t layout_version;
};
static_assert(sizeof(HelloRequest) == 8 && sizeof(HelloReply) == 8);

// A client that comes back (its connection or the daemon ended, its mappings did not) names its
// page. If the daemon has that page of that shard with that cookie and access, the client has all
// it had: the reply repeats page, cookie, boot token and sizes and brings no descriptors. Else the
// error is shard_replaced.
struct AttachRequest {
  RecipeRecord recipe;
  std::uint32_t access;  // Access
  std::uint32_t page;    // of an earlier attachment + 1, to come back to it; 0 = a new page
  std::uint64_t cookie;  // of that page
};
static_assert(sizeof(AttachRequest) == 232 &&
              std::has_unique_object_representations_v<AttachRequest>);

struct AttachReply {
  std::uint64_t boot_token;
  std::uint64_t cookie;
  std::uint32_t page;  // PageIndex
  std::uint32_t reserved;
  std::uint64_t tables_bytes;  // also in the header; the client compares both with the files
  std::uint64_t arena_bytes;
  std::uint64_t pages_bytes;
};
static_assert(sizeof(AttachReply) == 48 && std::has_unique_object_representations_v<AttachReply>);

// A session and its epoch, as every operation carries them: identity is the whole tuple.
struct ContextName {
  std::uint64_t epoch;
  std::uint32_t id_bytes;  // 1 to 128
  std::uint32_t reserved;
  std::uint64_t id[SessionId::kWords];  // zero-padded
};
static_assert(sizeof(ContextName) == 144 && std::has_unique_object_representations_v<ContextName>);

struct OpenOperation {
  ContextName context;
  std::byte fingerprint[32];  // of the recipe the client means
};
struct AppendOperation {
  ContextName context;
  std::uint32_t generation;
  std::uint32_t up_to_tokens;  // absolute length that must become writable
};
struct TruncateOperation {
  ContextName context;
  std::uint32_t generation;
  std::uint32_t from_tokens;  // the published length the caller believes in
  std::uint32_t to_tokens;    // the length to roll back to
  std::uint32_t reserved;
};
struct CloseOperation {
  ContextName context;
  std::uint32_t generation;
  std::uint32_t reserved;
};
struct ReleaseOperation {
  ContextName context;
  std::uint32_t generation;  // 0 = whatever it is; else nothing happens to a newer one
  std::uint32_t slot;        // of that generation: another slot's may have the same number
};
struct ExplainOperation {
  ContextName context;
  std::byte fingerprint[32];
  std::uint32_t expected_tokens;
  std::uint32_t match;  // LengthMatch
};
static_assert(sizeof(OpenOperation) == 176 && sizeof(AppendOperation) == 152 &&
              sizeof(TruncateOperation) == 160 && sizeof(CloseOperation) == 152 &&
              sizeof(ReleaseOperation) == 152 && sizeof(ExplainOperation) == 184);
static_assert(sizeof(FrameHeader) + kOperationsMax * sizeof(ExplainOperation) <= kFrameBytesMax);
static_assert(std::has_unique_object_representations_v<OpenOperation> &&
              std::has_unique_object_representations_v<AppendOperation> &&
              std::has_unique_object_representations_v<TruncateOperation> &&
              std::has_unique_object_representations_v<CloseOperation> &&
              std::has_unique_object_representations_v<ReleaseOperation> &&
              std::has_unique_object_representations_v<ExplainOperation>);

enum class Outcome : std::uint32_t { done = 0, miss = 1, error = 2 };

// Bits of OperationResult::known.
inline constexpr std::uint32_t kKnownEpoch = 1;
inline constexpr std::uint32_t kKnownLength = 2;
inline constexpr std::uint32_t kKnownAge = 4;

struct OperationResult {
  std::uint32_t outcome;  // Outcome
  std::uint32_t code;     // MissReason or ErrorCode
  // done: where the context stands
  std::uint32_t slot;
  std::uint32_t generation;
  std::uint32_t tip;              // Tip bits
  std::uint32_t length_tokens;    // published; done and miss
  std::uint32_t writable_tokens;  // tokens [length, writable) may be written in this generation
  // miss: what is known
  std::uint32_t known;  // kKnown… bits
  std::uint64_t known_epoch;
  std::uint64_t age_ms;
  // error: its cause in words, within the frame's text
  std::uint32_t text_offset;
  std::uint32_t text_bytes;
};
static_assert(sizeof(OperationResult) == 56 &&
              std::has_unique_object_representations_v<OperationResult>);

}  // namespace hotkv::protocol
