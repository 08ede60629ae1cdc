#include "tests/story/story_workers.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <regex>

#include "client/adapter/llama/stateless_llama.hpp"
#include "client/examples/shard/model_files.hpp"
#include "tests/support/data_folders.hpp"
#include "tests/support/tiny_llama.hpp"

namespace hotkv::testing {

StoryModel trained_model() {
  const auto checkpoint = models_folder() / "stories260K.bin";
  StoryModel model{"Trained", checkpoint.string(), 200};
  if (!std::filesystem::exists(checkpoint)) model.missing = checkpoint.string() + " is not there";
  return model;
}

StoryModel seeded_model() {
  return {"Seeded", "seed:3", 60};
}

llama::Weights StoryModel::weights() const {
  return shard::load_weights(argument).value();
}

llama::Tokenizer StoryModel::tokenizer() const {
  return shard::load_tokenizer("", argument, weights().config().vocab_size).value();
}

std::string StoryModel::stateless_text(const std::string& prompt, std::size_t count,
                                       DType dtype) const {
  const llama::Tokenizer words = tokenizer();
  auto tokens = words.encode(prompt);
  const auto chosen = llama::StatelessLlama(weights(), dtype).greedy(tokens, count);
  tokens.insert(tokens.end(), chosen.begin(), chosen.end());
  std::string text;
  for (std::size_t i = 1; i < tokens.size(); ++i) text += words.decode(tokens[i - 1], tokens[i]);
  if (!text.ends_with('\n')) text += '\n';
  return text;
}

std::string StoryModel::reference() const {
  if (argument.starts_with("seed:")) return stateless_text("", steps, DType::f32);
  std::ifstream file(models_folder() / "stories260K.greedy200.txt", std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

Workers::Workers(const StoryModel& model, const DaemonProcess& daemon, std::filesystem::path folder,
                 const std::vector<std::string>& ranges, std::string name, std::string dtype)
    : model_(model.argument),
      control_path_(daemon.control_path()),
      folder_(std::move(folder)),
      ranges_(ranges),
      name_(std::move(name)),
      dtype_(std::move(dtype)),
      processes_(ranges.size()) {
  for (std::size_t i = ranges_.size(); i-- > 0;) are_up_ = start(i) && are_up_;
}

std::string Workers::socket(std::size_t index) const {
  return (folder_ / (name_ + "shard-" + std::to_string(index) + ".sock")).string();
}

bool Workers::start(std::size_t index) {
  std::vector<std::string> arguments{"serve",
                                     "--model=" + model_,
                                     "--layers=" + ranges_[index],
                                     "--listen=" + socket(index),
                                     "--socket=" + control_path_,
                                     "--dtype=" + dtype_};
  if (index + 1 < ranges_.size()) arguments.push_back("--next=" + socket(index + 1));
  processes_[index] = std::make_unique<ProgramProcess>("hotkv-shard", arguments);
  const ProgramProcess& process = *processes_[index];
  return eventually([&] {
           return process.has_ended() || process.err().find("listening on") != std::string::npos;
         }) &&
         !process.has_ended();
}

std::uint64_t said(const ProgramProcess& router, const std::string& what) {
  const std::string text = router.err();
  std::smatch match;
  if (!std::regex_search(text, match, std::regex(" " + what + "=(\\d+)"))) {
    ADD_FAILURE() << "the router did not say " << what << ":\n" << text;
    return 0;
  }
  return std::stoull(match[1]);
}

std::size_t tokens_written(const std::filesystem::path& transcript) {
  std::ifstream file(transcript, std::ios::binary);
  const auto lines = std::count(std::istreambuf_iterator<char>(file), {}, '\n');
  return lines > 0 ? static_cast<std::size_t>(lines) - 1 : 0;
}

}  // namespace hotkv::testing
