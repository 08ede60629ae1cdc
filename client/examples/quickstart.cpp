// Takes a context, appends two tokens, shows them to a reader.
#include <cstdio>
#include <vector>

#include <hotkv/client.hpp>

using namespace hotkv;

int main() try {
  const auto recipe = Recipe::make({"llama", "demo-1b", DType::f16, 8, 64, 64, {0, 15}}).value();
  auto client = Client::attach({}, recipe).value();
  const auto session = SessionId::from("chat-42").value();
  auto context = client.open(session, Epoch{1}).value();
  auto writer = context.append(TokenCount{2}).value();
  const std::vector<std::byte> rows(2 * recipe.key_row_bytes());
  for (std::uint32_t layer = 0; layer <= 15; ++layer) {
    if (!writer.write_keys(layer, TokenCount{0}, rows)) return 1;
    if (!writer.write_values(layer, TokenCount{0}, rows)) return 1;
  }
  const auto length = writer.publish().value();
  const auto view = client.resolve(session, Epoch{1}, length);
  if (!view) return std::puts(view.error().message().c_str()), 1;
  std::printf("%u tokens, %zu bytes of layer 3's keys\n", view->length().value(),
              view->keys(3, 0).size());
} catch (const std::bad_expected_access<Error>& refused) {
  return std::puts(refused.error().message().c_str()), 1;
} catch (const std::bad_expected_access<Refusal>& refused) {
  return std::puts(refused.error().message().c_str()), 1;
}
