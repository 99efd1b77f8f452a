"""All cases, in the order of their running."""
from . import pytorch, libraries, driver, processes, tool, cost  # noqa: F401
