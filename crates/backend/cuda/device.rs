//! A GPU, its memory and its stream. Opening it is an error, not a panic, if there is none.

use std::ffi::c_void;
use std::ptr::null_mut;
use std::time::{Duration, Instant};

use cudarc::driver::{result, sys};

use super::folded::Folded;
use super::turn::{Turn, Turns};
use super::watchdog::Watchdog;
use ulplab_core::error::{Error, Result};

/// The first GPU of the machine, and one stream on it. Used from one thread.
pub struct Device {
    /// The number that the driver gives the GPU.
    pub(super) context: sys::CUdevice,
    pub stream: sys::CUstream,
    pub name: String,
    /// Version of CUDA that the driver is for, e.g. `13.0`.
    pub driver: String,
    /// The architecture that kernels are compiled for: `sm_90a`.
    pub arch: String,
    /// The first number of its compute capability.
    pub major: i32,
    /// Multiprocessors.
    pub sms: i64,
    /// Bytes of the second-level cache.
    pub l2: usize,
    /// Turns for work: other processes that use the device wait for them.
    pub turns: Turns,
    /// Turns for memory: other processes that need much of it wait for them.
    allocations: Turns,
    /// Ends the process if a kernel never returns.
    pub watchdog: Watchdog,
}

/// Longest wait for memory that other processes have.
const PATIENCE: Duration = Duration::from_secs(240);
/// Patience when the request is most of the card's memory: even idle processes may leave too little, until they end. Eight of them
/// had 7.8 GB of an H100's 80, which left no room for the largest case of `decode_step`.
const LONG_PATIENCE: Duration = Duration::from_secs(900);
/// Bytes that stay free in addition to the request: for small allocations, and for the driver's rounding.
const SPARE: usize = 1 << 30;
/// Bytes of the largest allocation from the pool.
const LARGEST_POOLED: usize = 64 << 20;
/// Bytes that the pool keeps when they are free.
const MOST_KEPT: u64 = 512 << 20;

/// A driver error as a set-up error.
pub fn cuda<T>(what: &str, result: std::result::Result<T, result::DriverError>) -> Result<T> {
    result.map_err(|error| {
        let text = error
            .error_string()
            .map_or_else(|_| format!("{error:?}"), |text| text.to_string_lossy().into_owned());
        Error::Setup(format!("{what}: {text}"))
    })
}

impl Device {
    /// The first GPU, or why there is none.
    pub fn open() -> Result<Self> {
        // SAFETY: only tries to load the driver's library.
        if !unsafe { sys::is_culib_present() } {
            return Err(Error::Setup("no CUDA driver: libcuda.so is not found".into()));
        }
        cuda("cuInit", result::init())?;
        if cuda("cuDeviceGetCount", result::device::get_count())? == 0 {
            return Err(Error::Setup("the CUDA driver sees no GPU".into()));
        }
        let device = cuda("cuDeviceGet", result::device::get(0))?;
        // SAFETY: the device is valid; the context is released when this is dropped.
        unsafe {
            let context = cuda("cuDevicePrimaryCtxRetain", result::primary_ctx::retain(device))?;
            cuda("cuCtxSetCurrent", result::ctx::set_current(context))?;
        }
        use sys::CUdevice_attribute as Attribute;
        // SAFETY: the device is valid.
        let attribute = |what| {
            cuda("cuDeviceGetAttribute", unsafe {
                result::device::get_attribute(device, what)
            })
        };
        let major = attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
        let minor = attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
        // Which of several cards is the first is up to CUDA_VISIBLE_DEVICES.
        let uuid = cuda("cuDeviceGetUuid", result::device::get_uuid(device))?;
        let card: String = uuid.bytes.iter().map(|byte| format!("{:02x}", *byte as u8)).collect();
        let mut driver = 0;
        // SAFETY: writes one integer.
        let found = unsafe { sys::cuDriverGetVersion(&raw mut driver) };
        cuda("cuDriverGetVersion", found.result())?;
        let stream = result::stream::create(result::stream::StreamKind::NonBlocking);
        let device = Self {
            context: device,
            stream: cuda("cuStreamCreate", stream)?,
            name: cuda("cuDeviceGetName", result::device::get_name(device))?,
            driver: format!("{}.{}", driver / 1000, driver % 1000 / 10),
            arch: format!("sm_{major}{minor}{}", if major >= 9 { "a" } else { "" }),
            major,
            sms: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?.into(),
            l2: attribute(Attribute::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)? as usize,
            turns: Turns::open(&card, "work"),
            allocations: Turns::open(&card, "memory"),
            watchdog: Watchdog::default(),
        };
        device.keep_freed()?;
        Ok(device)
    }

