"""Prints the crash matrix from the rows that its tests left: write_matrix.py FOLDER [FILE.md].

A row is a JSON file of tests/fault/crash_row.cpp. FILE.md is written with the same table and what
its columns mean, if no row is missing and none has failed.
"""

import json
import os
import pathlib
import sys

PREAMBLE = """# Crash matrix

Written by `bash tests/run.sh --label fault`; each row is a test of `crash_matrix_*_test.cpp` or
`daemon_deaths_test.cpp`, with real processes, a real socket and a real daemon, which is started again at
once with what its service manager kept. A row that breaks a promise (the three columns of zeros) fails
its test. Times are milliseconds, on {processors} processors, and fail nothing.

- *lost*: tokens that were published and are not there afterwards.
- *unpublished*: tokens that are there although nobody published them, and bytes that are not those that were
  published.
- *leaked*: chunks of the budget that are not to be had once all clients are gone.
- *others*: two workers with another shard, each of whose requests is an open, a grant and a release (three
  round trips), repeated where it fails until it is done. The figures are of what a request would have waited
  that came at any moment (each half millisecond) of the 150 ms before the crash and of the 350 ms after it, so
  an outage counts for as long as it lasts.
- *next grant*: from the moment before the signal is sent until the struck context is granted room (and
  written and published once), or what the row says; p50 and the longest. A daemon is started at once by the
  test; a service manager waits first (`RestartSec=`, 100 ms in the shipped unit).

In the two rows that die at each store others' waits are of three more deaths, each at a store of any of them.
"""

COLUMNS = [
    "who dies, or is cut off, and when", "crashes", "lost", "unpublished", "leaked",
    "others: p99 before", "after", "longest after", "next grant: p50", "longest",
]


# Of the tests; a row that is missing has failed, or was skipped.
NUMBERS = [1, 2, 3, 4, 5, 6, 7, 10, 11, 12, 13, 20, 21, 22, 23, 24, 25, 26, 30]


def milliseconds(quantiles, which):
    return "–" if quantiles is None else f"{quantiles[which]:.2f}"


def cells(row):
    return [
        row["crashed"], row["crashes"], row["tokens_lost"], row["unpublished_seen"],
        row["chunks_leaked"], milliseconds(row["others_before"], "p99_ms"),
        milliseconds(row["others_after"], "p99_ms"), milliseconds(row["others_after"], "max_ms"),
        milliseconds(row["next_grant"], "p50_ms"), milliseconds(row["next_grant"], "max_ms"),
    ]


def table(rows):
    lines = [COLUMNS, ["---"] + ["---:"] * (len(COLUMNS) - 1)]
    lines += [cells(row) for row in rows]
    return "".join("| " + " | ".join(str(cell) for cell in line) + " |\n" for line in lines)


def main():
    folder = pathlib.Path(sys.argv[1])
    rows = [json.loads(file.read_text()) for file in folder.glob("*.json")]
    print(table(sorted(rows, key=lambda row: row["number"])))
    missing = sorted(set(NUMBERS) - {row["number"] for row in rows})
    failed = sorted(row["number"] for row in rows if row["failed"])
    if failed:
        sys.exit(f"crash matrix: rows failed: {failed}")
    if missing:  # whoever failed without a row has failed as a test
        print(f"crash matrix: not written, rows missing (skipped, or failed): {missing}")
    elif len(sys.argv) > 2:
        text = PREAMBLE.replace("{processors}", str(os.cpu_count())) + "\n" + table(sorted(rows, key=lambda row: row["number"]))
        pathlib.Path(sys.argv[2]).write_text(text)


if __name__ == "__main__":
    main()
