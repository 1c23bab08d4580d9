//! Times work on the GPU: with the L2 cache flushed, back to back, and replayed as a CUDA graph.

use std::time::{Duration, Instant};

use cudarc::driver::{result, sys};
use serde::{Serialize, Serializer};

use super::device::{Device, Memory, cuda};
use super::header::{Factor, Sum};
use super::matmul::{Matmul, Operands, Product};
use ulplab_core::error::Result;
use ulplab_core::formats::element;
use ulplab_operations::ops::Data;
use ulplab_run::run::ceilings::Ceilings;
use ulplab_run::statistics::half_interval;

/// Percentiles of the time of one repetition, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    pub p10: f64,
    pub median: f64,
    pub p90: f64,
}

impl Spread {
    pub fn from_values(mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        let place = |share: f64| ((values.len() as f64 - 1.0) * share).round() as usize;
        let at = |share: f64| values.get(place(share)).copied().unwrap_or(f64::NAN);
        Self {
            p10: at(0.1),
            median: at(0.5),
            p90: at(0.9),
        }
    }
}

/// Serializes the median only.
impl Serialize for Spread {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_f64(self.median)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Times {
    /// Time of a graph divided by the number of runs in it; `None` if a launch cannot be captured.
    pub graph: Option<Spread>,
    /// Same as `graph`, but each run uses other memory that is not in the L2 cache.
    pub rotated: Option<Spread>,
    /// Same as `graph`, but with all data in the L2 cache: all addresses of a large buffer map to the same few megabytes.
    pub cached: Option<Spread>,
    /// Time of runs back to back, including the launch overhead of the host.
    pub hot: Spread,
    /// Time of runs for which the L2 cache was flushed before each repetition.
    #[serde(skip)]
    pub cold: Spread,
}

/// Times work on a device.
pub struct Stopwatch<'a> {
    pub device: &'a Device,
    /// Events that are recorded before and after the timed work.
    events: [sys::CUevent; 2],
    /// Memory that is written between repetitions to flush the L2 cache; at least twice the size of the cache.
    flush: Memory,
}

/// Smallest and largest number of repetitions in one measurement.
const REPETITIONS: (usize, usize) = (11, 200);
/// Time after which a measurement ends, if it has the smallest number of repetitions.
const BUDGET: Duration = Duration::from_millis(60);
/// Time after which a measurement ends as soon as its median is precise enough. An idle GPU raises its clocks during this time.
const ENOUGH: Duration = Duration::from_millis(10);
/// Required precision of the median: half the width of its 95 % confidence interval, divided by the median.
const WITHIN: f64 = 0.005;

/// Repeats a measurement in microseconds until the values are [`enough`].
fn repeated(mut once: impl FnMut() -> Result<f64>) -> Result<Spread> {
    let (begun, mut values) = (Instant::now(), Vec::new());
    while !enough(&values, begun.elapsed()) {
        values.push(once()?);
    }
    Ok(Spread::from_values(values))
}

/// True if a measurement with these `values`, which took the time `spent`, needs no further repetition: there are enough values,
/// the time is up, or the median is precise enough.
pub fn enough(values: &[f64], spent: Duration) -> bool {
    let n = values.len();
    let known = || n.is_multiple_of(10) && half_interval(values) <= WITHIN;
    n >= REPETITIONS.1 || n >= REPETITIONS.0 && (spent >= BUDGET || spent >= ENOUGH && known())
}

/// Number of repetitions to enqueue between the start event and the end event: enough to make the overhead of the events
/// negligible. One repetition takes `each` microseconds.
fn batch(each: f64) -> usize {
    ((200.0 / each.max(1.0)).ceil() as usize).clamp(1, 50)
}

impl<'a> Stopwatch<'a> {
    pub fn new(device: &'a Device) -> Result<Self> {
        let flags = sys::CUevent_flags::CU_EVENT_DEFAULT;
        let event = || cuda("cuEventCreate", result::event::create(flags));
        Ok(Self {
            device,
            events: [event()?, event()?],
            flush: device.memory(2 * device.l2.max(64 << 20))?,
        })
    }

