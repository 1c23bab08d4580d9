//! Peak rates of a device (of copies and of matrix products), measured in a run.

use serde::{Deserialize, Serialize};

/// Peak rates of a device, measured in the run. Reports give the rates of kernels as fractions of these.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ceilings {
    /// Rate of a copy on the device, bytes read plus bytes written, in 10⁹ bytes per second.
    pub copy_gb_s: f64,
    /// Rate of a large product of bf16 matrices, in 10¹² operations per second; `None` without cuBLASLt.
    pub matmul_tflop_s: Option<f64>,
    /// Rate of a large product of E4M3 matrices, in 10¹² operations per second; `None` without cuBLASLt, or if the device does
    /// not support it.
    pub e4m3_tflop_s: Option<f64>,
}

impl std::fmt::Display for Ceilings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "copy {:.0} GB/s", self.copy_gb_s)?;
        match self.matmul_tflop_s {
            Some(rate) => write!(f, ", bf16 matrix product {rate:.0} TFLOP/s")?,
            None => write!(f, ", no cuBLASLt to multiply matrices with")?,
        }
        match self.e4m3_tflop_s {
            Some(rate) => write!(f, ", E4M3 {rate:.0} TFLOP/s"),
            None => Ok(()),
        }
    }
}
