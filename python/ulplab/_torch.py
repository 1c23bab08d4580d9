"""torch, for the modules that follow its functions. They are imported only where torch is; types are checked without it."""

import contextlib
import importlib
from typing import Any, Iterator, TypeAlias

torch: Any = importlib.import_module("torch")
pytree: Any = importlib.import_module("torch.utils._pytree")
TorchDispatchMode: Any = importlib.import_module("torch.utils._python_dispatch").TorchDispatchMode
modes_off: Any = importlib.import_module("torch.utils._python_dispatch")._disable_current_modes
TorchFunctionMode: Any = importlib.import_module("torch.overrides").TorchFunctionMode
Tensor: TypeAlias = Any


@contextlib.contextmanager
def autograd_on() -> Iterator[None]:
    """Derivatives within an operation that a mode sees, where torch has taken care of them and turned them off."""
    keys = torch._C._dispatch_tls_local_exclude_set()
    for key in (torch._C.DispatchKey.AutogradFunctionality, torch._C.DispatchKey.ADInplaceOrView):
        keys = keys.remove(key)
    with torch._C._ForceDispatchKeyGuard(torch._C._dispatch_tls_local_include_set(), keys), torch.enable_grad():
        yield


def tensor(stored: Any) -> Tensor:
    """A tensor of torch with the numbers of a `_files.Stored`."""
    x = torch.from_numpy(stored.bits.copy(order="C"))
    return x if str(x.dtype) == f"torch.{stored.dtype}" else x.view(getattr(torch, stored.dtype))
