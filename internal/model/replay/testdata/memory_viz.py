"""Prints what torch.cuda._memory_viz finds in snapshots, as JSON by file."""

import json
import pickle
import sys

from torch.cuda import _memory_viz as viz

whole = hasattr(viz, "trace")  # from PyTorch 2.0 on its functions take all of a snapshot


def sums(flame_graph, states):
    """The bytes of a flame graph's lines, by the field of them that has the state."""
    out = {}
    for line in flame_graph.splitlines():
        stack, size = line.rsplit(" ", 1)
        state = stack.split(";")[states]
        out[state] = out.get(state, 0) + int(size)
    return out


found = {}
for path in sys.argv[1:]:
    with open(path, "rb") as f:
        snapshot = pickle.load(f)
    segments = snapshot["segments"]
    given = snapshot if whole else segments
    by_stream = sums(viz.memory(given, format_flamegraph=str), 1)
    by_segment = sums(viz.segments(given, format_flamegraph=str), 2)
    assert by_stream == by_segment, (by_stream, by_segment)
    if whole:
        viz.segsum(snapshot)  # asserts that its sums are right
        viz.trace(snapshot)
    else:
        stats = viz.stats(segments)
        assert {k: v.value for k, v in stats.items() if k in by_stream} == by_stream, (stats, by_stream)
        assert stats["segments"] == len(segments) and stats["total_size"].value == sum(by_stream.values()), stats
    found[path] = {
        "Segments": len(segments),
        "Active": by_stream.get("active_allocated", 0),
        "Inactive": by_stream.get("inactive", 0),
    }
json.dump(found, sys.stdout)
