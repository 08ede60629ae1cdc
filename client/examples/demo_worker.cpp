// A worker that does what it is told on standard input, one command a line, and answers in one
// line. The demo drives two of them; "kill -9" one and see what the other still reads.
//
//   open SESSION EPOCH | append N | truncate N | read SESSION EPOCH N | handover | quit

#include <unistd.h>

#include <cstring>
#include <iostream>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include <hotkv/client.hpp>

namespace {

// Stands for a forward pass: the row of a token depends on the session's name, its position and
// layer.
std::vector<std::byte> row_of(const std::string& session, std::uint32_t position,
                              std::uint32_t layer, bool is_key, std::size_t size_bytes) {
  std::vector<std::byte> row(size_bytes);
  for (std::size_t i = 0; i < row.size(); ++i) {
    row[i] = static_cast<std::byte>(session.front() * 31u + position * 7u + layer * 3u + i * 5u +
                                    (is_key ? 1u : 0u));
  }
  return row;
}

class Worker {
 public:
  explicit Worker(hotkv::Client client) : client_(std::move(client)) {}

  std::string open(const std::string& session, std::uint64_t epoch) {
    auto context = client_.open(id(session), hotkv::Epoch{epoch});
    if (!context) return "refused: " + context.error().message();
    session_ = session;
    context_ = std::move(*context);
    return "holds \"" + session + "\" epoch " + std::to_string(epoch) + ", " +
           std::to_string(context_->length().value()) + " tokens are there already";
  }

  std::string append(std::uint32_t tokens) {
    if (!context_) return "opens a session first";
    auto writer = context_->append(hotkv::TokenCount{tokens});
    if (!writer) return "refused: " + writer.error().message();
    const hotkv::Recipe& recipe = client_.recipe();
    for (std::uint32_t layer = writer->layers().first; layer <= writer->layers().last; ++layer) {
      for (std::uint32_t i = 0; i < tokens; ++i) {
        const std::uint32_t position = writer->position().value() + i;
        (void)writer->write_keys(layer, hotkv::TokenCount{i},
                                 row_of(session_, position, layer, true, recipe.key_row_bytes()));
        (void)writer->write_values(
            layer, hotkv::TokenCount{i},
            row_of(session_, position, layer, false, recipe.value_row_bytes()));
      }
    }
    const auto length = writer->publish();
    if (!length) return "refused: " + length.error().message();
    return "appended " + std::to_string(tokens) + " tokens, now " + std::to_string(length->value());
  }

  std::string truncate(std::uint32_t to) {
    if (!context_) return "opens a session first";
    const auto done = context_->truncate(hotkv::TokenCount{to});
    return done ? "rolled back to " + std::to_string(to) + " tokens"
                : "refused: " + done.error().message();
  }

  std::string read(const std::string& session, std::uint64_t epoch, std::uint32_t tokens) const {
    const auto view = client_.resolve(id(session), hotkv::Epoch{epoch}, hotkv::TokenCount{tokens});
    if (!view) return "miss: " + view.error().message();
    std::size_t wrong = 0;
    for (std::uint32_t layer = view->layers().first; layer <= view->layers().last; ++layer) {
      wrong += wrong_rows(*view, session, layer, true) + wrong_rows(*view, session, layer, false);
    }
    return "reads " + std::to_string(view->length().value()) + " tokens in place, " +
           std::to_string(wrong) + " wrong bytes";
  }

  std::string hand_over() {
    if (!context_) return "holds nothing";
    const auto closed = context_->close();
    context_.reset();
    return closed ? "gave \"" + session_ + "\" back" : "refused: " + closed.error().message();
  }

 private:
  static hotkv::SessionId id(const std::string& session) {
    return hotkv::SessionId::from(session).value();
  }
  std::size_t wrong_rows(const hotkv::View& view, const std::string& session, std::uint32_t layer,
                         bool is_key) const {
    const std::size_t size =
        is_key ? client_.recipe().key_row_bytes() : client_.recipe().value_row_bytes();
    std::vector<std::byte> rows(view.length().value() * size);
    is_key ? view.gather_keys(layer, rows) : view.gather_values(layer, rows);
    std::size_t wrong = 0;
    for (std::uint32_t position = 0; position < view.length().value(); ++position) {
      const auto want = row_of(session, position, layer, is_key, size);
      for (std::size_t i = 0; i < size; ++i) wrong += rows[position * size + i] != want[i] ? 1 : 0;
    }
    return wrong;
  }

  hotkv::Client client_;
  std::string session_;
  std::optional<hotkv::Context> context_;
};

std::string obey(Worker& worker, const std::string& line) {
  std::istringstream words(line);
  std::string command;
  std::string session;
  std::uint64_t epoch = 0;
  std::uint32_t tokens = 0;
  words >> command;
  if (command == "open" && words >> session >> epoch) return worker.open(session, epoch);
  if (command == "append" && words >> tokens) return worker.append(tokens);
  if (command == "truncate" && words >> tokens) return worker.truncate(tokens);
  if (command == "read" && words >> session >> epoch >> tokens) {
    return worker.read(session, epoch, tokens);
  }
  if (command == "handover") return worker.hand_over();
  return "does not know \"" + line + "\"";
}

}  // namespace

int main(int argc, char** argv) {
  hotkv::ClientOptions options;
  if (argc > 1) options.socket_path = argv[1];
  // Layers 0 to 7 of a small model: 8 KV heads of 64 half-precision elements, 16 KiB a token.
  auto recipe =
      hotkv::Recipe::make({"LlamaForCausalLM", "demo-model", hotkv::DType::f16, 8, 64, 64, {0, 7}});
  auto client = hotkv::Client::attach(options, recipe.value());
  if (!client) {
    std::cerr << client.error().message() << '\n';
    return 1;
  }
  Worker worker(std::move(*client));
  std::cout << "attached, pid " << ::getpid() << std::endl;
  for (std::string line; std::getline(std::cin, line) && line != "quit";) {
    std::cout << obey(worker, line) << std::endl;
  }
  return 0;
}
