//! Reads of tensors in CUDA device memory, chunk by chunk. The CUDA driver library is loaded at run time. The reads need neither the
//! framework that made the tensor nor host memory for the whole tensor.
//!
//! The producer was asked for the tensor on the legacy default stream (`__dlpack__(stream=1)`), and has made that stream wait for
//! the kernels that write the tensor. Once that stream is idle, two streams of our own copy chunks, each stream to its own pinned
//! buffer: the host reads one buffer while the other is filled.

use std::ffi::{CStr, c_char, c_void};
use std::path::PathBuf;
use std::ptr::null_mut;
use std::sync::{Mutex, OnceLock, PoisonError};

use libloading::Library;

/// Bytes of a pinned buffer. Copies of some MiB reach the bandwidth of the bus.
pub const CHUNK: usize = 8 << 20;

/// The handle of the legacy default stream, as the driver and DLPack have it.
const LEGACY: usize = 1;

/// Declares the functions of the driver that are used. Each gives a `CUresult`, which is 0 if all went well.
macro_rules! driver {
    ($($(#[$doc:meta])* $name:ident = $symbol:literal ($($argument:ty),*);)*) => {
        /// The CUDA driver.
        struct Driver {
            $($(#[$doc])* $name: unsafe extern "C" fn($($argument),*) -> i32,)*
            /// Functions are valid as long as it is loaded.
            _library: Library,
        }

        impl Driver {
            /// The driver in a file; none if it has not got all functions.
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
    /// The device of that number.
    device = "cuDeviceGet" (*mut i32, i32);
    /// The context that the runtime, and so every library, uses.
    retain = "cuDevicePrimaryCtxRetain" (*mut *mut c_void, i32);
    push = "cuCtxPushCurrent_v2" (*mut c_void);
    pop = "cuCtxPopCurrent_v2" (*mut *mut c_void);
    stream = "cuStreamCreate" (*mut *mut c_void, u32);
    synchronize = "cuStreamSynchronize" (*mut c_void);
    pinned = "cuMemAllocHost_v2" (*mut *mut c_void, usize);
    copy = "cuMemcpyDtoHAsync_v2" (*mut c_void, u64, usize, *mut c_void);
}

/// Returns the driver, or `None` without one. The first call loads it. `ULPLAB_CUDA_DRIVER` names another file than that of the
/// system.
fn driver() -> Option<&'static Driver> {
    static DRIVER: OnceLock<Option<Driver>> = OnceLock::new();
    let load = || {
        let path = std::env::var_os("ULPLAB_CUDA_DRIVER").unwrap_or_else(|| "libcuda.so.1".into());
        let driver = Driver::load(path.into())?;
        // SAFETY: it has no arguments but flags, which must be 0.
        (unsafe { (driver.init)(0) } == 0).then_some(driver)
    };
    DRIVER.get_or_init(load).as_ref()
}

/// True if memory of CUDA devices can be read.
pub fn available() -> bool {
    driver().is_some()
}

impl Driver {
    /// The result of a function, by its code.
    fn done(&self, what: &str, code: i32) -> Result<(), String> {
        if code == 0 {
            return Ok(());
        }
        let mut name = std::ptr::null();
        // SAFETY: the name is a string of the driver's that is never freed.
        let name = unsafe {
            match (self.error_name)(code, &raw mut name) {
                0 if !name.is_null() => CStr::from_ptr(name).to_string_lossy(),
                _ => "unknown".into(),
            }
        };
        Err(format!("the CUDA driver cannot {what}: {name} ({code})"))
    }
}

/// A context that is current until this is dropped.
struct Current(&'static Driver);

impl Current {
    fn push(driver: &'static Driver, context: *mut c_void) -> Result<Self, String> {
        // SAFETY: the context is a primary one that is never released.
        driver.done("use the device's context", unsafe { (driver.push)(context) })?;
        Ok(Self(driver))
    }
}

impl Drop for Current {
    fn drop(&mut self) {
        let mut context = null_mut();
        // SAFETY: it takes the context off that was pushed in this thread: a `Current` is never sent to another.
        unsafe { (self.0.pop)(&raw mut context) };
    }
}

/// A pinned buffer, and the stream that fills it.
#[derive(Clone, Copy)]
struct Lane {
    stream: *mut c_void,
    buffer: *mut c_void,
}

/// A reader of a device's memory. It is kept for the next tensor, as pinned memory is slow to get.
struct Reader {
    driver: &'static Driver,
    device: i32,
    context: *mut c_void,
    lanes: [Lane; 2],
}

// SAFETY: contexts, streams and pinned memory may be used by any thread, and a reader has one user at a time.
unsafe impl Send for Reader {}

/// Readers that nobody uses.
static IDLE: Mutex<Vec<Reader>> = Mutex::new(Vec::new());

impl Reader {
    /// A reader of that device's memory.
    fn of(device: i32) -> Result<Self, String> {
        let mut idle = IDLE.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = idle.iter().position(|reader| reader.device == device) {
            return Ok(idle.swap_remove(at));
        }
        drop(idle);
        let driver = driver().ok_or("there is no CUDA driver")?;
        let (mut handle, mut context) = (0, null_mut());
        // SAFETY: the driver writes to the places that are handed over, which live until it returns.
        unsafe {
            driver.done("find the device", (driver.device)(&raw mut handle, device))?;
            driver.done("get the device's context", (driver.retain)(&raw mut context, handle))?;
        }
        let _current = Current::push(driver, context)?;
        let lane = || {
            let (mut stream, mut buffer) = (null_mut(), null_mut());
            // SAFETY: as above; the context is current.
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
        // SAFETY: the stream is one of the context's, or the legacy default stream.
        let code = unsafe { (self.driver.synchronize)(stream) };
        self.driver.done("wait for the device", code)
    }

    /// Starts to copy `len` bytes at `address` to a lane's buffer.
    fn start(&self, lane: Lane, address: u64, len: usize) -> Result<(), String> {
        let _current = Current::push(self.driver, self.context)?;
        // SAFETY: the producer of the tensor says that these bytes are there, and `Chunks` asks for no more than CHUNK.
        let code = unsafe { (self.driver.copy)(lane.buffer, address, len, lane.stream) };
        self.driver.done("copy from the device", code)
    }
}

/// Memory of a device, chunk by chunk.
pub struct Chunks {
    /// Given back when it is dropped.
    reader: Option<Reader>,
    address: u64,
    /// Bytes of all chunks, and of each but the last.
    len: usize,
    chunk: usize,
    /// Bytes that were handed over.
    read: usize,
}

impl Chunks {
    /// `len` bytes at an address of a device, `chunk` at a time (at most [`CHUNK`]).
    ///
    /// # Errors
    /// If the driver refuses; an error of a kernel that ran before counts.
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

    /// The bytes of the chunk that begins at `from`.
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

    /// The next chunk, while the one behind it is copied; nothing at the end.
    ///
    /// # Errors
    /// If the driver refuses.
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
        // SAFETY: the copy has ended, and the buffer is filled again only by the request of the next chunk.
        Ok(unsafe { std::slice::from_raw_parts(lane.buffer.cast(), size) })
    }
}

impl Drop for Chunks {
    fn drop(&mut self) {
        let Some(reader) = self.reader.take() else { return };
        // Nothing may be written to the buffers, nor read from the tensor, once they belong to others. A reader that fails is not
        // kept.
        let waited = reader.lanes.iter().all(|lane| reader.wait(lane.stream).is_ok());
        if waited {
            IDLE.lock().unwrap_or_else(PoisonError::into_inner).push(reader);
        }
    }
}
