"""All cases, in the order of their running: MPS comes last, it starts a daemon."""
from . import pytorch, packages, libraries, driver, processes, tool, cost, mps  # noqa: F401
