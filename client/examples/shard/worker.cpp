#include "client/examples/shard/worker.hpp"

#include <unistd.h>

#include <cstdio>
#include <utility>

#include "client/adapter/head_driver.hpp"
#include "client/adapter/pipeline.hpp"

namespace hotkv::shard {

using adapter::BoundaryAdapter;
using adapter::HeadDriver;
using adapter::PipelineStage;

namespace {

// Who has a step for this shard has run it on its own and is attached: hotkvd is there, and this
// shard's client about to be back (it waits up to 2 s between tries). A refusal meanwhile would
// have the shards in front run the step again.
constexpr std::chrono::milliseconds kBackAfterTheOthers{3000};

}  // namespace

Worker::Worker(adapter::ShardComputation& computation, ClientOptions options,
               const std::filesystem::path& next)
    : computation_(&computation), options_(std::move(options)) {
  if (!next.empty()) {
    next_.emplace(next, computation.config().model_id, computation.layers().last + 1);
  }
}

std::string Worker::name() const {
  const LayerRange layers = computation_->layers();
  return "shard " + std::to_string(layers.first) + "-" + std::to_string(layers.last) + ", pid " +
         std::to_string(::getpid());
}

void Worker::say(const std::string& what) const {
  std::fprintf(stderr, "%s: %s\n", name().c_str(), what.c_str());
}

std::expected<BoundaryAdapter*, Error> Worker::adapter(std::chrono::milliseconds wait) {
  if (!adapter_) {
    auto attached = BoundaryAdapter::attach(options_, *computation_);
    if (!attached) return std::unexpected(attached.error());
    adapter_ = std::make_unique<BoundaryAdapter>(std::move(*attached));
    boot_token_ = adapter_->client().boot_token();
  }
  bool is_there = adapter_->client().is_connected();
  if (!is_there && !is_daemon_missed_) say("hotkvd is gone");
  if (!is_there && wait.count() > 0) {
    is_daemon_missed_ = true;
    is_there = adapter_->client().wait_connected(wait);
  }
  const std::uint64_t before = std::exchange(boot_token_, adapter_->client().boot_token());
  if (boot_token_ != before) {
    say("hotkvd is back, with empty memory: nothing is cached");
  } else if (is_there && is_daemon_missed_) {
    say("hotkvd is back, with what it kept");
  }
  is_daemon_missed_ = !is_there;
  if (is_there) return adapter_.get();
  return std::unexpected(
      Error{ErrorCode::daemon_unavailable, "run step", name(), "hotkvd is gone", 0});
}

std::expected<void, Error> Worker::attach() {
  const auto attached = adapter();
  if (!attached) return std::unexpected(attached.error());
  return {};
}

std::expected<void, Error> Worker::check(const std::string& model_id,
                                         std::uint32_t first_layer) const {
  const auto mismatch = [&](const std::string& cause) {
    return std::unexpected(Error{ErrorCode::incompatible_recipe, "run step", name(), cause});
  };
  if (model_id != computation_->config().model_id) {
    return mismatch("it runs model " + computation_->config().model_id + ", asked for is " +
                    escape_bytes(model_id));
  }
  if (first_layer != computation_->layers().first) {
    return mismatch("its first layer is " + std::to_string(computation_->layers().first) +
                    ", asked for is " + std::to_string(first_layer));
  }
  return {};
}

std::string Worker::answer(const std::string& frame) {
  const auto request = decode_request(frame);
  if (!request) return encode(Refusal(request.error()));
  return std::visit([this](const auto& message) { return answer(message); }, *request);
}

std::string Worker::answer(const AdvanceMessage& message) {
  if (auto sane = check(message.model_id, 0); !sane) return encode(Refusal(sane.error()));
  const auto own = adapter();
  if (!own) return encode(Refusal(own.error()));
  PipelineStage pipeline(**own, next_ ? &*next_ : nullptr);
  return encode(HeadDriver(**own, pipeline).advance(message.batch));
}

std::string Worker::answer(const ForwardMessage& message) {
  if (auto sane = check(message.model_id, message.first_layer); !sane) {
    return encode(Refusal(sane.error()));
  }
  const auto own = adapter(kBackAfterTheOthers);
  if (!own) return encode(Refusal(own.error()));
  return encode(PipelineStage(**own, next_ ? &*next_ : nullptr).run(message.batch));
}

std::string Worker::answer(const GiveBackMessage& message) {
  const auto own = adapter();
  if (!own) return encode(Refusal(own.error()));
  const auto given = PipelineStage(**own, next_ ? &*next_ : nullptr).give_back(message.keys);
  return given ? encode_done() : encode(given.error());
}

std::string Worker::answer(const WhoMessage&) {
  std::vector<ShardIdentity> chain{
      {static_cast<std::uint64_t>(::getpid()), computation_->layers()}};
  if (next_) {
    const auto behind = next_->who();
    if (!behind) return encode(behind.error());
    chain.insert(chain.end(), behind->begin(), behind->end());
  }
  return encode(chain);
}

}  // namespace hotkv::shard
