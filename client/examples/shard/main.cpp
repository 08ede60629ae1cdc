// hotkv-shard: one shard of a reference Llama as a process, and a router that writes a story with
// it.
//
//   hotkv-shard serve --model stories260K.bin --layers 3-4 --listen tail.sock
//   hotkv-shard serve --model stories260K.bin --layers 0-2 --listen head.sock --next tail.sock
//   hotkv-shard generate --model stories260K.bin --head head.sock --prompt "Once upon a time"

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <string>

#include <hotkv/client.hpp>

#include "client/adapter/llama/llama_shard.hpp"
#include "client/examples/shard/frame_server.hpp"
#include "client/examples/shard/model_files.hpp"
#include "client/examples/shard/story.hpp"
#include "client/examples/shard/transcript.hpp"
#include "client/examples/shard/worker.hpp"

namespace {

using namespace hotkv;

constexpr int kExitOk = 0;
constexpr int kExitFailed = 1;
constexpr int kExitUsage = 2;

struct ServeFlags {
  std::string model, layers, listen, next, socket, dtype = "f32";
};
struct GenerateFlags {
  std::string model, tokenizer, head, prompt, session = "story", transcript, report;
  std::uint64_t epoch = 0;
  bool prints_new_text_only = false;
  bool is_epoch_new = false;  // it was made here, of the time
  std::size_t steps = 200;
  std::uint32_t pace_ms = 0;
  std::uint32_t patience_s = 30;
  adapter::SamplingRequest sampling;
};

int fail(const Refusal& refusal) {
  std::fprintf(stderr, "hotkv-shard: %s\n", refusal.message().c_str());
  return refusal.is(ErrorCode::invalid_argument) ? kExitUsage : kExitFailed;
}

std::expected<LayerRange, Error> layers_from(const std::string& text) {
  LayerRange layers;
  char end = 0;
  if (std::sscanf(text.c_str(), "%u-%u%c", &layers.first, &layers.last, &end) == 2) return layers;
  return std::unexpected(Error{ErrorCode::invalid_argument, "read --layers", text,
                               "layers are FIRST-LAST, as in 0-2"});
}

int serve(const ServeFlags& flags) {
  const auto layers = layers_from(flags.layers);
  if (!layers) return fail(layers.error());
  const auto dtype = dtype_from_name(flags.dtype);
  if (!dtype) {
    return fail(
        Error{ErrorCode::invalid_argument, "read --dtype", flags.dtype, "f32, f16 or bf16"});
  }
  auto weights = shard::load_weights(flags.model);
  if (!weights) return fail(weights.error());
  auto computation = llama::LlamaShard::make(std::move(*weights), *layers, *dtype);
  if (!computation) return fail(computation.error());
  if (computation->is_tail() != flags.next.empty()) {
    return fail(Error{ErrorCode::invalid_argument, "read --next", flags.next,
                      "every shard but the one with the model's last layer has a next one"});
  }
  ClientOptions options;
  options.socket_path = flags.socket;
  shard::Worker worker(*computation, options, flags.next);
  if (auto attached = worker.attach(); !attached) return fail(attached.error());
  const auto served = shard::serve_frames(
      flags.listen,
      [&] {
        std::fprintf(stderr, "%s: listening on %s\n", worker.name().c_str(), flags.listen.c_str());
      },
      [&](const std::string& frame) { return worker.answer(frame); });
  return served ? kExitOk : fail(served.error());
}

int generate(const GenerateFlags& flags) {
  // Checked here as well as by the tail: a router that promises what nobody certified is refused
  // before it has computed anything.
  if (auto sampling = adapter::SamplingContract::make(flags.sampling); !sampling) {
    return fail(sampling.error());
  }
  const auto weights = shard::load_weights(flags.model);
  if (!weights) return fail(weights.error());
  const adapter::ModelConfig& model = weights->config();
  const auto tokenizer = shard::load_tokenizer(flags.tokenizer, flags.model, model.vocab_size);
  if (!tokenizer) return fail(tokenizer.error());
  const auto session = SessionId::from(flags.session);
  if (!session) return fail(session.error());
  auto transcript = shard::Transcript::open(
      flags.transcript,
      {{*session, Epoch{flags.epoch}}, model.model_id, tokenizer->encode(flags.prompt)});
  if (!transcript) return fail(transcript.error());
  if (transcript->prompt().size() > model.context_tokens_max) {
    return fail(Error{ErrorCode::invalid_argument, "read --prompt",
                      std::to_string(transcript->prompt().size()) + " tokens",
                      "the model's context is " + std::to_string(model.context_tokens_max)});
  }
  shard::Story story({.head = flags.head,
                      .steps = flags.steps,
                      .context_tokens_max = model.context_tokens_max,
                      .prints_new_text_only = flags.prints_new_text_only,
                      .is_key_new = flags.is_epoch_new,
                      .pace = std::chrono::milliseconds(flags.pace_ms),
                      .patience = std::chrono::seconds(flags.patience_s)},
                     *tokenizer, std::move(*transcript));
  const auto written = story.write();
  if (!flags.report.empty()) {
    std::ofstream file(flags.report);
    file << story.report() << '\n';
    if (!file.flush()) return fail(system_error("write report", flags.report));
  }
  return written ? kExitOk : fail(written.error());
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app(
      "Runs shards of a reference Llama whose KV hotkvd keeps. Exit: 0 ok, 1 failed, 2 usage.",
      "hotkv-shard");
  app.set_version_flag("--version", "hotkv-shard " HOTKV_VERSION);
  app.require_subcommand(1);
  const char* const model_help = "a llama2.c checkpoint of version 0, or seed:N";

  ServeFlags to_serve;
  auto* const serve_command = app.add_subcommand("serve", "run one shard until SIGTERM");
  serve_command->add_option("--model", to_serve.model, model_help)->required();
  serve_command->add_option("--layers", to_serve.layers, "owned layers, FIRST-LAST")->required();
  serve_command->add_option("--listen", to_serve.listen, "socket to be asked on")->required();
  serve_command->add_option("--next", to_serve.next, "socket of the shard with the next layers");
  serve_command->add_option("--socket", to_serve.socket, "hotkvd's control socket");
  serve_command->add_option("--dtype", to_serve.dtype, "of the KV: f32, f16, bf16")
      ->capture_default_str();

  GenerateFlags to_generate;
  auto* const generate_command =
      app.add_subcommand("generate", "write a story: ask the head for token after token");
  generate_command->add_option("--model", to_generate.model, model_help)->required();
  generate_command->add_option("--tokenizer", to_generate.tokenizer,
                               "tokenizer file; else tokVOCAB.bin beside the checkpoint");
  generate_command->add_option("--head", to_generate.head, "socket of the head")->required();
  generate_command->add_option("--prompt", to_generate.prompt, "how the story begins");
  generate_command->add_option("--steps", to_generate.steps, "tokens to write in all")
      ->capture_default_str();
  generate_command->add_option("--session", to_generate.session, "route session id")
      ->capture_default_str();
  generate_command->add_option("--epoch", to_generate.epoch,
                               "route epoch; 0: the time, so that a new story supersedes the last");
  generate_command->add_option("--transcript", to_generate.transcript,
                               "file of the tokens; one that is there is gone on with");
  generate_command->add_option("--report", to_generate.report, "JSON file of what it came to");
  generate_command->add_flag("--new-text-only", to_generate.prints_new_text_only,
                             "do not print what the transcript held already");
  generate_command->add_option("--pace-ms", to_generate.pace_ms, "wait between tokens, to watch");
  generate_command->add_option("--patience-s", to_generate.patience_s, "how long a token may take")
      ->capture_default_str();
  generate_command
      ->add_option("--temperature", to_generate.sampling.temperature,
                   "only 0, greedy, is certified")
      ->capture_default_str();
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? kExitOk : kExitUsage;
  }
  if (serve_command->parsed()) return serve(to_serve);
  if (to_generate.epoch == 0) {
    to_generate.is_epoch_new = true;
    to_generate.epoch =
        static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::microseconds>(
                                       std::chrono::system_clock::now().time_since_epoch())
                                       .count());
  }
  return generate(to_generate);
}
