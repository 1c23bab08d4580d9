"""torch, for the modules that follow its functions. They are imported only where torch is; types are checked without it."""

import importlib
from typing import Any, TypeAlias

torch: Any = importlib.import_module("torch")
pytree: Any = importlib.import_module("torch.utils._pytree")
TorchDispatchMode: Any = importlib.import_module("torch.utils._python_dispatch").TorchDispatchMode
modes_off: Any = importlib.import_module("torch.utils._python_dispatch")._disable_current_modes
TorchFunctionMode: Any = importlib.import_module("torch.overrides").TorchFunctionMode
Tensor: TypeAlias = Any
