"""torch, for the modules that follow its functions. They are imported only where torch is; types are checked without it."""

import importlib
from typing import Any, TypeAlias

torch: Any = importlib.import_module("torch")
pytree: Any = importlib.import_module("torch.utils._pytree")
TorchDispatchMode: Any = importlib.import_module("torch.utils._python_dispatch").TorchDispatchMode
TorchFunctionMode: Any = importlib.import_module("torch.overrides").TorchFunctionMode
Tensor: TypeAlias = Any


def tensor(stored: Any) -> Tensor:
    """A tensor of torch with the numbers of a `_files.Stored`."""
    x = torch.from_numpy(stored.bits.copy(order="C"))
    return x if str(x.dtype) == f"torch.{stored.dtype}" else x.view(getattr(torch, stored.dtype))
