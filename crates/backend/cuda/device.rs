//! A GPU, its memory and its stream. Opening a device returns an error, and does not panic, if there is no GPU.

use std::ffi::c_void;
use std::ptr::null_mut;
use std::time::{Duration, Instant};

use cudarc::driver::{result, sys};

use super::folded::Folded;
use super::turn::{Turn, Turns};
use super::watchdog::Watchdog;
use ulplab_core::error::{Error, Result};

/// The first GPU that the process sees, and one stream on it. Must be used from one thread.
pub struct Device {
    /// Driver handle of the GPU.
    pub(super) context: sys::CUdevice,
    pub stream: sys::CUstream,
    pub name: String,
    /// CUDA version that the driver supports, e.g. `13.0`.
    pub driver: String,
    /// Architecture for which kernels are compiled, e.g. `sm_90a`.
    pub arch: String,
    /// Major number of the compute capability.
    pub major: i32,
    /// Number of multiprocessors.
    pub sms: i64,
    /// Size of the L2 cache in bytes.
    pub l2: usize,
    /// Lock for work on the device, shared with other processes.
    pub turns: Turns,
    /// Lock for large allocations, shared with other processes.
    allocations: Turns,
    /// Ends the process if a kernel never returns.
    pub watchdog: Watchdog,
}

/// Longest wait for memory that other processes hold.
const PATIENCE: Duration = Duration::from_secs(240);
/// Longest wait for memory if the request is more than half of the card's memory. Such a request may have to wait until idle
/// processes end: eight idle processes once held 7.8 GB of an H100's 80 GB, and the largest test of `decode_step` did not fit.
const LONG_PATIENCE: Duration = Duration::from_secs(900);
/// Bytes that must stay free in addition to a request, as a reserve for small allocations and for the driver's rounding of sizes.
const SPARE: usize = 1 << 30;
/// Largest size in bytes of an allocation from the driver's pool.
const LARGEST_POOLED: usize = 64 << 20;
/// Largest number of freed bytes that the pool keeps.
const MOST_KEPT: u64 = 512 << 20;

/// Converts a driver error to a setup error; `what` names the failed call.
pub fn cuda<T>(what: &str, result: std::result::Result<T, result::DriverError>) -> Result<T> {
    result.map_err(|error| {
        let text = error
            .error_string()
            .map_or_else(|_| format!("{error:?}"), |text| text.to_string_lossy().into_owned());
        Error::Setup(format!("{what}: {text}"))
    })
}

impl Device {
    /// Opens the first GPU. The error says why no GPU can be opened.
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
        // SAFETY: the device is valid; the context is released when the `Device` is dropped.
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
        // Name the locks by the card's UUID: the card's index differs between processes with different `CUDA_VISIBLE_DEVICES`.
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

    /// Describes the card and its driver in one line.
    pub fn describe(&self) -> String {
        let (name, sms, driver) = (&self.name, self.sms, &self.driver);
        format!("{name}, {sms} multiprocessors, driver for CUDA {driver}")
    }

    /// Waits for all work in the stream. Returns the errors of earlier launches.
    pub fn wait(&self) -> Result<()> {
        // SAFETY: the stream lives as long as the `Device`.
        let done = || unsafe { sys::cuStreamQuery(self.stream) };
        cuda("kernel", self.watchdog.until(done))
    }

    /// Waits until `bytes` of device memory are free. Returns a lock; the caller holds it while allocating, so that no other
    /// large request takes this memory. Returns `None` without a wait for a request of at most 1 GiB. If the wait is
    /// too long or the card too small, returns the lock without enough free memory, and the allocation then fails. A request for
    /// more than half of the card releases the lock between attempts, so that other processes can allocate and end.
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

    /// Allocates uninitialized memory. Small allocations come from the driver's pool, which keeps freed memory: a check allocates
    /// the same buffers a dozen times, and freeing a buffer outside the pool waits for all work on the card.
    pub fn memory(&self, len: usize) -> Result<Memory> {
        let pooled = (len <= LARGEST_POOLED).then_some(self.stream);
        // SAFETY: the context is current; the memory is freed when `Memory` is dropped.
        let address = cuda(&format!("{len} bytes on the device"), unsafe {
            match pooled {
                Some(stream) => result::malloc_async(stream, len.max(1)),
                None => result::malloc_sync(len.max(1)),
            }
        })?;
        let held = pooled.map_or(Held::Alone, Held::Pooled);
        Ok(Memory { address, len, held })
    }