    /// Number of GPUs that this process may use.
    pub fn count() -> Result<usize> {
        let count = cuda("cuDeviceGetCount", result::device::get_count())?;
        Ok(usize::try_from(count).unwrap_or(0))
    }

    /// The card and its driver, in a line.
    pub fn describe(&self) -> String {
        let (name, sms, driver) = (&self.name, self.sms, &self.driver);
        format!("{name}, {sms} multiprocessors, driver for CUDA {driver}")
    }

    /// Waits for all work; an error of any launch before shows here.
    pub fn wait(&self) -> Result<()> {
        // SAFETY: the stream is ours.
        let done = || unsafe { sys::cuStreamQuery(self.stream) };
        cuda("kernel", self.watchdog.until(done))
    }

    /// Waits until that many bytes are free, where other processes have them, or until it is in vain: then allocations fail. Nobody
    /// else who needs much finds room while this turn lasts, so that none gets a part. Nobody waits for little. Who needs most of the
    /// card waits for processes to end, and lets them find room meanwhile.
    pub fn room(&self, bytes: usize) -> Result<Option<Turn<'_>>> {
        if bytes <= SPARE {
            return Ok(None);
        }
        let (start, mut held) = (Instant::now(), None);
        loop {
            let turn = held.take().unwrap_or_else(|| self.allocations.alone());
            let (free, total) = cuda("cuMemGetInfo", result::mem_get_info())?;
            let most = bytes > total / 2;
            let patience = if most { LONG_PATIENCE } else { PATIENCE };
            if free >= bytes + SPARE || total < bytes + SPARE || start.elapsed() > patience {
                return Ok(Some(turn));
            }
            held = (!most).then_some(turn);
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Memory with any content. Small allocations are of the driver's pool, which keeps what is freed: a check allocates the same
    /// buffers a dozen times, and each return to the driver would wait for the whole card.
    pub fn memory(&self, len: usize) -> Result<Memory> {
        let pooled = (len <= LARGEST_POOLED).then_some(self.stream);
        // SAFETY: the context is current; freed when dropped.
        let address = cuda(&format!("{len} bytes on the device"), unsafe {
            match pooled {
                Some(stream) => result::malloc_async(stream, len.max(1)),
                None => result::malloc_sync(len.max(1)),
            }
        })?;
        let held = pooled.map_or(Held::Alone, Held::Pooled);
        Ok(Memory { address, len, held })
    }

    /// Has the pool of small allocations keep what is freed.
    fn keep_freed(&self) -> Result<()> {
        use sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD as THRESHOLD;
        let (mut pool, mut kept) = (null_mut(), MOST_KEPT);
        // SAFETY: writes a handle, then reads one number.
        cuda("cuDeviceGetDefaultMemPool", unsafe {
            sys::cuDeviceGetDefaultMemPool(&raw mut pool, self.context).result()
        })?;
        cuda("cuMemPoolSetAttribute", unsafe {
            sys::cuMemPoolSetAttribute(pool, THRESHOLD, (&raw mut kept).cast()).result()
        })
    }

    /// Fills memory in the stream's order.
    pub fn fill(&self, memory: &Memory, from: usize, len: usize, byte: u8) -> Result<()> {
        assert!(from + len <= memory.len, "fill within memory");
        if len == 0 {
            return Ok(());
        }
        // SAFETY: within the allocation.
        cuda("cuMemsetD8Async", unsafe {
            result::memset_d8_async(memory.address + from as u64, byte, len, self.stream)
        })
    }

    /// Has lines that the L2 cache was asked to keep be evicted as any others.
    pub fn reset_persisting_l2(&self) -> Result<()> {
        // SAFETY: there is a context; the contents of memory stay as they are.
        cuda("cuCtxResetPersistingL2Cache", unsafe {
            sys::cuCtxResetPersistingL2Cache().result()
        })
    }

    /// Copies to the device, and waits: a copy from pageable memory returns before its last bytes have arrived, and other
    /// streams do not wait for those.
    pub fn write(&self, memory: &Memory, at: usize, bytes: &[u8]) -> Result<()> {
        assert!(at + bytes.len() <= memory.len, "write within memory");
        if bytes.is_empty() {
            return Ok(());
        }
        // SAFETY: within the allocation; `bytes` outlives the wait.
        cuda("cuMemcpyHtoDAsync", unsafe {
            result::memcpy_htod_async(memory.address + at as u64, bytes, self.stream)
        })?;
        self.wait()
    }

    /// Writes as [`write`](Self::write) does, and repeats the bytes until they fill `len`.
    pub fn write_repeated(&self, memory: &Memory, at: usize, bytes: &[u8], len: usize) -> Result<()> {
        self.write(memory, at, bytes)?;
        let (start, mut done) = (memory.address + at as u64, bytes.len());
        assert!(at + len <= memory.len, "write within memory");
        while done > 0 && done < len {
            let more = done.min(len - done);
            // SAFETY: within the allocation; the parts do not overlap.
            cuda("cuMemcpyDtoDAsync", unsafe {
                result::memcpy_dtod_async(start + done as u64, start, more, self.stream)
            })?;
            done += more;
        }
        Ok(())
    }

    /// Copies from the device, after all work before.
    pub fn read(&self, memory: &Memory, at: usize, len: usize) -> Result<Vec<u8>> {
        assert!(at + len <= memory.len, "read within memory");
        self.wait()?;
        let mut bytes = vec![0; len];
        if len > 0 {
            // SAFETY: within the allocation.
            cuda("cuMemcpyDtoH", unsafe {
                result::memcpy_dtoh_sync(&mut bytes, memory.address + at as u64)
            })?;
        }
        Ok(bytes)
    }

    /// Copies on the device in the stream's order.
    pub fn copy(&self, from: &Memory, to: &Memory, len: usize) -> Result<()> {
        assert!(len <= from.len.min(to.len), "copy within memory");
        // SAFETY: within the allocations.
        cuda("cuMemcpyDtoDAsync", unsafe {
            result::memcpy_dtod_async(to.address, from.address, len, self.stream)
        })
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // SAFETY: both are ours. An error here is ignored.
        unsafe {
            let _ = result::stream::destroy(self.stream);
            let _ = result::primary_ctx::release(self.context);
        }
    }
}

/// Memory on the device.
pub struct Memory {
    pub address: sys::CUdeviceptr,
    pub len: usize,
    pub(super) held: Held,
}

/// The owner to which memory goes back.
pub(super) enum Held {
    /// To the pool, in the order of this stream.
    Pooled(sys::CUstream),
    Alone,
    /// Its addresses are given back with this.
    Folded {
        _addresses: Folded,
    },
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: allocated by `Device::memory`, freed once.
        let _ = unsafe {
            match self.held {
                Held::Pooled(stream) => result::free_async(self.address, stream),
                Held::Alone => result::free_sync(self.address),
                Held::Folded { .. } => Ok(()),
            }
        };
    }
}

