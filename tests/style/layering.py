"""daemon -> shared <- client, and inside the daemon: core knows nothing of server and platform.

Every include of one of our headers is looked up as the compiler would, and its folder must be on
the list of the including file's folder.
"""

import re
from pathlib import Path

import tree

# The longest matching folder decides. A file may include its own folder and what is listed.
MAY_INCLUDE = {
    "shared/hotkv": ["shared/hotkv"],
    "shared": ["shared"],
    "daemon/core": ["shared"],
    "daemon/platform": ["shared", "daemon/core"],
    "daemon/server": ["shared", "daemon/core", "daemon/platform/log.hpp"],
    "daemon": ["shared", "daemon"],
    "client/include/hotkv": ["client/include/hotkv", "shared/hotkv"],
    "client": ["client", "shared"],
    "tests": ["tests", "shared", "client", "daemon"],
}

FORBIDDEN_IN_CORE = [
    (r"#include\s*<(sys/|unistd|fcntl|signal|pthread|poll|linux/|netinet/|arpa/)", "a system header"),
    (r"#include\s*<(boost/asio|boost/beast|boost/interprocess|asio)", "a socket or mapping library"),
    (r"#include\s*<(spdlog/|fmt/|iostream|fstream|print|filesystem)", "output or files"),
    (r"_clock::now\b|\bclock_gettime\b|\bgettimeofday\b|\bstd::time\(", "a clock of its own"),
]

# What a public header may include besides <hotkv/...>: names without a folder and without ".h".
STANDARD_HEADER = re.compile(r"^[a-z_0-9]+$")
PUBLIC_FOLDERS = ("client/include/hotkv", "shared/hotkv")

# As a whole name, or as the last word of one; "manager" only as a whole, systemd being one.
FORBIDDEN_NAMES = re.compile(r"^(\w*[_.\-])?(common|utils?|utilities|misc|helpers?)$|^managers?$")
COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.MULTILINE)


def folder_rule(path):
    best = max((f for f in MAY_INCLUDE if tree.in_folder(path, f)), key=len, default=None)
    return best, MAY_INCLUDE.get(best, [])


def resolve(root, bracket, name):
    """Path of our header from the root; None for somebody else's; '' for ours that does not exist."""
    if bracket == '"':
        return name if Path(root, name).is_file() else ""
    if name.startswith("hotkv/"):
        for folder in ("shared", "client/include"):
            if Path(root, folder, name).is_file():
                return f"{folder}/{name}"
        return ""
    return None


def check_includes(root, path, text):
    problems = []
    own_folder, allowed = folder_rule(path)
    is_public = path.suffix == ".hpp" and any(tree.in_folder(path, f) for f in PUBLIC_FOLDERS)
    for bracket, name in INCLUDE.findall(text):
        target = resolve(root, bracket, name)
        if target == "":
            problems.append(f"{path}: includes {name}, which is not there as seen from the repository root")
        elif target is None:
            if is_public and not STANDARD_HEADER.match(name):
                problems.append(f"{path}: a public header includes {name}, not the standard library's")
        elif is_public and bracket == '"':
            problems.append(f"{path}: a public header includes \"{name}\"; only <hotkv/...> is installed")
        elif own_folder and not tree.in_folder(target, own_folder) and not any(
                target == a or tree.in_folder(target, a) for a in allowed):
            problems.append(f"{path}: {own_folder} may not include {target}")
    return problems


def check_name(path):
    names = list(path.parts[:-1]) + [path.stem]
    return [f"{path}: '{name}' says nothing about what is inside"
            for name in names if FORBIDDEN_NAMES.match(name.lower())]


def check(root):
    problems = []
    for path in tree.files(root):
        problems += check_name(path)
    for path in tree.files(root, ".hpp", ".cpp"):
        text = COMMENT.sub("", tree.read(root, path))
        problems += check_includes(root, path, text)
        if tree.in_folder(path, "daemon/core"):
            problems += [f"{path}: core uses {what}: {match.group(0).strip()}"
                         for pattern, what in FORBIDDEN_IN_CORE
                         for match in [re.search(pattern, text)] if match]
    return problems