    /// Flushes the L2 cache by writing other memory. First releases lines that a load asked the cache to keep (`evict_last`): the
    /// writes do not evict such lines, and a kernel that reads 2 to 4 MB of them would be 0.6 to 1 us faster.
    fn flush_l2(&self) -> Result<()> {
        // SAFETY: there is a context; the contents of memory stay as they are.
        cuda("cuCtxResetPersistingL2Cache", unsafe {
            sys::cuCtxResetPersistingL2Cache().result()
        })?;
        self.device.fill(&self.flush, 0, self.flush.len, 1)
    }

    /// Returns the microseconds that the stream spends on `work`.
    pub(super) fn span(&self, work: impl FnOnce() -> Result<()>) -> Result<f64> {
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
            let done = self.device.watchdog.until(|| sys::cuEventQuery(self.events[1]));
            cuda("kernel", done)?;
            let elapsed = result::event::elapsed(self.events[0], self.events[1]);
            let milliseconds = cuda("cuEventElapsedTime", elapsed)?;
            Ok(f64::from(milliseconds) * 1e3)
        }
    }

    /// Times `work`, which must enqueue the same launches each time.
    pub fn time(&self, work: &dyn Fn() -> Result<()>) -> Result<Times> {
        work()?;
        self.device.wait()?;
        let estimate = self.span(work)?;
        let cold = repeated(|| {
            self.flush_l2()?;
            self.span(work)
        })?;
        let batch = batch(estimate);
        let many = || (0..batch).try_for_each(|_| work());
        let per = |whole: f64| whole / batch as f64;
        let hot = repeated(|| self.span(many).map(per))?;
        Ok(Times {
            cold,
            hot,
            graph: self.replayed(&[work])?,
            rotated: None,
            cached: None,
        })
    }

    /// Times several pieces of work, which run one after the other in one graph. Returns the time of the graph divided by the
    /// number of runs in it; `None` if the work cannot be captured.
    pub fn replayed(&self, works: &[impl Fn() -> Result<()>]) -> Result<Option<Spread>> {
        let Some(replay) = self.replay(works)? else {
            return Ok(None);
        };
        repeated(|| replay.once()).map(Some)
    }

    /// Captures a graph in which the pieces of work run one after the other, repeated so often that the overhead of the graph's
    /// launch is negligible; `None` if the work cannot be captured.
    pub fn replay(&self, works: &[impl Fn() -> Result<()>]) -> Result<Option<Replay<'_>>> {
        let all = || works.iter().try_for_each(|work| work());
        all()?;
        self.device.wait()?;
        let turns = batch(self.span(all)?);
        let Some(graph) = self.capture(&|| (0..turns).try_for_each(|_| all()))? else {
            return Ok(None);
        };
        graph.launch(self.device)?;
        Ok(Some(Replay {
            watch: self,
            graph,
            launches: turns * works.len(),
        }))
    }

    /// Captures the work as a graph; `None` if it cannot be captured.
    pub(super) fn capture(&self, work: &dyn Fn() -> Result<()>) -> Result<Option<Graph>> {
        let stream = self.device.stream;
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream belongs to the device and does not capture yet; both graphs are destroyed when `Graph` is dropped.
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

    /// Measures the fastest rates of this device, for copies and for matrix products.
    pub fn ceilings(&self) -> Result<Ceilings> {
        let _turn = self.device.turns.alone();
        Ok(Ceilings {
            copy_gb_s: self.copy_bandwidth()? / 1e3,
            matmul_tflop_s: self.matmul_rate(Factor::Bf16)?.map(|rate| rate / 1e6),
            // cuBLASLt has no E4M3 product with per-row scales before Hopper.
            e4m3_tflop_s: match self.device.major >= 9 {
                true => self.matmul_rate(Factor::E4m3)?.map(|rate| rate / 1e6),
                false => None,
            },
        })
    }

    /// Measures the operations per microsecond of an 8192³ matrix product by cuBLASLt, on N(0, 1) inputs; `None` without
    /// cuBLASLt.
    fn matmul_rate(&self, of: Factor) -> Result<Option<f64>> {
        const SIZE: usize = 8192;
        let product = Product {
            sizes: [SIZE; 3],
            of,
            into: Sum::Bf16,
        };
        let Some(matmul) = Matmul::new(self.device, product)? else {
            return Ok(None);
        };
        let nothing = |_: &str| Err(String::new());
        let data = Data::new(0, &nothing);
        let memory = |purpose: &str| {
            let values = data.normal(purpose, SIZE * SIZE).into_iter();
            let bytes: Vec<u8> = match of {
                Factor::Bf16 => values.flat_map(|x| half::bf16::from_f32(x).to_le_bytes()).collect(),
                Factor::E4m3 => {
                    let e4m3 = element("e4m3").expect("E4M3 is an element");
                    values.map(|x| e4m3.encode(x) as u8).collect()
                }
            };
            let memory = self.device.memory(bytes.len())?;
            self.device.write(&memory, 0, &bytes)?;
            Ok(memory)
        };
        let (a, b, d) = (memory("a")?, memory("b")?, self.device.memory(2 * SIZE * SIZE)?);
        let ones = self.device.memory(4 * SIZE)?;
        self.device.write(&ones, 0, &1f32.to_le_bytes().repeat(SIZE))?;
        let operands = Operands {
            matrices: [a.address, b.address, d.address],
            scales: (of == Factor::E4m3).then_some([ones.address; 2]),
        };
        matmul.launch(&operands)?;
        let times = (0..12).map(|_| self.span(|| matmul.launch(&operands)));
        let time = Spread::from_values(times.collect::<Result<_>>()?).median;
        Ok(Some(product.flops() as f64 / time))
    }

    /// Measures the bytes read and written per microsecond by a copy on the device. Copies 4 GiB, or a quarter of the free memory
    /// if that is less.
    fn copy_bandwidth(&self) -> Result<f64> {
        let (free, _) = cuda("cuMemGetInfo", result::mem_get_info())?;
        let len = (4 << 30).min(free / 4);
        let (from, to) = (self.device.memory(len)?, self.device.memory(len)?);
        self.device.fill(&from, 0, len, 0x5a)?;
        let times = (0..12).map(|_| self.span(|| self.device.copy(&from, &to, len)));
        Ok(2.0 * len as f64 / Spread::from_values(times.collect::<Result<_>>()?).median)
    }
}

