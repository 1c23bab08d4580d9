//! Compiles CUDA C++ to machine code by NVRTC, on any machine, with or without a GPU.
//!
//! This module loads the library itself, and does not use cudarc's feature `nvrtc`, for two reasons. cudarc 0.19.10 panics if the
//! library (src/nvrtc/sys/mod.rs:551) or one of its functions is missing. It also looks for `libnvrtc.so` on the loader's path
//! first, so that the folder in the environment variable [`VARIABLE`] would not select the compiler.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::{Path, PathBuf};
use std::ptr::{null, null_mut};

use libloading::Library;
use rayon::prelude::*;

use super::cache::{self, Cache};
use super::header::{Mutant, Source};
use ulplab_core::error::{Error, Result, refuse};
use ulplab_core::input;
use ulplab_run::entries::entries;

/// Compiler options for every kernel. They make the compiler keep floating-point operations as written.
pub const FLAGS: &[&str] = &[
    "--std=c++17",
    "--fmad=false",
    "--prec-div=true",
    "--prec-sqrt=true",
    "--ftz=false",
    LINES,
];
/// The option that keeps line numbers, for profilers.
const LINES: &str = "-lineinfo";

/// Environment variable with the folder of a CUDA toolkit, which has `include` and `lib` or `lib64`.
pub const VARIABLE: &str = "ULPLAB_CUDA";

type Program = *mut c_void;
type Strings = *const *const c_char;

/// Calls a function of libnvrtc with arguments of the types in nvrtc.h. The error is NVRTC's message.
macro_rules! call {
    ($nvrtc:expr, $name:expr; $($argument:expr => $type:ty),*) => {
        get::<unsafe extern "C" fn($($type),*) -> c_int>($nvrtc, $name)
            .and_then(|function| check($nvrtc, function($($argument),*)))
    };
}

/// A CUDA toolkit: the compiler, and the headers that kernels include.
pub struct Toolkit {
    nvrtc: Library,
    /// The library libnvrtc-builtins, which must be loaded before libnvrtc compiles.
    _builtins: Option<Library>,
    pub folder: PathBuf,
    pub version: (c_int, c_int),
    cache: Cache,
}

/// A unit to compile: one entry point of a kernel file, or the whole file.
#[derive(Clone, Copy)]
pub struct Unit<'a> {
    pub source: &'a Source,
    /// The architecture, e.g. `sm_90a`.
    pub arch: &'a str,
    /// The planted fault, if any.
    pub fault: Option<&'a Mutant>,
    /// The entry point; `""` for the whole file, if the file does not declare its entry points by the macro `KERNEL`.
    pub entry: &'a str,
}

/// Machine code of a unit.
#[derive(Clone, Debug)]
pub struct Cubin {
    pub bytes: Vec<u8>,
    /// The assembler's report on registers, shared memory and spills of each kernel.
    pub log: String,
}

impl Toolkit {
    /// Opens the first usable toolkit. If there is none, the error names each unusable toolkit and the reason.
    pub fn open() -> Result<Self> {
        let places = places();
        let mut tried = Vec::new();
        for folder in &places {
            match Self::open_at(folder) {
                Ok(Some(toolkit)) => return Ok(toolkit),
                Ok(None) => {}
                Err(why) => tried.push(format!("{}: {why}", folder.display())),
            }
        }
        let hint = format!(
            "no NVRTC found; set {VARIABLE} to the folder of a CUDA 13 toolkit (with include/ and lib/), e.g. that of `pip install \
             --target DIR nvidia-cuda-nvrtc==13.0.88 nvidia-cuda-runtime==13.0.96`: DIR/nvidia/cu13"
        );
        tried.push(hint);
        Err(Error::Setup(tried.join("; ")))
    }

    /// Opens the toolkit in `folder`; `None` if it has no compiler. A compiler without headers is an error.
    fn open_at(folder: &Path) -> std::result::Result<Option<Self>, String> {
        let library = |stem: &str| library_in(folder, stem);
        let Some(nvrtc) = library("libnvrtc.so") else {
            return Ok(None);
        };
        let has_headers = folder.join("include/cuda_bf16.h").is_file();
        refuse(!has_headers, "NVRTC is there, include/cuda_bf16.h is not")?;
        // SAFETY: the initialization of NVIDIA's libraries does not touch the state of this program.
        let load = |path: &Path| unsafe { load(path) };
        let builtins = library("libnvrtc-builtins.so").map(|path| load(&path)).transpose()?;
        let nvrtc = load(&nvrtc)?;
        let mut version = (0, 0);
        // SAFETY: the arguments have the types in nvrtc.h.
        unsafe {
            call!(&nvrtc, b"nvrtcVersion\0"; &raw mut version.0 => *mut c_int, &raw mut version.1 => *mut c_int)
        }?;
        Ok(Some(Self {
            nvrtc,
            _builtins: builtins,
            folder: folder.into(),
            version,
            cache: Cache::open(),
        }))
    }