/// Machine code on the device.
pub struct Module(sys::CUmodule);

impl Module {
    pub fn load(cubin: &[u8]) -> Result<Self> {
        // SAFETY: the driver checks the image.
        let loaded = unsafe { result::module::load_data(cubin.as_ptr().cast()) };
        cuda("cuModuleLoadData", loaded).map(Self)
    }

    /// The function of that name.
    pub fn function(&self, entry: &str) -> Result<Function> {
        let name = std::ffi::CString::new(entry).map_err(|_| Error::Usage(format!("entry '{entry}' has a NUL")))?;
        // SAFETY: the module is loaded.
        let handle = cuda(&format!("entry '{entry}'"), unsafe {
            result::module::get_function(self.0, name)
        })?;
        // SAFETY: the function is of this module; a number behind the last parameter is refused.
        let size = |number| unsafe {
            let (mut offset, mut size) = (0, 0);
            let found = sys::cuFuncGetParamInfo(handle, number, &raw mut offset, &raw mut size).result();
            found.ok().map(|()| size)
        };
        Ok(Function {
            handle,
            parameters: (0..).map_while(size).collect(),
        })
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        // SAFETY: loaded once, unloaded once.
        let _ = unsafe { result::module::unload(self.0) };
    }
}

/// A kernel of a module that is loaded; not to be used once that is dropped.
#[derive(Clone)]
pub struct Function {
    handle: sys::CUfunction,
    /// Bytes of each.
    parameters: Vec<usize>,
}

