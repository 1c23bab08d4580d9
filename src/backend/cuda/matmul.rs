//! Matrix products by cuBLASLt: the yardstick of everything that multiplies.

use std::ffi::{c_int, c_void};

use cudarc::cublaslt::{result, sys};

use super::device::{Device, Memory};
use super::toolkit;
use crate::error::{Error, Result};

/// Bytes that cuBLASLt may work in.
static WORKSPACE: usize = 32 << 20;

/// D = A·Bᵀ of bf16, summed in f32: A [m, k], B [n, k], D [m, n], rows contiguous.
pub struct Matmul<'a> {
    device: &'a Device,
    handle: sys::cublasLtHandle_t,
    product: sys::cublasLtMatmulDesc_t,
    /// Of B, A and D: to cuBLASLt, whose columns are contiguous, Dᵀ = B·Aᵀ.
    layouts: [sys::cublasLtMatrixLayout_t; 3],
    algorithm: sys::cublasLtMatmulAlgo_t,
    workspace: Memory,
}

fn lt<T>(what: &str, result: std::result::Result<T, result::CublasError>) -> Result<T> {
    result.map_err(|error| Error::Setup(format!("{what}: {error}")))
}

impl<'a> Matmul<'a> {
    /// None where there is no cuBLASLt.
    pub fn new(device: &'a Device, [m, n, k]: [usize; 3]) -> Result<Option<Self>> {
        if !present() {
            return Ok(None);
        }
        let bf16 = sys::cudaDataType::CUDA_R_16BF;
        let layout = |rows: usize, cols: usize| {
            let layout = result::create_matrix_layout(bf16, rows as u64, cols as u64, rows as i64);
            lt("cublasLtMatrixLayoutCreate", layout)
        };
        let (f32, sum) = (
            sys::cudaDataType::CUDA_R_32F,
            sys::cublasComputeType_t::CUBLAS_COMPUTE_32F,
        );
        let mut matmul = Self {
            device,
            handle: lt("cublasLtCreate", result::create_handle())?,
            product: lt("cublasLtMatmulDescCreate", result::create_matmul_desc(sum, f32))?,
            layouts: [layout(k, n)?, layout(k, m)?, layout(n, m)?],
            algorithm: sys::cublasLtMatmulAlgo_t { data: [0; 8] },
            workspace: device.memory(WORKSPACE)?,
        };
        matmul.algorithm = matmul.choose()?;
        Ok(Some(matmul))
    }

    /// What cuBLASLt takes for the fastest.
    fn choose(&self) -> Result<sys::cublasLtMatmulAlgo_t> {
        let transposed: c_int = 1;
        let [b, a, d] = self.layouts;
        // SAFETY: all descriptors live; the attributes have the types that cublasLt.h gives them.
        unsafe {
            let set = result::set_matmul_desc_attribute(
                self.product,
                sys::cublasLtMatmulDescAttributes_t::CUBLASLT_MATMUL_DESC_TRANSA,
                (&raw const transposed).cast(),
                size_of_val(&transposed),
            );
            lt("cublasLtMatmulDescSetAttribute", set)?;
            let preference = lt("cublasLtMatmulPreferenceCreate", result::create_matmul_pref())?;
            let set = result::set_matmul_pref_attribute(
                preference,
                sys::cublasLtMatmulPreferenceAttributes_t::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                (&raw const WORKSPACE).cast(),
                size_of_val(&WORKSPACE),
            );
            let found =
                set.and_then(|()| result::get_matmul_algo_heuristic(self.handle, self.product, b, a, d, d, preference));
            lt(
                "cublasLtMatmulPreferenceDestroy",
                result::destroy_matmul_pref(preference),
            )?;
            Ok(lt("cublasLtMatmulAlgoGetHeuristic", found)?.algo)
        }
    }

    /// Puts the product into the stream.
    pub fn launch(&self, a: &Memory, b: &Memory, d: &Memory) -> Result<()> {
        let (one, zero) = (1.0f32, 0.0f32);
        let pointer = |memory: &Memory| memory.address as *mut c_void;
        let [b_layout, a_layout, d_layout] = self.layouts;
        // SAFETY: descriptors live, and the memories hold what the layouts say: the caller made them so.
        let launched = unsafe {
            result::matmul(
                self.handle,
                self.product,
                (&raw const one).cast(),
                (&raw const zero).cast(),
                pointer(b),
                b_layout,
                pointer(a),
                a_layout,
                pointer(d),
                d_layout,
                pointer(d),
                d_layout,
                &raw const self.algorithm,
                pointer(&self.workspace),
                WORKSPACE,
                self.device.stream.cast(),
            )
        };
        lt("cublasLtMatmul", launched)
    }
}

impl Drop for Matmul<'_> {
    fn drop(&mut self) {
        // SAFETY: all were created once and are destroyed once. An error here has nobody to go to.
        unsafe {
            for layout in self.layouts {
                let _ = result::destroy_matrix_layout(layout);
            }
            let _ = result::destroy_matmul_desc(self.product);
            let _ = result::destroy_handle(self.handle);
        }
    }
}

/// Whether cuBLASLt is there: on the loader's path, or in a toolkit, from where it is loaded.
fn present() -> bool {
    // SAFETY: NVIDIA's library touches nothing of ours when it is loaded.
    if let Some(library) = toolkit::library("libcublasLt.so")
        && let Ok(loaded) = unsafe { toolkit::load(&library) }
    {
        // Loaded once and for good: cudarc finds it by its name.
        std::mem::forget(loaded);
    }
    // SAFETY: only tries to load it.
    unsafe { sys::is_culib_present() }
}
