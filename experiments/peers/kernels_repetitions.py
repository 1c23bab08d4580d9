"""How often something is timed, and what is said of its times: as `ulplab kernels time` does it."""
import math
import statistics
import time

#: Fewest and most repetitions.
FEWEST, MOST = 11, 200
#: Seconds of repetitions after which they end when the median is known well enough, and after which they end.
ENOUGH, BUDGET = 0.010, 0.060
#: How well, of the median: half of its 95 % interval.
WITHIN = 0.005


def half_interval(values):
    """Half of the 95 % interval of the median, by order statistics, over the median."""
    ordered, n = sorted(values), len(values)
    low = max(0, math.floor((n - 1.96 * math.sqrt(n)) / 2) - 1)
    return (ordered[n - 1 - low] - ordered[low]) / 2 / statistics.median(ordered)


def median(once, clock=time.perf_counter):
    """The median of repetitions, and how well it is known."""
    begun, values = clock(), []
    while len(values) < MOST:
        values.append(once())
        spent = clock() - begun
        if len(values) < FEWEST or spent < ENOUGH:
            continue
        if spent >= BUDGET or len(values) % 10 == 0 and half_interval(values) <= WITHIN:
            break
    return statistics.median(values), half_interval(values)