HEADER = "#pragma once\n"
GOOD_TREE = {
    "shared/hotkv/types.hpp": "#pragma once\n#include <cstdint>\n",
    "shared/words.hpp": "#pragma once\n#include <hotkv/types.hpp>\n",
    "daemon/core/ledger.hpp": '#pragma once\n#include "shared/words.hpp"\n',
    "daemon/platform/log.hpp": "#pragma once\n#include <spdlog/spdlog.h>\n",
    "daemon/server/dispatch.cpp": '#include "daemon/core/ledger.hpp"\n#include "daemon/platform/log.hpp"\n',
    "client/include/hotkv/client.hpp": "#pragma once\n#include <hotkv/types.hpp>\n",
    "client/library/client.cpp": '#include <hotkv/client.hpp>\n#include <sys/mman.h>\n#include "shared/words.hpp"\n',
    "daemon/platform/service_manager.hpp": "#pragma once\n",
    "tests/unit/ledger_test.cpp": '#include "daemon/core/ledger.hpp"\n',
}
BAD_TREES = [
    ({"shared/a.cpp": '#include "daemon/core/b.hpp"\n', "daemon/core/b.hpp": HEADER}, "shared may not include"),
    ({"client/library/a.cpp": '#include "daemon/core/b.hpp"\n', "daemon/core/b.hpp": HEADER},
     "client may not include"),
    ({"daemon/core/a.cpp": "#include <hotkv/client.hpp>\n", "client/include/hotkv/client.hpp": HEADER},
     "daemon/core may not include"),
    ({"daemon/core/a.cpp": '#include "daemon/platform/b.hpp"\n', "daemon/platform/b.hpp": HEADER},
     "daemon/core may not include"),
    ({"daemon/core/a.cpp": '#include "daemon/config.hpp"\n', "daemon/config.hpp": HEADER},
     "daemon/core may not include"),
    ({"daemon/core/a.cpp": "#include <sys/mman.h>\n"}, "a system header"),
    ({"daemon/core/a.cpp": "#include <boost/asio.hpp>\n"}, "a socket or mapping library"),
    ({"daemon/core/a.cpp": "#include <spdlog/spdlog.h>\n"}, "output or files"),
    ({"daemon/core/a.cpp": "auto t = std::chrono::steady_clock::now();\n"}, "a clock of its own"),
    ({"daemon/server/a.cpp": '#include "daemon/platform/b.hpp"\n', "daemon/platform/b.hpp": HEADER},
     "daemon/server may not include"),
    ({"daemon/platform/a.cpp": '#include "daemon/server/b.hpp"\n', "daemon/server/b.hpp": HEADER},
     "daemon/platform may not include"),
    ({"client/include/hotkv/a.hpp": "#include <boost/version.hpp>\n"}, "not the standard library's"),
    ({"shared/hotkv/a.hpp": "#include <unistd.h>\n"}, "not the standard library's"),
    ({"shared/hotkv/a.hpp": '#include "shared/b.hpp"\n', "shared/b.hpp": HEADER}, "only <hotkv/...> is installed"),
    ({"shared/a.cpp": '#include "b.hpp"\n', "shared/b.hpp": HEADER}, "not there"),
    ({"shared/" + "com" + "mon.hpp": HEADER}, "says nothing"),
    ({"daemon/" + "ut" + "il/a.hpp": HEADER}, "says nothing"),
    ({"daemon/core/session_" + "ut" + "il.cpp": ""}, "says nothing"),
    ({"daemon/core/" + "man" + "ager.cpp": ""}, "says nothing"),
]

if __name__ == "__main__":
    tree.main(check, GOOD_TREE, BAD_TREES)