    /// Compiles a unit (one entry point of a kernel file, or the whole file), or takes its machine code from the cache.
    ///
    /// # Errors
    /// Returns an error if the file does not compile.
    pub fn compile(&self, unit: Unit) -> Result<Cubin> {
        let options = self.options(unit, FLAGS);
        // Leave include paths out of the cache key: the machine code depends on the toolkit's version, not on its folder.
        let decide = options.iter().filter(|option| !option.starts_with("-I"));
        let made_by: Vec<String> = decide.cloned().collect();
        self.cached(&unit.source.digest(), &made_by, || self.compile_by(unit, &options))
    }

    /// Compiles a unit without line numbers, so that moved lines do not change the machine code. Bypasses the cache.
    ///
    /// # Errors
    /// Returns an error if the file does not compile.
    pub fn compile_without_lines(&self, unit: Unit) -> Result<Cubin> {
        let flags: Vec<&str> = FLAGS.iter().copied().filter(|flag| *flag != LINES).collect();
        self.compile_by(unit, &self.options(unit, &flags))
    }

    fn options(&self, unit: Unit, flags: &[&str]) -> Vec<String> {
        let includes = unit.source.path.parent().unwrap_or(Path::new("."));
        let mut options: Vec<String> = flags.iter().map(ToString::to_string).collect();
        options.push(format!("--gpu-architecture={}", unit.arch));
        options.push(format!("-I{}", self.folder.join("include").display()));
        options.push(format!("-I{}", includes.display()));
        options.push("--ptxas-options=-v".into());
        options.extend(unit.fault.map(|fault| format!("-D{}", fault.define())));
        if unit.source.has_units() {
            options.extend(["-DULPLAB_ENTRY".into(), format!("-DULPLAB_ENTRY_{}=~,1", unit.entry)]);
        }
        options
    }

    fn compile_by(&self, unit: Unit, options: &[String]) -> Result<Cubin> {
        let Unit { source, arch, .. } = unit;
        let made = self.run(&source.text, &source.path.display().to_string(), options);
        made.map_err(|why| Error::data(&source.path, format!("does not compile for {arch}:\n{why}")))
    }

    /// Compiles units in parallel, one on each core, to fill the cache before the units are needed one after the other. Errors
    /// are dropped here, and returned when the unit is compiled again.
    pub fn compile_ahead(&self, units: &[Unit]) {
        if self.cache.keeps() {
            units.par_iter().for_each(|unit| drop(self.compile(*unit)));
        }
    }

    /// Returns the digest of the compiler's library.
    ///
    /// # Errors
    /// Returns an error if the library cannot be read.
    pub fn digest(&self) -> Result<String> {
        let library = library_in(&self.folder, "libnvrtc.so").unwrap_or_default();
        Ok(blake3::hash(&input::bytes(&library)?).to_hex()[..32].to_string())
    }

    /// Compiles a text that has no `#include`.
    pub fn compile_text(&self, name: &str, text: &str, arch: &str) -> Result<Cubin> {
        let options = [FLAGS[0].to_string(), format!("--gpu-architecture={arch}")];
        self.cached(&blake3::hash(text.as_bytes()), &options, || {
            let made = self.run(text, name, &options);
            made.map_err(|why| Error::Setup(format!("'{name}' does not compile for {arch}:\n{why}")))
        })
    }

    /// Returns the machine code of a source with the digest `text` and the options `made_by`: from the cache, or else from
    /// `make`. The result of `make` is then cached.
    fn cached(&self, text: &blake3::Hash, made_by: &[String], make: impl FnOnce() -> Result<Cubin>) -> Result<Cubin> {
        let key = cache::key(text, made_by, self.version);
        if let Some(cubin) = self.cache.get(&key) {
            return Ok(cubin);
        }
        let cubin = make()?;
        self.cache.put(&key, &cubin);
        Ok(cubin)
    }

    fn run(&self, text: &str, name: &str, options: &[String]) -> std::result::Result<Cubin, String> {
        let c = |text: &str| CString::new(text).map_err(|_| "a NUL byte in the source or an option".to_string());
        let (text, name) = (c(text)?, c(name)?);
        let options = options.iter().map(|option| c(option));
        let options = options.collect::<std::result::Result<Vec<_>, _>>()?;
        let options: Vec<*const c_char> = options.iter().map(|option| option.as_ptr()).collect();
        let nvrtc = &self.nvrtc;
        // SAFETY: the arguments have the types in nvrtc.h; strings outlive the calls.
        unsafe {
            let mut program: Program = null_mut();
            call!(nvrtc, b"nvrtcCreateProgram\0"; &raw mut program => *mut Program, text.as_ptr() => *const c_char,
                name.as_ptr() => *const c_char, 0 => c_int, null() => Strings, null() => Strings)?;
            let compiled = call!(nvrtc, b"nvrtcCompileProgram\0"; program => Program, options.len() as c_int => c_int,
                options.as_ptr() => Strings);
            let log = bytes(nvrtc, program, b"nvrtcGetProgramLogSize\0", b"nvrtcGetProgramLog\0");
            let cubin = bytes(nvrtc, program, b"nvrtcGetCUBINSize\0", b"nvrtcGetCUBIN\0");
            call!(nvrtc, b"nvrtcDestroyProgram\0"; &raw mut program => *mut Program)?;
            let log = String::from_utf8_lossy(&log?).trim_end_matches('\0').trim().to_string();
            match compiled {
                Ok(()) => Ok(Cubin { bytes: cubin?, log }),
                Err(_) => Err(log),
            }
        }
    }
}

