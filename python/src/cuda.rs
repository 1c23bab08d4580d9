//! Reads tensors in CUDA device memory, chunk by chunk. This module loads the CUDA driver library at run time. It needs neither
//! the framework that made the tensor nor host memory for the whole tensor.
//!
//! The producer of the tensor was called with the legacy default stream (`__dlpack__(stream=1)`), and has made that stream wait
//! for the kernels that write the tensor. Once that stream is idle, two streams of this module copy chunks, each stream to its
//! own pinned buffer: the host reads one buffer while the other is filled.

use std::ffi::{CStr, c_char, c_void};
use std::path::PathBuf;
use std::ptr::null_mut;
use std::sync::{Mutex, OnceLock, PoisonError};

use libloading::Library;

/// Bytes of a pinned buffer. Copies of some MiB reach the bandwidth of the bus.
pub const CHUNK: usize = 8 << 20;

/// Handle of the legacy default stream, in the driver and in DLPack.
const LEGACY: usize = 1;

/// Declares the driver functions that this module calls. Each returns a `CUresult`, which is 0 on success.
macro_rules! driver {
    ($($(#[$doc:meta])* $name:ident = $symbol:literal ($($argument:ty),*);)*) => {
        /// Functions of the CUDA driver library.
        struct Driver {
            $($(#[$doc])* $name: unsafe extern "C" fn($($argument),*) -> i32,)*
            /// Keeps the library loaded, because its functions are valid only while it is loaded.
            _library: Library,
        }

        impl Driver {
            /// Loads the driver from a file; `None` if a function is missing.
            fn load(path: PathBuf) -> Option<Self> {
                // SAFETY: the driver's library may be loaded at any time, and its functions are those of cuda.h.
                unsafe {
                    let library = Library::new(path).ok()?;
                    Some(Self { $($name: *library.get($symbol).ok()?,)* _library: library })
                }
            }
        }
    };
}

driver! {
    init = "cuInit" (u32);
    error_name = "cuGetErrorName" (i32, *mut *const c_char);
    /// Returns the device with this index.
    device = "cuDeviceGet" (*mut i32, i32);
    /// Returns the primary context of a device. The CUDA runtime uses this context, and therefore all libraries do.
    retain = "cuDevicePrimaryCtxRetain" (*mut *mut c_void, i32);
    push = "cuCtxPushCurrent_v2" (*mut c_void);
    pop = "cuCtxPopCurrent_v2" (*mut *mut c_void);
    stream = "cuStreamCreate" (*mut *mut c_void, u32);
    synchronize = "cuStreamSynchronize" (*mut c_void);
    pinned = "cuMemAllocHost_v2" (*mut *mut c_void, usize);
    copy = "cuMemcpyDtoHAsync_v2" (*mut c_void, u64, usize, *mut c_void);
}

/// Returns the driver; `None` if the driver cannot be loaded or initialised. The first call loads it, from the file in the
/// environment variable `ULPLAB_CUDA_DRIVER` or else from the system's driver library.
fn driver() -> Option<&'static Driver> {
    static DRIVER: OnceLock<Option<Driver>> = OnceLock::new();
    let load = || {
        let path = std::env::var_os("ULPLAB_CUDA_DRIVER").unwrap_or_else(|| "libcuda.so.1".into());
        let driver = Driver::load(path.into())?;
        // SAFETY: the only argument of `cuInit` is its flags, which must be 0.
        (unsafe { (driver.init)(0) } == 0).then_some(driver)
    };
    DRIVER.get_or_init(load).as_ref()
}

/// True if memory of CUDA devices can be read.
pub fn available() -> bool {
    driver().is_some()
}

impl Driver {
    /// Converts the result code of a driver function to a `Result`.
    fn done(&self, what: &str, code: i32) -> Result<(), String> {
        if code == 0 {
            return Ok(());
        }
        let mut name = std::ptr::null();
        // SAFETY: the name is a string that belongs to the driver, which never frees it.
        let name = unsafe {
            match (self.error_name)(code, &raw mut name) {
                0 if !name.is_null() => CStr::from_ptr(name).to_string_lossy(),
                _ => "unknown".into(),
            }
        };
        Err(format!("the CUDA driver cannot {what}: {name} ({code})"))
    }
}

/// Keeps a context current until this value is dropped.
struct Current(&'static Driver);

impl Current {
    fn push(driver: &'static Driver, context: *mut c_void) -> Result<Self, String> {
        // SAFETY: the context is a device's primary context, which is never released.
        driver.done("use the device's context", unsafe { (driver.push)(context) })?;
        Ok(Self(driver))
    }
}

impl Drop for Current {
    fn drop(&mut self) {
        let mut context = null_mut();
        // SAFETY: this pops the context that was pushed in this thread, since a `Current` is never sent to another thread.
        unsafe { (self.0.pop)(&raw mut context) };
    }
}

/// A pinned buffer, and the stream that fills it.
#[derive(Clone, Copy)]
struct Lane {
    stream: *mut c_void,
    buffer: *mut c_void,
}

/// A reader of a device's memory. It is reused for later tensors, since allocating pinned memory is slow.
struct Reader {
    driver: &'static Driver,
    device: i32,
    context: *mut c_void,
    lanes: [Lane; 2],
}

// SAFETY: contexts, streams and pinned memory may be used by any thread, and a reader has one user at a time.
unsafe impl Send for Reader {}

/// Readers that are not in use.
static IDLE: Mutex<Vec<Reader>> = Mutex::new(Vec::new());

impl Reader {
    /// Returns an idle reader of this device's memory, or a new reader if none is idle.
    fn of(device: i32) -> Result<Self, String> {
        let mut idle = IDLE.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = idle.iter().position(|reader| reader.device == device) {
            return Ok(idle.swap_remove(at));
        }
        drop(idle);
        let driver = driver().ok_or("there is no CUDA driver")?;
        let (mut handle, mut context) = (0, null_mut());
        // SAFETY: the driver writes only to these variables, which live until the call returns.
        unsafe {
            driver.done("find the device", (driver.device)(&raw mut handle, device))?;
            driver.done("get the device's context", (driver.retain)(&raw mut context, handle))?;
        }
        let _current = Current::push(driver, context)?;
        let lane = || {
            let (mut stream, mut buffer) = (null_mut(), null_mut());
            // SAFETY: the driver writes only to these variables; the context is current.
            unsafe {
                driver.done("create a stream", (driver.stream)(&raw mut stream, 0))?;
                driver.done("pin memory", (driver.pinned)(&raw mut buffer, CHUNK))?;
            }
            Ok::<_, String>(Lane { stream, buffer })
        };
        Ok(Self {
            driver,
            device,
            context,
            lanes: [lane()?, lane()?],
        })
    }

    fn wait(&self, stream: *mut c_void) -> Result<(), String> {
        let _current = Current::push(self.driver, self.context)?;
        // SAFETY: the stream belongs to the context, or is the legacy default stream.
        let code = unsafe { (self.driver.synchronize)(stream) };
        self.driver.done("wait for the device", code)
    }

    /// Starts to copy `len` bytes at `address` to a lane's buffer.
    fn start(&self, lane: Lane, address: u64, len: usize) -> Result<(), String> {
        let _current = Current::push(self.driver, self.context)?;
        // SAFETY: the producer of the tensor guarantees that these bytes exist, and `Chunks` asks for at most CHUNK bytes, the
        // size of the buffer.
        let code = unsafe { (self.driver.copy)(lane.buffer, address, len, lane.stream) };
        self.driver.done("copy from the device", code)
    }
}

/// Reads device memory chunk by chunk.
pub struct Chunks {
    /// Reader in use. The destructor of `Chunks` returns the reader to [`IDLE`].
    reader: Option<Reader>,
    address: u64,
    /// Number of bytes of all chunks together, and number of bytes per chunk (`chunk`); the last chunk may be shorter.
    len: usize,
    chunk: usize,
    /// Bytes that were already returned.
    read: usize,
}

impl Chunks {
    /// Reads `len` bytes at an address of a device, `chunk` bytes at a time (at most [`CHUNK`]).
    ///
    /// # Errors
    /// Returns the error of the driver. It may come from a kernel that ran earlier.
    pub fn new(device: i32, address: u64, len: usize, chunk: usize) -> Result<Self, String> {
        let reader = Reader::of(device)?;
        let chunks = Self {
            reader: Some(reader),
            address,
            len,
            chunk: chunk.min(CHUNK),
            read: 0,
        };
        if let Some(reader) = &chunks.reader {
            reader.wait(LEGACY as *mut c_void)?;
            chunks.start(reader, 0)?;
        }
        Ok(chunks)
    }

    /// Number of bytes of the chunk that begins at byte `from`.
    fn size(&self, from: usize) -> usize {
        (self.len - from).min(self.chunk)
    }

    fn lane(&self, reader: &Reader, from: usize) -> Lane {
        reader.lanes[from / self.chunk % 2]
    }

    /// Starts the copy of the chunk that begins at `from`, if there is one.
    fn start(&self, reader: &Reader, from: usize) -> Result<(), String> {
        match from < self.len {
            true => reader.start(self.lane(reader, from), self.address + from as u64, self.size(from)),
            false => Ok(()),
        }
    }

    /// Returns the next chunk, and starts to copy the chunk that follows it. Returns an empty slice at the end.
    ///
    /// # Errors
    /// Returns the error of the driver.
    pub fn next(&mut self) -> Result<&[u8], String> {
        let from = self.read;
        let Some(reader) = self.reader.as_ref().filter(|_| from < self.len) else {
            return Ok(&[]);
        };
        let lane = self.lane(reader, from);
        self.start(reader, from + self.chunk)?;
        reader.wait(lane.stream)?;
        let size = self.size(from);
        self.read += size;
        // SAFETY: the copy has ended, and the buffer is not refilled before the caller requests the next chunk.
        Ok(unsafe { std::slice::from_raw_parts(lane.buffer.cast(), size) })
    }
}

impl Drop for Chunks {
    fn drop(&mut self) {
        let Some(reader) = self.reader.take() else { return };
        // Wait for running copies: they must not write to the buffers of an idle reader, or read from a tensor that its producer
        // may free. If the wait fails, the reader is not reused.
        let waited = reader.lanes.iter().all(|lane| reader.wait(lane.stream).is_ok());
        if waited {
            IDLE.lock().unwrap_or_else(PoisonError::into_inner).push(reader);
        }
    }
}
