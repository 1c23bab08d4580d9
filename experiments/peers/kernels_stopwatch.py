"""How long a call takes on a GPU, by ulplab's method: alone, with the L2 cache flushed before, and as one of many in a graph."""
import ctypes
import time

import torch

from kernels_common import DEVICE
from kernels_repetitions import median

#: The method by which times are taken. It grows when older times are not to be compared with new ones. By 2, lines that L2 was asked to
#: keep are flushed, too.
METHOD = 2


class Stopwatch:
    def __init__(self):
        self.driver = ctypes.CDLL("libcuda.so.1")
        cache = torch.cuda.get_device_properties(0).L2_cache_size
        self.flush = torch.empty(2 * max(cache, 64 << 20), dtype=torch.uint8, device=DEVICE)
        self.events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]

    def let_go(self):
        """Has lines that the L2 cache was asked to keep (evict_last, as torch.compile's loads do) be evicted as any others."""
        error = self.driver.cuCtxResetPersistingL2Cache()
        if error:
            raise RuntimeError(f"cuCtxResetPersistingL2Cache: error {error}")

    def once(self, work):
        begin, end = self.events
        begin.record()
        work()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) * 1e3

    def time(self, work):
        """Microseconds cold, and in a graph if the work can be captured; `within` is how well the median of the cold ones is known."""
        work()
        torch.cuda.synchronize()
        begun = time.perf_counter()
        work()
        host = time.perf_counter() - begun
        torch.cuda.synchronize()

        def cold():
            self.let_go()
            # Cycles at about 2 GHz, enough for Python to enqueue the whole call.
            torch.cuda._sleep(int(1.5 * host * 2e9))
            self.flush.fill_(1)
            return self.once(work)

        us, within = median(cold)
        times = {"us_cold": us, "within": within}
        batch = min(50, max(1, int(200 / max(us, 1))))
        try:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                for _ in range(batch):
                    work()
        except RuntimeError as why:
            times["not_captured"] = str(why).splitlines()[0]
            return times
        graph.replay()
        times["us_graph"] = median(lambda: self.once(graph.replay))[0] / batch
        return times