/// Returns the log or the machine code of a compiled program. `size` and `get` name the NVRTC functions that return the number of
/// bytes and the bytes.
///
/// # Safety
/// The program must not be destroyed yet, and both functions must have the types used here.
unsafe fn bytes(nvrtc: &Library, program: Program, size: &[u8], get: &[u8]) -> std::result::Result<Vec<u8>, String> {
    let mut len = 0;
    // SAFETY: guaranteed by the caller; the buffer has the size that NVRTC requests.
    unsafe {
        call!(nvrtc, size; program => Program, &raw mut len => *mut usize)?;
        let mut bytes = vec![0u8; len];
        call!(nvrtc, get; program => Program, bytes.as_mut_ptr().cast() => *mut c_char)?;
        Ok(bytes)
    }
}

/// Looks up a function in a library.
///
/// # Safety
/// The function must have the type `F`.
unsafe fn get<'l, F>(library: &'l Library, name: &[u8]) -> std::result::Result<libloading::Symbol<'l, F>, String> {
    // SAFETY: guaranteed by the caller.
    unsafe { library.get(name) }.map_err(|error| error.to_string())
}

/// Returns an error with NVRTC's message unless the status is 0.
fn check(nvrtc: &Library, status: c_int) -> std::result::Result<(), String> {
    if status == 0 {
        return Ok(());
    }
    // SAFETY: the function has the type in nvrtc.h; the string is static.
    let words = unsafe {
        let words = get::<unsafe extern "C" fn(c_int) -> *const c_char>(nvrtc, b"nvrtcGetErrorString\0")?;
        CStr::from_ptr(words(status))
    };
    Err(words.to_string_lossy().into_owned())
}

const RTLD_NOW: c_int = 2;
const RTLD_GLOBAL: c_int = 0x100;

/// Loads a library with `RTLD_GLOBAL`. Code that later loads the library by its name, such as cudarc, then gets this library.
///
/// # Safety
/// The library's initialization must be harmless.
pub unsafe fn load(path: &Path) -> std::result::Result<Library, String> {
    // SAFETY: guaranteed by the caller.
    let library = unsafe { libloading::os::unix::Library::open(Some(path), RTLD_NOW | RTLD_GLOBAL) };
    library.map(Library::from).map_err(|error| error.to_string())
}

/// Returns the path of a library in the first toolkit that has it.
pub fn library(stem: &str) -> Option<PathBuf> {
    places().iter().find_map(|folder| library_in(folder, stem))
}

/// Returns the path of a library in a toolkit; the highest version if there are several.
fn library_in(folder: &Path, stem: &str) -> Option<PathBuf> {
    let folders = ["lib64", "lib", "lib/x86_64-linux-gnu"].map(|name| folder.join(name));
    let newest = |folder: &PathBuf| {
        let named = entries(folder, "read").unwrap_or_default().into_iter();
        named.filter(|path| begins(path, stem)).max()
    };
    folders.iter().find_map(newest)
}

/// True if the file name of a path begins with `stem`.
fn begins(path: &Path, stem: &str) -> bool {
    path.file_name()
        .is_some_and(|name| name.to_string_lossy().starts_with(stem))
}

/// Returns the folders that may have a toolkit, in search order.
fn places() -> Vec<PathBuf> {
    if let Some(folder) = std::env::var_os(VARIABLE) {
        return vec![folder.into()];
    }
    let named = ["CUDA_HOME", "CUDA_PATH"].iter().filter_map(std::env::var_os);
    let mut places: Vec<PathBuf> = named.map(PathBuf::from).collect();
    places.push("/usr/local/cuda".into());
    // The folders in which pip installs nvidia-cuda-nvrtc: in a virtual environment, or with the system's Python.
    let mut prefixes: Vec<PathBuf> = std::env::var_os("VIRTUAL_ENV").into_iter().map(PathBuf::from).collect();
    prefixes.extend([".venv", "/usr/local", "/usr"].map(PathBuf::from));
    for prefix in prefixes {
        let mut pythons = entries(&prefix.join("lib"), "read").unwrap_or_default();
        pythons.retain(|path| begins(path, "python3"));
        for packages in ["site-packages", "dist-packages"] {
            let folder = |python: &PathBuf| python.join(packages).join("nvidia/cu13");
            places.extend(pythons.iter().rev().map(folder));
        }
    }
    places
}
