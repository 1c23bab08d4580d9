"""How often something is timed, and what is said of its times: as `ulplab kernels time` does it."""
import itertools
import math
import statistics
import time

#: Fewest and most repetitions.
FEWEST, MOST = 11, 200
#: Seconds of repetitions after which they end when the median is known well enough, and after which they end.
ENOUGH, BUDGET = 0.010, 0.060
#: How well, of the median: half of its 95 % interval.
WITHIN = 0.005


def outside(n):
    """How many of n sorted values lie outside, at each end, of an interval that contains the median with a probability of 95 % or more."""
    below = itertools.accumulate(math.comb(n, count) for count in range(n))
    return max(0, sum(1 for total in below if total <= 0.025 * 2**n) - 1)


def half_interval(values):
    """Half of the 95 % interval of the median, by order statistics, over the median."""
    ordered, beyond = sorted(values), outside(len(values))
    return (ordered[-1 - beyond] - ordered[beyond]) / 2 / statistics.median(ordered)


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
