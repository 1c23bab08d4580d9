//! How long work takes: with the second-level cache flushed, back to back, and replayed as a graph.

use cudarc::driver::{result, sys};

use super::device::{Device, Memory, cuda};
use crate::error::Result;

/// Microseconds of one repetition.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    pub p10: f64,
    pub median: f64,
    pub p90: f64,
}

impl Spread {
    pub fn of(mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        let at = |share: f64| {
            values
                .get(((values.len() as f64 - 1.0) * share).round() as usize)
                .copied()
                .unwrap_or(f64::NAN)
        };
        Self {
            p10: at(0.1),
            median: at(0.5),
            p90: at(0.9),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Times {
    /// Second-level cache flushed before each repetition.
    pub cold: Spread,
    /// Back to back, the host's part included.
    pub hot: Spread,
    /// Launches of one graph, divided by their number; none where a launch cannot be captured.
    pub graph: Option<Spread>,
}

/// Times work on a device, with what is needed for that.
pub struct Stopwatch<'a> {
    device: &'a Device,
    events: [sys::CUevent; 2],
    /// Written between repetitions: twice the second-level cache.
    flush: Memory,
}

/// Most time spent on one of the three ways, in microseconds, and most and fewest repetitions.
const BUDGET: f64 = 60_000.0;
const REPETITIONS: (usize, usize) = (20, 200);

impl<'a> Stopwatch<'a> {
    pub fn new(device: &'a Device) -> Result<Self> {
        let event = || {
            cuda(
                "cuEventCreate",
                result::event::create(sys::CUevent_flags::CU_EVENT_DEFAULT),
            )
        };
        Ok(Self {
            device,
            events: [event()?, event()?],
            flush: device.memory(2 * device.l2.max(64 << 20))?,
        })
    }

    /// Microseconds the stream spends on `work`.
    pub fn once(&self, work: impl FnOnce() -> Result<()>) -> Result<f64> {
        let record = |event| {
            cuda("cuEventRecord", unsafe {
                result::event::record(event, self.device.stream)
            })
        };
        record(self.events[0])?;
        work()?;
        record(self.events[1])?;
        // SAFETY: both events are recorded.
        unsafe {
            cuda("kernel", result::event::synchronize(self.events[1]))?;
            let milliseconds = cuda(
                "cuEventElapsedTime",
                result::event::elapsed(self.events[0], self.events[1]),
            )?;
            Ok(f64::from(milliseconds) * 1e3)
        }
    }

    /// Times work that puts the same launches into the stream each time.
    pub fn time(&self, work: &dyn Fn() -> Result<()>) -> Result<Times> {
        work()?;
        self.device.wait()?;
        let estimate = self.once(work)?;
        let repetitions = |each: f64| ((BUDGET / each.max(0.5)) as usize).clamp(REPETITIONS.0, REPETITIONS.1);
        let cold = (0..repetitions(estimate + 40.0)).map(|_| {
            self.device.fill(&self.flush, 0, self.flush.len, 1)?;
            self.once(work)
        });
        let cold = Spread::of(cold.collect::<Result<_>>()?);
        // So many launches a repetition that the events do not count.
        let batch = ((200.0 / estimate.max(1.0)).ceil() as usize).clamp(1, 50);
        let many = || (0..batch).try_for_each(|_| work());
        let per = |whole: f64| whole / batch as f64;
        let hot = (0..repetitions(estimate * batch as f64)).map(|_| self.once(many).map(per));
        let hot = Spread::of(hot.collect::<Result<_>>()?);
        let graph = match self.capture(&many)? {
            None => None,
            Some(graph) => {
                graph.launch(self.device)?;
                let replays = (0..repetitions(cold.median * batch as f64))
                    .map(|_| self.once(|| graph.launch(self.device)).map(per));
                Some(Spread::of(replays.collect::<Result<_>>()?))
            }
        };
        Ok(Times { cold, hot, graph })
    }

    /// The work as a graph; none where it cannot be one.
    fn capture(&self, work: &dyn Fn() -> Result<()>) -> Result<Option<Graph>> {
        let stream = self.device.stream;
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream is ours and not capturing; the graph is instantiated once and both are destroyed on drop.
        unsafe {
            cuda("cuStreamBeginCapture", result::stream::begin_capture(stream, mode))?;
            let done = work();
            let graph = result::stream::end_capture(stream);
            let (Ok(()), Ok(graph)) = (done, graph) else {
                return Ok(None);
            };
            let mut exec = std::ptr::null_mut();
            match sys::cuGraphInstantiateWithFlags(&raw mut exec, graph, 0).result() {
                Ok(()) => Ok(Some(Graph { graph, exec })),
                Err(_) => {
                    cuda("cuGraphDestroy", result::graph::destroy(graph))?;
                    Ok(None)
                }
            }
        }
    }

    /// Bytes per microsecond of a copy on the device, read and written, of 4 GiB or what there is room for.
    pub fn copy_bandwidth(&self) -> Result<f64> {
        let (free, _) = cuda("cuMemGetInfo", result::mem_get_info())?;
        let len = (4 << 30).min(free / 4);
        let (from, to) = (self.device.memory(len)?, self.device.memory(len)?);
        self.device.fill(&from, 0, len, 0x5a)?;
        let times = (0..12).map(|_| self.once(|| self.device.copy(&from, &to, len)));
        Ok(2.0 * len as f64 / Spread::of(times.collect::<Result<_>>()?).median)
    }
}

impl Drop for Stopwatch<'_> {
    fn drop(&mut self) {
        for event in self.events {
            // SAFETY: created once, destroyed once.
            let _ = unsafe { result::event::destroy(event) };
        }
    }
}

struct Graph {
    graph: sys::CUgraph,
    exec: sys::CUgraphExec,
}

impl Graph {
    fn launch(&self, device: &Device) -> Result<()> {
        // SAFETY: the graph is instantiated; what it works on outlives it.
        cuda("cuGraphLaunch", unsafe {
            result::graph::launch(self.exec, device.stream)
        })
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: created once, destroyed once.
        unsafe {
            let _ = result::graph::exec_destroy(self.exec);
            let _ = result::graph::destroy(self.graph);
        }
    }
}
