"""The example in the README is the source that the build compiles, and is at most 30 lines."""

import tree

EXAMPLE = "client/examples/quickstart.cpp"
LINES_MAX = 30


def check(root):
    example = tree.read(root, EXAMPLE).rstrip("\n")
    problems = []
    if f"```cpp\n{example}\n```" not in tree.read(root, "README.md"):
        problems.append(f"README.md: does not show {EXAMPLE} as it is")
    if len(example.splitlines()) > LINES_MAX:
        problems.append(f"{EXAMPLE}: more than {LINES_MAX} lines")
    return problems


GOOD_TREE = {EXAMPLE: "int main() {}\n", "README.md": "# x\n```cpp\nint main() {}\n```\n"}
BAD_TREES = [
    ({EXAMPLE: "int main() {}\n", "README.md": "```cpp\nint main() { }\n```\n"}, "does not show"),
    ({EXAMPLE: "\n" * 40 + "//\n", "README.md": ""}, "more than 30"),
]

if __name__ == "__main__":
    tree.main(check, GOOD_TREE, BAD_TREES)