    /// Configures the pool of small allocations to keep freed memory.
    fn keep_freed(&self) -> Result<()> {
        use sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD as THRESHOLD;
        let (mut pool, mut kept) = (null_mut(), MOST_KEPT);
        // SAFETY: the first call writes only `pool`, and the second call reads only `kept`; both are local variables.
        cuda("cuDeviceGetDefaultMemPool", unsafe {
            sys::cuDeviceGetDefaultMemPool(&raw mut pool, self.context).result()
        })?;
        cuda("cuMemPoolSetAttribute", unsafe {
            sys::cuMemPoolSetAttribute(pool, THRESHOLD, (&raw mut kept).cast()).result()
        })
    }

    /// Sets `len` bytes of memory from offset `from` on to `byte`, in stream order.
    pub fn fill(&self, memory: &Memory, from: usize, len: usize, byte: u8) -> Result<()> {
        assert!(from + len <= memory.len, "fill within memory");
        if len == 0 {
            return Ok(());
        }
        // SAFETY: the range lies within the allocation.
        cuda("cuMemsetD8Async", unsafe {
            result::memset_d8_async(memory.address + from as u64, byte, len, self.stream)
        })
    }

    /// Copies bytes to the device, and waits for their arrival: a copy from pageable memory may return before its last bytes have
    /// arrived, and other streams would not wait for these bytes.
    pub fn write(&self, memory: &Memory, at: usize, bytes: &[u8]) -> Result<()> {
        assert!(at + bytes.len() <= memory.len, "write within memory");
        if bytes.is_empty() {
            return Ok(());
        }
        // SAFETY: the range lies within the allocation; `bytes` outlives the wait.
        cuda("cuMemcpyHtoDAsync", unsafe {
            result::memcpy_htod_async(memory.address + at as u64, bytes, self.stream)
        })?;
        self.wait()
    }

    /// Same as [`write`](Self::write), but repeats the bytes until they fill `len` bytes.
    pub fn write_repeated(&self, memory: &Memory, at: usize, bytes: &[u8], len: usize) -> Result<()> {
        self.write(memory, at, bytes)?;
        let (start, mut done) = (memory.address + at as u64, bytes.len());
        assert!(at + len <= memory.len, "write within memory");
        while done > 0 && done < len {
            let more = done.min(len - done);
            // SAFETY: both ranges lie within the allocation, and do not overlap.
            cuda("cuMemcpyDtoDAsync", unsafe {
                result::memcpy_dtod_async(start + done as u64, start, more, self.stream)
            })?;
            done += more;
        }
        Ok(())
    }

    /// Waits for all earlier work, then copies `len` bytes of device memory from offset `at` on to the host.
    pub fn read(&self, memory: &Memory, at: usize, len: usize) -> Result<Vec<u8>> {
        assert!(at + len <= memory.len, "read within memory");
        self.wait()?;
        let mut bytes = vec![0; len];
        if len > 0 {
            // SAFETY: the range lies within the allocation.
            cuda("cuMemcpyDtoH", unsafe {
                result::memcpy_dtoh_sync(&mut bytes, memory.address + at as u64)
            })?;
        }
        Ok(bytes)
    }

