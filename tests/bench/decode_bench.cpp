// What keeping KV in hotkv costs a decode: the same model, kernels and tokens, once with rows in
// hotkv and once in private memory, in turns within one run. Prints JSON.

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "client/adapter/boundary_adapter.hpp"
#include "client/adapter/llama/llama_shard.hpp"
#include "tests/support/daemon_process.hpp"
#include "tests/support/data_folders.hpp"
#include "tests/support/tiny_llama.hpp"

namespace hotkv::testing {
namespace {

using adapter::ShardInput;
using adapter::TokenId;
using Clock = std::chrono::steady_clock;

// Times of one decode, token by token, and what it chose.
struct Decode {
  std::vector<double> token_us;
  std::vector<TokenId> tokens{1};
};

// The cache that a worker has without hotkv: one array a layer, as large as the context.
class PrivateDecoder {
 public:
  PrivateDecoder(llama::LlamaShard& shard, const Recipe& recipe)
      : shard_(&shard), row_bytes_(recipe.key_row_bytes()), layers_(shard.layers()) {
    const std::size_t size = shard.config().context_tokens_max * row_bytes_;
    for (std::uint32_t i = 0; i < layers_.count(); ++i) {
      keys_.emplace_back(size);
      values_.emplace_back(size);
    }
  }

  TokenId step(TokenId token, std::uint32_t position) {
    adapter::StepKv kv(layers_, TokenCount{position}, TokenCount{1});
    for (std::uint32_t i = 0; i < layers_.count(); ++i) {
      adapter::LayerKv& layer = kv.layer(layers_.first + i);
      const std::span keys(keys_[i]), values(values_[i]);
      const std::size_t past = position * row_bytes_;
      if (position > 0) layer.add_past(position, keys.first(past), values.first(past));
      layer.add_fresh(1, keys.subspan(past, row_bytes_), values.subspan(past, row_bytes_));
    }
    std::vector<float> residual(shard_->config().dim), logits(shard_->config().vocab_size);
    shard_->embed(std::span(&token, 1), residual);
    std::vector<adapter::SequenceStep> steps;
    steps.push_back({residual, std::move(kv)});
    shard_->run_layers(steps);
    shard_->final_norm(residual);
    shard_->output_head(residual, logits);
    return shard_->sample(adapter::SamplingContract::greedy(), logits);
  }

 private:
  llama::LlamaShard* shard_;
  std::size_t row_bytes_;
  LayerRange layers_;
  std::vector<std::vector<std::byte>> keys_, values_;
};

class HotkvDecoder {
 public:
  HotkvDecoder(adapter::BoundaryAdapter& adapter, const ContextKey& key)
      : adapter_(&adapter), key_(key) {}
  TokenId step(TokenId token, std::uint32_t position) {
    const std::vector<ShardInput> batch{
        {key_, TokenCount{position}, {token}, {}, adapter::SamplingContract::greedy()}};
    return adapter_->run(batch).front().value().token.value();
  }

