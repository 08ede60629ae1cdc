// Takes a context, appends two tokens, shows them to a reader.
#include <cstddef>
#include <cstdio>
#include <vector>

#include <hotkv/client.hpp>

int main() {
  using namespace hotkv;
  const auto recipe = Recipe::make({.architecture = "llama",
                                    .model_id = "demo-1b",
                                    .dtype = DType::f16,
                                    .kv_heads = 8,
                                    .key_dim = 64,
                                    .value_dim = 64,
                                    .layers = {0, 15}})
                          .value();
  auto client = Client::attach({}, recipe);
  if (!client) return std::puts(client.error().message().c_str()), 1;
  const auto session = SessionId::from("chat-42").value();
  auto context = client->open(session, Epoch{1});
  if (!context) return std::puts(context.error().message().c_str()), 1;
  auto writer = context->append(TokenCount{2});
  if (!writer) return std::puts(writer.error().message().c_str()), 1;
  const std::vector<std::byte> keys(2 * recipe.key_row_bytes()), values(keys);
  for (std::uint32_t layer = 0; layer <= 15; ++layer) {
    if (!writer->write_keys(layer, TokenCount{0}, keys)) return 1;
    if (!writer->write_values(layer, TokenCount{0}, values)) return 1;
  }
  const auto length = writer->publish();
  if (!length) return std::puts(length.error().message().c_str()), 1;
  const auto view = client->resolve(session, Epoch{1}, *length);
  if (!view) return std::puts(view.error().message().c_str()), 2;
  std::printf("%u tokens, %zu bytes of keys in layer 3\n", view->length().value(),
              view->keys(3, 0).size());
}
