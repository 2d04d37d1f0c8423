"""The `offload` command line.

Importing this package imports neither torch nor rich nor jinja2: `offload validate` starts and ends in
under half a second. A command imports what it needs when it runs.
"""

from offload_runtime.cli.program import main, run

__all__ = ["main", "run"]
