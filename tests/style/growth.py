"""No file over 500 lines, no function over 80; the longest of each are printed.

Functions are found by their braces: a block at namespace or class level whose head has parentheses.
"""

import re

import tree

FILE_LINES_MAX = 500       # three times what an ordinary source here takes
FUNCTION_LINES_MAX = 80    # a function that does not fit on two screens

NOT_CODE = re.compile(
    r'//[^\n]*|/\*.*?\*/|R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|(?<![0-9a-fA-F])\'(?:\\.|[^\'\\\n])+\'', re.DOTALL)
TYPE_HEAD = re.compile(r"^\s*(template\s*<.*>\s*)?(typedef\s+)?(class|struct|union|enum)\b", re.DOTALL)
NAMESPACE_HEAD = re.compile(r"^\s*((inline\s+)?namespace\b|extern\s*$)", re.DOTALL)


def without_comments_and_strings(text):
    text = NOT_CODE.sub(lambda match: "\n" * match.group(0).count("\n"), text)
    return re.sub(r"(?m)^[ \t]*#(?:.*\\\n)*.*$", lambda match: "\n" * match.group(0).count("\n"), text)


def functions(text):
    """(name, first line, line count) of each function, nested ones as part of the outer."""
    code = without_comments_and_strings(text)
    found, scopes, head, line = [], [], "", 1
    for character in code:
        if character == "\n":
            line += 1
        if character == "{":
            inside = all(kind in ("namespace", "type") for kind, _, _ in scopes)
            if inside and NAMESPACE_HEAD.match(head):
                kind = "namespace"
            elif inside and TYPE_HEAD.match(head):
                kind = "type"
            elif inside and "(" in head:
                kind = "function"
            else:
                kind = "block"
            scopes.append((kind, head, line))
            head = ""
        elif character == "}":
            if scopes:
                kind, opened_by, first = scopes.pop()
                if kind == "function":
                    name = " ".join(opened_by.split("(")[0].split()[-1:]) or "?"
                    found.append((name, first, line - first + 1))
            head = ""
        elif character == ";":
            head = ""
        else:
            head += character
    return found


def measure(root):
    """Lines of each file and of each function, longest first."""
    file_lines, function_lines = [], []
    for path in tree.files(root, ".hpp", ".cpp", ".py", ".sh", "CMakeLists.txt"):
        text = tree.read(root, path)
        file_lines.append((text.count("\n"), str(path)))
        if path.suffix in (".hpp", ".cpp"):
            function_lines += [(count, f"{path}:{first} {name}") for name, first, count in functions(text)]
    return sorted(file_lines, reverse=True), sorted(function_lines, reverse=True)


def check(root):
    file_lines, function_lines = measure(root)
    for what, measured in (("file", file_lines), ("function", function_lines)):
        if measured:
            print(f"longest {what}: {measured[0][1]} ({measured[0][0]} lines)")
    return ([f"{path}: {count} lines, at most {FILE_LINES_MAX}; it holds more than one thing"
             for count, path in file_lines if count > FILE_LINES_MAX] +
            [f"{name}: {count} lines, at most {FUNCTION_LINES_MAX}"
             for count, name in function_lines if count > FUNCTION_LINES_MAX])


LONG_BODY = "  step();\n" * (FUNCTION_LINES_MAX + 1)
GOOD_TREE = {
    "a.cpp": "namespace x {\nstruct S {\n" + "  int f() { return '{'; }\n" * 100 + "};\n}\n"
             + "constexpr int kTable[] = {\n" + "  1,\n" * 100 + "};\n",
}
BAD_TREES = [
    ({"a.cpp": "int a;\n" * (FILE_LINES_MAX + 1)}, "more than one thing"),
    ({"a.cpp": "namespace x {\nvoid grown() {\n" + LONG_BODY + "}\n}\n"}, "grown"),
    ({"a.hpp": "template <class T>\nstruct S {\n  T grown(T t) const {\n" + LONG_BODY + "  }\n};\n"}, "grown"),
    ({"a.cpp": "TEST(Suite, Case) {\n" + LONG_BODY + "}\n"}, "TEST"),
]

if __name__ == "__main__":
    tree.main(check, GOOD_TREE, BAD_TREES)
