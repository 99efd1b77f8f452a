"""Calls the probed function from every sort of Python frame, and writes down which frames each
call has, as Python itself says. Arguments: the file to write to, how many rounds.

Each call is on one line with the note about it, so that the line is the same in both.
"""
import gc
import json
import sys

import truth_note
from truth_code import executed, imported, named_in_other_scripts, newer_syntax, pause, reused, reused_alike  # noqa: F401
from truth_functions import (
    alternating_100, alternating_20, alternating_40, calls_with_arguments, closures, comprehensions,
    coroutines, decorators, deep_300, deep_50, deep_900, exceptions, generators, lambdas,
    thrown_into, thrown_through,
)
from truth_note import call, leaf, note, noted
from truth_objects import (
    classes, collected, deleted, from_c, from_c_libraries, hooked, instances, signalled, slots, threads,
)

CASES = [
    leaf, decorators, calls_with_arguments, lambdas, closures, comprehensions, generators, thrown_into, thrown_through, coroutines,
    classes, slots, instances, threads, from_c, from_c_libraries, deleted, collected, signalled, hooked, executed, named_in_other_scripts, newer_syntax,
    reused, reused_alike, imported, deep_50, deep_300, deep_900, alternating_20, alternating_40, alternating_100, exceptions,
]


def finish():
    with open(sys.argv[1], "w") as f:
        json.dump(noted, f)
    print("done", len(noted), flush=True)
    sys.stdin.read()


def start():
    print("ready", flush=True)
    sys.stdin.readline()


def main():
    gc.disable()  # it may run anything between a note and its call
    sys.setrecursionlimit(3000)
    start()
    for _ in range(int(sys.argv[2])):  # other paths are between the calls of one
        for case in CASES:
            truth_note.now = case.__name__
            case()
            note(); call()
    finish()


if __name__ == "__main__":
    main()
