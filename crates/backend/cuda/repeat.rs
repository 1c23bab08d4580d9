//! Checks on the device that the contents of a buffer repeat with a given period. A test that repeats the rows of its inputs has
//! outputs of many gigabytes; this check avoids copying them to the CPU.

use super::device::{Argument, Device, Memory, Module, Shape};
use super::toolkit::Toolkit;
use ulplab_core::error::Result;

/// The kernel that compares each period of a buffer with the first period.
pub struct Repeats(Module);

const NAME: &str = "differing";
/// Source of the kernel. Each block compares parts of `period` bytes with the first part; the last part may be shorter. `found`
/// receives the number of bytes that differ, and the offset of the first of them.
const TEXT: &str = r#"
typedef unsigned long long u64;
extern "C" __global__ void differing(const unsigned char *bytes, u64 period, u64 size, u64 *found) {
    u64 count = 0, first = ~0ull;
    for (u64 part = (blockIdx.x + 1) * period; part < size; part += gridDim.x * period)
        for (u64 at = threadIdx.x; at < min(period, size - part); at += blockDim.x)
            if (bytes[part + at] != bytes[at])
                count++, first = min(first, part + at);
    if (count)
        atomicAdd(found, count), atomicMin(found + 1, first);
}
"#;

impl Repeats {
    pub fn new(toolkit: &Toolkit, device: &Device) -> Result<Self> {
        Module::load(&toolkit.compile_text(NAME, TEXT, &device.arch)?.bytes).map(Self)
    }

    /// Compares `size` bytes, which begin at offset `at`, with repetitions of their first `period` bytes. Returns the offset from
    /// `at` of the first byte that differs, and the number of such bytes; `None` if no byte differs.
    pub fn differing(
        &self,
        device: &Device,
        (memory, at): (&Memory, usize),
        period: usize,
        size: usize,
    ) -> Result<Option<(u64, u64)>> {
        if period == 0 || size <= period {
            return Ok(None);
        }
        let found = device.memory(16)?;
        let none: [u64; 2] = [0, u64::MAX];
        device.write(&found, 0, &none.map(u64::to_le_bytes).concat())?;
        let shape = Shape {
            grid: [device.sms as u32 * 8, 1, 1],
            block: [256, 1, 1],
            ..Shape::default()
        };
        let [at, period, size] = [memory.address + at as u64, period as u64, size as u64];
        let arguments = [at, period, size, found.address].map(Argument::Wide);
        device.launch(&self.0.function(NAME)?, &shape, &arguments)?;
        let bytes = device.read(&found, 0, 16)?;
        let [count, first] = [0, 1].map(|at| u64::from_le_bytes(bytes.as_chunks().0[at]));
        Ok((count > 0).then_some((first, count)))
    }
}