 private:
  adapter::BoundaryAdapter* adapter_;
  ContextKey key_;
};

template <class Decoder>
Decode decode(Decoder& decoder, std::uint32_t count) {
  Decode result;
  for (std::uint32_t position = 0; position < count; ++position) {
    const auto begin = Clock::now();
    result.tokens.push_back(decoder.step(result.tokens.back(), position));
    result.token_us.push_back(
        std::chrono::duration<double, std::micro>(Clock::now() - begin).count());
  }
  return result;
}

double quantile(std::vector<double> values, double q) {
  std::ranges::sort(values);
  return values[static_cast<std::size_t>(q * static_cast<double>(values.size() - 1))];
}

// The hotkv calls of each step without any arithmetic: resolve, append, the spans, publish.
std::vector<double> empty_steps_us(const Client& client, Context& context, const ContextKey& key,
                                   std::uint32_t count) {
  std::vector<double> us;
  for (std::uint32_t i = 0; i < count; ++i) {
    const auto begin = Clock::now();
    const auto view = client.resolve(key.session, key.epoch, TokenCount{i}).value();
    auto writer = context.append(TokenCount{1}).value();
    const auto kv = adapter::StepKv::over(view, writer);
    (void)writer.publish().value();
    us.push_back(std::chrono::duration<double, std::micro>(Clock::now() - begin).count());
  }
  return us;
}

nlohmann::json run(const std::string& control_path, const llama::Weights& weights, DType dtype,
                   std::uint32_t rounds, std::uint32_t tokens) {
  auto shard = llama::LlamaShard::make(weights, weights.config().all_layers(), dtype).value();
  ClientOptions options;
  options.socket_path = control_path;
  auto adapter = adapter::BoundaryAdapter::attach(options, shard).value();
  PrivateDecoder in_private(shard, adapter.client().recipe());
  std::vector<double> hotkv_us, private_us, ratio_p50, ratio_p99;
  for (std::uint32_t round = 0; round < rounds; ++round) {
    const ContextKey key = key_of("decode", round + 1);
    HotkvDecoder in_hotkv(adapter, key);
    // In turns, and in both orders: whoever is first meets the colder caches.
    Decode with, without;
    if (round % 2 == 0) with = decode(in_hotkv, tokens);
    without = decode(in_private, tokens);
    if (round % 2 == 1) with = decode(in_hotkv, tokens);
    if (with.tokens != without.tokens) throw std::runtime_error("the two decodes differ");
    ratio_p50.push_back(quantile(with.token_us, 0.5) / quantile(without.token_us, 0.5));
    ratio_p99.push_back(quantile(with.token_us, 0.99) / quantile(without.token_us, 0.99));
    hotkv_us.insert(hotkv_us.end(), with.token_us.begin(), with.token_us.end());
    private_us.insert(private_us.end(), without.token_us.begin(), without.token_us.end());
  }
  auto client = Client::attach(options, adapter.client().recipe()).value();
  const ContextKey key = key_of("empty");
  auto context = client.open(key.session, key.epoch).value();
  const auto empty_us = empty_steps_us(client, context, key, tokens);
  const auto side = [&](const std::vector<double>& us) {
    return nlohmann::json{{"p50_us", quantile(us, 0.5)},
                          {"p99_us", quantile(us, 0.99)},
                          {"tokens_per_s", 1e6 / quantile(us, 0.5)}};
  };
  return {
      {"kv_dtype", dtype_traits(dtype)->name},
      {"hotkv", side(hotkv_us)},
      {"private", side(private_us)},
      // Most steps ask nobody; the few that need a chunk wait for the daemon and touch new pages.
      {"hotkv_calls_p50_us", quantile(empty_us, 0.5)},
      {"hotkv_calls_max_us", quantile(empty_us, 1)},
      {"time_ratio_p50", quantile(ratio_p50, 0.5)},
      {"time_ratio_p99", quantile(ratio_p99, 0.5)}};
}

int run_all(std::uint32_t rounds, std::uint32_t tokens) {
  const auto checkpoint = models_folder() / "stories260K.bin";
  const llama::Weights weights = std::filesystem::exists(checkpoint)
                                     ? llama::Weights::from_checkpoint(checkpoint).value()
                                     : tiny_llama();
  nlohmann::json report{{"benchmark", "decode"},
                        {"model", weights.config().model_id},
                        {"rounds", rounds},
                        {"tokens_a_round", tokens},
                        {"results", nlohmann::json::array()}};
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    // Another dtype is another recipe for the same shard: each has a daemon of its own.
    DaemonProcess daemon({.flags = {"--max-bytes=64M", "--session-cap=16"}});
    if (!daemon.wait_ready()) throw std::runtime_error("hotkvd did not start: " + daemon.err());
    report["results"].push_back(run(daemon.control_path(), weights, dtype, rounds, tokens));
    if (daemon.stop() != 0) throw std::runtime_error("hotkvd failed: " + daemon.err());
  }
  std::printf("%s\n", report.dump(2).c_str());
  return 0;
}

}  // namespace
}  // namespace hotkv::testing

int main(int argc, char** argv) {
  CLI::App app("Decodes with KV in hotkv and in private memory; prints JSON.");
  std::uint32_t rounds = 31;
  std::uint32_t tokens = 200;
  app.add_option("--rounds", rounds, "of each kind")
      ->capture_default_str()
      ->check(CLI::Range(1, 10000));
  app.add_option("--tokens", tokens, "of a round")
      ->capture_default_str()
      ->check(CLI::Range(1, 350));
  CLI11_PARSE(app, argc, argv);
  try {
    return hotkv::testing::run_all(rounds, tokens);
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "%s\n", failure.what());
    return 1;
  }
}