    /// Copies the first `len` bytes of `from` to `to`, both on the device, in stream order.
    pub fn copy(&self, from: &Memory, to: &Memory, len: usize) -> Result<()> {
        assert!(len <= from.len.min(to.len), "copy within memory");
        // SAFETY: both ranges lie within their allocations.
        cuda("cuMemcpyDtoDAsync", unsafe {
            result::memcpy_dtod_async(to.address, from.address, len, self.stream)
        })
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // SAFETY: the stream and the context belong to this `Device`. Errors are ignored.
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

/// Kind of an allocation, which decides how the memory is freed.
pub(super) enum Held {
    /// Memory from the driver's pool, freed in the order of this stream.
    Pooled(sys::CUstream),
    Alone,
    /// A range of addresses from `Device::folded`: one physical block is mapped to all parts of the range. Dropping `_addresses`
    /// frees the block and the range.
    Folded {
        _addresses: Folded,
    },
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the memory was allocated by `Device::memory`, and is freed once.
        let _ = unsafe {
            match self.held {
                Held::Pooled(stream) => result::free_async(self.address, stream),
                Held::Alone => result::free_sync(self.address),
                Held::Folded { .. } => Ok(()),
            }
        };
    }
}

/// A module of machine code, loaded on the device.
pub struct Module(sys::CUmodule);

impl Module {
    pub fn load(cubin: &[u8]) -> Result<Self> {
        // SAFETY: the driver checks the image.
        let loaded = unsafe { result::module::load_data(cubin.as_ptr().cast()) };
        cuda("cuModuleLoadData", loaded).map(Self)
    }

    /// Returns the function of the entry point `entry`.
    pub fn function(&self, entry: &str) -> Result<Function> {
        let name = std::ffi::CString::new(entry).map_err(|_| Error::Usage(format!("entry '{entry}' has a NUL")))?;
        // SAFETY: the module is loaded.
        let handle = cuda(&format!("entry '{entry}'"), unsafe {
            result::module::get_function(self.0, name)
        })?;
        // SAFETY: the function belongs to this module; the driver rejects an index after the last parameter.
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
        // SAFETY: the module was loaded once, and is unloaded once.
        let _ = unsafe { result::module::unload(self.0) };
    }
}

/// A kernel of a loaded module. It must not be used after the module is dropped.
#[derive(Clone)]
pub struct Function {
    handle: sys::CUfunction,
    /// Size of each parameter in bytes.
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

/// One argument of a kernel, as eight or four bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Argument {
    Wide(u64),
    Narrow(u32),
}

impl Argument {
    /// Returns the argument's bits, and its size in bytes.
    fn value(self) -> (u64, usize) {
        match self {
            Self::Wide(value) => (value, 8),
            Self::Narrow(value) => (value.into(), 4),
        }
    }
}

impl Device {
    /// Sets the attributes that a function needs for the shared memory and cluster size of a launch.
    pub fn prepare(&self, function: &Function, shape: &Shape) -> Result<()> {
        use sys::CUfunction_attribute as Attribute;
        let set = |attribute, value: i32| {
            // SAFETY: the function belongs to a loaded module.
            cuda("cuFuncSetAttribute", unsafe {
                result::function::set_function_attribute(function.handle, attribute, value)
            })
        };
        // CUDA requires a raised limit of dynamic shared memory if a launch needs more than 48 KB, static shared memory included.
        // Never lower the limit: other launches of the function may need more.
        let most = Attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        // SAFETY: the function belongs to a loaded module.
        let now = unsafe { result::function::get_function_attribute(function.handle, most) };
        if shape.shared as i32 > cuda("cuFuncGetAttribute", now)? {
            set(most, shape.shared as i32)?;
        }
        if shape.cluster.is_some_and(|cluster| cluster.iter().product::<u32>() > 8) {
            set(Attribute::CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1)?;
        }
        Ok(())
    }

    /// Enqueues a kernel launch in the stream.
    pub fn launch(&self, function: &Function, shape: &Shape, arguments: &[Argument]) -> Result<()> {
        let (mut values, given): (Vec<u64>, Vec<usize>) = arguments.iter().map(|argument| argument.value()).unzip();
        // Reject arguments of wrong sizes: the driver would read past the end of the last argument.
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
        // SAFETY: the driver copies arguments and attributes before it returns, and the arguments have the sizes of the kernel's
        // parameters. Nothing checks that the kernel uses the arguments as its header says, but guard bands reveal wrong writes.
        cuda(
            "launch",
            unsafe { sys::cuLaunchKernelEx(&raw const config, function.handle, pointers.as_mut_ptr(), null_mut()) }
                .result(),
        )
    }
}
