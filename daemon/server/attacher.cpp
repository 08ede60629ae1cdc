#include "daemon/server/attacher.hpp"

#include <utility>

namespace hotkv::server {

std::expected<Attacher::Attached, Error> Attacher::attach(Peer peer,
                                                          const AttachArguments& arguments,
                                                          const EndConnection& end_connection) {
  if (peer.uid == kOverflowUid) {
    return std::unexpected(Error{ErrorCode::access_denied, "attach", "uid 65534",
                                 "uid 65534 stands for every user without a name here", 0});
  }
  const auto recipe = decode_recipe(arguments.recipe, certified_architectures_);
  if (!recipe) {
    // Over the wire goes the cause: it has to say which field or name is meant.
    const Error& error = recipe.error();
    return std::unexpected(
        Error{error.code, "attach", "recipe", error.object + ": " + error.cause, 0});
  }
  if (arguments.earlier_page) return come_back(peer, *recipe, arguments, end_connection);
  const auto shard = find_or_make_shard(peer, *recipe);
  if (!shard) return std::unexpected(shard.error());
  const auto cookie = files_.random_number();
  if (!cookie) return std::unexpected(cookie.error());
  const auto page = core_.attach(*shard, arguments.access, peer.pid, *cookie);
  if (!page) return std::unexpected(page.error());
  auto files = files_.open_for(page->client, arguments.access);
  if (!files) {
    core_.disconnected(page->client);  // nobody has the page, so this frees it
    return std::unexpected(std::move(files.error()));
  }
  return Attached{page->client, page->cookie, core_.boot_token_of(*shard), *std::move(files)};
}

std::expected<Attacher::Attached, Error> Attacher::come_back(Peer peer, const Recipe& recipe,
                                                             const AttachArguments& arguments,
                                                             const EndConnection& end_connection) {
  const RecipeFields& fields = recipe.fields();
  const PageClaim& claim = *arguments.earlier_page;
  const auto shard = core_.find_shard({peer.uid, fields.model_id, fields.layers});
  if (!shard || recipe != core_.recipe_of(*shard)) {
    return std::unexpected(Error{ErrorCode::shard_replaced, "attach", escape_bytes(fields.model_id),
                                 "there is no such shard of this recipe", 0});
  }
  const core::ClientId client{*shard, claim.page};
  // Its hang-up may not have been seen yet, or the socket is held open by a child of it.
  if (core_.is_page_of(client, arguments.access, claim.cookie)) end_connection(client);
  const auto page = core_.come_back(client, arguments.access, claim.cookie);
  if (!page) return std::unexpected(page.error());
  const FileLayout layout = core_.layout_of(*shard);
  return Attached{client, page->cookie, core_.boot_token_of(*shard),
                  AttachFiles{{}, layout.tables_bytes, layout.arena_bytes, layout.pages_bytes}};
}

std::expected<core::ShardId, Error> Attacher::find_or_make_shard(Peer peer, const Recipe& recipe) {
  const RecipeFields& fields = recipe.fields();
  if (const auto found = core_.find_shard({peer.uid, fields.model_id, fields.layers})) {
    const std::string difference = recipe.difference_from(core_.recipe_of(*found));
    if (difference.empty()) return *found;
    return std::unexpected(Error{ErrorCode::incompatible_recipe, "attach",
                                 escape_bytes(fields.model_id), difference, 0});
  }
  const auto plan = core_.plan_shard(peer.uid, recipe);
  if (!plan) return std::unexpected(plan.error());
  const auto prepared = files_.prepare(*plan);
  if (!prepared) return std::unexpected(prepared.error());
  const core::ShardId shard = core_.add_shard(*plan, prepared->memory, prepared->identity);
  files_.keep(shard);
  return shard;
}

}  // namespace hotkv::server
