"""What `import torch` calls (entry point group ``torch.backends``): the backend's name and rendezvous are made known.

An exception here would make `import torch` fail for everyone who has accdp installed, and ranks are often forked after
the import: so this loads no MPI, starts no thread, imports nothing of ours but at_end.py before the first use, and
raises nothing.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Iterator
from typing import Any

NAME = "accdp"


def register() -> None:
    """Register the backend "accdp" and the rendezvous with torch; `import torch` calls it, and again does no harm."""
    try:
        import torch
        import torch.distributed as dist

        from . import at_end  # noqa: F401  # before what a script registers there

        if not dist.is_available():
            return
        # A list: torch walks a plain string letter by letter and would register each letter as a device. Some of torch
        # takes the last device of a group's backend for the one to use, so a torch without CUDA must not see any.
        devices = ["cpu", "cuda"] if torch.version.cuda else ["cpu"]
        dist.Backend.register_backend(NAME, _create, extended_api=True, devices=devices)
        _hook_rendezvous()
    except Exception as error:
        _warn(error)


def _warn(error: Exception) -> None:
    logging.getLogger(__name__).warning(
        "accdp could not register with torch (%s: %s); TORCH_DEVICE_BACKEND_AUTOLOAD=0 turns this off",
        type(error).__name__,
        error,
    )


def _create(options: Any, pg_options: Any) -> Any:
    from .backend import create

    return create(options, pg_options)


def _hook_rendezvous() -> None:
    # `torch.distributed.rendezvous` is also the name of a function, which hides the module from attribute access.
    module: Any = importlib.import_module("torch.distributed.rendezvous")
    handlers = module._rendezvous_handlers
    if "mpi" not in handlers:
        module.register_rendezvous_handler("mpi", _mpi_handler)
    torchs_own = handlers["env"]
    if getattr(torchs_own, "__module__", "") != __name__:

        def _env_handler(url: str, **options: Any) -> Iterator[Any]:
            try:
                from .rendezvous import env_rendezvous
            except ImportError as error:  # other backends do without us; ours says it when it is made
                _warn(error)
                return torchs_own(url, **options)
            return env_rendezvous(torchs_own, url, **options)

        handlers["env"] = _env_handler


def _mpi_handler(url: str, **options: Any) -> Iterator[Any]:
    from .rendezvous import mpi_rendezvous

    return mpi_rendezvous(url, **options)
