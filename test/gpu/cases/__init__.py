"""All cases, in the order of their running: MPS comes last, it starts a daemon."""
from . import pytorch, packages, profiler, segments, viewer, libraries, driver, published, processes, tool, top, holders, findings, whatif, cost, agent, mps  # noqa: F401
