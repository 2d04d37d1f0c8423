"""Code of others that runs inside a command: the user's model and loss, and torch's compilers."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator

from offload_runtime.errors import Diagnostic, RunError


@contextlib.contextmanager
def foreign_code() -> Iterator[None]:
    """Keep what others print out of stdout, which is data, and turn their `exit()` into a failure.

    Prints go to stderr, whether they come through Python or straight to the file descriptor. Raises RunError
    where the code inside asks for the end of the process, or raises what is no Exception.
    """
    sys.stdout.flush()
    kept = os.dup(1)
    process = os.getpid()
    os.dup2(2, 1)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    except SystemExit as error:
        message = f"the model's code asked to end the process, with exit code {error.code}"
        hint = "guard a script's own run with `if __name__ == '__main__':`"
        raise RunError(Diagnostic("MOD733", "error", message, hint=hint)) from error
    except BaseException as error:
        if isinstance(error, Exception | KeyboardInterrupt):
            raise
        # A test framework's or an event loop's way out passes every `except Exception`, ours too.
        message = f"the model's code raised {type(error).__name__}, which no handler of errors catches"
        hint = "let it raise an Exception"
        raise RunError(Diagnostic("MOD733", "error", message, hint=hint)) from error
    finally:
        if os.getpid() != process:
            os._exit(
                0
            )  # a child that the code forked and did not end: the command goes on once, in the parent
        os.dup2(kept, 1)
        os.close(kept)
