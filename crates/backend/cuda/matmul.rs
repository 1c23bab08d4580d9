//! Matrix products by cuBLASLt: the baseline for all kernels that multiply matrices.

use std::ffi::{c_int, c_void};

use cudarc::cublaslt::{result, sys};

use super::device::{Device, Memory};
use super::header::{Factor, Sum};
use super::time::{Spread, Stopwatch};
use super::toolkit;
use ulplab_core::error::{Error, Result};

/// Size of cuBLASLt's workspace in bytes.
static WORKSPACE: usize = 32 << 20;

/// D = A·Bᵀ, summed in f32.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Product {
    /// m, n, k: A [m, k], B [n, k], D [m, n], rows contiguous.
    pub sizes: [usize; 3],
    pub of: Factor,
    pub into: Sum,
}

impl Product {
    /// Bytes of A, B and D, each moved once.
    pub fn bytes(&self) -> u64 {
        let [m, n, k] = self.sizes.map(|size| size as u64);
        let factor = match self.of {
            Factor::Bf16 => 2,
            Factor::E4m3 => 1,
        };
        let sum = match self.into {
            Sum::Bf16 => 2,
            Sum::F32 => 4,
        };
        (m + n) * k * factor + m * n * sum
    }

    pub fn flops(&self) -> u64 {
        2 * self.sizes.iter().map(|size| *size as u64).product::<u64>()
    }
}

/// A matrix product that is ready to be launched.
pub struct Matmul<'a> {
    device: &'a Device,
    handle: sys::cublasLtHandle_t,
    product: sys::cublasLtMatmulDesc_t,
    /// Layouts of B, A and D. cuBLASLt expects contiguous columns, so our D = A·Bᵀ is computed as Dᵀ = B·Aᵀ.
    layouts: [sys::cublasLtMatrixLayout_t; 3],
    algorithm: sys::cublasLtMatmulAlgo_t,
    workspace: Memory,
}

/// Device addresses of the operands.
#[derive(Clone, Copy, Debug)]
pub struct Operands {
    /// Addresses of A, B and D.
    pub matrices: [u64; 3],
    /// Addresses of the per-row scales of A and of B; `None` for BF16.
    pub scales: Option<[u64; 2]>,
}

fn lt<T>(what: &str, result: std::result::Result<T, result::CublasError>) -> Result<T> {
    result.map_err(|error| Error::Setup(format!("{what}: {error}")))
}

impl<'a> Matmul<'a> {
    /// Sets up a product with the algorithm that cuBLASLt ranks first; `None` if cuBLASLt is not installed.
    pub fn new(device: &'a Device, product: Product) -> Result<Option<Self>> {
        if !present() {
            return Ok(None);
        }
        let [m, n, k] = product.sizes;
        let factor = match product.of {
            Factor::Bf16 => sys::cudaDataType::CUDA_R_16BF,
            Factor::E4m3 => sys::cudaDataType::CUDA_R_8F_E4M3,
        };
        let sum = match product.into {
            Sum::Bf16 => sys::cudaDataType::CUDA_R_16BF,
            Sum::F32 => sys::cudaDataType::CUDA_R_32F,
        };
        let layout = |of, rows: usize, cols: usize| {
            let layout = result::create_matrix_layout(of, rows as u64, cols as u64, rows as i64);
            lt("cublasLtMatrixLayoutCreate", layout)
        };
        let f32 = sys::cudaDataType::CUDA_R_32F;
        let in_f32 = sys::cublasComputeType_t::CUBLAS_COMPUTE_32F;
        let mut matmul = Self {
            device,
            handle: lt("cublasLtCreate", result::create_handle())?,
            product: lt("cublasLtMatmulDescCreate", result::create_matmul_desc(in_f32, f32))?,
            layouts: [layout(factor, k, n)?, layout(factor, k, m)?, layout(sum, n, m)?],
            algorithm: sys::cublasLtMatmulAlgo_t { data: [0; 8] },
            workspace: device.memory(WORKSPACE)?,
        };
        use sys::cublasLtMatmulDescAttributes_t as Attribute;
        let transposed: c_int = 1;
        matmul.set(Attribute::CUBLASLT_MATMUL_DESC_TRANSA, &transposed)?;
        if product.of == Factor::E4m3 {
            let rows = sys::cublasLtMatmulMatrixScale_t::CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F;
            matmul.set(Attribute::CUBLASLT_MATMUL_DESC_A_SCALE_MODE, &rows)?;
            matmul.set(Attribute::CUBLASLT_MATMUL_DESC_B_SCALE_MODE, &rows)?;
            // cuBLASLt finds no algorithm unless scale addresses are set: set any valid address.
            let somewhere = matmul.workspace.address;
            matmul.scale(somewhere, somewhere)?;
        }
        matmul.algorithm = matmul.candidates(1)?[0];
        Ok(Some(matmul))
    }

