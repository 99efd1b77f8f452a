"""Every GPU case: a real program, gpumemtrace on it, and the numbers compared.

    run.py [-o DIR] [-j N] [--gpus N] [CASE...]
"""
import argparse
import concurrent.futures
import importlib.util
import os
import signal
import subprocess
import sys
import time
import traceback

import cases  # noqa: F401  (fills CASES)
from case import CASES, Report
from harness import NotHere, gpu_count

LIMIT = 400  # seconds for a case that runs beside others


def installed(module):
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # of the package that it is in
        return False


def run(name, out):
    """Runs one case, and says how it went in one line."""
    one, r, begin = CASES[name], Report(name, out), time.time()
    print(name, flush=True)
    for module in one.needs:
        if not installed(module):
            return f"not run: {module} is not installed"
    try:
        if one.gpus > gpu_count():
            raise NotHere(f"needs {one.gpus} GPUs")
        one.run(r)
    except NotHere as e:
        if not r.failed:
            return f"not run: {e}"
    except Exception as e:  # one broken case must not hide the others
        traceback.print_exc()
        r.check("ran to its end", False, e)
        log = os.path.join(r.path(), "stderr")
        if os.path.exists(log):
            with open(log) as f:
                print(f.read()[-3000:])
    if not r.count:
        return "FAILED: it checked nothing"
    return f"{'FAILED' if r.failed else 'passed'}: {r.count - r.failed} of {r.count} checks, {time.time() - begin:.0f} s"


def beside(name, out):
    """Runs one case in a process of its own, and prints what that printed in one piece."""
    command = [sys.executable, "-u", os.path.abspath(__file__), "-o", out, name]
    with open(os.path.join(out, name + ".log"), "w+") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        try:
            process.wait(LIMIT)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)  # it ends what it started
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        log.seek(0)
        text = log.read()
    print(text, end="", flush=True)
    last = text.rstrip().rpartition("\n")[2]
    return last[len(name):].strip() if last.startswith(name + " ") else f"FAILED: did not end, or not within {LIMIT} s"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("-o", default="/tmp/gpumemtrace-gpu", help="folder for what the cases write")
    parser.add_argument("-j", type=int, default=1, help="cases side by side, but for those that must run alone")
    parser.add_argument("--gpus", type=int, help="only cases that need so many GPUs")
    parser.add_argument("cases", nargs="*", metavar="CASE")
    args = parser.parse_args()
    unknown = [x for x in args.cases if x not in CASES]
    if unknown:
        parser.error(f"no such case: {', '.join(unknown)}; there are {', '.join(CASES)}")
    names = args.cases or [x for x in CASES if args.gpus in (None, CASES[x].gpus)]
    out = os.path.abspath(args.o)
    os.makedirs(out, exist_ok=True)
    results = {}
    if args.j > 1:
        together = [x for x in names if not CASES[x].alone]
        with concurrent.futures.ThreadPoolExecutor(args.j) as pool:
            results = dict(zip(together, pool.map(lambda x: beside(x, out), together)))
    for name in names:
        if name not in results:
            results[name] = run(name, out)
    print()
    for name in names:
        print(f"{name:20} {results[name]}")
    sys.exit(any("FAILED" in x for x in results.values()))


if __name__ == "__main__":
    main()