/// Shape and attributes of a launch.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Shape {
    pub grid: [u32; 3],
    pub block: [u32; 3],
    pub cluster: Option<[u32; 3]>,
    pub shared: u32,
    pub cooperative: bool,
    pub programmatic: bool,
}

/// One argument of a kernel, as its eight or four bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Argument {
    Wide(u64),
    Narrow(u32),
}

impl Argument {
    /// The number, and how many bytes of it the kernel reads.
    fn value(self) -> (u64, usize) {
        match self {
            Self::Wide(value) => (value, 8),
            Self::Narrow(value) => (value.into(), 4),
        }
    }
}

impl Device {
    /// Readies a function for the shared memory and cluster size of a launch.
    pub fn prepare(&self, function: &Function, shape: &Shape) -> Result<()> {
        use sys::CUfunction_attribute as Attribute;
        let set = |attribute, value: i32| {
            // SAFETY: the function is of a loaded module.
            cuda("cuFuncSetAttribute", unsafe {
                result::function::set_function_attribute(function.handle, attribute, value)
            })
        };
        // Beyond 48 KB together with the kernel's static shared memory. Several launches of a function may need different sizes.
        let most = Attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        // SAFETY: the function is of a loaded module.
        let now = unsafe { result::function::get_function_attribute(function.handle, most) };
        if shape.shared as i32 > cuda("cuFuncGetAttribute", now)? {
            set(most, shape.shared as i32)?;
        }
        if shape.cluster.is_some_and(|cluster| cluster.iter().product::<u32>() > 8) {
            set(Attribute::CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1)?;
        }
        Ok(())
    }

    /// Puts a launch into the stream.
    pub fn launch(&self, function: &Function, shape: &Shape, arguments: &[Argument]) -> Result<()> {
        let (mut values, given): (Vec<u64>, Vec<usize>) = arguments.iter().map(|argument| argument.value()).unzip();
        // The driver would read the bytes behind the last argument.
        if given != function.parameters {
            return Err(Error::Setup(format!(
                "the kernel takes {} parameters, of {:?} bytes; `args` of the launch has {}, of {given:?} bytes",
                function.parameters.len(),
                function.parameters,
                given.len(),
            )));
        }
        let pointers = values.iter_mut().map(|value| std::ptr::from_mut(value).cast());
        let mut pointers: Vec<*mut c_void> = pointers.collect();
        let attribute = |id, value| sys::CUlaunchAttribute { id, pad: [0; 4], value };
        use sys::CUlaunchAttributeID as Id;
        use sys::CUlaunchAttributeValue as Value;
        let mut attributes = Vec::new();
        if let Some([x, y, z]) = shape.cluster {
            let cluster = sys::CUlaunchAttributeValue_union__bindgen_ty_1 { x, y, z };
            attributes.push(attribute(
                Id::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION,
                Value { clusterDim: cluster },
            ));
        }
        if shape.cooperative {
            attributes.push(attribute(Id::CU_LAUNCH_ATTRIBUTE_COOPERATIVE, Value { cooperative: 1 }));
        }
        if shape.programmatic {
            let value = Value {
                programmaticStreamSerializationAllowed: 1,
            };
            attributes.push(attribute(
                Id::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
                value,
            ));
        }
        let config = sys::CUlaunchConfig {
            gridDimX: shape.grid[0],
            gridDimY: shape.grid[1],
            gridDimZ: shape.grid[2],
            blockDimX: shape.block[0],
            blockDimY: shape.block[1],
            blockDimZ: shape.block[2],
            sharedMemBytes: shape.shared,
            hStream: self.stream,
            attrs: attributes.as_mut_ptr(),
            numAttrs: attributes.len() as u32,
        };
        // SAFETY: the driver copies arguments and attributes before it returns, and arguments have the sizes of the kernel's
        // parameters. That they mean the same is what the header says; guard bands show where it does not.
        cuda(
            "launch",
            unsafe { sys::cuLaunchKernelEx(&raw const config, function.handle, pointers.as_mut_ptr(), null_mut()) }
                .result(),
        )
    }
}