    fn set<V>(&self, attribute: sys::cublasLtMatmulDescAttributes_t, value: &V) -> Result<()> {
        let value = std::ptr::from_ref(value).cast();
        // SAFETY: the descriptor is alive; callers pass values of the types in cublasLt.h.
        let set = unsafe { result::set_matmul_desc_attribute(self.product, attribute, value, size_of::<V>()) };
        lt("cublasLtMatmulDescSetAttribute", set)
    }

    /// Sets the addresses of the per-row scales of A and of B. The factors are exchanged: cuBLASLt's A is our B.
    fn scale(&self, of_a: u64, of_b: u64) -> Result<()> {
        use sys::cublasLtMatmulDescAttributes_t as Attribute;
        self.set(Attribute::CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &of_b)?;
        self.set(Attribute::CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &of_a)
    }

    /// Returns one to `most` algorithms in cuBLASLt's order, from the fastest by its estimate.
    fn candidates(&self, most: usize) -> Result<Vec<sys::cublasLtMatmulAlgo_t>> {
        let [b, a, d] = self.layouts;
        // SAFETY: all descriptors are alive; the attribute has the type in cublasLt.h; `found` has room for `most` results.
        let found = unsafe {
            let preference = lt("cublasLtMatmulPreferenceCreate", result::create_matmul_pref())?;
            let set = result::set_matmul_pref_attribute(
                preference,
                sys::cublasLtMatmulPreferenceAttributes_t::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                (&raw const WORKSPACE).cast(),
                size_of_val(&WORKSPACE),
            );
            let mut found = Vec::<sys::cublasLtMatmulHeuristicResult_t>::with_capacity(most);
            let mut count = 0;
            let asked = set.and_then(|()| {
                sys::cublasLtMatmulAlgoGetHeuristic(
                    self.handle,
                    self.product,
                    b,
                    a,
                    d,
                    d,
                    preference,
                    most as c_int,
                    found.as_mut_ptr(),
                    &raw mut count,
                )
                .result()
            });
            if asked.is_ok() {
                found.set_len(count as usize);
            }
            let destroyed = result::destroy_matmul_pref(preference);
            lt("cublasLtMatmulPreferenceDestroy", destroyed)?;
            lt("cublasLtMatmulAlgoGetHeuristic", asked)?;
            found
        };
        let usable = found.into_iter().filter(|found| found.state.result().is_ok());
        let algorithms: Vec<_> = usable.map(|found| found.algo).collect();
        match algorithms.is_empty() {
            true => Err(Error::Setup("cuBLASLt has no algorithm for this product".into())),
            false => Ok(algorithms),
        }
    }

    /// Times cuBLASLt's first candidates on this device, and selects the fastest.
    pub fn tune(&mut self, watch: &Stopwatch, operands: &Operands) -> Result<()> {
        const CANDIDATES: usize = 8;
        let mut best = (f64::INFINITY, self.algorithm);
        for algorithm in self.candidates(CANDIDATES)? {
            self.algorithm = algorithm;
            self.launch(operands)?;
            let times = (0..7).map(|_| watch.span(|| self.launch(operands)));
            let time = Spread::from_values(times.collect::<Result<_>>()?).median;
            if time < best.0 {
                best = (time, algorithm);
            }
        }
        self.algorithm = best.1;
        Ok(())
    }

    /// Enqueues the product in the stream.
    pub fn launch(&self, operands: &Operands) -> Result<()> {
        if let Some([of_a, of_b]) = operands.scales {
            self.scale(of_a, of_b)?;
        }
        let (one, zero) = (1.0f32, 0.0f32);
        let [a, b, d] = operands.matrices.map(|address| address as *mut c_void);
        let [b_layout, a_layout, d_layout] = self.layouts;
        // SAFETY: descriptors are alive, and the caller guarantees that the memory matches the layouts.
        let launched = unsafe {
            result::matmul(
                self.handle,
                self.product,
                (&raw const one).cast(),
                (&raw const zero).cast(),
                b,
                b_layout,
                a,
                a_layout,
                d,
                d_layout,
                d,
                d_layout,
                &raw const self.algorithm,
                self.workspace.address as *mut c_void,
                WORKSPACE,
                self.device.stream.cast(),
            )
        };
        lt("cublasLtMatmul", launched)
    }
}

impl Drop for Matmul<'_> {
    fn drop(&mut self) {
        // SAFETY: layouts, descriptor and handle were created once, and are destroyed once. Errors are ignored.
        unsafe {
            for layout in self.layouts {
                let _ = result::destroy_matrix_layout(layout);
            }
            let _ = result::destroy_matmul_desc(self.product);
            let _ = result::destroy_handle(self.handle);
        }
    }
}

/// Loads cuBLASLt from a CUDA toolkit, or else from the loader's path. Returns false if neither has it.
fn present() -> bool {
    // SAFETY: NVIDIA's library does not touch our memory when it is loaded.
    if let Some(library) = toolkit::library("libcublasLt.so")
        && let Ok(loaded) = unsafe { toolkit::load(&library) }
    {
        // Never unload the library: cudarc finds a loaded library by its name.
        std::mem::forget(loaded);
    }
    // SAFETY: this only tries to load cuBLASLt.
    unsafe { sys::is_culib_present() }
}