impl Drop for Stopwatch<'_> {
    fn drop(&mut self) {
        for event in self.events {
            // SAFETY: the event was created once, and is destroyed once.
            let _ = unsafe { result::event::destroy(event) };
        }
    }
}

/// A graph of many runs, ready to be timed.
pub struct Replay<'a> {
    watch: &'a Stopwatch<'a>,
    graph: Graph,
    launches: usize,
}

impl Replay<'_> {
    /// Replays the graph, and returns the microseconds of one run.
    pub fn once(&self) -> Result<f64> {
        let all = self.watch.span(|| self.graph.launch(self.watch.device))?;
        Ok(all / self.launches as f64)
    }
}

/// A CUDA graph of captured launches, ready to be replayed.
pub(super) struct Graph {
    graph: sys::CUgraph,
    exec: sys::CUgraphExec,
}

impl Graph {
    /// Enqueues all launches of the graph in the stream.
    pub(super) fn launch(&self, device: &Device) -> Result<()> {
        // SAFETY: the graph is instantiated; the memory that its kernels use outlives the graph.
        cuda("cuGraphLaunch", unsafe {
            result::graph::launch(self.exec, device.stream)
        })
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: both graphs were created once, and are destroyed once.
        unsafe {
            let _ = result::graph::exec_destroy(self.exec);
            let _ = result::graph::destroy(self.graph);
        }
    }
}
