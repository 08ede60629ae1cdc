// The read path: from a session's name to a view, in memory alone; the daemon is asked about
// misses.

#include <optional>
#include <string>
#include <utility>
#include <variant>

#include <hotkv/view.hpp>

#include "client/library/attachment.hpp"
#include "client/library/position.hpp"
#include "client/library/wire.hpp"
#include "shared/fault_point.hpp"

namespace hotkv {
namespace {

using client::Asked;
using client::Place;
using client::Reply;

// Looks into memory before the daemon is asked. A look fails only while the daemon changes this
// very context, so a second one nearly always settles it.
constexpr int kLooksMax = 4;
// Answers "it is there" of the daemon after which memory is believed. Each costs a round trip; a
// context that changes its generation between every answer and the look after it is not readable.
constexpr int kRoundsMax = 4;

bool length_matches(TokenCount published, TokenCount expected, LengthMatch match) {
  switch (match) {
    case LengthMatch::exact: return published == expected;
    case LengthMatch::at_least: return published >= expected;
    case LengthMatch::any: return true;
  }
  return false;
}

CacheMiss unavailable(const Asked& asked, ErrorCode cause) {
  return CacheMiss{
      asked.session, asked.epoch, asked.expected_length, MissReason::daemon_unavailable, {}, {}, {},
      cause};
}

client::Request explain_request(const Asked& asked, const Fingerprint& fingerprint,
                                TokenCount expected, LengthMatch match) {
  protocol::ExplainOperation operation{};
  operation.context = client::encode_name(asked.session, asked.epoch);
  std::ranges::copy(fingerprint, operation.fingerprint);
  operation.expected_tokens = expected.value();
  operation.match = static_cast<std::uint32_t>(match);
  client::Request request(protocol::Type::explain);
  request.add(operation);
  return request;
}

}  // namespace

// What one look into memory found.
struct Attachment::Sighting {
  enum class Kind {
    hit,
    absent,    // not in the index, or with another epoch, or with another length
    changing,  // a generation ended between two steps: look again
    refused,   // not readable by this client now: `cause`
  };
  Kind kind = Kind::changing;
  ErrorCode cause = ErrorCode::shard_damaged;
  // Of a hit.
  std::optional<client::Pin> pin;
  client::ChainRef chain;
  TokenCount length;
};

void Attachment::look(const SessionId& session, Epoch epoch, TokenCount expected, LengthMatch match,
                      Sighting& sighting) const {
  const std::optional<Place> place = index_.find(session, epoch);
  if (!place) {
    sighting.kind = Sighting::Kind::absent;
    return;
  }
  const Generation generation = place->head.generation;
  HOTKV_FAULT_POINT("resolve.before-pin");
  const auto word = pins_.claim({place->slot, generation});
  if (!word) {
    sighting.kind = Sighting::Kind::refused;
    sighting.cause = ErrorCode::too_many_pins;
    return;
  }
  client::Pin pin(pins_, *word);
  HOTKV_FAULT_POINT("resolve.between-pin-and-confirm");
  // Same generation after the pin: the identity that was compared before it holds, and the chain
  // stays. Otherwise not a byte has been looked at, and the pin ends with this scope.
  const auto snapshot = confirm_pin(head(place->slot), length(place->slot), generation);
  if (!snapshot) {
    sighting.kind = Sighting::Kind::changing;
    return;
  }
  if (!length_matches(snapshot->length, expected, match)) {
    sighting.kind = Sighting::Kind::absent;
    return;
  }
  touch(place->slot);
  auto chain = chains_.chain(place->slot, generation, snapshot->tip,
                             facts_.geometry.chunks_for(snapshot->length));
  if (!chain) {
    sighting.kind = Sighting::Kind::refused;
    sighting.cause = chain.error().code;
    return;
  }
  sighting.kind = Sighting::Kind::hit;
  sighting.pin.emplace(std::move(pin));
  sighting.chain = std::move(*chain);
  sighting.length = snapshot->length;
}

std::expected<View, CacheMiss> Attachment::resolve(std::shared_ptr<const Attachment> attachment,
                                                   const SessionId& session, Epoch epoch,
                                                   TokenCount expected, LengthMatch match) {
  Asked asked{"resolve", session, epoch};
  if (match != LengthMatch::any) asked.expected_length = expected;
  std::optional<Deadline> deadline;  // a hit needs none
  for (int round = 0; round < kRoundsMax; ++round) {
    // Also where memory would hit: without a daemon nothing ends a superseded or expired context.
    if (!attachment->connection().is_connected()) {
      return std::unexpected(unavailable(asked, ErrorCode::daemon_unavailable));
    }
    Sighting sighting;
    for (int tried = 0; tried < kLooksMax && sighting.kind == Sighting::Kind::changing; ++tried) {
      attachment->look(session, epoch, expected, match, sighting);
    }
    if (sighting.kind == Sighting::Kind::hit) {
      return View(std::move(attachment), std::move(sighting.chain),
                  std::move(*sighting.pin).release(), sighting.length);
    }
    if (sighting.kind == Sighting::Kind::refused) {
      return std::unexpected(unavailable(asked, sighting.cause));
    }
    if (!deadline) deadline = attachment->deadline_from_now();
    client::Connection& connection = attachment->connection();
    auto reply = connection.await(connection.submit(explain_request(
                                      asked, attachment->recipe().fingerprint(), expected, match)),
                                  *deadline);
    if (!reply) return std::unexpected(unavailable(asked, reply.error().code));
    const auto result = reply->result<protocol::OperationResult>(0);
    if (result.outcome == static_cast<std::uint32_t>(protocol::Outcome::done)) continue;
    const Refusal refusal = refusal_of(*reply, result, asked);
    if (refusal.is_miss()) return std::unexpected(refusal.miss());
    return std::unexpected(unavailable(asked, refusal.error().code));
  }
  return std::unexpected(unavailable(asked, ErrorCode::deadline_exceeded));
}

}  // namespace hotkv
