"""Models of a user's own: a function that returns a module, its arguments and perhaps a loss."""

from __future__ import annotations

import difflib
import importlib
import inspect
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from offload_runtime.errors import Diagnostic, RefusedError, error_text, named_error
from offload_runtime.models.resolve import ModelRequest, refuse_options
from offload_runtime.models.under_test import (
    Batch,
    ModelUnderTest,
    count_parameters,
    moved_to,
    parameter_dtype,
)

_SHAPE = "(module, example_args) or (module, example_args, loss_fn)"
_LEARNING_RATE = 1e-3


def build_from_function(request: ModelRequest) -> ModelUnderTest:
    """Call the function that ``request.spec`` names and check what it returns.

    The current directory can be imported from, as it can in ``python -m``. The function is called under the
    request's seed; every step trains on the example arguments that it returned.
    """
    refuse_options(
        request,
        ("batch", "seq", "layers", "dtype"),
        "the function alone decides what it returns",
        "change the function, or read the value in it from the environment",
    )
    with _importing_from_here():
        returned = _call(request.spec, _find(request.spec))
    module, example_args, loss_fn = _unpack(request.spec, returned)
    device = torch.device(request.device)
    args: Batch = moved_to(tuple(example_args), device)
    module = module.to(device)
    return ModelUnderTest(
        name=request.spec,
        description=f"{type(module).__name__} of {request.spec}",
        module=module,
        example_args=args,
        loss_fn=loss_fn,
        make_batch=lambda step: args,
        num_parameters=count_parameters(module),
        num_layers=None,
        dtype=parameter_dtype(module.parameters()),
        device=device,
        optimizer=request.optimizer or "adamw",
        learning_rate=_LEARNING_RATE,
    )


@contextmanager
def _importing_from_here() -> Iterator[None]:
    here = os.getcwd()
    if here in sys.path or "" in sys.path:
        yield
        return
    sys.path.insert(0, here)
    try:
        yield
    finally:
        sys.path.remove(here)


def _find(spec: str) -> Callable[[], Any]:
    module_name, _, name = spec.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and (module_name == error.name or module_name.startswith(f"{error.name}.")):
            raise _refused(
                "MOD711",
                f"there is no module {module_name} to import for {spec}",
                "name an installed module, or one in this directory; built-in models are builtin:NAME",
            ) from error
        raise _raised(spec, f"importing {module_name}", error) from error
    except Exception as error:
        raise _raised(spec, f"importing {module_name}", error) from error
    found = getattr(module, name, None)
    if found is None:
        close = difflib.get_close_matches(name, vars(module), n=1)
        hint = (
            f"did you mean {module_name}:{close[0]}?"
            if close
            else "name a function at the module's top level"
        )
        raise _refused("MOD711", f"module {module_name} has no {name}", hint)
    if not callable(found):
        raise _refused(
            "MOD711",
            f"{spec} is of type {type(found).__name__}, not a function",
            f"name a function that returns {_SHAPE}",
        )
    function: Callable[[], Any] = found
    return function


def _call(spec: str, function: Callable[[], Any]) -> Any:
    try:
        inspect.signature(function).bind()
    except TypeError as error:
        raise _refused(
            "MOD712",
            f"{spec} cannot be called without arguments: {error_text(error)}",
            "give its parameters defaults",
        ) from error
    except ValueError:
        pass  # no signature to read (a builtin): the call itself will tell
    try:
        return function()
    except Exception as error:
        raise _raised(spec, "calling it", error) from error


def _unpack(spec: str, returned: Any) -> tuple[nn.Module, Any, Any]:
    if not isinstance(returned, tuple) or len(returned) not in (2, 3):
        size = f" of {len(returned)}" if isinstance(returned, tuple) else ""
        raise _wrong(spec, f"a {type(returned).__name__}{size}")
    module, example_args, *rest = returned
    if not isinstance(module, nn.Module):
        raise _wrong(spec, f"a {type(module).__name__} as its first value, not a torch.nn.Module")
    if not isinstance(example_args, tuple | list):
        raise _wrong(
            spec,
            f"a {type(example_args).__name__} as its second value, not a tuple of the module's arguments",
        )
    if not any(parameter.requires_grad for parameter in module.parameters()):
        raise _refused(
            "MOD714",
            f"the {type(module).__name__} of {spec} has nothing to train: no parameter requires a gradient",
            "leave requires_grad on for what is to be trained",
        )
    loss_fn = rest[0] if rest else None
    if loss_fn is not None and not _takes_one_argument(loss_fn):
        raise _wrong(spec, "as its third value no function of the module's output alone")
    return module, example_args, loss_fn


def _takes_one_argument(loss_fn: Any) -> bool:
    if not callable(loss_fn):
        return False
    try:
        inspect.signature(loss_fn).bind(None)
    except TypeError:
        return False
    except ValueError:
        return True
    return True


def _wrong(spec: str, returned: str) -> RefusedError:
    hint = f"return {_SHAPE}, where example_args is a tuple and loss_fn(output) gives a scalar"
    return _refused("MOD713", f"{spec} returned {returned}", hint)


def _raised(spec: str, doing: str, error: Exception) -> RefusedError:
    message = f"{spec}: {doing} raised {named_error(error)}"
    call = f"python -c 'import {spec.replace(':', '; ' + spec.partition(':')[0] + '.')}()'"
    hint = f"make {call} work first"
    if isinstance(error, torch.OutOfMemoryError):
        hint += (
            ", on a device with more memory or on the CPU; an adapter of a training script needs least where it is "
            "given functions that make the model and a batch: "
            "offload init --model-adapter FILE:make_model --batch make_batch"
        )
    elif "CUDA" in str(error) and not torch.cuda.is_available():
        hint += ": there is no CUDA device here, so that it has to take the device that is there"
    return _refused("MOD715", message, hint)


def _refused(code: str, message: str, hint: str) -> RefusedError:
    return RefusedError(Diagnostic(code, "error", message, hint=hint))
