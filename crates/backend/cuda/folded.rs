//! Large ranges of addresses that map the same few megabytes of memory repeatedly. A kernel then reads the whole range from the
//! L2 cache, so that it can be timed without waiting for DRAM.

use std::mem::MaybeUninit;

use cudarc::driver::sys;

use super::device::{Device, Held, Memory, cuda};
use ulplab_core::error::Result;

/// Size in bytes of the physical memory of a buffer that [`Device::folded`] makes: all addresses of the buffer, however many, map
/// to this one part. The parts of a dozen buffers fit in the L2 cache.
pub const PART: usize = 4 << 20;

/// A range of addresses to which one part of physical memory is mapped repeatedly.
pub struct Folded {
    addresses: sys::CUdeviceptr,
    reserved: usize,
    part: usize,
    memory: sys::CUmemGenericAllocationHandle,
    /// Number of mappings of the part so far.
    mapped: usize,
}

impl Device {
    /// Reserves `len` bytes of addresses, and maps the same [`PART`] bytes of uninitialized memory to them repeatedly.
    pub fn folded(&self, len: usize) -> Result<Memory> {
        // SAFETY: zero bytes are valid values of these plain structs.
        let (mut wanted, mut access): (sys::CUmemAllocationProp, sys::CUmemAccessDesc) =
            unsafe { (MaybeUninit::zeroed().assume_init(), MaybeUninit::zeroed().assume_init()) };
        wanted.type_ = sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
        wanted.location.type_ = sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
        wanted.location.id = self.context;
        access.location = wanted.location;
        access.flags = sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
        let least = sys::CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM;
        // SAFETY: every pointer is to a local variable; the mappings are undone when `Folded` is dropped.
        unsafe {
            let mut grain = 0;
            let found = sys::cuMemGetAllocationGranularity(&raw mut grain, &raw const wanted, least).result();
            cuda("cuMemGetAllocationGranularity", found)?;
            let part = PART.next_multiple_of(grain);
            let reserved = len.max(1).next_multiple_of(part);
            let mut memory = 0;
            let made = sys::cuMemCreate(&raw mut memory, part, &raw const wanted, 0).result();
            cuda("cuMemCreate", made)?;
            let mut all = Folded {
                addresses: 0,
                reserved,
                part,
                memory,
                mapped: 0,
            };
            let got = sys::cuMemAddressReserve(&raw mut all.addresses, reserved, 0, 0, 0).result();
            cuda("cuMemAddressReserve", got)?;
            for at in (0..reserved).step_by(part) {
                let mapped = sys::cuMemMap(all.addresses + at as u64, part, 0, memory, 0).result();
                cuda("cuMemMap", mapped)?;
                all.mapped += 1;
            }
            let set = sys::cuMemSetAccess(all.addresses, reserved, &raw const access, 1).result();
            cuda("cuMemSetAccess", set)?;
            let address = all.addresses;
            let held = Held::Folded { _addresses: all };
            Ok(Memory { address, len, held })
        }
    }
}

impl Drop for Folded {
    fn drop(&mut self) {
        // SAFETY: mappings, addresses and memory were made by `Device::folded`, and are released once. Errors are ignored.
        unsafe {
            for at in 0..self.mapped {
                let _ = sys::cuMemUnmap(self.addresses + (at * self.part) as u64, self.part);
            }
            if self.addresses != 0 {
                let _ = sys::cuMemAddressFree(self.addresses, self.reserved);
            }
            let _ = sys::cuMemRelease(self.memory);
        }
    }
}
